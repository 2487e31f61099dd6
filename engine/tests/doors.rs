//! Sockets that other local processes can reach: descriptors that block when they are closed, floods of
//! silent connections, sizes that a peer chooses, and errors that name the remedy.
//!
//! Peers run as separate processes: this test binary again, with the task in its environment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::prelude::*;
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};
use spinrpc::control::NAME_PREFIX;
use spinrpc::fabric::shm::{ShmConfig, ShmConnector};
use spinrpc::fabric::{Acceptor, ConnectRequest, Connector, Endpoint, FabricError, ListenRequest};
use spinrpc::mem::BulkClass;
use std::collections::VecDeque;
use std::error::Error;
use std::io::{BufRead, BufReader, ErrorKind, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;

const ROLE: &str = "SPINRPC_TEST_DOORS";
/// Neither the user of these tests nor root.
const STRANGER: u32 = 65534;
/// Far longer than a connection takes, and far shorter than the descriptors of these tests block.
const SOON: Duration = Duration::from_secs(30);
const LINGER: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum By {
    Stranger,
    SameUser,
}

#[derive(Clone, Copy, Debug)]
enum Door {
    Shm,
    Control,
}

/// All that can be tried here; strangers take root.
fn attacks() -> Vec<(By, Door)> {
    let mut attacks = vec![(By::SameUser, Door::Shm), (By::SameUser, Door::Control)];
    if rustix::process::geteuid().is_root() {
        attacks.extend([(By::Stranger, Door::Shm), (By::Stranger, Door::Control)]);
    } else {
        not_tested("strangers, which only root can become");
    }
    attacks
}

/// Name of a socket of `server` in the abstract namespace.
fn socket_name(server: &Server, door: Door) -> String {
    let uid = rustix::process::geteuid().as_raw();
    match door {
        Door::Shm => format!("spinrpc/{uid}/{}", server.address.strip_prefix("shm:").unwrap()),
        Door::Control => control_name(&server.address),
    }
}

fn control_name(address: &str) -> String {
    let uid = rustix::process::geteuid().as_raw();
    let mut names =
        (0..64).map(|number| format!("{NAME_PREFIX}{uid}/{}/{number}", std::process::id()));
    names.find(|name| asked(name).is_ok_and(|answer| answer.contains(address))).expect("a socket")
}

fn asked(name: &str) -> std::io::Result<String> {
    // Waits while the queue is full.
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    stream.set_read_timeout(Some(LIMIT))?;
    (&stream).write_all(b"snapshot 0\n")?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    match line.is_empty() {
        true => Err(ErrorKind::UnexpectedEof.into()),
        false => Ok(line),
    }
}

fn open(name: &str, door: Door) -> rustix::io::Result<OwnedFd> {
    let kind = match door {
        Door::Shm => SocketType::SEQPACKET,
        Door::Control => SocketType::STREAM,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// A process in a role, killed when this is dropped.
struct Peer(Child);

impl Peer {
    fn start(by: By, role: &str) -> (Self, String) {
        let mut command = Command::new("/proc/self/exe");
        if matches!(by, By::Stranger) {
            command.uid(STRANGER).gid(STRANGER);
        }
        Self::run(command, role).expect("the peer says something")
    }

    /// Starts it in a separate PID namespace: this process and its children have no id there.
    fn start_elsewhere(role: &str) -> Option<(Self, String)> {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
        command.arg(std::env::current_exe().unwrap());
        Self::run(command, role)
    }

    fn run(mut command: Command, role: &str) -> Option<(Self, String)> {
        command.args(["--exact", "--nocapture", "peer"]).env(ROLE, role).stdout(Stdio::piped());
        let mut child = command.spawn().ok()?;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let said = lines.find_map(|line| line.strip_prefix("peer: ").map(str::to_owned));
        let peer = Self(child);
        Some((peer, said?))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The body of the other process; without the variable there is nothing to do.
#[test]
fn peer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<_> = role.split(' ').collect();
    let door = |word| if word == "Shm" { Door::Shm } else { Door::Control };
    match words[..] {
        ["linger", at, name, count] => linger(name, door(at), count.parse().unwrap()),
        ["flood", at, name] => flood(name, door(at)),
        ["serve"] => serve_few(),
        ["hold", address] => hold(address),
        ["squat", name] => squat(name),
        ["connect", address] => {
            println!("\npeer: {}", outcome(address));
            // Before the harness hears of it: without descriptors ThreadSanitizer cannot look up
            // the names of functions to leave out.
            std::process::exit(0);
        }
        _ => panic!("no role {role}"),
    }
}

/// Leaves descriptors in sockets of the server, the last ones of connections that take long to close.
fn linger(name: &str, door: Door, count: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sent = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..count {
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let far = listener.accept().unwrap().0;
            // A thread each: a close that comes after the server's blocks here.
            scope.spawn(|| leave(near, far, name, door, &sent));
        }
        thread::sleep(Duration::from_secs(1));
        println!("\npeer: {} sent", sent.load(Ordering::Relaxed));
    });
}

fn leave(mut near: TcpStream, far: TcpStream, name: &str, door: Door, sent: &AtomicUsize) {
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 65536]).is_ok() {}
    near.set_nonblocking(false).unwrap();
    sockopt::set_socket_linger(&near, Some(LINGER)).unwrap();
    let socket = open(name, door).unwrap();
    // The server may let descriptors in a little later, or never.
    let end = Instant::now() + Duration::from_millis(500);
    let mut result = send(&socket, near.as_fd());
    while result == Err(Errno::PERM) && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
        result = send(&socket, near.as_fd());
    }
    // Closing one that is not sent would be the last close.
    let kept = result.is_err().then_some(near);
    sent.fetch_add(usize::from(kept.is_none()), Ordering::Relaxed);
    thread::sleep(2 * LINGER);
    drop((socket, far, kept));
}

