//! Control sockets of this host: lists them, and queries one. Any user may bind such a name, so
//! only a server of the same user or of root is queried; root queries servers of all users. Answers
//! have limits of size and time, and descriptors that come with them are closed on other threads.

use super::snapshot::{Latencies, Snapshot};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use spinrpc::config::{Choice, IdlePolicy};
use spinrpc::control::{LATENCY_SCHEMA, NAME_PREFIX, SCHEMA, SLOW_SCHEMA};
use spinrpc::sys::credentials::Credentials;
use spinrpc::sys::peer_socket::PeerSocket;
use spinrpc_tuning::printable::{printable, to_stderr};
use spinrpc_tuning::slow_calls::SlowCalls;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// Wait for room in a socket's queue: another user's may stay full forever, and there may be many.
const QUEUE_PATIENCE: Duration = Duration::from_millis(2);
/// Maximum time for an engine to answer. In tests, a thread that answers may be paused.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 2 });
/// Time that one query spends on engines of another user: root asks those of all users, any of which may not answer.
const PATIENCE_WITH_USER: Duration = Duration::from_millis(500);
/// Time that it spends on those of all other users.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_secs(1);
/// Longest answer, and total of all answers of this user's engines to one query: two hundred cores with all their
/// connections.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Longest answer without connections: a thousand cores.
const SUMMARY_BYTES_MAX: usize = 4 << 20;
/// Total of the answers of another user's engines to one query.
const BYTES_OF_USER_MAX: usize = 16 << 20;
/// Total of those of all other users, which are kept at a time.
const BYTES_OF_OTHERS_MAX: usize = 32 << 20;
/// Stands for the user of a socket that does not let anyone connect; not the number of any (chown(2)).
const UNKNOWN_USER: u32 = u32::MAX;

/// What is left of an amount, such as bytes, that engines may take of one query: those of each other user by themselves, and
/// all of them together, because one person may have thousands of user numbers (subuid(5)). Nothing of it is taken from
/// engines of this user and of root.
#[derive(Debug)]
pub(crate) struct Budget {
    own: u64,
    of_each: u64,
    of_others: u64,
    users: HashMap<u32, u64>,
}

impl Budget {
    pub(crate) fn new(own: u64, of_each: u64, of_others: u64) -> Self {
        Self { own, of_each, of_others, users: HashMap::new() }
    }

    pub(crate) fn left(&self, user: u32) -> u64 {
        let left = self.users.get(&user).copied();
        match is_other(user) {
            true => left.unwrap_or(self.of_each).min(self.of_others),
            false => left.unwrap_or(self.own),
        }
    }

    pub(crate) fn spend(&mut self, user: u32, amount: u64) {
        let is_other = is_other(user);
        let left = self.users.entry(user).or_insert(if is_other { self.of_each } else { self.own });
        *left = left.saturating_sub(amount);
        if is_other {
            self.of_others = self.of_others.saturating_sub(amount);
        }
    }

    pub(crate) fn take(&mut self, user: u32, amount: u64) -> bool {
        let is_enough = amount <= self.left(user);
        if is_enough {
            self.spend(user, amount);
        }
        is_enough
    }
}

fn is_other(user: u32) -> bool {
    user != 0 && user != geteuid().as_raw()
}

/// What each user's engines may still take of one query of all engines. Any user may bind many names like an
/// engine's, and root queries all of them: the engines of one user must not hide those of others.
#[derive(Debug)]
pub(crate) struct Allowance {
    bytes: Budget,
    time_ns: Budget,
}

impl Allowance {
    pub(crate) fn of_a_look() -> Self {
        let (own, each, others) = (ANSWER_BYTES_MAX, BYTES_OF_USER_MAX, BYTES_OF_OTHERS_MAX);
        let bytes = Budget::new(own as u64, each as u64, others as u64);
        let [each, others] = [PATIENCE_WITH_USER, PATIENCE_WITH_OTHERS].map(nanoseconds);
        Self { bytes, time_ns: Budget::new(u64::MAX, each, others) }
    }

