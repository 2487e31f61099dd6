//! Parsers of a peer's connection data, for the fuzz target `handshake` and for the replay of its
//! corpus. This module exists only there: the parsers are private to their modules.

use crate::fabric::{Address, shm};
use crate::reactor;

/// The first byte chooses the parser, the rest is its input.
///
/// # Panics
/// Panics if a parser accepts bytes that it must not accept.
pub fn handshake(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    match choice % 3 {
        0 => shm::fuzz_handshake(input),
        1 => reactor::fuzz_private_data(input),
        _ => address(input),
    }
}

/// An address that is taken is a name or an absolute path, or a host and a port; a refusal shows it
/// and says why.
fn address(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Address::parse(text) {
        Ok(Address::Shm(address)) => assert!(address == text && text.len() <= 4 + 107),
        Ok(Address::Rdma(address)) => {
            assert!(address.port() > 0);
            assert_eq!(Address::parse(&address.to_string()), Ok(Address::Rdma(address)));
        }
        Err(error) => assert!(error.address == text && !error.reason.is_empty()),
    }
}

#[cfg(test)]
#[path = "../fuzz/bodies/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn handshake() {
        super::replay::replay("handshake", super::handshake);
    }
}
