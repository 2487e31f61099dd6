//! Unix sockets to peers that are not trusted with this process's time, and their messages.
//!
//! A peer can leave descriptors in a socket (`SCM_RIGHTS`), and closing one of those can block for as
//! long as the peer likes (module `close_thread`). Two fences keep them away:
//!
//! * A listener refuses descriptors (`SO_PASSRIGHTS`, Linux 6.16), and so do the connections that wait
//!   in its queue. [`PeerSocket::accept_descriptors`] lifts that for a peer whose credentials are known.
//! * Nothing that may hold descriptors is closed by the thread that drops it: [`PeerSocket`] and
//!   [`PeerFd`] hand it to threads that may block.
//!
//! Without the first fence (before Linux 6.16), other users can leave descriptors in connections
//! that are refused. While a bounded number of those wait to be closed, nothing is accepted: users
//! that block that many closes keep new peers out, but cannot take all descriptors of this process.
//!
//! May be called by everyone; nothing here blocks, except `connect`, which waits until its deadline.

use super::close_thread::{self, Origin};
use super::credentials::Credentials;
use super::socket_option;
use rustix::io::Errno;
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, sockopt,
};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Descriptors that one packet is received with; one more than any packet of ours has.
pub const DESCRIPTORS_MAX: usize = 8;

/// Listening Unix socket whose queued connections hold no descriptors, where the kernel allows that.
#[derive(Debug)]
pub struct PeerListener {
    fd: OwnedFd,
    is_fenced: bool,
}

/// Connection taken from a listener.
#[derive(Debug)]
pub enum Accepted {
    /// Its peer is trusted ([`Credentials::is_trusted`]).
    Peer(PeerSocket, Credentials),
    /// Its peer is not, or is unknown. The socket is closed already.
    Stranger,
}

impl PeerListener {
    /// Listens at a bound socket, which must not listen yet.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn listen(fd: OwnedFd, backlog: i32) -> io::Result<Self> {
        let is_fenced = pass_rights(fd.as_fd(), false);
        net::listen(&fd, backlog)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { fd, is_fenced })
    }

    /// Takes the next connection, if there is one, and asks for the peer's credentials before anything
    /// else. The new socket does not block and receives no descriptors.
    ///
    /// # Errors
    /// The kernel's error, such as a lack of descriptors. Without the fence, a text that other
    /// users block the closing of too many.
    pub fn accept(&self) -> io::Result<Option<Accepted>> {
        check_strangers(self.is_fenced)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = match net::accept_with(&self.fd, flags) {
            Ok(fd) => fd,
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // None, too, where urgent bytes cannot be shown.
        let of_peer = || show_urgent(fd.as_fd()).then(|| Credentials::of_peer(&fd).ok())?;
        let trusted = of_peer().filter(|peer| peer.is_trusted());
        let origin = trusted.map_or(Origin::Strangers, |peer| Origin::Process(peer.process));
        let socket = PeerSocket { fd: Some(fd), origin, may_hold: !self.is_fenced };
        Ok(Some(trusted.map_or(Accepted::Stranger, |peer| Accepted::Peer(socket, peer))))
    }
}

impl AsFd for PeerListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Connected Unix socket to a peer. Dropping it does not block, whatever the peer has sent.
#[derive(Debug)]
pub struct PeerSocket {
    fd: Option<OwnedFd>,
    origin: Origin,
    /// The peer could have sent descriptors that are still there.
    may_hold: bool,
}

impl PeerSocket {
    /// Connects `fd`, a socket without an address, and asks for the listener's credentials. Waits until `deadline`
    /// while the listener's queue is full, not at all if that has passed. The connected socket does not block and receives no
    /// descriptors.
    ///
    /// # Errors
    /// `TimedOut`, or the kernel's error. Without the fence, as for [`PeerListener::accept`].
    pub fn connect(
        fd: OwnedFd,
        address: &SocketAddrUnix,
        deadline: Instant,
    ) -> io::Result<(Self, Credentials)> {
        let is_fenced = pass_rights(fd.as_fd(), false);
        check_strangers(is_fenced)?;
        if !show_urgent(fd.as_fd()) {
            return Err(io::Error::last_os_error());
        }
        connect(&fd, address, deadline)?;
        let mut socket = Self { fd: Some(fd), origin: Origin::Strangers, may_hold: !is_fenced };
        let peer = Credentials::of_peer(&socket)?;
        if peer.is_trusted() {
            socket.origin = Origin::Process(peer.process);
        }
        Ok((socket, peer))
    }