fn send(socket: &OwnedFd, fd: std::os::fd::BorrowedFd<'_>) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    net::sendmsg(socket, &[IoSlice::new(b"not a hello\n")], &mut control, SendFlags::NOSIGNAL)
}

/// Connects as fast as it goes, and says nothing.
fn flood(name: &str, door: Door) {
    println!("\npeer: up");
    let (end, mut held) = (Instant::now() + LINGER, VecDeque::new());
    while Instant::now() < end {
        match open(name, door) {
            Ok(socket) => held.push_back(socket),
            Err(_) => thread::yield_now(),
        }
        if held.len() > 200 {
            held.pop_front();
        }
    }
}

/// Serves with memory for two connections of one process.
fn serve_few() {
    let server =
        Server::with(small_with(|raw| (raw.mem.conn_arena_mib, raw.limits.peer_mib) = (4, 20)));
    println!("\npeer: {}", server.address);
    thread::sleep(LINGER);
}

/// Holds a connection until the process is killed.
fn hold(address: &str) {
    let raw = small_with(|raw| raw.mem.conn_arena_mib = 4);
    let _caller = Caller::connect_with(raw, address, all_words);
    println!("\npeer: up");
    thread::sleep(LINGER);
}

/// Takes a name, whatever process number is in it.
fn squat(name: &str) {
    let socket = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    net::listen(&socket, 16).unwrap();
    println!("\npeer: there");
    thread::sleep(LINGER);
}

fn outcome(address: &str) -> String {
    let connected = || {
        let connector = ShmConnector::new(ShmConfig::default())?;
        connector.connect(&ConnectRequest::new(address, SOON))
    };
    match connected() {
        Ok(_) => "connected".into(),
        Err(error) => format!("{error} | {}", source(&error)),
    }
}

/// The operating system's error behind another one.
fn source(error: &FabricError) -> String {
    let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    source.map_or("no source".into(), |source| format!("source {:?}", source.raw_os_error()))
}

/// Leave descriptors that block when they are closed. Expect the server to serve others meanwhile, and
/// to end at once.
#[test]
fn descriptors_that_block_when_closed_do_not_delay_others() {
    for (by, door) in attacks() {
        let server = Server::start();
        let name = socket_name(&server, door);
        // Each that is silent takes the control socket a second.
        let count = if matches!(door, Door::Shm) { 20 } else { 5 };
        let (_peer, said) = Peer::start(by, &format!("linger {door:?} {name} {count}"));
        let start = Instant::now();
        for _ in 0..3 {
            let mut caller = Caller::connect(&server.address, all_words);
            caller.start(NULL, 1, |_| {}).unwrap();
            caller.replies(1);
        }
        let control = socket_name(&server, Door::Control);
        asked(&control).unwrap();
        server.stop();
        assert!(start.elapsed() < SOON, "{by:?} at {door:?} ({said}): {:?}", start.elapsed());
    }
}

/// Time within which another connection is served. Each waits for those of a whole backlog to be accepted, which takes half a
/// second or more under a sanitizer.
const PATIENCE: Duration = Duration::from_secs(if cfg!(sanitized) { 5 } else { 1 });

