//! MOUNT over TCP, for ordinary clients.

use super::Registry;
use crate::mount3::{PROGRAM, VERSION};
use crate::server::exports::Peer;
use crate::server::tcp::{TcpService, header_of, record_of};
use spinrpc::rpcbind::wire::CallHeader;
use spinrpc::{AcceptStatus, Decoder};
use spinrpc_xdr::bytes_of;

/// Maximum length of a call, in bytes: a path of 1024, two credentials of 400, and some words.
const CALL_BYTES_MAX: usize = 2048;

impl TcpService for Registry {
    fn name(&self) -> &'static str {
        "MOUNT"
    }

    fn call_bytes_max(&self) -> usize {
        CALL_BYTES_MAX
    }

    fn has_client(&self, peer: &Peer) -> bool {
        Self::has_client(self, peer)
    }

    fn answer(&self, peer: &Peer, message: &[u8]) -> Option<Vec<u8>> {
        match header_of(message) {
            Ok((header, args_at)) => {
                let args = message.get(args_at..).unwrap_or_default();
                record_of(&header, results(self, peer, &header, args))
            }
            Err(answer) => answer,
        }
    }
}

fn results(
    registry: &Registry,
    peer: &Peer,
    header: &CallHeader<'_>,
    args: &[u8],
) -> Result<Vec<u8>, AcceptStatus> {
    if header.program != PROGRAM {
        return Err(AcceptStatus::ProgUnavail);
    }
    if header.version != VERSION {
        return Err(AcceptStatus::ProgMismatch { low: VERSION.0, high: VERSION.0 });
    }
    let answer = Registry::answer(registry, peer, header.procedure, Decoder::plain(args))?;
    Ok(bytes_of(|to| answer.encode(to)))
}
