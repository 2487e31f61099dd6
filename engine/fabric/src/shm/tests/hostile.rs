//! Tests: a peer that breaks every rule. It may lose its own connection; nothing else happens.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::super::address::Address;
use super::super::config::{ARENA_BYTES_MAX, CONNS_MAX};
use super::super::copy_order::Fetch;
use super::super::core::PeerBell;
use super::super::handshake::{self, Kind, PACKET_BYTES, Packet, Refusal};
use super::super::layout::{Layout, Side};
use super::super::socket;
use super::super::window::Window;
use super::*;
use crate::sync::doorbell::BELL_WORDS;
use crate::sync::ring::{Producer, RingPlace, SLOT_WORDS};
use crate::sync::words::Words;
use crate::sys::mmap::SharedMemory;
pub(super) use crate::sys::mmap::tests::memfd as unsealed;
use crate::sys::peer_socket::{Accepted, PeerFd, PeerSocket};
use rustix::fs::{SealFlags, fcntl_add_seals};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const PATIENCE: Duration = Duration::from_secs(20);
const SLOTS: u32 = 64;
const ARENA_BYTES: usize = 1 << 16;

/// The side that must not be harmed: it listens, and has a connection to a decent peer.
struct Victim {
    connector: ShmConnector,
    address: String,
    endpoints: Receiver<Endpoint>,
    end: End<ShmFabric>,
    decent: End<ShmFabric>,
    at_victim: QpId,
    at_decent: QpId,
    _listener: Box<dyn Send>,
}

impl Victim {
    fn new() -> Self {
        Self::with(PATIENCE)
    }

    fn with(handshake_timeout: Duration) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let address = format!("shm:hostile-{}-{number}", std::process::id());
        let config = ShmConfig {
            ring_slots: SLOTS,
            handshake_timeout,
            idle_polls: 50,
            ..ShmConfig::default()
        };
        let connector = ShmConnector::new(config).unwrap();
        let (acceptor, endpoints) = accept_into_channel(Some(1));
        let listener = connector.listen(&ListenRequest::new(&address), acceptor).unwrap();
        let mut end = End::new(connector.fabric(1).unwrap());
        end.accept_shorts();
        let mut decent = End::new(connector.fabric(0).unwrap());
        let endpoint = connector.connect(&ConnectRequest::new(&address, PATIENCE)).unwrap();
        let at_decent = decent.fabric.adopt(endpoint).unwrap();
        let accepted = endpoints.recv_timeout(PATIENCE).unwrap();
        let at_victim = end.fabric.adopt(accepted).unwrap();
        Self {
            connector,
            address,
            endpoints,
            end,
            decent,
            at_victim,
            at_decent,
            _listener: listener,
        }
    }

    /// One, and a client that keeps to the handshake, and to nothing else.
    fn attacked() -> (Self, Attacker, QpId) {
        let mut victim = Self::new();
        let attacker = Attacker::connect(&victim.address);
        let endpoint = victim.endpoints.recv_timeout(PATIENCE).unwrap();
        let qp = victim.end.fabric.adopt(endpoint).unwrap();
        (victim, attacker, qp)
    }

    fn expect_event(&mut self, qp: QpId) -> Event {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            self.end.turn();
            if let Some(event) = self.end.next(qp) {
                return event;
            }
        }
        panic!("no event");
    }

    fn expect_misbehaved(&mut self, qp: QpId) {
        loop {
            match self.expect_event(qp) {
                Event::Down(DownCause::PeerMisbehaved(_)) => return,
                Event::RecvFlushed | Event::Message(..) => {}
                other => panic!("{other:?} instead of the end"),
            }
        }
    }

    /// The decent peer's connection still works.
    fn expect_unharmed(&mut self) {
        self.end.post_recvs(self.at_victim, 1);
        self.decent.send(self.at_decent, b"fine");
        self.decent.turn();
        assert_eq!(self.expect_event(self.at_victim), Event::Message(b"fine".to_vec(), None));
    }

    /// A new decent connection can be made.
    fn expect_listening(&self) {
        drop(self.connector.connect(&ConnectRequest::new(&self.address, PATIENCE)).unwrap());
        self.endpoints.recv_timeout(PATIENCE).unwrap();
    }
}