/// Flood a socket with silent connections. Expect that 99 of 100 others are served in time;
/// on a machine that stands still sometimes, in one of ten attempts. Those of its own user take the control socket a second
/// each.
#[test]
fn silent_connections_do_not_keep_others_out() {
    let attacks = attacks().into_iter();
    for (by, door) in attacks.filter(|of| !matches!(of, (By::SameUser, Door::Control))) {
        let mut told = Vec::new();
        let is_served = (0..10).any(|_| {
            let served = served_of_100(by, door);
            told.push(served);
            served.0 >= 99
        });
        println!("{by:?} at {door:?}: served of 100, and longest: {told:?}");
        assert!(is_served, "{by:?} at {door:?}: served of 100, and longest: {told:?}");
    }
}

fn served_of_100(by: By, door: Door) -> (usize, Duration) {
    let server = Server::start();
    let name = socket_name(&server, door);
    let connector = ShmConnector::new(ShmConfig::default()).unwrap();
    let (_peer, _) = Peer::start(by, &format!("flood {door:?} {name}"));
    thread::sleep(Duration::from_millis(100));
    let (mut served, mut longest) = (0, Duration::ZERO);
    for _ in 0..100 {
        let start = Instant::now();
        let is_served = match door {
            Door::Shm => connector.connect(&ConnectRequest::new(&server.address, PATIENCE)).is_ok(),
            Door::Control => asked(&name).is_ok(),
        };
        longest = longest.max(start.elapsed());
        served += usize::from(is_served && start.elapsed() < PATIENCE);
    }
    (served, longest)
}

fn with_arena_of(mib: usize) -> ShmConnector {
    let arena = vec![BulkClass { block_bytes: 1 << 20, count: mib }];
    ShmConnector::new(ShmConfig { arena, ..ShmConfig::default() }).unwrap()
}

/// Rings larger than the listener's are not used, and the smaller ones take the listener's
/// messages.
#[test]
fn rings_are_as_large_as_the_listener_has_configured() {
    let server = Server::start();
    let raw = small_with(|raw| raw.shm.ring_slots = 4096);
    let mut caller = Caller::connect_with(raw, &server.address, all_words);
    caller.start(NULL, 1, |_| {}).unwrap();
    caller.replies(1);
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let rings = maps.split("memfd:spinrpc-connection").skip(1);
    let sizes = rings.filter_map(|map| {
        let size = map.lines().find_map(|line| line.strip_prefix("Size:"))?;
        size.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    });
    let largest = sizes.max().expect("rings of this process");
    assert!(largest < 1024, "{largest} KiB, and 256 slots of 256 bytes take 64 a ring");
}

#[test]
fn too_few_descriptors_are_named_with_the_limit_and_the_remedy() {
    let server = Server::start();
    let mut told = Vec::new();
    for limit in 5..40 {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -n {limit}; exec \"$0\" \"$@\""));
        command.arg(std::env::current_exe().unwrap()).args(["--exact", "--nocapture", "peer"]);
        command.env(ROLE, format!("connect {}", server.address));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        // With too few to start there is nothing to be seen.
        let line = said.lines().find_map(|line| line.strip_prefix("peer: "));
        told.extend(line.map(|line| (limit, line.to_owned())));
    }
    println!("{told:#?}");
    let failed = told.iter().filter(|(_, said)| said != "connected");
    for (limit, said) in failed.clone() {
        let remedy = format!("this process may open {limit} files at a time: raise that limit");
        assert!(said.contains(&remedy) && said.ends_with("source Some(24)"), "{limit}: {said}");
    }
    assert!(failed.count() >= 4, "{told:#?}");
    assert_eq!(told.last().map(|(_, said)| said.as_str()), Some("connected"));
}

#[test]
fn a_server_of_another_user_is_told_from_none() {
    let server = Server::start();
    let nowhere = outcome("shm:test-without-a-listener");
    assert!(nowhere.contains("no server listens there") && nowhere.ends_with("Some(111)"));
    if !rustix::process::geteuid().is_root() {
        return not_tested("another user, which only root can become");
    }
    let (_peer, said) = Peer::start(By::Stranger, &format!("connect {}", server.address));
    let expected = format!(
        "connect {}: it belongs to user 0, and this process runs as user {STRANGER}; run as that \
         user | source Some(111)",
        server.address
    );
    assert_eq!(said, expected);
}

