//! The shared-memory driver between processes, and what `kill -9` leaves behind: nothing.
//!
//! The other process is this test binary again, told by its environment to run [`peer`] only.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test")]

use super::*;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

/// This module's test of that name.
const PEER: &str = "shm::tests::processes::peer";

const ROLE: &str = "SPINRPC_TEST_PEER";
const PATIENCE: Duration = Duration::from_secs(20);

/// The other process; a test only by its name.
#[test]
fn peer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, address) = role.split_once(' ').unwrap();
    let connector = ShmConnector::new(ShmConfig::default()).unwrap();
    match role {
        "drive" => {
            let (mut end, qp) = connect(&connector, address);
            drive_traffic(&mut end, qp);
            end.fabric.close(qp);
        }
        "drive-forever" => {
            let (mut end, qp) = connect(&connector, address);
            say("up");
            loop {
                drive_traffic(&mut end, qp);
            }
        }
        "echo" => {
            let (acceptor, endpoints) = accept_into_channel(Some(0));
            let _listener = connector.listen(&ListenRequest::new(address), acceptor).unwrap();
            say("up");
            let (mut end, qp) = adopt(&connector, &endpoints);
            echo_traffic(&mut end, qp);
        }
        other => panic!("no role {other}"),
    }
}

fn say(word: &str) {
    println!("\npeer: {word}");
}