/// The other side: its memory, and that of the victim which it has got.
struct Attacker {
    ring: RingPlace,
    victims_ring: RingPlace,
    window: Window,
    victims_bell: PeerBell,
    place: u32,
    victims_arena: Window,
    _socket: PeerSocket,
}

impl Attacker {
    fn connect(address: &str) -> Self {
        Self::lending(address, None)
    }

    /// One that lends a slab.
    fn lending(address: &str, slab: Option<&Slab>) -> Self {
        let layout = Layout::new(SLOTS).unwrap();
        let (memory, connection) = SharedMemory::create("attack", layout.bytes()).unwrap();
        let (_, arena) = SharedMemory::create("attack", ARENA_BYTES).unwrap();
        let (_, bell) = SharedMemory::create("attack", PeerBell::BYTES).unwrap();
        let socket = open(address);
        let fds = [connection.as_fd(), arena.as_fd(), bell.as_fd()];
        let fds: Vec<_> = fds.into_iter().chain(slab.map(Slab::fd)).collect();
        let slab_bytes = slab.map_or(0, |slab| slab.bytes() as u64);
        let hello = Packet { slabs: slab.iter().count() as u32, slab_bytes, ..hello() };
        socket::write(socket.as_fd(), &hello.encode(), &fds).unwrap();
        let (answer, [arena, bell], _) = answer(&socket).unwrap();
        let victims_arena = handshake::map_arena(arena, answer.arena_bytes).unwrap();
        Self {
            ring: layout.ring(Side::Connector),
            victims_ring: layout.ring(Side::Listener),
            window: Window::new(Arc::new(memory)),
            victims_bell: handshake::map_bell(bell).unwrap(),
            place: answer.place,
            victims_arena,
            _socket: socket,
        }
    }

    /// Sends an order as a decent peer would, and rings.
    fn order(&self, order: &Fetch) {
        let producer = Producer::new(self.window.clone(), self.ring).unwrap();
        producer.push_order(&order.encode()).unwrap();
        self.victims_bell.ring(self.place);
    }

    /// Writes a header by hand, and rings.
    fn put_header(&self, slot: usize, sequence: u64, flags: u64, length: u64) {
        let at = self.ring.slots_at + slot * SLOT_WORDS;
        let header = sequence << 32 | flags << 24 | length;
        self.window.store(at, header, Ordering::Release);
        self.victims_bell.ring(self.place);
    }
}

/// Connects, and waits until the victim lets the handshake in.
fn open(address: &str) -> PeerSocket {
    let mut socket = silent(address);
    socket.accept_descriptors();
    receive::<0>(&socket, Kind::Ready).unwrap();
    handshake::take(&socket).unwrap();
    socket
}

fn silent(address: &str) -> PeerSocket {
    let deadline = Instant::now() + PATIENCE;
    socket::connect(&Address::parse(address).unwrap(), deadline).unwrap().0
}

pub(super) fn hello() -> Packet {
    Packet {
        kind: Kind::Hello,
        slots: SLOTS,
        place: 0,
        arena_bytes: ARENA_BYTES as u64,
        ..Packet::EMPTY
    }
}

fn receive<const N: usize>(
    socket: &PeerSocket,
    kind: Kind,
) -> Result<(Packet, [PeerFd; N], Vec<PeerFd>), Refusal> {
    socket::wait_readable(socket.as_fd(), Instant::now() + PATIENCE).unwrap();
    handshake::peek(socket, kind).map_err(|error| error.refusal())
}

fn answer(socket: &PeerSocket) -> Result<(Packet, [PeerFd; 2], Vec<PeerFd>), Refusal> {
    receive(socket, Kind::Accept)
}

