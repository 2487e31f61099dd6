//! NFS over TCP, as far as Linux clients need it to establish contexts of Kerberos: their rpc.gssd never does so over RDMA
//! (RFC 8166 section 8.2.2.1).

use super::turns::Turns;
use crate::nfs3::{PROGRAM, VERSION};
use crate::server::exports::{ExportTable, Peer};
use crate::server::tcp::{TcpService, call_of, check, record_of};
use spinrpc::fabric::LimitScope;
use spinrpc::rpcbind::record;
use spinrpc::rpcbind::wire::CallHeader;
use spinrpc::{AcceptStatus, AuthFlavor, Engine, Procedure};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

/// Maximum length of a call, in bytes: a token of 64 KiB, as tickets of large domains have, and a header.
const CALL_BYTES_MAX: usize = (64 << 10) + 1024;
/// Time for a client to send its call, even if others need its connection's place.
const GRACE: Duration = Duration::from_secs(1);
/// Maximum wait of a call for its turn; then its connection is closed.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// NULL without security, and contexts of the engine. Every other procedure is unavailable.
pub struct ContextService {
    engine: Engine,
    table: Arc<ExportTable>,
    turns: Turns,
}

impl ContextService {
    /// Contexts of `engine`, for clients of those exports that accept Kerberos.
    pub fn new(engine: Engine, table: Arc<ExportTable>) -> Self {
        Self { engine, table, turns: Turns::default() }
    }

    fn results(header: &CallHeader<'_>, args: &[u8]) -> Result<Vec<u8>, AcceptStatus> {
        check(header, PROGRAM, VERSION)?;
        match header.procedure {
            Procedure(0) if args.is_empty() => Ok(Vec::new()),
            Procedure(0) => Err(AcceptStatus::GarbageArgs),
            _ => Err(AcceptStatus::ProcUnavail),
        }
    }
}

impl fmt::Debug for ContextService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextService").field("table", &self.table).finish_non_exhaustive()
    }
}

impl TcpService for ContextService {
    fn name(&self) -> &'static str {
        "Kerberos contexts"
    }

    fn call_bytes_max(&self) -> usize {
        CALL_BYTES_MAX
    }

    fn admits(&self, peer: &Peer) -> bool {
        let exports = self.table.current();
        exports.iter().any(|export| export.options.accepts_kerberos() && export.has_client(peer))
    }

    fn grace(&self) -> Duration {
        GRACE
    }

    fn answer(&self, peer: &Peer, message: &[u8]) -> Option<Vec<u8>> {
        let (header, args) = match call_of(message) {
            Ok(call) => call,
            Err(answer) => return answer,
        };
        let is_gss = header.credential.flavor == AuthFlavor::Gss;
        if is_gss && check(&header, PROGRAM, VERSION).is_ok() {
            let host = match peer {
                Peer::Host(host) => *host,
                _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            };
            let _turn = self.turns.take(LimitScope::of(host), TURN_TIMEOUT)?;
            return record::mark(&self.engine.answer_gss_call(message, host)?).ok();
        }
        record_of(&header, Self::results(&header, args))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::exports::Exports;
    use spinrpc::Config;

    /// A host could end the connections of its users otherwise, before their calls arrive.
    #[test]
    fn new_connections_keep_their_places_for_a_second() {
        let engine = Engine::new(Config::default()).unwrap();
        let service = ContextService::new(engine, ExportTable::new(Exports::default()));
        assert_eq!(service.grace(), Duration::from_secs(1));
    }
}