/// A process in the given role, killed when this is dropped.
struct Peer {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(role: &str, address: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([PEER, "--exact", "--nocapture"])
            .env(ROLE, format!("{role} {address}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    fn wait_until_up(&mut self) {
        let mut lines = self.output.by_ref().lines();
        assert!(lines.any(|line| line.unwrap() == "peer: up"), "the peer did not start");
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn expect_success(mut self) {
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn connect(connector: &ShmConnector, address: &str) -> (End<ShmFabric>, QpId) {
    let mut end = End::new(connector.fabric(0).unwrap());
    let endpoint = connector.connect(&ConnectRequest::new(address, PATIENCE)).unwrap();
    let qp = end.fabric.adopt(endpoint).unwrap();
    (end, qp)
}

fn adopt(connector: &ShmConnector, endpoints: &Receiver<Endpoint>) -> (End<ShmFabric>, QpId) {
    let mut end = End::new(connector.fabric(0).unwrap());
    let qp = end.fabric.adopt(endpoints.recv_timeout(PATIENCE).unwrap()).unwrap();
    (end, qp)
}

fn name(test: &str) -> String {
    format!("shm:processes-{}-{test}", std::process::id())
}

/// A socket file in a directory of its own.
fn path(test: &str) -> (String, PathBuf) {
    let directory = std::env::temp_dir().join(format!("spinrpc-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("socket");
    (format!("shm:{}", file.display()), directory)
}

/// Completions before the end.
struct Returned {
    flushed: usize,
    received: usize,
}

/// Takes turns until `qp` goes down.
fn expect_down(end: &mut End<ShmFabric>, qp: QpId) -> (DownCause, Returned) {
    let start = Instant::now();
    let mut returned = Returned { flushed: 0, received: 0 };
    while start.elapsed() < PATIENCE {
        end.turn();
        while let Some(event) = end.next(qp) {
            match event {
                Event::Down(cause) => return (cause, returned),
                Event::RecvFlushed => returned.flushed += 1,
                Event::Message(..) => returned.received += 1,
                Event::Read(..) | Event::Revoked(_) => panic!("it was not requested"),
            }
        }
    }
    panic!("no end within {PATIENCE:?}");
}

#[test]
fn traffic_between_two_processes_is_whole_whoever_connects() {
    let connector = ShmConnector::new(ShmConfig::default()).unwrap();
    let address = name("drive");
    let (acceptor, endpoints) = accept_into_channel(Some(0));
    let _listener = connector.listen(&ListenRequest::new(&address), acceptor).unwrap();
    let driver = Peer::start("drive", &address);
    let (mut end, qp) = adopt(&connector, &endpoints);
    echo_traffic(&mut end, qp);
    driver.expect_success();
    drop(end);

    let address = name("echo");
    let mut echo = Peer::start("echo", &address);
    echo.wait_until_up();
    let (mut end, qp) = connect(&connector, &address);
    drive_traffic(&mut end, qp);
    end.fabric.close(qp);
    end.turn();
    echo.expect_success();
}

/// Kill one of two connecting processes under load. Expect its connection to end, everything posted on it to come
/// back, and the other connection to go on.
#[test]
fn a_killed_connector_ends_its_own_connection_only() {
    let connector = ShmConnector::new(ShmConfig::default()).unwrap();
    let address = name("killed-connector");
    let (acceptor, endpoints) = accept_into_channel(Some(0));
    let _listener = connector.listen(&ListenRequest::new(&address), acceptor).unwrap();
    let mut victim = Peer::start("drive-forever", &address);
    victim.wait_until_up();
    let (mut end, of_victim) = adopt(&connector, &endpoints);
    let survivor = Peer::start("drive", &address);
    let of_survivor = end.fabric.adopt(endpoints.recv_timeout(PATIENCE).unwrap()).unwrap();
    end.post_recvs(of_victim, 100);
    // It sends at once, and must not wait for too long.
    end.post_recvs(of_survivor, 16);
    for _ in 0..1000 {
        end.turn();
    }
    victim.kill();
    let (cause, returned) = expect_down(&mut end, of_victim);
    assert_eq!(cause, DownCause::PeerDied);
    assert_eq!(returned.flushed + returned.received, 100);
    echo_traffic(&mut end, of_survivor);
    survivor.expect_success();
}

/// Kill a listening process under load. Expect the end; its socket file is replaced by the next listener, and goes
/// with that one.
#[test]
fn a_killed_listener_leaves_an_address_that_can_be_used_again() {
    let connector = ShmConnector::new(ShmConfig::default()).unwrap();
    let (address, directory) = path("killed-listener");
    let mut victim = Peer::start("echo", &address);
    victim.wait_until_up();
    let (mut end, qp) = connect(&connector, &address);
    end.post_recvs(qp, 50);
    for round in 0..20 {
        end.send(qp, &[round; 100]);
    }
    end.turn();
    victim.kill();
    let (cause, _) = expect_down(&mut end, qp);
    assert_eq!(cause, DownCause::PeerDied);
    drop(end);

    let (acceptor, endpoints) = accept_into_channel(Some(0));
    let listener = connector.listen(&ListenRequest::new(&address), acceptor).unwrap();
    let driver = Peer::start("drive", &address);
    let (mut end, qp) = adopt(&connector, &endpoints);
    echo_traffic(&mut end, qp);
    driver.expect_success();
    drop(listener);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "a file was left behind");
    std::fs::remove_dir(&directory).unwrap();
}

/// A sleeping core learns of the end, too, long before its sleep is over.
#[test]
fn a_parked_core_wakes_when_its_peer_is_killed() {
    let connector = ShmConnector::new(ShmConfig::default()).unwrap();
    let address = name("parked");
    let mut victim = Peer::start("echo", &address);
    victim.wait_until_up();
    let (mut end, qp) = connect(&connector, &address);
    end.post_recvs(qp, 1);
    end.send(qp, b"hello");
    while end.next(qp).is_none() {
        end.turn();
    }
    let start = Instant::now();
    let killer = std::thread::spawn(move || victim.kill());
    let cause = loop {
        end.turn();
        match end.next(qp) {
            Some(Event::Down(cause)) => break cause,
            Some(_) => {}
            None => end.fabric.park(PATIENCE),
        }
    };
    assert_eq!(cause, DownCause::PeerDied);
    assert!(start.elapsed() < PATIENCE / 2);
    killer.join().unwrap();
}
