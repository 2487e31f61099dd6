//! A client that prevents a graceful shutdown of the server.

use crate::scale::{act_as_me, bytes, engine_with};
use crate::server::PATIENCE;
use spinrpc::{CallError, CallSpec, Client, Core, Engine, Reply, ReplyHandler, Token};
use spinrpc_nfs::nfs3::{self, procedure};
use spinrpc_nfs::protocol::ProcedureId;

/// It has requested more than fits in a message, without memory for it, from a server that keeps such replies until they
/// are fetched (RFC 5666 section 4.2), and runs no turn in which it could fetch it.
pub(crate) struct Reluctant {
    _client: Client,
    _core: Core,
    _engine: Engine,
}

struct Deaf;

impl ReplyHandler for Deaf {
    fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {}
}

impl Reluctant {
    /// READs 64 KiB of the file with this handle, in hexadecimal.
    pub(crate) fn ask(address: &str, handle: &str) -> Self {
        let engine = engine_with(&[
            "mem.arena_mib=8",
            "mem.lock=off",
            "mem.conn_arena_mib=8",
            "rpc.protocol=draft03",
        ]);
        let mut core = engine.core(0).unwrap();
        let connected =
            core.connect_wait(address, nfs3::PROGRAM, nfs3::VERSION, |_| Deaf, PATIENCE);
        let client = connected.unwrap();
        act_as_me(&client);
        let handle = bytes(handle);
        let read = |to: &mut spinrpc::Encoder<'_>| {
            to.opaque(&handle);
            to.u64(0);
            to.u32(64 << 10);
        };
        let read_procedure = procedure(ProcedureId::Nfsproc3Read);
        client.call(read_procedure, Token(1), &mut CallSpec::short(), read).unwrap();
        core.poll_once();
        Self { _client: client, _core: core, _engine: engine }
    }
}
