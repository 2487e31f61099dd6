//! What the program says of what it has done.

use crate::server::{Place, answer};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// What the socket says.
pub(crate) fn document(socket: &str) -> io::Result<Value> {
    let mut text = String::new();
    UnixStream::connect(socket)?.read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

#[test]
fn a_socket_of_this_user_alone_gives_one_document_of_json() -> io::Result<()> {
    let place = Place::new("stats")?;
    let socket = place.path("stats");
    let server = place.serve(&[&place.export(",ro,id=7"), "--stats-socket", &socket])?;
    assert_eq!(fs::metadata(&socket)?.mode() & 0o777, 0o600);
    let before = document(&socket)?;
    fs::write(place.data().join("file"), [7; 100_000])?;
    answer(&["cat", &place.target("/file")])?;
    let after = document(&socket)?;
    assert_eq!(after["schema"], "spin-nfsd/1");
    assert_eq!(after["exports"][0]["id"], 7);
    assert_eq!(after["exports"][0]["path"], place.data().display().to_string());
    assert_eq!(after["exports"][0]["read_only"], true);
    assert_eq!((&before["bytes_read"], &after["bytes_read"]), (&0.into(), &100_000.into()));
    assert_eq!(after["procedures"]["LOOKUP"]["calls"], 1);
    assert!(after["cores"][0]["calls_received"].as_u64() > Some(0), "{after}");
    assert_eq!(server.end_by(Signal::TERM)?.0, Some(0));
    assert!(!Path::new(&socket).exists());
    Ok(())
}

#[test]
fn a_socket_that_a_killed_server_left_is_taken_over_and_a_file_is_not() -> io::Result<()> {
    let place = Place::new("stats-left")?;
    let socket = place.path("stats");
    let export = place.export("");
    let options = [&export[..], "--stats-socket", &socket];
    assert_eq!(place.serve(&options)?.end_by(Signal::KILL)?.0, None);
    assert!(Path::new(&socket).exists());
    let server = place.serve(&options)?;
    document(&socket)?;
    drop(server);
    fs::remove_file(&socket)?;
    fs::write(&socket, "precious")?;
    let output = place.command(&options).output()?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), complaint.contains(&socket)), (Some(1), true), "{complaint}");
    assert_eq!(fs::read(&socket)?, b"precious");
    Ok(())
}

#[test]
fn a_table_is_printed_again_and_again() -> io::Result<()> {
    let place = Place::new("table")?;
    let mut server = place.serve(&[&place.export(""), "--stats=0.1"])?;
    answer(&["ls", &place.target("")])?;
    for row in ["procedure", "GETATTR", "READDIRPLUS", "read 0.0 MB/s", "procedure"] {
        while !server.line()?.starts_with(row) {}
    }
    assert_eq!(server.end_by(Signal::TERM)?.0, Some(0));
    Ok(())
}
