//! MOUNT over TCP, for ordinary clients.

use super::Registry;
use crate::mount3::{PROGRAM, VERSION};
use crate::server::exports::Peer;
use crate::server::tcp::{TcpService, call_of, check, record_of};
use spinrpc::Decoder;

/// Maximum length of a call, in bytes: a path of 1024, two credentials of 400, and some words.
const CALL_BYTES_MAX: usize = 2048;

impl TcpService for Registry {
    fn name(&self) -> &'static str {
        "MOUNT"
    }

    fn call_bytes_max(&self) -> usize {
        CALL_BYTES_MAX
    }

    fn admits(&self, peer: &Peer) -> bool {
        Self::admits(self, peer)
    }

    fn answer(&self, peer: &Peer, message: &[u8]) -> Option<Vec<u8>> {
        let (header, args) = match call_of(message) {
            Ok(call) => call,
            Err(answer) => return answer,
        };
        let results = check(&header, PROGRAM, VERSION)
            .and_then(|()| Self::answer(self, peer, header.procedure, Decoder::plain(args)));
        record_of(&header, results)
    }
}
