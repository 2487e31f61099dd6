//! A server with resource limits, or whose log has lost its reader.

use crate::common::{fails, spin_nfs};
use crate::mount::status_of_mnt;
use crate::scale::{Count, SMALL, connect, engine};
use crate::server::{PROGRAM, Place, Server, answer, file};
use rustix::process::Signal;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// The same command, in a process whose files have at most 65,536 blocks of 512 bytes: enough for
/// the memory of a connection.
fn with_short_files(command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 65536; exec \"$0\" \"$@\"", PROGRAM]).args(command.get_args());
    limited
}

#[test]
fn a_write_beyond_the_size_limit_of_the_process_is_fbig_and_the_server_goes_on() {
    let place = Place::new("ulimit");
    let _server = Server::start(&mut with_short_files(&place.command(&[&place.export("")])));
    let source = place.root.join("source");
    let path = source.display().to_string();
    file(&source, 34 << 20);
    fails(&spin_nfs(&["put", &place.target("/long"), &path]), 4, &["NFS3ERR_FBIG"]);
    let content = file(&source, 300_000);
    answer(&["put", &place.target("/short"), &path]);
    assert!(fs::read(place.data().join("short")).unwrap() == content);
}

/// A connection's memory counts as a file.
#[test]
fn a_limit_below_the_memory_of_a_connection_refuses_it_and_the_server_goes_on() {
    let place = Place::new("ulimit-small");
    let mut command = place.command(&[&place.export("")]);
    command = with_short_files(&command);
    command.args(["--set", "mem.conn_arena_mib=64"]);
    let server = Server::start(&mut command);
    fails(&spin_nfs(&["null", &place.target("")]), 3, &[]);
    assert_eq!(server.end_by(Signal::TERM).0, Some(0));
}

/// Standard error is a socket whose other end is closed, like that of a dead logger.
#[test]
fn log_lines_without_a_reader_end_no_thread() {
    let place = Place::new("no-log");
    let others = "--memory=others:client=192.0.2.1";
    let export = place.export(",client=127.0.0.1");
    let mut command = place.command(&[&export, others, "--mount=127.0.0.1:0"]);
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(ours);
    let server = Server::start(command.stderr(Stdio::from(OwnedFd::from(theirs))));
    for _ in 0..3 {
        // Rejected, and logged.
        assert_eq!(status_of_mnt(server.mount_address(), "/others").unwrap(), 13);
    }
    answer(&["ls", &place.target("")]);
}

/// Standard error is a pipe that is full, and never read.
#[test]
fn a_log_that_is_not_read_stops_no_connection() {
    const CONNECTIONS: usize = 400;
    let place = Place::new("full-log");
    let others = "--memory=others:client=192.0.2.1";
    let export = place.export(",client=127.0.0.1");
    let sets = SMALL.map(|value| format!("--set={value}"));
    let mut command = place.command(&[&export, others, "--mount=127.0.0.1:0"]);
    let (unread, mut theirs) = io::pipe().unwrap();
    theirs.write_all(&[b'.'; 64_000]).unwrap();
    let server = Server::start(command.args(sets).env_remove("RUST_LOG").stderr(theirs));
    let engine = engine();
    let mut core = engine.core(0).unwrap();
    for _ in 0..CONNECTIONS {
        drop(connect(&mut core, &place.address(), &Count::default()));
        assert_eq!(status_of_mnt(server.mount_address(), "/others").unwrap(), 13);
    }
    answer(&["null", &place.target("")]);
    answer(&["ls", &place.target("")]);
    // The end waits for the log, but not for long.
    assert_eq!(server.end_by(Signal::TERM).0, Some(0));
    drop(unread);
}

/// Paths come from clients: they are quoted, with control characters escaped.
#[test]
fn what_a_client_names_cannot_break_a_line_of_the_log() {
    let place = Place::new("log-lines");
    let mut command = place.command(&[&place.export(",client=127.0.0.1"), "--mount=127.0.0.1:0"]);
    let log = place.path("log");
    let log_of = fs::File::create(&log).unwrap();
    let server = Server::start(command.env_remove("RUST_LOG").stderr(log_of));
    assert_eq!(status_of_mnt(server.mount_address(), "/a\nfake \u{1b}[2J").unwrap(), 2);
    assert_eq!(server.end_by(Signal::TERM).0, Some(0));
    let line = r#"rejected a mount of "/a\nfake \u{1b}[2J" by 127.0.0.1: there is no such export"#;
    let log = fs::read_to_string(log).unwrap();
    assert!(log.lines().any(|logged| logged.ends_with(line)), "{log}");
}
