//! A server of a directory by NFS.

use super::config;
use spinrpc::{Engine, Running};
use spinrpc_nfs::mount3;
use spinrpc_nfs::server::exports::{Export, ExportOptions, Exports, NamedHosts, Squash};
use spinrpc_nfs::server::local_fs::{Directory, DirectoryOptions};
use spinrpc_nfs::server::mount::{MountService, Registry};
use spinrpc_nfs::server::{Server, ServerOptions};
use std::path::Path;
use std::sync::Arc;

/// Drop order: the threads of the engine end before the server.
pub(crate) struct NfsServer {
    engine: Engine,
    running: Running,
    _server: Arc<Server>,
}

/// Serves `path` as `/data`. Handles stay valid when it is done again.
pub(crate) fn serve_nfs(path: &Path, address: &str) -> NfsServer {
    let export = Export {
        id: 1,
        path: "/data".to_owned(),
        file_system: Directory::open(path, &DirectoryOptions::default()).unwrap(),
        options: ExportOptions {
            clients: vec!["local".parse().unwrap()],
            squash: Squash::None,
            ..ExportOptions::default()
        },
        named: NamedHosts::default(),
    };
    let exports = Exports::new(vec![export]).unwrap();
    let server = Server::new(exports, [7; 16], &ServerOptions::default()).unwrap();
    let engine = Engine::new(config()).unwrap();
    server.serve(&engine).unwrap();
    let registry = Arc::new(Registry::new(Arc::clone(server.table()), server.root_handles()));
    let mount = move |_: &_| MountService::new(Arc::clone(&registry));
    engine.serve(mount3::PROGRAM, mount3::VERSION, mount).unwrap();
    engine.listen(address).unwrap();
    let running = engine.start().unwrap();
    NfsServer { engine, running, _server: server }
}

impl NfsServer {
    pub(crate) fn end(self) {
        self.engine.shutdown();
        self.running.join().unwrap();
    }
}
