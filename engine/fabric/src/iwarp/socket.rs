//! TCP sockets of connections, and the ring that one reads into.

use super::super::DownCause;
use super::wire::Readable;
use crate::sys::socket_option;
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg,
    sockopt::{
        set_socket_keepalive, set_socket_linger, set_tcp_keepcnt, set_tcp_keepidle,
        set_tcp_keepintvl, set_tcp_nodelay, set_tcp_user_timeout,
    },
};
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;

/// Longest time without progress: a host that acknowledges nothing, or keeps its window closed, is given up. A path that comes
/// back within seconds, or that loses much, is not: by then TCP has tried seven times. An idle peer is probed so that its loss
/// is noticed in this time, too.
pub(super) const DEAD_HOST_AFTER: Duration = Duration::from_secs(30);
const PROBES: u32 = 4;
/// One interval for each probe, and one before the first.
const PROBE_INTERVAL: Duration =
    Duration::from_secs(DEAD_HOST_AFTER.as_secs() / (PROBES as u64 + 1));

/// Bytes that the kernel takes before it could send them, about as many as one turn frames: more would delay what follows,
/// Terminate messages too, and hold memory whose key is revoked.
const UNSENT_BYTES: u32 = 256 << 10;

/// Makes a connected socket fit for a core: it does not block, delays no segment, and notices a dead host.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    set_tcp_nodelay(stream, true)?;
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, PROBE_INTERVAL)?;
    set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    set_tcp_keepcnt(stream, PROBES)?;
    socket_option::limit_unsent_bytes(stream, UNSENT_BYTES)?;
    Ok(set_tcp_user_timeout(stream, DEAD_HOST_AFTER.as_millis() as u32)?)
}

/// Closes a connection so that its peer is refused at once: one that is only closed it would take for an end of revision 1.
pub(super) fn reset(stream: TcpStream) {
    let _ = set_socket_linger(&stream, Some(Duration::ZERO));
}

/// Result of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// So many bytes.
    Bytes(usize),
    /// None: the socket is empty, or full.
    NotNow,
    /// The peer's last byte has come before.
    End,
    Failed(Errno),
}

/// Why a connection ended, by the error of its socket.
pub(super) fn cause_of(error: Errno) -> DownCause {
    match error {
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN => {
            DownCause::Unreachable
        }
        // The peer closed, and did not read everything.
        Errno::PIPE => DownCause::Remote,
        _ => DownCause::PeerDied,
    }
}

/// Sends as much as the socket takes (system call).
pub(super) fn send(socket: impl AsFd, pieces: &[IoSlice<'_>]) -> Moved {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = match pieces {
        // Short messages: a list costs the kernel more.
        [piece] => rustix::net::send(socket, piece, flags),
        _ => sendmsg(socket, pieces, &mut SendAncillaryBuffer::default(), flags),
    };
    match sent {
        Ok(count) => Moved::Bytes(count),
        Err(Errno::AGAIN) => Moved::NotNow,
        Err(error) => Moved::Failed(error),
    }
}

/// Bytes of a connection that were received and not used up.
#[derive(Debug)]
pub(super) struct ReceiveRing {
    bytes: Box<[u8]>,
    start: usize,
    len: usize,
}

impl ReceiveRing {
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes].into(), start: 0, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The free bytes that come next, up to the end of the ring.
    pub(super) fn room(&self) -> Range<usize> {
        match self.start + self.len {
            behind if behind < self.bytes.len() => behind..self.bytes.len(),
            behind => behind - self.bytes.len()..self.start,
        }
    }

    pub(super) fn readable(&self) -> Readable<'_> {
        let in_first = self.len.min(self.bytes.len() - self.start);
        let first = &self.bytes[self.start..self.start + in_first];
        Readable::new(first, &self.bytes[..self.len - in_first])
    }

    /// Frees the first bytes.
    pub(super) fn free(&mut self, count: usize) {
        debug_assert!(count <= self.len, "more bytes than were received");
        self.len -= count.min(self.len);
        // The same lines of the cache are used again and again where little waits.
        self.start = if self.len == 0 { 0 } else { (self.start + count) % self.bytes.len() };
    }

    /// Receives into its [room](Self::room), once (system call).
    pub(super) fn fill(&mut self, socket: impl AsFd) -> Moved {
        let room = self.room();
        match recv(socket, &mut self.bytes[room], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Moved::End,
            Ok((_, count)) => {
                self.len += count;
                Moved::Bytes(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => Moved::NotNow,
            Err(error) => Moved::Failed(error),
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// Move numbers through a ring that is shorter than all of them. Expect each once, in order.
    #[test]
    fn a_ring_keeps_the_order_of_bytes_around_its_end() {
        let (mut near, far) = pair();
        prepare(&far).unwrap();
        let mut ring = ReceiveRing::new(7);
        let (mut sent, mut seen) = (0_u8, 0_u8);
        while seen < 200 {
            if sent - seen < 10 {
                near.write_all(&[sent, sent + 1, sent + 2]).unwrap();
                sent += 3;
            }
            while ring.len() < 3 {
                assert!(!matches!(ring.fill(&far), Moved::End | Moved::Failed(_)));
            }
            let mut bytes = [0; 2];
            assert_eq!(ring.readable().copy_to(&mut bytes), 2);
            assert_eq!(bytes, [seen, seen + 1]);
            ring.free(2);
            seen += 2;
            while ring.room().is_empty() {
                ring.readable().copy_to(&mut bytes[..1]);
                assert_eq!(bytes[0], seen);
                ring.free(1);
                seen += 1;
            }
        }
    }

    #[test]
    fn the_end_of_a_stream_is_told_apart_from_a_broken_one() {
        let (near, far) = pair();
        prepare(&far).unwrap();
        let mut ring = ReceiveRing::new(16);
        assert_eq!(ring.fill(&far), Moved::NotNow);
        drop(near);
        while ring.fill(&far) == Moved::NotNow {}
        assert_eq!(ring.fill(&far), Moved::End);

        let (mut near, far) = pair();
        prepare(&far).unwrap();
        assert_eq!(send(&far, &[IoSlice::new(b"unread")]), Moved::Bytes(6));
        near.read_exact(&mut [0; 1]).unwrap();
        drop(near);
        let ended = loop {
            match ring.fill(&far) {
                Moved::NotNow => {}
                ended => break ended,
            }
        };
        assert_eq!(ended, Moved::Failed(Errno::CONNRESET));
        assert_eq!(cause_of(Errno::CONNRESET), DownCause::PeerDied);
    }
}
