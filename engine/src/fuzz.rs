//! What a peer says while connecting, taken apart for the fuzz target `handshake` and for the replay
//! of its corpus. Only there does this exist: the parsers have no name outside of their modules.

use crate::fabric::shm;
use crate::reactor;

/// The first byte chooses the parser, the rest is its input.
///
/// # Panics
/// When a parser takes what it must not.
pub fn handshake(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    match choice % 3 {
        0 => shm::fuzz_handshake(input),
        1 => reactor::fuzz_private_data(input),
        _ => address(input),
    }
}

/// An address that is taken is a name or an absolute path; a refusal shows it and says why.
fn address(input: &[u8]) {
    let Ok(address) = std::str::from_utf8(input) else { return };
    match shm::check_address(address) {
        Ok(()) => assert!(address.len() <= 4 + 107 && address.starts_with("shm:")),
        Err(error) => assert!(error.address == address && !error.reason.is_empty()),
    }
}

#[cfg(all(test, not(loom)))]
#[path = "../../fuzz/bodies/replay.rs"]
mod replay;

#[cfg(all(test, not(loom)))]
mod tests {
    #[test]
    fn handshake() {
        super::replay::replay("handshake", super::handshake);
    }
}