/// Sends `packet` with `fds` and expects to be refused.
fn expect_refused(victim: &mut Victim, packet: &[u8], fds: &[BorrowedFd<'_>], refusal: Refusal) {
    let socket = open(&victim.address);
    socket::write(socket.as_fd(), packet, fds).unwrap();
    assert_eq!(answer(&socket).map(|_| ()), Err(refusal));
    victim.expect_listening();
}

#[test]
fn packets_that_are_no_hello_are_refused() {
    let mut victim = Victim::new();
    let good = hello().encode();
    let changed = |at: usize, byte: u8| {
        let mut packet = good;
        packet[at] = byte;
        packet.to_vec()
    };
    let packets = [
        (vec![0], Refusal::Malformed),
        (pattern(PACKET_BYTES, 1), Refusal::Malformed),
        (good[..PACKET_BYTES - 1].to_vec(), Refusal::Malformed),
        ([&good[..], &[0]].concat(), Refusal::Malformed),
        ([&good[..], &[0; 4000]].concat(), Refusal::Malformed),
        (changed(0, b'x'), Refusal::Malformed),
        (changed(8, 99), Refusal::Version),
        (changed(12, 2), Refusal::Malformed),
        (changed(12, 250), Refusal::Malformed),
        (good.to_vec(), Refusal::Malformed),
    ];
    for (packet, refusal) in packets {
        expect_refused(&mut victim, &packet, &[], refusal);
    }
    // With the descriptors of one, too.
    let sizes = [Layout::new(SLOTS).unwrap().bytes(), ARENA_BYTES, PeerBell::BYTES];
    let memory = sizes.map(|bytes| SharedMemory::create("attack", bytes).unwrap().1);
    let kinds = [Kind::Accept, Kind::Ready].map(|kind| Packet { kind, ..hello() });
    let packets = kinds.into_iter().chain([Packet { place: CONNS_MAX, ..hello() }]);
    let packets = packets.map(|packet| packet.encode().to_vec());
    let longer = [1, 4000].map(|bytes| [&good[..], &vec![0; bytes][..]].concat());
    for packet in packets.chain(longer) {
        let fds = memory.each_ref().map(AsFd::as_fd);
        expect_refused(&mut victim, &packet, &fds, Refusal::Malformed);
    }
    victim.expect_unharmed();
}

#[test]
fn descriptors_that_are_not_what_they_should_be_are_refused() {
    let mut victim = Victim::new();
    let layout = Layout::new(SLOTS).unwrap();
    let sealed = |bytes| SharedMemory::create("attack", bytes).unwrap().1;
    let (memory, arena, bell) =
        (sealed(layout.bytes()), sealed(ARENA_BYTES), sealed(PeerBell::BYTES));
    let (memory, arena, bell) = (memory.as_fd(), arena.as_fd(), bell.as_fd());
    let unsealed = unsealed(layout.bytes() as u64, SealFlags::empty());
    let can_shrink = self::unsealed(layout.bytes() as u64, SealFlags::GROW | SealFlags::SEAL);
    let small = sealed(4096);
    let huge = sealed(1 << 40);
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let hello = hello().encode();
    let cases: [(&[BorrowedFd<'_>], Refusal); 12] = [
        (&[memory], Refusal::Malformed),
        (&[memory, arena], Refusal::Malformed),
        (&[memory, arena, bell, bell], Refusal::Malformed),
        (&[unsealed.as_fd(), arena, bell], Refusal::Malformed),
        (&[can_shrink.as_fd(), arena, bell], Refusal::Malformed),
        (&[small.as_fd(), arena, bell], Refusal::Malformed),
        (&[huge.as_fd(), arena, bell], Refusal::Malformed),
        (&[event.as_fd(), arena, bell], Refusal::Malformed),
        (&[file.as_fd(), arena, bell], Refusal::Malformed),
        (&[memory, huge.as_fd(), bell], Refusal::Malformed),
        (&[memory, small.as_fd(), bell], Refusal::Malformed),
        (&[memory, arena, huge.as_fd()], Refusal::Malformed),
    ];
    for (fds, refusal) in cases {
        expect_refused(&mut victim, &hello, fds, refusal);
    }
    victim.expect_unharmed();
}

#[test]
fn slabs_that_are_not_what_they_should_be_are_refused() {
    let mut victim = Victim::new();
    let layout = Layout::new(SLOTS).unwrap();
    let sizes = [layout.bytes(), ARENA_BYTES, PeerBell::BYTES];
    let memory = sizes.map(|bytes| SharedMemory::create("attack", bytes).unwrap().1);
    let usual = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    let good = with_pages(8192, usual | SealFlags::FUTURE_WRITE);
    let cases = [
        // Fewer and more than the packet says, too many, and none of the size it says.
        (vec![], 1, 8192, Refusal::Malformed),
        (vec![&good, &good], 1, 8192, Refusal::Malformed),
        (vec![&good; 5], 5, 5 * 8192, Refusal::Malformed),
        (vec![&good], u32::MAX, 8192, Refusal::Malformed),
        (vec![&good], 1, 4096, Refusal::Malformed),
        (vec![&good], 1, 8193, Refusal::Malformed),
        (vec![&good], 1, u64::MAX, Refusal::Limits),
        (vec![&good], 1, (4 << 30) + 1, Refusal::Limits),
        (vec![], 0, 8192, Refusal::Limits),
    ];
    for (slabs, count, slab_bytes, refusal) in cases {
        let packet = Packet { slabs: count, slab_bytes, ..hello() }.encode();
        let fds = memory.iter().chain(slabs).map(AsFd::as_fd).collect::<Vec<_>>();
        expect_refused(&mut victim, &packet, &fds, refusal);
    }
    let unfit = [
        with_pages(8192, SealFlags::FUTURE_WRITE),
        with_pages(8192, usual),
        with_pages(8192, SealFlags::GROW | SealFlags::SEAL | SealFlags::FUTURE_WRITE),
        // All holes: the victim would pay for the pages.
        unsealed(8192, usual | SealFlags::FUTURE_WRITE),
        std::fs::File::open("/dev/null").unwrap().into(),
    ];
    for slab in &unfit {
        let packet = Packet { slabs: 1, slab_bytes: 8192, ..hello() }.encode();
        let fds = memory.iter().chain([slab]).map(AsFd::as_fd).collect::<Vec<_>>();
        expect_refused(&mut victim, &packet, &fds, Refusal::Malformed);
    }
    victim.expect_unharmed();
}

/// Memory whose pages are there.
pub(super) fn with_pages(bytes: usize, seals: SealFlags) -> OwnedFd {
    let fd = unsealed(bytes as u64, SealFlags::empty());
    rustix::io::pwrite(&fd, &vec![1; bytes], 0).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn sizes_out_of_the_limits_are_refused() {
    let mut victim = Victim::new();
    let layout = Layout::new(SLOTS).unwrap();
    let (_, memory) = SharedMemory::create("attack", layout.bytes()).unwrap();
    let slots = [0, 1, SLOTS - 1, SLOTS / 2, SLOTS * 2, 65536, u32::MAX];
    let packets = slots.map(|slots| Packet { slots, ..hello() });
    let arenas = [ARENA_BYTES_MAX as u64 + 1, 1 << 40, u64::MAX];
    let packets =
        packets.into_iter().chain(arenas.map(|bytes| Packet { arena_bytes: bytes, ..hello() }));
    for packet in packets {
        let fds = [memory.as_fd(), memory.as_fd(), memory.as_fd()];
        expect_refused(&mut victim, &packet.encode(), &fds, Refusal::Limits);
    }
}

/// Connect with the largest arenas. Expect each to be counted toward `limits.peer_mib`.
#[test]
fn arenas_of_the_largest_size_are_mapped_until_a_process_has_what_it_may_have() {
    let mut victim = Victim::new();
    let sizes = [Layout::new(SLOTS).unwrap().bytes(), ARENA_BYTES_MAX, PeerBell::BYTES];
    let memory = sizes.map(|bytes| SharedMemory::create("attack", bytes).unwrap().1);
    let fds = memory.each_ref().map(AsFd::as_fd);
    let packet = Packet { arena_bytes: ARENA_BYTES_MAX as u64, ..hello() }.encode();
    let held = [(); 3].map(|()| {
        let socket = open(&victim.address);
        socket::write(socket.as_fd(), &packet, &fds).unwrap();
        answer(&socket).unwrap();
        (socket, victim.endpoints.recv_timeout(PATIENCE).unwrap())
    });
    expect_refused(&mut victim, &packet, &fds, Refusal::Memory);
    drop(held);
    victim.expect_unharmed();
}

#[test]
fn silent_peers_hold_up_nobody_and_are_let_go() {
    let among_silent = |handshake_timeout| {
        let victim = Victim::with(handshake_timeout);
        let silent: Vec<_> = (0..200).map(|_| silent(&victim.address)).collect();
        victim.expect_listening();
        (victim, silent)
    };
    // Other peers would have given up by the end of these handshakes.
    drop(among_silent(3 * PATIENCE));
    let (mut victim, silent) = among_silent(ShmConfig::default().handshake_timeout);
    for socket in &silent {
        loop {
            socket::wait_readable(socket.as_fd(), Instant::now() + PATIENCE).unwrap();
            // After the packet that says that the victim is ready, nothing but the end comes.
            match handshake::peek::<0>(socket, Kind::Ready) {
                Ok(_) => handshake::take(socket).unwrap(),
                Err(_) => break,
            }
        }
    }
    victim.expect_unharmed();
}

/// Want of memory is not held against the peer.
#[test]
fn memory_that_the_system_cannot_map_is_no_malformed_handshake() {
    let address = format!("shm:hostile-{}-mapping", std::process::id());
    let (listener, _) = socket::listen(&Address::parse(&address).unwrap()).unwrap();
    let mut receiver = silent(&address);
    receiver.accept_descriptors();
    socket::wait_readable(listener.as_fd(), Instant::now() + PATIENCE).unwrap();
    let Accepted::Peer(sender, _) = listener.accept().unwrap().unwrap() else {
        panic!("this process is of the same user")
    };
    // More than a process has addresses for.
    let bytes = 1 << 50;
    let memory = unsealed(bytes, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL);
    socket::write(sender.as_fd(), &hello().encode(), &[memory.as_fd()]).unwrap();
    let (_, [fd], _) = receive(&receiver, Kind::Hello).unwrap();
    let error = handshake::map_arena(fd, bytes).unwrap_err();
    assert_eq!(error.refusal(), Refusal::Resources);
}

#[test]
fn headers_that_no_message_has_end_the_connection() {
    // Continued at the start, unknown flags, too long, and a message whose rest is not there.
    for (flags, length) in [
        (1, 8),
        (4, 8),
        (6, 32),
        (5, 32),
        (4, 31),
        (4, 33),
        (8, 32),
        (0x80, 8),
        (0, 0xff_ffff),
        (0, 9000),
        (2, 300),
        (0, 300),
    ] {
        let (mut victim, attacker, qp) = Victim::attacked();
        victim.end.post_recvs(qp, 4);
        attacker.put_header(0, 1, flags, length);
        victim.expect_misbehaved(qp);
        victim.expect_unharmed();
    }
}

#[test]
fn a_header_with_another_sequence_is_no_message() {
    let (mut victim, attacker, qp) = Victim::attacked();
    victim.end.post_recvs(qp, 4);
    for sequence in [0, 2, 65, u64::from(u32::MAX)] {
        attacker.put_header(0, sequence, 0, 8);
        (0..200).for_each(|_| victim.end.turn());
        assert_eq!(victim.end.next(qp), None);
    }
    victim.expect_unharmed();
}

#[test]
fn progress_that_cannot_be_ends_the_connection() {
    for progress in [u64::from(SLOTS) + 1, u64::MAX] {
        let (mut victim, attacker, qp) = Victim::attacked();
        attacker.window.store(attacker.victims_ring.control, progress, Ordering::Relaxed);
        for _ in 0..=SLOTS {
            // The last one asks how far the peer has read, and is the end.
            victim.end.try_send(qp, b"x");
        }
        victim.expect_misbehaved(qp);
        victim.expect_unharmed();
    }
}

/// As above, where messages go out by value: the peer says too much, or less than it has said before.
#[test]
fn progress_that_cannot_be_ends_the_connection_of_who_sends_by_value() {
    let message = pattern(3, 100);
    for (first, then) in [(0, u64::from(SLOTS) + 1), (0, u64::MAX), (8, 7), (8, 0)] {
        let (mut victim, attacker, qp) = Victim::attacked();
        let progress = attacker.victims_ring.control;
        attacker.window.store(progress, first, Ordering::Relaxed);
        // The next one asks how far the peer has read.
        (0..u64::from(SLOTS) + first).for_each(|_| victim.end.send_short(qp, &message));
        attacker.window.store(progress, then, Ordering::Relaxed);
        let (endpoint, mut short) = (victim.end.fabric.short_endpoint(qp).unwrap(), Short::EMPTY);
        short.set_len(message.len());
        assert!(
            endpoint.send(short.head(), &short, short.length()),
            "what is lost with the connection is not posted"
        );
        assert!(!endpoint.send(short.head(), &short, short.length()), "nothing more goes by value");
        victim.end.fabric.flush();
        victim.expect_misbehaved(qp);
        victim.expect_unharmed();
    }
}

/// An order to fetch reaches only what is exposed to be written, and fetches only what is there.
#[test]
fn orders_to_fetch_that_name_nothing_end_the_connection() {
    let slab = slab(4096, 1);
    let good = Fetch { handle: 0, slab: 0, length: 64, to: 0, from: 0 };
    let wrong: [fn(&mut Fetch, RemoteSlice); 13] = [
        |order, _| order.handle ^= 1,
        |order, _| order.handle ^= 1 << 31,
        |order, other| (order.handle, order.to) = (other.handle, other.offset),
        |order, _| order.to += 1,
        |order, _| order.to = order.to.wrapping_sub(1),
        |order, _| order.to = u64::MAX,
        |order, _| order.length = 65,
        |order, _| order.length = u32::MAX,
        |order, _| order.length = 0,
        |order, _| order.slab = 1,
        |order, _| order.slab = u32::MAX,
        |order, _| order.from = 4033,
        |order, _| order.from = u64::MAX - 8,
    ];
    for (number, spoil) in wrong.into_iter().enumerate() {
        let mut victim = Victim::new();
        let attacker = Attacker::lending(&victim.address, Some(&slab));
        let endpoint = victim.endpoints.recv_timeout(PATIENCE).unwrap();
        let qp = victim.end.fabric.adopt(endpoint).unwrap();
        let mut bulks = [victim.end.bulk(qp, &[7; 64]), victim.end.bulk(qp, &[7; 64])];
        let mut expose = |index: usize, access| {
            victim.end.fabric.expose(qp, bulks[index].lease(0..64), access, None).unwrap()
        };
        let (target, other) = (expose(0, Access::RemoteWrite), expose(1, Access::RemoteRead));
        let mut order = Fetch { handle: target.handle, to: target.offset, ..good };
        spoil(&mut order, other);
        attacker.order(&order);
        victim.expect_misbehaved(qp);
        assert!(bulks.iter().all(|bulk| bytes_of(bulk) == [7; 64]), "order {number}");
        victim.expect_unharmed();
    }
}

#[test]
fn a_spoilt_bell_delays_others_but_stops_nobody() {
    let (mut victim, attacker, qp) = Victim::attacked();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let bell = attacker.victims_bell.bits().words();
            for at in (0..BELL_WORDS).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                bell.store(at, if at % 3 == 0 { u64::MAX } else { 0 }, Ordering::Relaxed);
            }
        });
        for _ in 0..20 {
            // Long enough for the decent connection to go cold.
            (0..200).for_each(|_| victim.end.turn());
            victim.expect_unharmed();
            victim.end.fabric.park(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(victim.end.next(qp), None);
}

/// Has the decent peer ring for a message, takes that away, and returns what `wait` took to find
/// the message: the median and the maximum of several.
fn delays_without_bell(mut wait: impl FnMut(&mut Victim)) -> (Duration, Duration) {
    let (mut victim, attacker, _qp) = Victim::attacked();
    let mut delays = [(); 9].map(|()| {
        // Long enough for the decent connection to go cold.
        (0..200).for_each(|_| victim.end.turn());
        victim.end.post_recvs(victim.at_victim, 1);
        victim.decent.send(victim.at_decent, b"fine");
        victim.decent.turn();
        let bell = attacker.victims_bell.bits().words();
        (0..BELL_WORDS).for_each(|at| bell.store(at, 0, Ordering::SeqCst));
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            wait(&mut victim);
            if let Some(event) = victim.end.next(victim.at_victim) {
                assert_eq!(event, Event::Message(b"fine".to_vec(), None));
                return start.elapsed();
            }
        }
        panic!("the message was not found in {PATIENCE:?}");
    });
    delays.sort_unstable();
    (delays[delays.len() / 2], delays[delays.len() - 1])
}

/// Of most rounds: a thread may be paused in others. They take 10 ms; the rest is for a machine that has other work. A core that
/// relies on its bell parks for 5 s, each time.
const ROUND_MAX: Duration = Duration::from_secs(if cfg!(sanitized) { 3 } else { 1 });

#[test]
fn a_cleared_bell_does_not_hold_up_others_on_a_busy_or_a_parked_core() {
    let busy = |victim: &mut Victim| {
        // A turn of a core that has handlers to run.
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(50) {}
        victim.end.turn();
    };
    let parked = |victim: &mut Victim| {
        victim.end.fabric.park(PATIENCE / 4);
        victim.end.turn();
    };
    for (what, (median, max)) in
        [("busy", delays_without_bell(busy)), ("parked", delays_without_bell(parked))]
    {
        println!("{what}: median {median:?}, max {max:?}");
        assert!(median < ROUND_MAX, "{what}: median {median:?}, max {max:?}");
    }
}

#[test]
fn no_reference_shows_bytes_that_the_peer_changes() {
    let (mut victim, attacker, qp) = Victim::attacked();
    let bulk = victim.end.fabric.bulk(qp, 64).unwrap();
    let look = || catch_unwind(AssertUnwindSafe(|| bulk.bytes()[0])).ok();
    let before = look();
    let arena = &attacker.victims_arena;
    (0..arena.count()).for_each(|at| arena.store(at, u64::MAX, Ordering::Relaxed));
    assert_eq!(look(), before, "safe code saw the byte change");
    assert_eq!(before, None, "a reference to memory that the peer can write");
    let mut copy = [0; 64];
    bulk.copy_to(0, &mut copy);
    assert_eq!(copy, [u8::MAX; 64], "the peer has written it, under no key");
}

/// Stops a thread that disturbs, also when the test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_message_rewritten_while_it_is_received_is_torn_at_worst() {
    let (mut victim, attacker, qp) = Victim::attacked();
    let producer = Producer::new(attacker.window.clone(), attacker.ring).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let payload = attacker.ring.slots_at..attacker.window.count();
            for at in payload.cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                if at % SLOT_WORDS != 0 {
                    attacker.window.store(at, u64::MAX, Ordering::Relaxed);
                }
            }
        });
        let _stop = StopAtEnd(&stop);
        victim.end.post_recvs(qp, 1);
        for number in 0..5000_usize {
            let (message, by_value) = (vec![0; number % 1000], victim.end.shorts);
            while producer.push(None, &message).is_err() {}
            attacker.victims_bell.ring(attacker.place);
            let Event::Message(got, None) = victim.expect_event(qp) else { panic!("no message") };
            assert_eq!(got.len(), message.len());
            if victim.end.shorts == by_value {
                victim.end.post_recvs(qp, 1);
            }
        }
    });
    victim.expect_unharmed();
}

