//! Shutdown of the program, whatever is in progress.

use crate::clients::{find_series, metrics, series};
use crate::reluctant::Reluctant;
use crate::server::{PATIENCE, Place, Server, answer, file, handle, in_background, in_time};
use rustix::process::Signal;
use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::process::Command;

/// Receives notifications like systemd.
struct Notices(UnixDatagram);

impl Notices {
    /// Notifications of the program that `command` starts.
    fn of(place: &Place, command: &mut Command) -> Self {
        let path = place.root.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        command.env("NOTIFY_SOCKET", path);
        Self(socket)
    }

    fn next(&self) -> String {
        let mut word = [0; 64];
        let length = self.0.recv(&mut word).unwrap();
        String::from_utf8_lossy(&word[..length]).into_owned()
    }
}

#[test]
fn a_signal_ends_it_in_good_order() {
    let place = Place::new("signals");
    for signal in [Signal::TERM, Signal::INT] {
        let server = place.serve(&[&place.export("")]);
        answer(&["ls", &place.target("")]);
        assert_eq!(server.end_by(signal), (Some(0), String::new()), "{signal:?}");
    }
}

#[test]
fn a_signal_during_a_transfer_ends_both_sides_and_the_next_server_goes_on() {
    /// A hole, which takes longer to send than the signal takes to arrive.
    const ENDLESS_BYTES: u64 = 1 << 40;
    let place = Place::new("transfer");
    let source = place.root.join("source");
    File::create(&source).unwrap().set_len(ENDLESS_BYTES).unwrap();
    let (path, target) = (source.display().to_string(), place.target("/file"));
    let export = place.export("");
    let options = [&export[..]];
    let server = place.serve(&options);
    let slowly = ["--depth", "1", "--block", "4096", "--timeout", "5"];
    let put = in_background(&[&["put", &target[..], &path], &slowly[..]].concat());
    let written = || series(&metrics(&server), "nfs_data_bytes", "written")["count"].as_u64();
    in_time(|| (written() > Some(0)).then_some(()));
    assert_eq!(server.end_by(Signal::TERM).0, Some(0));
    let output = put.recv_timeout(PATIENCE).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    // The last call had reached the server, or had not.
    let is_told = complaint.contains("connection") || complaint.contains("the server shut down");
    assert!(!output.status.success() && is_told, "{complaint}");
    assert!(fs::metadata(place.data().join("file")).unwrap().len() > 0);

    let content = file(&source, 3_000_001);
    let _server = place.serve(&options);
    answer(&["put", &target, &path]);
    assert!(fs::read(place.data().join("file")).unwrap() == content);
}

/// A server with an endless call, and the client that makes it.
fn busy(place: &Place, command: &mut Command) -> (Server, Reluctant) {
    command.arg("--set=rpc.protocol=draft03");
    fs::write(place.data().join("file"), vec![7; 100_000]).unwrap();
    let server = Server::start(command);
    let client = Reluctant::ask(&place.address(), &handle(&place.target("/file")));
    in_time(|| {
        let metrics = metrics(&server);
        find_series(&metrics, "nfs_procedure", "READ").map(drop)
    });
    (server, client)
}

#[test]
fn calls_that_do_not_end_in_time_are_given_up_and_said() {
    let place = Place::new("given-up");
    let complaints = place.path("complaints");
    let mut command = place.command(&[&place.export("")]);
    command.stderr(File::create(&complaints).unwrap());
    let (server, _client) = busy(&place, &mut command);
    assert_eq!(server.end_by(Signal::TERM).0, Some(1));
    let said = fs::read_to_string(&complaints).unwrap();
    assert!(said.contains("1 calls did not finish within 15s, and were abandoned"), "{said}");
}

#[test]
fn systemd_is_told_the_state_and_a_second_signal_ends_it_at_once() {
    let place = Place::new("second");
    let mut command = place.command(&[&place.export("")]);
    let notices = Notices::of(&place, &mut command);
    let (server, _client) = busy(&place, &mut command);
    assert_eq!(notices.next(), "READY=1");
    server.signal(Signal::TERM);
    assert_eq!(notices.next(), "STOPPING=1");
    // It would exit by itself with a code, and later.
    assert_eq!(server.end_by(Signal::INT).0, None);
}