    fn time(&self, user: u32) -> Duration {
        Duration::from_nanos(self.time_ns.left(user))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Round in which sockets are queried. The later ones have those that were put off. The owner of a socket is known only
/// once it is connected, and any user may have thousands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Of this user and of root. Does not wait for room in a socket's queue.
    Trusted,
    /// Of other users, without waiting, too.
    Others,
    /// Those whose queue was full.
    Full,
}

impl Turn {
    pub(crate) const ALL: [Self; 3] = [Self::Trusted, Self::Others, Self::Full];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    Cores,
    Connections,
}

/// The process that a socket belongs to, according to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    pub(crate) user: u32,
}

#[derive(Debug)]
pub(crate) enum Silence {
    Gone,
    /// It is not its turn yet, or its user has used up the time.
    Later,
    /// The server rejects this user, or belongs to a user that this one does not query.
    Refused(Owner),
    Broken(Owner, String),
}

impl Silence {
    pub(crate) fn broken(&self) -> Option<(u32, String)> {
        match self {
            Self::Broken(owner, what) => Some((owner.pid, printable(what))),
            _ => None,
        }
    }

    pub(crate) fn say(&self) -> bool {
        let broken = self.broken();
        broken
            .iter()
            .for_each(|(pid, what)| to_stderr(format_args!("spinperf: process {pid}: {what}")));
        broken.is_some()
    }
}

/// Names of all control sockets in this network namespace.
pub(crate) fn names() -> io::Result<Vec<String>> {
    let table = fs::read("/proc/net/unix")?;
    let mut names = names_in(&String::from_utf8_lossy(&table));
    names.sort();
    names.dedup();
    Ok(names)
}

/// The last column of the table. Connected sockets appear there under the name of their listener.
fn names_in(table: &str) -> Vec<String> {
    let name = |line: &str| {
        let name = line.split_whitespace().nth(7)?.strip_prefix('@')?;
        is_control_name(name).then(|| name.to_owned())
    };
    table.lines().filter_map(name).collect()
}

/// User, process and a number below 256, each in canonical form.
fn is_control_name(name: &str) -> bool {
    let Some(numbers) = name.strip_prefix(NAME_PREFIX) else { return false };
    let is_number = |text: &str| text.parse::<u32>().is_ok_and(|it| it.to_string() == text);
    let parts: Vec<&str> = numbers.split('/').collect();
    parts.len() == 3 && parts.iter().all(|part| is_number(part)) && parts[2].parse::<u8>().is_ok()
}

/// Connects, and checks the server's credentials before anything is sent or read.
fn connect(
    name: &str,
    turn: Turn,
    allowance: &mut Allowance,
    is_meant: impl Fn(Owner) -> bool,
) -> Result<(PeerSocket, Owner), Silence> {
    let patience = QUEUE_PATIENCE.min(allowance.time(UNKNOWN_USER));
    if turn != Turn::Trusted && patience.is_zero() {
        return Err(Silence::Later);
    }
    let began = Instant::now();
    let wait = if turn == Turn::Full { patience } else { Duration::ZERO };
    let connected = connect_until(name, began + wait);
    let user = connected.as_ref().map_or(UNKNOWN_USER, |(_, peer)| peer.uid);
    if turn != Turn::Trusted {
        allowance.time_ns.spend(user, nanoseconds(began.elapsed()));
    }
    let (socket, peer) = connected.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut if turn != Turn::Full => Silence::Later,
        _ => Silence::Gone,
    })?;
    let owner = Owner { pid: peer.pid, user };
    if !is_meant(owner) || (!peer.is_trusted() && !geteuid().is_root()) {
        return Err(Silence::Refused(owner));
    }
    let is_early = turn == Turn::Trusted && !peer.is_trusted();
    if is_early || allowance.time(user).is_zero() {
        return Err(Silence::Later);
    }
    Ok((socket, owner))
}

fn connect_until(name: &str, end: Instant) -> io::Result<(PeerSocket, Credentials)> {
    let kind = SocketType::STREAM;
    let socket = net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    PeerSocket::connect(socket, &address, end)
}