    /// Lets the peer send descriptors from now on.
    pub fn accept_descriptors(&mut self) {
        self.may_hold = true;
        pass_rights(self.as_fd(), true);
    }

    /// Keeps the peer from sending descriptors from now on.
    pub fn refuse_descriptors(&mut self) {
        self.may_hold = !self.is_clean();
    }

    /// True if the peer's process keeps so many descriptors from being closed that it should get no
    /// further connection.
    pub fn is_peer_full(&self) -> bool {
        close_thread::is_full(self.origin)
    }

    /// Number of descriptors of the peer's process that are waiting to be closed or being closed.
    pub fn descriptors_closing(&self) -> usize {
        close_thread::count_of(self.origin)
    }

    /// Looks at the first packet that has arrived, or the first bytes of a stream, and leaves it there:
    /// whatever is dropped of it here, the socket still holds.
    ///
    /// # Errors
    /// `WouldBlock` when nothing has arrived, or the kernel's error.
    pub fn peek(&self, bytes: &mut [u8]) -> io::Result<Peeked> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut parts = [IoSliceMut::new(bytes)];
        let got = match net::recvmsg(self, &mut parts, &mut control, flags) {
            // The peer closed without reading all. The kernel reports that once; data that the peer
            // sent are still there.
            Err(Errno::CONNRESET) => net::recvmsg(self, &mut parts, &mut control, flags)?,
            other => other?,
        };
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let origin = self.origin;
        let fds: Vec<_> = rights.flatten().map(|fd| PeerFd { fd: Some(fd), origin }).collect();
        let is_cut = got.flags.contains(ReturnFlags::CTRUNC);
        if is_cut && fds.len() < DESCRIPTORS_MAX {
            // There was room for more, but not in this process.
            return Err(Errno::MFILE.into());
        }
        let is_whole = !is_cut && !got.flags.contains(ReturnFlags::TRUNC);
        Ok(Peeked { length: got.bytes, fds, is_whole })
    }

    /// Consumes the data that [`PeerSocket::peek`] has shown: `length` bytes, or a packet. Its
    /// descriptors are closed by this thread; only those that can do no harm may be among them.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn take(&self, length: usize) -> io::Result<()> {
        let mut bytes = vec![0; length];
        net::recv(self, &mut bytes[..], RecvFlags::DONTWAIT)?;
        Ok(())
    }

    /// Reads bytes from a peer that has no reason to send descriptors.
    ///
    /// # Errors
    /// `InvalidData` if it has sent some, `WouldBlock` when nothing has arrived, or the kernel's
    /// error.
    pub fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let peeked = self.peek(bytes)?;
        if !peeked.fds.is_empty() || !peeked.is_whole {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected descriptors"));
        }
        self.take(peeked.length)?;
        Ok(peeked.length)
    }

    /// Sends bytes, as many as there is room for.
    ///
    /// # Errors
    /// `WouldBlock` when the socket is full, or the kernel's error.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(net::send(self, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
    }

    fn is_clean(&self) -> bool {
        let fd = self.as_fd();
        // Asking for the peer's name takes the lock under which the peer sends: a send that has
        // passed the fence before it was up has ended then, and its data are seen.
        let is_fenced = pass_rights(fd, false) && net::getpeername(fd).is_ok();
        let nothing = Err(Errno::AGAIN);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        is_fenced && net::recv(fd, &mut [0_u8; 1][..], flags).map(drop) == nothing
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        descriptor(&self.fd)
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        // Without an end in time, a peer whose socket waits to be closed would wait, too. And nothing
        // more can be sent.
        let _ = net::shutdown(self.as_fd(), Shutdown::Both);
        if self.may_hold && !is_empty(self.as_fd()) {
            self.fd.take().into_iter().for_each(|fd| close_thread::close(fd, self.origin));
        }
    }
}

#[derive(Debug)]
pub struct Peeked {
    pub length: usize,
    /// Descriptors, up to [`DESCRIPTORS_MAX`].
    pub fds: Vec<PeerFd>,
    /// Neither bytes nor descriptors were cut off.
    pub is_whole: bool,
}

/// Descriptor that a peer has sent. Dropping it does not block, whatever it is.
#[derive(Debug)]
pub struct PeerFd {
    fd: Option<OwnedFd>,
    origin: Origin,
}

impl PeerFd {
    /// The descriptor, for a caller that has checked its type. Dropping the result waits for the
    /// close.
    pub fn into_fd(mut self) -> Option<OwnedFd> {
        self.fd.take()
    }
}

