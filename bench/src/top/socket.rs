//! Control sockets of this host: lists them, and asks one. What answers is not trusted: its answer has
//! limits of size and time, and the kernel says whose it is.

use super::snapshot::Snapshot;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use spinrpc::config::{Choice, IdlePolicy};
use spinrpc::control::{NAME_PREFIX, SCHEMA};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

/// In which an engine must have answered.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause before a socket whose queue is full is tried again.
const RETRY: Duration = Duration::from_millis(5);
/// Longest answer: two hundred cores with all their connections.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// The process that a socket belongs to, by the word of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    pub(crate) user: u32,
}

/// Why there is no snapshot.
#[derive(Debug)]
pub(crate) enum Silence {
    /// Nobody is there any more.
    Gone,
    /// Somebody is, who does not answer us.
    Refused(Owner),
    /// Somebody is, who gives no sensible answer; says what is wrong.
    Broken(Owner, String),
}

/// Names of all control sockets in this network namespace.
pub(crate) fn names() -> io::Result<Vec<String>> {
    let table = fs::read("/proc/net/unix")?;
    let mut names = names_in(&String::from_utf8_lossy(&table));
    names.sort();
    names.dedup();
    Ok(names)
}

/// The last column of the table; connected sockets stand there, too, under the name of their listener.
fn names_in(table: &str) -> Vec<String> {
    let name = |line: &str| {
        let name = line.split_whitespace().nth(7)?.strip_prefix('@')?;
        name.starts_with(NAME_PREFIX).then(|| name.to_owned())
    };
    table.lines().filter_map(name).collect()
}

/// Connects and finds out who is there; `None` if nobody is.
pub(crate) fn connect(name: &str) -> Option<(UnixStream, Owner)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
    let end = Instant::now() + PATIENCE;
    loop {
        match net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN) if Instant::now() < end => thread::sleep(RETRY),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    let peer = net::sockopt::socket_peercred(&socket).ok()?;
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok()?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false).ok()?;
    Some((stream, Owner { pid, user: peer.uid.as_raw() }))
}

/// Asks whoever listens under that name.
pub(crate) fn ask(name: &str) -> Result<(Owner, Snapshot), Silence> {
    let (stream, owner) = connect(name).ok_or(Silence::Gone)?;
    let answer = exchange(stream, "snapshot").map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            Silence::Broken(owner, "it does not answer; is it stopped?".to_owned())
        }
        io::ErrorKind::InvalidData => Silence::Broken(owner, error.to_string()),
        _ => Silence::Refused(owner),
    })?;
    let snapshot: Snapshot = serde_json::from_slice(&answer).map_err(|error| {
        Silence::Broken(owner, format!("its answer is not a snapshot: {error}"))
    })?;
    if snapshot.schema != SCHEMA {
        let what = format!("it answers with {:?}, and {SCHEMA} is known here", snapshot.schema);
        return Err(Silence::Broken(owner, what));
    }
    Ok((owner, snapshot))
}

/// Has the cores of an engine idle like this.
pub(crate) fn set_idle(name: &str, policy: IdlePolicy) -> io::Result<()> {
    let gone = || io::Error::from(io::ErrorKind::NotConnected);
    let (stream, _) = connect(name).ok_or_else(gone)?;
    exchange(stream, &format!("idle {}", policy.name())).map(drop)
}

/// Sends a request and takes one line.
fn exchange(mut stream: UnixStream, request: &str) -> io::Result<Vec<u8>> {
    let end = Instant::now() + PATIENCE;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 1 << 16];
    while answer.last() != Some(&b'\n') {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let bytes = match stream.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            other => other?,
        };
        answer.extend_from_slice(&part[..bytes]);
        if answer.len() as u64 > ANSWER_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer has no end"));
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    #[test]
    fn control_sockets_are_found_among_others() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 123 @spinrpc-control/0/1/0\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 124\n\
             0000000000000000: 00000002 00000000 00010000 0005 01 125 @spinrpc/0/echo\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 126 /run/spinrpc-control/x\n";
        assert_eq!(names_in(table), ["spinrpc-control/0/1/0"]);
    }

    /// A peer that says so once to whoever connects.
    fn answering(name: &str, answer: &'static [u8]) -> thread::JoinHandle<()> {
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Who asks may have hung up.
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
            match ask(&name) {
                Err(Silence::Broken(owner, what)) => {
                    assert!(what.contains(expected), "{what}");
                    assert_eq!(owner.pid, std::process::id());
                }
                other => panic!("{other:?}"),
            }
            peer.join().unwrap();
        }
    }

    const OTHER_SCHEMA: &[u8] = b"{\"schema\":\"spinrpc-control/9\",\"engine\":0,\"version\":\"\",\
        \"fabric\":\"\",\"uptime_ns\":0,\"ticks_per_second\":1,\"listens\":[],\"settings\":{},\
        \"cores\":[]}\n";

    #[test]
    fn a_peer_that_hangs_up_refuses_and_a_name_without_one_is_gone() {
        let name = format!("spinperf-test/{}/closed", std::process::id());
        let peer = answering(&name, b"");
        assert!(matches!(ask(&name), Err(Silence::Refused(_))));
        peer.join().unwrap();
        assert!(matches!(ask(&name), Err(Silence::Gone)));
    }
}