pub(crate) fn ask(
    name: &str,
    turn: Turn,
    detail: Detail,
    allowance: &mut Allowance,
    is_meant: impl Fn(Owner) -> bool,
) -> Result<(Owner, Snapshot), Silence> {
    let (request, longest) = match detail {
        Detail::Cores => ("snapshot 0", SUMMARY_BYTES_MAX),
        Detail::Connections => ("snapshot", ANSWER_BYTES_MAX),
    };
    let (owner, answer) = query(name, turn, request, longest, allowance, is_meant)?;
    let mut snapshot: Snapshot = serde_json::from_slice(&answer).map_err(|error| {
        Silence::Broken(owner, format!("its answer is not a snapshot: {error}"))
    })?;
    check_schema(owner, &snapshot.schema, SCHEMA)?;
    snapshot.bound();
    Ok((owner, snapshot))
}

/// Makes an engine measure latencies, and returns those it has counted.
pub(crate) fn ask_latencies(
    name: &str,
    allowance: &mut Allowance,
    is_meant: impl Fn(Owner) -> bool,
) -> Result<Latencies, Silence> {
    let (owner, answer) =
        query(name, Turn::Full, "latency", ANSWER_BYTES_MAX, allowance, is_meant)?;
    // An engine of an earlier release answers with an error.
    let mut latencies: Latencies = serde_json::from_slice(&answer).map_err(|error| {
        Silence::Broken(owner, format!("it does not report latencies: {error}"))
    })?;
    check_schema(owner, &latencies.schema, LATENCY_SCHEMA)?;
    latencies.bound();
    Ok(latencies)
}

/// The slowest calls of an engine, which measures from now on.
pub(crate) fn ask_slow(
    name: &str,
    turn: Turn,
    allowance: &mut Allowance,
    is_meant: impl Fn(Owner) -> bool,
) -> Result<(Owner, SlowCalls), Silence> {
    let (owner, answer) = query(name, turn, "slow", ANSWER_BYTES_MAX, allowance, is_meant)?;
    // An engine of an earlier release answers with an error.
    let mut calls: SlowCalls = serde_json::from_slice(&answer).map_err(|error| {
        Silence::Broken(owner, format!("it does not report slow calls: {error}"))
    })?;
    check_schema(owner, &calls.schema, SLOW_SCHEMA)?;
    calls.bound();
    Ok((owner, calls))
}

fn check_schema(owner: Owner, schema: &str, expected: &str) -> Result<(), Silence> {
    let wrong = || format!("it answers with schema {schema:?}, expected {expected}");
    (schema == expected).then_some(()).ok_or_else(|| Silence::Broken(owner, wrong()))
}

pub(crate) fn set_idle(
    name: &str,
    turn: Turn,
    policy: IdlePolicy,
    is_meant: impl Fn(Owner) -> bool,
) -> Result<(), Silence> {
    let (request, allowance) = (format!("idle {}", policy.name()), &mut Allowance::of_a_look());
    let (owner, answer) = query(name, turn, &request, SUMMARY_BYTES_MAX, allowance, is_meant)?;
    let is_done = |answer: &serde_json::Value| answer["idle"] == policy.name();
    match serde_json::from_slice(&answer) {
        Ok(answer) if is_done(&answer) => Ok(()),
        _ => Err(Silence::Broken(owner, String::from_utf8_lossy(&answer).trim_end().to_owned())),
    }
}

fn query(
    name: &str,
    turn: Turn,
    request: &str,
    longest: usize,
    allowance: &mut Allowance,
    is_meant: impl Fn(Owner) -> bool,
) -> Result<(Owner, Vec<u8>), Silence> {
    let (socket, owner) = connect(name, turn, allowance, is_meant)?;
    let answer = exchange(&socket, request, longest, owner.user, allowance);
    answer.map(|answer| (owner, answer)).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => {
            Silence::Broken(owner, "it does not answer; is it stopped?".to_owned())
        }
        io::ErrorKind::InvalidData => Silence::Broken(owner, error.to_string()),
        _ => Silence::Refused(owner),
    })
}

fn exchange(
    socket: &PeerSocket,
    request: &str,
    longest: usize,
    user: u32,
    allowance: &mut Allowance,
) -> io::Result<Vec<u8>> {
    let began = Instant::now();
    let end = began + PATIENCE.min(allowance.time(user));
    let mut take = |bytes: usize| allowance.bytes.take(user, bytes as u64);
    let answer = exchange_until(socket, request, longest, end, &mut take);
    allowance.time_ns.spend(user, nanoseconds(began.elapsed()));
    answer
}

