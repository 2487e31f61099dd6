//! Failures of a connection, in words: the cause, and the remedy.

use super::super::super::FabricError;
use super::machine::{Failure, Step};
use std::io;
use std::net::SocketAddr;

/// Reasons of the InfiniBand connection manager (InfiniBand Architecture 12.6.7.2).
const INVALID_SERVICE_ID: i32 = 8;
pub(super) const STALE_CONNECTION: i32 = 10;
const CONSUMER_DEFINED: i32 = 28;

const SAID_LETTERS_MAX: usize = 56;

impl Failure {
    pub(super) fn into_error(self, op: &str, peer: SocketAddr) -> FabricError {
        let (reason, errno) = match self {
            Self::Own { reason, errno } => (reason, errno),
            Self::Manager { step, status, said } => {
                let errno = (status < 0).then(|| status.saturating_neg());
                (reason(step, status, &said, peer), errno)
            }
        };
        let source = errno.map(io::Error::from_raw_os_error);
        FabricError { op: op.into(), reason, source }
    }
}

fn reason(step: Step, status: i32, said: &[u8], peer: SocketAddr) -> String {
    match step {
        Step::ResolveAddress => no_address(status, peer),
        Step::ResolveRoute => format!("no path to {} was found{}", peer.ip(), in_words(status)),
        Step::Connect => format!("the handshake failed{}", in_words(status)),
        Step::Unreachable => format!("{peer} does not answer{}", in_words(status)),
        Step::Rejected => rejected(status, said),
        Step::Disconnected => "the peer took the connection back before it was made".into(),
        Step::DeviceRemoved => "the device was removed".into(),
        Step::NoPathInTime => format!("no path to {} was found in time", peer.ip()),
        Step::NoAnswerInTime => format!("{peer} did not answer in time"),
    }
}

fn no_address(status: i32, peer: SocketAddr) -> String {
    let ip = peer.ip();
    match status.saturating_neg() {
        _ if ip.is_loopback() => format!(
            "{ip} belongs to no RDMA device; use the address of a network interface that has one \
             (rdma link)"
        ),
        libc::EHOSTUNREACH | libc::ENETUNREACH => format!("no route to {ip}"),
        libc::ETIMEDOUT => format!(
            "the hardware address of {ip}, or of the router on the way to it, was not found in time"
        ),
        libc::ENODEV | libc::ENOENT | libc::EADDRNOTAVAIL => {
            format!("no RDMA device leads to {ip}; see rdma link, and ip route get {ip}")
        }
        _ => format!("{ip} cannot be resolved{}", in_words(status)),
    }
}

fn rejected(status: i32, said: &[u8]) -> String {
    let said = printable(said);
    match status {
        INVALID_SERVICE_ID => "no server listens there".into(),
        _ if !said.is_empty() => format!("the peer refused: {said}"),
        STALE_CONNECTION => {
            "the peer has not forgotten an earlier connection yet; try again".into()
        }
        CONSUMER_DEFINED => "the peer refused".into(),
        _ if status == -libc::ECONNREFUSED => "no server listens there, or the peer refused".into(),
        status if status < 0 => format!("the connection was refused{}", in_words(status)),
        status => format!("the connection manager refused, reason {status}"),
    }
}

/// The readable beginning of a peer's message, which is untrusted and may be anything.
fn printable(said: &[u8]) -> String {
    let is_text = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    let text = said.iter().copied().take(SAID_LETTERS_MAX).take_while(is_text);
    text.map(char::from).collect::<String>().trim().to_owned()
}

fn in_words(status: i32) -> String {
    if status >= 0 {
        return String::new();
    }
    format!(": {}", io::Error::from_raw_os_error(status.saturating_neg()))
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn error(step: Step, status: i32, said: &[u8]) -> String {
        let failure = Failure::Manager { step, status, said: said.into() };
        failure.into_error("connect", "10.8.0.1:7".parse().unwrap()).to_string()
    }

    #[test]
    fn nobody_listening_and_being_refused_differ() {
        assert_eq!(error(Step::Rejected, 8, &[0; 148]), "connect: no server listens there");
        let refused = error(Step::Rejected, 28, b"no room\0\0\0");
        assert_eq!(refused, "connect: the peer refused: no room");
        let iwarp = error(Step::Rejected, -libc::ECONNREFUSED, b"no room");
        assert_eq!(iwarp, "connect: the peer refused: no room");
        assert_eq!(
            error(Step::Rejected, -libc::ECONNREFUSED, b""),
            "connect: no server listens there, or the peer refused"
        );
    }

    #[test]
    fn what_a_peer_says_cannot_break_the_line() {
        let said = error(Step::Rejected, 28, b"no\nroom\x1b[2J");
        assert_eq!(said, "connect: the peer refused: no");
        let long = error(Step::Rejected, 28, &[b'x'; 200]);
        assert_eq!(long.len(), "connect: the peer refused: ".len() + SAID_LETTERS_MAX);
    }

    #[test]
    fn each_step_says_what_failed_in_one_line() {
        for (step, status, expected) in [
            (Step::ResolveAddress, -libc::ENODEV, "no RDMA device leads to 10.8.0.1"),
            (Step::ResolveAddress, -libc::ENETUNREACH, "no route to 10.8.0.1"),
            (Step::ResolveAddress, -libc::ETIMEDOUT, "the hardware address of 10.8.0.1, or of"),
            (Step::ResolveRoute, -libc::ETIMEDOUT, "no path to 10.8.0.1"),
            (Step::Unreachable, -libc::ETIMEDOUT, "10.8.0.1:7 does not answer: "),
            (Step::NoPathInTime, 0, "no path to 10.8.0.1"),
            (Step::NoAnswerInTime, 0, "did not answer in time"),
            (Step::DeviceRemoved, 0, "removed"),
            (Step::Disconnected, 0, "took the connection back"),
            (Step::Rejected, 10, "try again"),
            (Step::Rejected, 99, "reason 99"),
            (Step::Connect, -libc::EINVAL, "the handshake failed: "),
        ] {
            let error = error(step, status, &[]);
            assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
        }
    }

    #[test]
    fn a_loopback_address_is_explained() {
        let failure = Failure::of(Step::ResolveAddress, -libc::ENODEV);
        let error = failure.into_error("connect", "127.0.0.1:7".parse().unwrap()).to_string();
        assert!(error.contains("127.0.0.1 belongs to no RDMA device"), "{error}");
    }
}
