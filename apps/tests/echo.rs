//! spin-echo from outside: two processes, started as in the README.

mod common;

use common::{Server, fails};
use std::io;

const PROGRAM: &str = env!("CARGO_BIN_EXE_spin-echo");

#[test]
fn a_text_comes_back_as_it_was() -> io::Result<()> {
    let server = Server::start(PROGRAM, "echo")?;
    for text in ["hello", "", "ünïcode", &"x".repeat(512)] {
        assert_eq!(server.answer("call", &[text])?, format!("{text}\n").into_bytes());
    }
    Ok(())
}

#[test]
fn several_clients_are_served_at_a_time() -> io::Result<()> {
    let server = Server::start(PROGRAM, "echo-several")?;
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..4).map(|_| scope.spawn(|| server.answer("call", &["hello"]))).collect();
        for client in clients {
            assert_eq!(client.join().unwrap().unwrap(), b"hello\n");
        }
    });
    Ok(())
}

#[test]
fn wrong_arguments_are_refused_in_one_line() -> io::Result<()> {
    let server = Server::start(PROGRAM, "echo-refused")?;
    fails(&server.client("call", &[&"x".repeat(513)])?, 2, &["at most 512 bytes"]);
    let output = std::process::Command::new(PROGRAM).args(["call", "tcp:1", "x"]).output()?;
    fails(&output, 2, &["shm:NAME"]);
    Ok(())
}

#[test]
fn a_missing_server_is_one_line_too() -> io::Result<()> {
    let output = std::process::Command::new(PROGRAM).args(["call", "shm:absent", "x"]).output()?;
    fails(&output, 1, &["absent"]);
    Ok(())
}
