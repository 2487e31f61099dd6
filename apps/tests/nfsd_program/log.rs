//! Form of the log.

use crate::server::{Place, Server};
use rustix::process::Signal;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

/// A file, with the JOURNAL_STREAM by which systemd would say that it is the journal.
fn journal(place: &Place) -> (File, String) {
    let file = File::create(place.path("log")).unwrap();
    let data = file.metadata().unwrap();
    (file, format!("{}:{}", data.dev(), data.ino()))
}

/// Log of a server that is started and shut down, in a file.
fn log(place: &Place, file: File, stream: &str) -> String {
    let mut command = place.command(&[&place.export("")]);
    command.env_remove("RUST_LOG").env("JOURNAL_STREAM", stream).stderr(file);
    let server = Server::start(&mut command);
    assert_eq!(server.end_by(Signal::TERM).0, Some(0));
    fs::read_to_string(place.path("log")).unwrap()
}

#[test]
fn lines_have_time_and_level_and_tell_version_and_shutdown() {
    let place = Place::new("log-times");
    // The time in a line is cut to microseconds.
    let before = SystemTime::now() - Duration::from_micros(1);
    // systemd leaves the variable in processes whose standard error is elsewhere.
    let log = log(&place, journal(&place).0, "1:2");
    let mut last = before;
    for line in log.lines() {
        let (time, rest) = line.split_once(' ').unwrap();
        let time = humantime::parse_rfc3339(time).unwrap();
        assert!((last..=SystemTime::now()).contains(&time), "{log}");
        assert!(["INFO ", " INFO", " WARN"].contains(&&rest[..5]), "{line}");
        last = time;
    }
    let with = |words: &str| log.lines().filter(|line| line.contains(words)).count();
    assert_eq!([env!("CARGO_PKG_VERSION"), "SIGTERM"].map(with), [1, 1], "{log}");
}

#[test]
fn in_the_journal_lines_have_a_priority_instead() {
    let place = Place::new("log-journal");
    let (file, stream) = journal(&place);
    let log = log(&place, file, &stream);
    let plain = |line: &str| line.strip_prefix("<6>").or(line.strip_prefix("<4>")).is_none();
    assert_eq!(log.lines().find(|line| plain(line)), None, "{log}");
    assert!(log.lines().any(|line| line.contains(env!("CARGO_PKG_VERSION"))), "{log}");
}

/// An error that ends the program is one for the journal, too.
#[test]
fn a_start_that_fails_has_the_priority_of_an_error() {
    let place = Place::new("log-error");
    let (file, stream) = journal(&place);
    let mut command = place.command(&["--export=/nonexistent:client=local"]);
    command.env("JOURNAL_STREAM", stream).stderr(file);
    assert!(!command.status().unwrap().success());
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.lines().last().unwrap().starts_with("<3>"), "{log}");
}
