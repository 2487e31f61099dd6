//! The end of the program, whatever runs.

use crate::server::{Place, answer, file, in_background, in_time};
use crate::stats::document;
use rustix::process::Signal;
use std::fs;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

#[test]
fn a_signal_ends_it_in_good_order() -> io::Result<()> {
    let place = Place::new("signals")?;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let server = place.serve(&[&place.export("")])?;
        answer(&["ls", &place.target("")])?;
        assert_eq!(server.end_by(signal)?, (Some(0), String::new()), "{signal:?}");
    }
    Ok(())
}

#[test]
fn a_signal_during_a_transfer_ends_both_sides_and_the_next_server_goes_on() -> io::Result<()> {
    const BYTES: usize = 256 << 20;
    let place = Place::new("transfer")?;
    let (source, socket) = (place.root.join("source"), place.path("stats"));
    let content = file(&source, BYTES)?;
    let (source, target) = (source.display().to_string(), place.target("/file"));
    let export = place.export("");
    let options = [&export[..], "--stats-socket", &socket];
    let server = place.serve(&options)?;
    let put = in_background(&["put", &target, &source, "--timeout", "5"]);
    in_time(|| Ok((document(&socket)?["bytes_written"].as_u64() > Some(0)).then_some(())))?;
    assert_eq!(server.end_by(Signal::TERM)?.0, Some(0));
    let output = put.recv_timeout(Duration::from_secs(60)).map_err(io::Error::other)??;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || complaint.contains("connection"), "{complaint}");
    let written = fs::read(place.data().join("file"))?;
    assert!(written.len() <= BYTES);

    let _server = place.serve(&options)?;
    answer(&["put", &target, &source])?;
    assert!(fs::read(place.data().join("file"))? == content);
    Ok(())
}

#[test]
fn systemd_is_told_that_it_is_ready_and_that_it_ends() -> io::Result<()> {
    let place = Place::new("notify")?;
    let path = place.root.join("notify");
    let socket = UnixDatagram::bind(&path)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut command = place.command(&[&place.export("")]);
    command.env("NOTIFY_SOCKET", &path);
    let server = crate::server::Server::start(command)?;
    let word = || {
        let mut word = [0; 64];
        let length = socket.recv(&mut word)?;
        io::Result::Ok(String::from_utf8_lossy(&word[..length]).into_owned())
    };
    assert_eq!(word()?, "READY=1");
    server.signal(Signal::TERM)?;
    assert_eq!(word()?, "STOPPING=1");
    Ok(())
}