/// The kernel gives names to any process that asks. Expect errors to name the user who has one, not
/// the user whose number is in it.
#[test]
fn a_name_that_another_user_has_taken_is_told_with_that_user() {
    if !rustix::process::geteuid().is_root() {
        return not_tested("another user, which only root can become");
    }
    let name = format!("squatted-{}", std::process::id());
    let address = format!("shm:{name}");
    let (_own, _) = Peer::start(By::Stranger, &format!("squat spinrpc/0/{name}"));
    let error = ShmConnector::new(ShmConfig::default())
        .and_then(|connector| {
            connector.listen(&ListenRequest::new(&address), Box::new(Nobody)).map(drop)
        })
        .unwrap_err();
    let says = format!("user {STRANGER} listens there already; choose another name");
    assert!(error.to_string().contains(&says), "{error}");
    assert_eq!(source(&error), "source Some(98)");
    let told = outcome(&address);
    assert!(told.contains(&format!("it belongs to user {STRANGER}")), "{told}");
    let ghost = format!("ghost-{name}");
    let (_other, _) = Peer::start(By::Stranger, &format!("squat spinrpc/1000/{ghost}"));
    let told = outcome(&format!("shm:{ghost}"));
    assert!(told.contains(&format!("it belongs to user {STRANGER}")), "{told}");
}

/// Takes no connection.
struct Nobody;

impl Acceptor for Nobody {
    fn pick_core(&mut self, _full: &[usize]) -> Option<usize> {
        None
    }

    fn accepted(&mut self, _: usize, _: Endpoint) {}
}

/// Connect two processes to a server in another PID namespace, where neither has an id, and kill
/// one. Expect the other one to have separate memory, and to keep its connection.
#[test]
fn processes_of_another_pid_namespace_are_told_apart() {
    let Some((_server, address)) = Peer::start_elsewhere("serve") else {
        return not_tested("PID namespaces");
    };
    let hold = || Peer::start(By::SameUser, &format!("hold {address}")).0;
    let first = hold();
    let raw = small_with(|raw| raw.mem.conn_arena_mib = 4);
    let mut caller = Caller::connect_with(raw, &address, all_words);
    drop(first);
    let end = Instant::now() + Duration::from_millis(500);
    caller.core.run_until(|| Instant::now() >= end);
    let is_down = |event: &ConnectionEvent| matches!(event, ConnectionEvent::Down { .. });
    let downs: Vec<_> =
        caller.heard.borrow().events.iter().filter(|e| is_down(e)).cloned().collect();
    assert!(downs.is_empty(), "{downs:?}");
    caller.call(NULL, |_| {}).unwrap();
    let _second = hold();
    with_arena_of(5).connect(&ConnectRequest::new(&address, SOON)).unwrap();
}

/// Make 60 connections in a row, by a peer that asks for the largest rings, while another client calls.
/// Expect its memory to be that of the server's rings. The longest call is printed, as it says more
/// about the machine than about the server.
#[test]
fn a_storm_of_connections_takes_the_memory_that_is_configured() {
    let server = Server::with(small());
    let address = server.address.clone();
    let is_over = AtomicBool::new(false);
    let mut caller = Caller::connect(&address, all_words);
    let rss = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap()
    };
    let before = rss();
    let (mut calls, mut longest) = (0, Duration::ZERO);
    thread::scope(|scope| {
        let storm = scope.spawn(|| {
            let config = ShmConfig { ring_slots: 65536, ..ShmConfig::default() };
            let connector = ShmConnector::new(config).unwrap();
            let connect = || connector.connect(&ConnectRequest::new(&address, LIMIT)).unwrap();
            let held: Vec<_> = (0..60).map(|_| connect()).collect();
            is_over.store(true, Ordering::Relaxed);
            drop(held);
        });
        while !is_over.load(Ordering::Relaxed) {
            let start = Instant::now();
            caller.start(NULL, calls, |_| {}).unwrap();
            caller.replies(1);
            longest = longest.max(start.elapsed());
            calls += 1;
        }
        // ThreadSanitizer does not see that the end of the scope waits for it.
        storm.join().unwrap();
    });
    let grown_mib = rss().saturating_sub(before) >> 10;
    println!("{calls} calls, the longest took {longest:?}; {grown_mib} MiB more");
    // Both ends are in this process: 60 times rings of 128 KiB, and the memory that goes with them.
    assert!(grown_mib < 200, "{grown_mib} MiB more for 60 connections");
}