fn exchange_until(
    socket: &PeerSocket,
    request: &str,
    longest: usize,
    end: Instant,
    take: &mut impl FnMut(usize) -> bool,
) -> io::Result<Vec<u8>> {
    let request = format!("{request}\n").into_bytes();
    let mut sent = 0;
    while sent < request.len() {
        match socket.write(&request[sent..]) {
            Err(error) if is_to_be_tried_again(&error) => wait(socket, PollFlags::OUT, end)?,
            other => sent += other?,
        }
    }
    let mut answer = Vec::new();
    let mut part = vec![0; 1 << 16];
    while answer.last() != Some(&b'\n') {
        if Instant::now() >= end {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match socket.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if is_to_be_tried_again(&error) => wait(socket, PollFlags::IN, end)?,
            Ok(bytes) if bytes > longest - answer.len() => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is endless"));
            }
            Ok(bytes) if take(bytes) => answer.extend_from_slice(&part[..bytes]),
            Ok(_) => {
                let text =
                    "other engines, of its user or of all, have used up the limit of a query";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

fn is_to_be_tried_again(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn wait(socket: &PeerSocket, what: PollFlags, end: Instant) -> io::Result<()> {
    let left = end.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(socket, what)], Some(&left)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt};
    use rustix::process::Uid;
    use std::io::{IoSlice, Read, Write};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::thread;

    #[test]
    fn other_users_have_a_limit_each_and_together_and_take_nothing_of_this_one() {
        let own = geteuid().as_raw();
        let others = [own + 1, own + 2, own + 3];
        let mut budget = Budget::new(100, 10, 15);
        assert!(budget.take(others[0], 4) && !budget.take(others[0], 7), "each");
        budget.spend(others[0], 20);
        assert_eq!(others.map(|user| budget.left(user)), [0, 0, 0], "together");
        assert!(budget.take(own, 100) && !budget.take(own, 1));
        let mut budget = Budget::new(100, 10, 15);
        assert!(budget.take(others[0], 10) && budget.take(others[1], 5));
        assert_eq!(others.map(|user| budget.left(user)), [0, 0, 0], "together");
        assert_eq!([0, own].map(|user| budget.left(user)), [100, 100]);
    }

    fn ask_any(name: &str) -> Result<(Owner, Snapshot), Silence> {
        ask(name, Turn::Full, Detail::Connections, &mut Allowance::of_a_look(), |_| true)
    }

    #[test]
    fn control_sockets_are_found_among_others() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 123 @spinrpc-control/0/1/0\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 124\n\
             0000000000000000: 00000002 00000000 00010000 0005 01 125 @spinrpc/0/echo\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 126 @spinrpc-control/0/1/00\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 126 @spinrpc-control/0/1/256\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 126 @spinrpc-control/0/1/x\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 126 /run/spinrpc-control/x\n";
        assert_eq!(names_in(table), ["spinrpc-control/0/1/0"]);
    }

    /// There may be hundreds of those, and all of them are queried.
    #[test]
    fn a_socket_whose_queue_is_full_is_not_waited_for() {
        let name = format!("spinrpc-control/test-full/{}", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let full = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        net::bind(&full, &address).unwrap();
        net::listen(&full, 0).unwrap();
        let queued = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        net::connect(&queued, &address).unwrap();
        let begin = Instant::now();
        assert!(matches!(ask_any(&name), Err(Silence::Gone)));
        assert!(begin.elapsed() < PATIENCE, "waited {:?}", begin.elapsed());
        let mut allowance = Allowance::of_a_look();
        let hour_ns = nanoseconds(Duration::from_secs(3600));
        allowance.time_ns = Budget::new(0, hour_ns, hour_ns);
        let mut asked = |turn| connect(&name, turn, &mut allowance, |_| true).map(drop);
        assert!(matches!(asked(Turn::Trusted), Err(Silence::Later)), "put off");
        assert!(matches!(asked(Turn::Others), Err(Silence::Later)), "put off");
        assert!(matches!(asked(Turn::Full), Err(Silence::Gone)), "waited for");
        assert!(allowance.time_ns.left(UNKNOWN_USER) < hour_ns, "counted");
    }

    fn listening(name: &str) -> UnixListener {
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
    }

    /// A peer that sends this answer to one connection.
    fn answering(name: &str, answer: &'static [u8]) -> thread::JoinHandle<()> {
        let listener = listening(name);
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The client may have hung up.
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(answer);
        })
    }

    #[test]
    fn receive_what_is_no_snapshot_expect_it_said() {
        for (number, answer, expected) in [
            (0, &b"hello\n"[..], "not a snapshot"),
            (1, b"{\"error\":\"no\"}\n", "not a snapshot"),
            (2, OTHER_SCHEMA, "\"spinrpc-control/9\""),
        ] {
            let name = format!("spinperf-test/{}/{number}", std::process::id());
            let peer = answering(&name, answer);
            match ask_any(&name) {
                Err(Silence::Broken(owner, what)) => {
                    assert!(what.contains(expected), "{what}");
                    assert_eq!(owner.pid, std::process::id());
                }
                other => panic!("{other:?}"),
            }
            peer.join().unwrap();
        }
    }

    /// Answers of 5 and 6 bytes with an allowance of 10, then one that fits exactly. Expect the second
    /// to be rejected, and only accepted bytes to be counted.
    #[test]
    fn answers_of_one_look_have_one_allowance() {
        let ask = |number: u32, allowance: &mut Allowance, answer: &'static [u8]| {
            let name = format!("spinperf-test/{}/allowance-{number}", std::process::id());
            let peer = answering(&name, answer);
            let asked = ask(&name, Turn::Trusted, Detail::Cores, allowance, |_| true);
            let Err(Silence::Broken(_, what)) = asked else { panic!("{number} is no snapshot") };
            peer.join().unwrap();
            what
        };
        let own = geteuid().as_raw();
        let mut allowance = Allowance::of_a_look();
        allowance.bytes = Budget::new(10, 0, 0);
        assert!(ask(0, &mut allowance, b"abcd\n").contains("not a snapshot"));
        assert!(ask(1, &mut allowance, b"abcde\n").contains("used up"));
        assert!(ask(2, &mut allowance, b"abcd\n").contains("not a snapshot"));
        assert_eq!(allowance.bytes.left(own), 0);
    }

    /// Engines of another user that do not answer. Expect a limit for all of them, and none of it taken from others.
    #[test]
    fn engines_of_another_user_share_the_time_that_they_may_take() {
        let (own, other) = (geteuid().as_raw(), geteuid().as_raw() + 1);
        let mut allowance = Allowance::of_a_look();
        let name = format!("spinperf-test/{}/silent", std::process::id());
        let _silent = listening(&name);
        allowance.time_ns = Budget::new(u64::MAX, 1_000_000, 1_500_000);
        for (user, left_ns) in [(other, [0, 500_000]), (other, [0, 500_000]), (other + 1, [0, 0])] {
            let (socket, _) = connect(&name, Turn::Trusted, &mut allowance, |_| true).unwrap();
            let asked = exchange(&socket, "snapshot", 9, user, &mut allowance);
            assert_eq!(asked.unwrap_err().kind(), io::ErrorKind::TimedOut);
            let left = [user, other + 2].map(|user| allowance.time_ns.left(user));
            assert!(left[0] == left_ns[0] && left[1] <= left_ns[1], "{left:?}");
        }
        assert_eq!(allowance.time_ns.left(own), u64::MAX);
        let asked = connect(&name, Turn::Others, &mut allowance, |_| true);
        assert!(matches!(asked, Err(Silence::Later)), "no time is left");
    }

    #[test]
    fn an_answer_without_an_end_is_not_taken() {
        let name = format!("spinperf-test/{}/endless", std::process::id());
        let listener = listening(&name);
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(&[b'a'; 1 << 16]).is_ok() {}
        });
        let mut allowance = Allowance::of_a_look();
        let asked = ask(&name, Turn::Trusted, Detail::Cores, &mut allowance, |_| true);
        let Err(Silence::Broken(_, what)) = asked else { panic!("no end is no snapshot") };
        server.join().unwrap();
        assert_eq!(what, "its answer is endless");
        let left = allowance.bytes.left(geteuid().as_raw());
        assert!(ANSWER_BYTES_MAX as u64 - left <= SUMMARY_BYTES_MAX as u64);
    }

    const OTHER_SCHEMA: &[u8] = b"{\"schema\":\"spinrpc-control/9\",\"engine\":0,\"version\":\"\",\
        \"fabric\":\"\",\"uptime_ns\":0,\"ticks_per_second\":1,\"listens\":[],\"settings\":{},\
        \"cores\":[]}\n";

    /// A TCP socket whose close takes ten minutes while its far end, the second item, is not read.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 65536]).is_ok() {}
        near.set_nonblocking(false).unwrap();
        sockopt::set_socket_linger(&near, Some(Duration::from_secs(600))).unwrap();
        (near, far)
    }

    #[test]
    fn descriptors_that_a_server_sends_do_not_block_the_reader() {
        let name = format!("spinperf-test/{}/descriptors", std::process::id());
        let listener = listening(&name);
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let (near, far) = lingering();
            let fds = [near.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let word = [IoSlice::new(b"hello\n")];
            let sent = net::sendmsg(&stream, &word, &mut control, SendFlags::NOSIGNAL);
            // Closed at once if it was sent, so that the reader's close is the last one. Otherwise
            // closed after its far end.
            let kept = sent.is_err().then_some(near);
            // Until the reader has hung up.
            drop(io::copy(&mut &stream, &mut io::sink()));
            (far, kept)
        });
        let began = Instant::now();
        let answer = ask_any(&name);
        let elapsed = began.elapsed();
        drop(server.join().unwrap());
        assert!(answer.is_err());
        assert!(elapsed < 2 * PATIENCE, "{elapsed:?}");
    }

    /// Changes this thread only: a server thread here has another user than its client.
    fn become_user(uid: u32) {
        let uid = Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
    }

    /// Listens as user 12345.
    fn listening_as_another(name: &str) -> Option<UnixListener> {
        if !geteuid().is_root() {
            let _ = writeln!(io::stderr(), "NOT TESTED: another user, which only root can become");
            return None;
        }
        let name = name.to_owned();
        let server = thread::spawn(move || {
            become_user(12_345);
            listening(&name)
        });
        Some(server.join().unwrap())
    }

    /// Listen as one user and connect as another. Expect the connector not to ask.
    #[test]
    fn a_server_of_another_user_is_not_asked_and_root_asks_anyone() {
        for (client, is_asked) in [(12_345, true), (12_346, false), (0, true)] {
            let name = format!("spinperf-test/{}/user-{client}", std::process::id());
            let Some(listener) = listening_as_another(&name) else { return };
            let server = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let read = stream.read(&mut [0; 64]).unwrap_or_default();
                let _ = stream.write_all(b"hello\n");
                read > 0
            });
            let client = thread::spawn(move || {
                become_user(client);
                ask_any(&name).map(drop)
            });
            match client.join().unwrap() {
                Err(Silence::Refused(owner)) => assert_eq!((owner.user, is_asked), (12_345, false)),
                Err(Silence::Broken(..)) => assert!(is_asked),
                other => panic!("{other:?}"),
            }
            assert_eq!(server.join().unwrap(), is_asked);
        }
    }

    /// Listen as another user. Expect root to put it off at first, so that it cannot keep root from its own engines.
    #[test]
    fn a_server_of_another_user_is_put_off_until_its_turn() {
        let name = format!("spinperf-test/{}/turn", std::process::id());
        let Some(_listener) = listening_as_another(&name) else { return };
        let mut allowance = Allowance::of_a_look();
        // More than a pause of this thread takes.
        allowance.time_ns = Budget::new(u64::MAX, u64::MAX, u64::MAX);
        let mut asked = |turn| connect(&name, turn, &mut allowance, |_| true);
        assert!(matches!(asked(Turn::Trusted), Err(Silence::Later)));
        assert!(matches!(asked(Turn::Others), Ok((_, owner)) if owner.user == 12_345));
        allowance.time_ns.spend(12_345, u64::MAX);
        let asked = connect(&name, Turn::Others, &mut allowance, |_| true);
        assert!(matches!(asked, Err(Silence::Later)), "no time is left");
    }

    #[test]
    fn a_peer_that_hangs_up_refuses_and_a_name_without_one_is_gone() {
        let name = format!("spinperf-test/{}/closed", std::process::id());
        let peer = answering(&name, b"");
        assert!(matches!(ask_any(&name), Err(Silence::Refused(_))));
        peer.join().unwrap();
        assert!(matches!(ask_any(&name), Err(Silence::Gone)));
    }
}