impl AsFd for PeerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        descriptor(&self.fd)
    }
}

impl Drop for PeerFd {
    fn drop(&mut self) {
        self.fd.take().into_iter().for_each(|fd| close_thread::close(fd, self.origin));
    }
}

fn descriptor(fd: &Option<OwnedFd>) -> BorrowedFd<'_> {
    match fd {
        Some(fd) => fd.as_fd(),
        None => unreachable!("it is there until it is dropped"),
    }
}

/// False where the kernel does not know the option (before Linux 6.16).
fn pass_rights(socket: BorrowedFd<'_>, allowed: bool) -> bool {
    const SO_PASSRIGHTS: libc::c_int = 83;
    set_flag(socket, SO_PASSRIGHTS, allowed)
}

/// Makes urgent bytes of a stream readable in place; false if the kernel refuses. Otherwise peeking
/// skips them, and consuming the data behind them closes the descriptors that they came with.
fn show_urgent(socket: BorrowedFd<'_>) -> bool {
    set_flag(socket, libc::SO_OOBINLINE, true)
}

fn set_flag(socket: BorrowedFd<'_>, option: libc::c_int, value: bool) -> bool {
    socket_option::set(socket, (libc::SOL_SOCKET, option), value.into()).is_ok()
}

fn check_strangers(is_fenced: bool) -> io::Result<()> {
    match is_fenced || !close_thread::is_full(Origin::Strangers) {
        true => Ok(()),
        false => Err(io::Error::other("other users keep too many descriptors from closing")),
    }
}

/// True if nothing is left in a socket that is shut down: closing it does not block.
fn is_empty(socket: BorrowedFd<'_>) -> bool {
    // Packets, but not the end, come with a time, which does not fit: that tells an empty one from the end.
    if !show_urgent(socket) || !set_flag(socket, libc::SO_TIMESTAMP, true) {
        return false;
    }
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let look = || {
        let mut control = RecvAncillaryBuffer::default();
        net::recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut control, flags)
    };
    let got = match look() {
        // The peer closed without reading all. That is said once.
        Err(Errno::CONNRESET) => look(),
        other => other,
    };
    got.is_ok_and(|got| got.bytes == 0 && !got.flags.contains(ReturnFlags::CTRUNC))
}

