//! spin-echo with an rpcbind daemon: the client needs no address.

mod common;
#[path = "../../engine/tests/common/rpcbind_daemon.rs"]
mod rpcbind_daemon;

use common::{Server, fails, run};
use rpcbind_daemon::RpcbindDaemon;
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_spin-echo");

/// `--rpcbind` for this daemon.
fn option(daemon: &RpcbindDaemon) -> String {
    format!("--rpcbind={}", daemon.address())
}

fn serve(daemon: &RpcbindDaemon, name: &str) -> Server {
    Server::start_with(PROGRAM, name, &[&option(daemon)])
}

fn call(daemon: &RpcbindDaemon) -> String {
    let output = run(PROGRAM, &["call", &option(daemon), "hello"]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The registered addresses, with their netids.
fn registered(daemon: &RpcbindDaemon) -> Vec<(String, String)> {
    daemon.rows().into_iter().map(|row| (row.2, row.3)).collect()
}

#[test]
fn a_server_is_found_while_it_serves() {
    for signal in [Signal::INT, Signal::TERM] {
        let daemon = RpcbindDaemon::start(2..=4).unwrap();
        let server = serve(&daemon, "echo-found");
        let expected = ("spinrpc-shm".to_owned(), server.address().to_owned());
        assert_eq!(registered(&daemon), [expected]);
        assert_eq!(call(&daemon), "hello\n");
        assert_eq!(server.end_by(signal), Some(0));
        assert_eq!(registered(&daemon), []);
    }
}

#[test]
fn what_a_killed_server_left_is_replaced_by_the_next() {
    let daemon = RpcbindDaemon::start(2..=4).unwrap();
    assert_eq!(serve(&daemon, "echo-killed").end_by(Signal::KILL), None);
    assert_eq!(registered(&daemon).len(), 1, "kill -9 leaves it behind");
    fails(&run(PROGRAM, &["call", &option(&daemon), "hello"]), 1, &["echo-killed"]);
    let _next = serve(&daemon, "echo-next");
    assert_eq!(call(&daemon), "hello\n");
}

#[test]
fn a_missing_daemon_or_server_is_one_line_that_says_what_to_do() {
    let nowhere = "--rpcbind=unix:/nonexistent/rpcbind.sock";
    for arguments in [["call", nowhere, "hello"], ["serve", "shm:echo-lonely", nowhere]] {
        fails(&run(PROGRAM, &arguments), 1, &["rpcbind is not running", "start it"]);
    }
    let daemon = RpcbindDaemon::start(2..=4).unwrap();
    fails(
        &run(PROGRAM, &["call", &option(&daemon), "hello"]),
        1,
        &["not registered", "start its server"],
    );
}