#[test]
fn any_bytes_anywhere_in_the_shared_memory_are_survived() {
    // A fixed seed per round: what fails once fails again.
    for seed in 1..=20_u64 {
        let (mut victim, attacker, qp) = Victim::attacked();
        let words = attacker.window.count() as u64;
        let mut state = seed;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
            state >> 17
        };
        for _ in 0..300 {
            for _ in 0..20 {
                let (at, value) = (random() % words, random() << (random() % 48));
                attacker.window.store(at as usize, value, Ordering::Relaxed);
                attacker.put_header(
                    (random() % 4) as usize,
                    random() % 5,
                    random() % 8,
                    random() % 600,
                );
            }
            let slice = RemoteSlice {
                handle: random() as u32,
                length: 64,
                offset: random() % (2 * ARENA_BYTES as u64),
            };
            provoke(&mut victim, qp, slice);
        }
        victim.end.fabric.close(qp);
        while !matches!(victim.expect_event(qp), Event::Down(_)) {}
        victim.expect_unharmed();
    }
}

/// Uses everything of a queue pair, as far as it still lives.
fn provoke(victim: &mut Victim, qp: QpId, slice: RemoteSlice) {
    let buf = victim.end.message(&[]);
    drop(victim.end.fabric.post_recv(qp, buf));
    victim.end.try_send(qp, b"anything");
    if let Some(mut bulk) = victim.end.fabric.bulk(qp, 64) {
        let into = bulk.lease(0..64);
        drop(victim.end.fabric.post(qp, SendWr::Read { id: WrId(1), from: slice, into }));
    }
    if let Some(mut bulk) = victim.end.fabric.bulk(qp, 64) {
        let lease = bulk.lease(0..64);
        if let Ok(slice) = victim.end.fabric.expose(qp, lease, Access::RemoteWrite, None) {
            victim.end.fabric.revoke(qp, slice.handle);
        }
    }
    victim.end.turn();
}
