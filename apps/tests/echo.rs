//! spin-echo from outside: two processes, started as in the README.

mod common;

use common::{Server, fails};

const PROGRAM: &str = env!("CARGO_BIN_EXE_spin-echo");

#[test]
fn a_text_comes_back_as_it_was() {
    let server = Server::start(PROGRAM, "echo");
    for text in ["hello", "", "ünïcode", &"x".repeat(512)] {
        assert_eq!(server.answer("call", &[text]), format!("{text}\n").into_bytes());
    }
}

#[test]
fn wrong_arguments_are_refused_in_one_line() {
    let server = Server::start(PROGRAM, "echo-refused");
    fails(&server.client("call", &[&"x".repeat(513)]), 2, &["at most 512 bytes"]);
    let output = std::process::Command::new(PROGRAM).args(["call", "tcp:1", "x"]).output().unwrap();
    fails(&output, 2, &["shm:NAME"]);
}
