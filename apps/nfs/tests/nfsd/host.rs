//! A server for a test: an engine on one core, and exports of a back end.

use crate::*;
use spinrpc::config::Want;
use spinrpc::{Config, RawConfig, Running};
use spinrpc_nfs::server::exports::{Export, NamedHosts};

pub(crate) const SEAL_KEY: [u8; 16] = *b"of these tests..";

/// The minimum for READ and WRITE in these tests.
pub(crate) const BLOCK_BYTES: u32 = 128 << 10;

/// Stopped with the test.
pub(crate) struct Host {
    pub(crate) server: Arc<Server>,
    engine: Engine,
    running: Option<Running>,
    address: String,
    /// Dropped last: the server uses it.
    _back_ends: Vec<BackEnd>,
}

/// The number of the export that the cases use.
pub(crate) const MAIN: u32 = 1;
/// The same file system, read-only.
pub(crate) const READ_ONLY: u32 = 2;
/// Another file system.
pub(crate) const OTHER: u32 = 3;

impl Host {
    /// Three exports of a back end and one of another, for everyone, without squashing.
    pub(crate) fn start(main: BackEnd) -> Self {
        let other = back_end::memory();
        let exports = vec![
            export(MAIN, &main, open()),
            export(READ_ONLY, &main, ExportOptions { read_only: true, ..open() }),
            export(OTHER, &other, open()),
        ];
        Self::with(exports, vec![main, other], &options())
    }

    pub(crate) fn with(
        exports: Vec<Export>,
        back_ends: Vec<BackEnd>,
        options: &ServerOptions,
    ) -> Self {
        Self::with_config(config(), exports, back_ends, options)
    }

    pub(crate) fn with_config(
        config: Config,
        exports: Vec<Export>,
        back_ends: Vec<BackEnd>,
        options: &ServerOptions,
    ) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let address = format!("shm:nfsd-{}-{number}", std::process::id());
        let engine = Engine::new(config).unwrap();
        let server = Server::new(Exports::new(exports).unwrap(), SEAL_KEY, options).unwrap();
        server.serve(&engine).unwrap();
        engine.listen(&address).unwrap();
        let running = Some(engine.start().unwrap());
        Self { server, engine, running, address, _back_ends: back_ends }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A connection of the test's user.
    pub(crate) fn session(&self) -> Session {
        Session::connect(&self.address)
    }

    /// A connection, and a new file "file" in the root.
    pub(crate) fn session_and_file(&self) -> (Session, nfs_fh3) {
        let (session, _, file) = self.session_root_and_file();
        (session, file)
    }

    pub(crate) fn session_root_and_file(&self) -> (Session, nfs_fh3, nfs_fh3) {
        let (session, root) = (self.session(), self.root());
        let file = session.create(&root, "file");
        (session, root, file)
    }

    /// The root of an export.
    pub(crate) fn root_of(&self, export: u32) -> nfs_fh3 {
        let exports = self.server.exports();
        let export = exports.by_id(export).unwrap();
        nfs_fh3 { data: Opaque::owned(self.server.root_handles()(export).as_bytes().to_vec()) }
    }

    pub(crate) fn root(&self) -> nfs_fh3 {
        self.root_of(MAIN)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.engine.shutdown();
        drop(self.running.take().map(Running::join));
    }
}

pub(crate) fn export(id: u32, of: &BackEnd, options: ExportOptions) -> Export {
    let file_system = Arc::clone(&of.file_system);
    let named = NamedHosts::default();
    Export { id, path: format!("/export-{id}"), file_system, options, named }
}

/// For everyone, without squashing.
pub(crate) fn open() -> ExportOptions {
    ExportOptions {
        squash: Squash::None,
        clients: vec![Client::Any],
        flavors: vec![Flavor::Sys, Flavor::None],
        ..ExportOptions::default()
    }
}

pub(crate) fn options() -> ServerOptions {
    ServerOptions {
        threads: 2,
        read_bytes_max: BLOCK_BYTES,
        write_bytes_max: BLOCK_BYTES,
        ..ServerOptions::default()
    }
}

/// Small, because many tests run at a time.
pub(crate) fn config() -> Config {
    let mut raw = RawConfig::default();
    raw.cores.max = 1;
    raw.mem.arena_mib = 8;
    raw.mem.lock = Want::Off;
    raw.mem.conn_arena_mib = 8;
    raw.rpc.credits = 16;
    // Beside a build that writes gigabytes, a small file has been seen to take more than 25 s to reach the disk.
    raw.rpc.timeout_ms = 120_000;
    raw.rpc.reply_cache_mib = 1;
    raw.validate().unwrap()
}