/// Connects, waiting in the kernel while the listener's queue is full: it wakes one at a time.
fn connect(fd: &OwnedFd, address: &SocketAddrUnix, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        rustix::io::ioctl_fionbio(fd, left.is_zero())?;
        let left = left.max(Duration::from_millis(1));
        sockopt::set_socket_timeout(fd, sockopt::Timeout::Send, Some(left))?;
        match net::connect(fd, address) {
            Ok(()) => break,
            // Tried once in any case: a thread that was paused beyond the deadline must not take that for a full queue.
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {}
            Err(Errno::AGAIN | Errno::INTR) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}

#[cfg(test)]
mod tests {
    use super::super::credentials::ProcessIdentity;
    use super::*;
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SocketType, socketpair,
    };
    use std::io::{IoSlice, Write};
    use std::net::{TcpListener, TcpStream};

    /// Far longer than closing takes that does not block, and far shorter than closing takes that does.
    const SOON: Duration = Duration::from_secs(20);

    /// TCP socket that takes two minutes to close, or until the end of its far end, which belongs to the caller and is not
    /// read.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 65536]).is_ok() {}
        near.set_nonblocking(false).unwrap();
        sockopt::set_socket_linger(&near, Some(Duration::from_secs(120))).unwrap();
        (near, far)
    }

    fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
        send_with(SendFlags::NOSIGNAL, socket, bytes, fds)
    }

    fn send_with(
        flags: SendFlags,
        socket: impl AsFd,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<usize> {
        let mut space = vec![MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(fds).size()];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
    }

    /// Result of `ask` on a thread of another user, which only root can start.
    fn as_stranger<T: Send>(ask: impl FnOnce() -> T + Send) -> T {
        let ask = || {
            // SAFETY: takes numbers. The kernel's call changes this thread only.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
            assert_eq!(result, 0);
            ask()
        };
        std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
    }

    /// Listener as before Linux 6.16.
    fn unfenced(kind: SocketType) -> (PeerListener, SocketAddrUnix) {
        let name = format!("spinrpc-test-unfenced/{}/{kind:?}", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let fd = socket(kind);
        net::bind(&fd, &address).unwrap();
        net::listen(&fd, 1024).unwrap();
        (PeerListener { fd, is_fenced: false }, address)
    }

    fn socket(kind: SocketType) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap()
    }

    fn seqpacket() -> OwnedFd {
        socket(SocketType::SEQPACKET)
    }

    fn pair() -> (PeerSocket, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (fd, peer) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let origin = Origin::Process(ProcessIdentity::Pid(std::process::id()));
        (PeerSocket { fd: Some(fd), origin, may_hold: true }, peer)
    }

    #[test]
    fn descriptors_that_block_are_closed_elsewhere_whatever_becomes_of_them() {
        let mut ends = Vec::new();
        for receives in [false, true] {
            let (socket, peer) = pair();
            // Those that are not received are closed with the socket.
            let lingering: Vec<_> = (0..2 * DESCRIPTORS_MAX).map(|_| lingering()).collect();
            let fds: Vec<_> = lingering.iter().map(|(near, _)| near.as_fd()).collect();
            let start = Instant::now();
            send(&peer, b"x", &fds).unwrap();
            ends.extend(lingering.into_iter().map(|(near, far)| {
                // Ours is not the last one, so that this does not block.
                drop(near);
                far
            }));
            let peeked = receives.then(|| socket.peek(&mut [0; 8]).unwrap());
            assert!(peeked.is_none_or(|got| got.fds.len() >= DESCRIPTORS_MAX && !got.is_whole));
            drop(socket);
            // A reset, where the thread that closes was quicker: the data in the socket were not
            // read.
            let end = net::recv(&peer, &mut [0_u8; 1][..], RecvFlags::empty());
            assert!(matches!(end, Ok((_, 0)) | Err(Errno::CONNRESET)), "{end:?}");
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        }
    }

    /// Expect urgent bytes to be seen, and so the descriptors with them: to both ends of a connection.
    #[test]
    fn a_descriptor_that_comes_with_an_urgent_byte_is_not_closed_by_who_reads_the_next_one() {
        let (listener, address) = unfenced(SocketType::STREAM);
        let deadline = Instant::now() + SOON;
        for accepts in [true, false] {
            let (mut connected, _) =
                PeerSocket::connect(socket(SocketType::STREAM), &address, deadline).unwrap();
            let Some(Accepted::Peer(mut accepted, _)) = listener.accept().unwrap() else {
                panic!()
            };
            let (reader, writer) = match accepts {
                true => (&mut accepted, &mut connected),
                false => (&mut connected, &mut accepted),
            };
            reader.accept_descriptors();
            let (near, _far) = lingering();
            let urgent = SendFlags::NOSIGNAL | SendFlags::OOB;
            send_with(urgent, &*writer, b"!", &[near.as_fd()]).unwrap();
            drop(near);
            send(&*writer, b"x", &[]).unwrap();
            let start = Instant::now();
            let read = reader.read(&mut [0; 8]);
            assert_eq!(read.map_err(|error| error.kind()), Err(io::ErrorKind::InvalidData));
            drop((accepted, connected));
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        }
    }

    #[test]
    fn a_fenced_socket_refuses_descriptors_and_lets_them_in_when_told() {
        let (mut socket, peer) = pair();
        socket.refuse_descriptors();
        let null = std::fs::File::open("/dev/null").unwrap();
        if socket.may_hold {
            // Printed past the harness, which hides the output of passing tests.
            let what = "a_fenced_socket: this kernel has no SO_PASSRIGHTS (Linux 6.16)";
            let _ = writeln!(io::stderr(), "NOT TESTED: {what}");
            return;
        }
        assert_eq!(send(&peer, b"x", &[null.as_fd()]), Err(Errno::PERM));
        socket.accept_descriptors();
        send(&peer, b"x", &[null.as_fd()]).unwrap();
        socket.refuse_descriptors();
        assert!(socket.may_hold, "what came before the fence is still there");
        assert_eq!(socket.peek(&mut [0; 1]).unwrap().fds.len(), 1);
        socket.take(1).unwrap();
        socket.refuse_descriptors();
        assert!(!socket.may_hold);
    }

    type Sent<'a> = (SendFlags, &'a [u8], &'a [BorrowedFd<'a>]);

    /// Leave something in a socket. Expect it to be seen after a shutdown, whatever it is.
    #[test]
    fn a_socket_that_is_shut_down_shows_whether_it_is_empty() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let (none, one) = (&[][..], &[null.as_fd()][..]);
        let (plain, urgent) = (SendFlags::NOSIGNAL, SendFlags::NOSIGNAL | SendFlags::OOB);
        let cases: [(_, &[Sent<'_>], _); 8] = [
            (SocketType::SEQPACKET, &[], true),
            (SocketType::SEQPACKET, &[(plain, b"", none), (plain, b"", one)], false),
            (SocketType::SEQPACKET, &[(plain, b"", one)], false),
            (SocketType::SEQPACKET, &[(plain, b"x", one)], false),
            (SocketType::STREAM, &[], true),
            (SocketType::STREAM, &[(plain, b"", none)], true),
            (SocketType::STREAM, &[(plain, b"x", one)], false),
            (SocketType::STREAM, &[(urgent, b"x", one)], false),
        ];
        for (kind, sent, expected) in cases {
            for closes in [false, true] {
                let flags = SocketFlags::CLOEXEC;
                let (near, far) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
                for (flags, bytes, fds) in sent {
                    send_with(*flags, &far, bytes, fds).unwrap();
                }
                if closes {
                    // Data that the peer leaves unread cause an error here.
                    net::send(&near, b"x", plain).unwrap();
                    drop(far);
                }
                net::shutdown(&near, Shutdown::Both).unwrap();
                let case = format!("{kind:?}, {} sent, closed: {closes}", sent.len());
                assert_eq!(is_empty(near.as_fd()), expected, "{case}");
            }
        }
    }

    /// Connect as another user to a listener without the fence: first in silence, and then leaving more
    /// descriptors than may wait to be closed, of which the first ones block. Expect only the latter to be
    /// kept, up to the bound, and connections to be accepted again once they are closed.
    #[test]
    fn strangers_cannot_take_all_descriptors_without_the_fence() {
        const LEFT: usize = 200;
        if !rustix::process::geteuid().is_root() {
            return eprintln!("not tested: another user, which only root can become");
        }
        let (listener, address) = unfenced(SocketType::SEQPACKET);
        let open = |sent: Option<BorrowedFd<'_>>| {
            let socket = seqpacket();
            net::connect(&socket, &address).unwrap();
            assert!(sent.is_none_or(|fd| send(&socket, b"", &[fd]) == Ok(0)));
            socket
        };
        for _ in 0..LEFT {
            let silent = as_stranger(|| open(None));
            assert!(matches!(listener.accept().unwrap(), Some(Accepted::Stranger)));
            assert_eq!(net::recv(&silent, &mut [0; 1][..], RecvFlags::empty()).unwrap().1, 0);
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        let lingering: Vec<_> = (0..2).map(|_| lingering()).collect();
        let senders: Vec<_> = as_stranger(|| {
            let blocking = lingering.iter().map(|(near, _)| near.as_fd());
            let others = std::iter::repeat_n(null.as_fd(), LEFT);
            blocking.chain(others).map(|fd| open(Some(fd))).collect()
        });
        let far: Vec<_> = lingering.into_iter().map(|(_near, far)| far).collect();
        let start = Instant::now();
        let accepted = (0..LEFT).take_while(|_| listener.accept().is_ok()).count();
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        assert_eq!(accepted, 128);
        let (connected, _) = PeerSocket::connect(seqpacket(), &address, start + SOON).unwrap();
        drop((far, connected));
        let trusted = || matches!(listener.accept(), Ok(Some(Accepted::Peer(..))));
        while !trusted() {
            assert!(start.elapsed() < 2 * SOON, "accepting again");
            std::thread::yield_now();
        }
        drop(senders);
    }

    #[test]
    fn a_process_that_blocks_many_closes_is_refused_and_another_is_not() {
        const BLOCKING: Origin = Origin::Process(ProcessIdentity::Pid(u32::MAX));
        const OTHER: Origin = Origin::Process(ProcessIdentity::Pid(u32::MAX - 1));
        let lingering: Vec<_> = (0..2).map(|_| lingering()).collect();
        let far: Vec<_> = lingering.iter().map(|(_, far)| far.try_clone().unwrap()).collect();
        for (near, _) in lingering {
            close_thread::close(near.into(), BLOCKING);
        }
        for _ in 0..130 {
            assert!(!close_thread::is_full(OTHER));
            close_thread::close(std::fs::File::open("/dev/null").unwrap().into(), BLOCKING);
        }
        assert!(close_thread::is_full(BLOCKING));
        assert_eq!((close_thread::count_of(BLOCKING), close_thread::count_of(OTHER)), (132, 0));
        drop(far);
    }
}
