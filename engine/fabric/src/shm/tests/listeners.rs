//! Tests: listeners that do not keep to the handshake.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::super::address::Address;
use super::super::config::ARENA_BYTES_MAX;
use super::super::core::PeerBell;
use super::super::handshake::{Kind, Packet};
use super::super::socket;
use super::hostile::{hello, unsealed, with_pages};
use super::*;
use crate::sys::mmap::SharedMemory;
use crate::sys::peer_socket::{Accepted, PeerSocket};
use rustix::fs::SealFlags;

const PATIENCE: Duration = Duration::from_secs(20);
const SLAB_BYTES: usize = 4096;
const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// Outcome of a connection whose listener answers with this packet and these descriptors, or not at all.
fn answered(
    config: ShmConfig,
    packet: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<Endpoint, FabricError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let connector = ShmConnector::new(config).unwrap();
    let address = format!("shm:listeners-{}-{number}", std::process::id());
    let (listener, _) = socket::listen(&Address::parse(&address).unwrap()).unwrap();
    let ready = Packet { kind: Kind::Ready, slots: 256, arena_bytes: 1 << 30, ..Packet::EMPTY };
    let timeout = Duration::from_millis(if packet.is_empty() { 100 } else { 10_000 });
    let await_readable = |socket: &PeerSocket| {
        socket::wait_readable(socket.as_fd(), Instant::now() + PATIENCE).unwrap();
    };
    thread::scope(|scope| {
        let connecting = scope.spawn(|| connector.connect(&ConnectRequest::new(&address, timeout)));
        socket::wait_readable(listener.as_fd(), Instant::now() + PATIENCE).unwrap();
        let Accepted::Peer(mut socket, _) = listener.accept().unwrap().unwrap() else {
            panic!("this process is of the same user")
        };
        socket.accept_descriptors();
        // Where the connector waits for 100 ms only, it may have gone.
        let _ = socket::write(socket.as_fd(), &ready.encode(), &[]);
        await_readable(&socket);
        if !packet.is_empty() {
            socket::write(socket.as_fd(), packet, fds).unwrap();
        }
        connecting.join().unwrap()
    })
}

fn accept() -> Packet {
    Packet { kind: Kind::Accept, slots: 256, ..hello() }
}

#[test]
fn a_listener_that_does_not_keep_to_the_handshake_is_an_error_in_time() {
    let accept = accept().encode();
    let (_, memory) = SharedMemory::create("attack", 4096).unwrap();
    let memory = memory.as_fd();
    let answers: [(&[u8], &[BorrowedFd<'_>]); 5] = [
        (&[], &[]),
        (b"no", &[]),
        (&accept, &[memory]),
        (&accept, &[memory, memory]),
        (&accept, &[memory, memory, memory]),
    ];
    for (packet, fds) in answers {
        let error = answered(ShmConfig::default(), packet, fds).err().unwrap().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn arenas_that_a_listener_may_not_have_are_refused() {
    let (_, bell) = SharedMemory::create("attack", PeerBell::BYTES).unwrap();
    let max = ARENA_BYTES_MAX as u64;
    for (told, made, reason) in [
        (max, max, ""),
        (max + 4096, max + 4096, "limits.peer_mib"),
        (1 << 40, 1 << 40, "limits.peer_mib"),
        (4096, max, "malformed"),
        (u64::MAX, 4096, "limits.peer_mib"),
    ] {
        let arena = unsealed(made, SEALS);
        let packet = Packet { arena_bytes: told, ..accept() }.encode();
        let result = answered(ShmConfig::default(), &packet, &[arena.as_fd(), bell.as_fd()]);
        let error = result.err().map_or_else(String::new, |error| error.to_string());
        assert_eq!(error.is_empty(), reason.is_empty(), "{made} bytes, told {told}: {error}");
        assert!(error.contains(reason), "{made} bytes, told {told}: {error}");
    }
}

/// Configure less shared memory with a process than two arenas have. Expect no connection, and an error that says why.
#[test]
fn an_arena_that_the_listener_has_no_room_for_is_not_sent() {
    let connector = |config| ShmConnector::new(config).unwrap();
    let server = connector(ShmConfig { peer_memory_bytes_max: 30 << 20, ..ShmConfig::default() });
    let address = format!("shm:listeners-{}-room", std::process::id());
    let (acceptor, _endpoints) = accept_into_channel(Some(1));
    let _listener = server.listen(&ListenRequest::new(&address), acceptor).unwrap();
    let request = ConnectRequest::new(&address, PATIENCE);
    let error = connector(ShmConfig::default()).connect(&request).unwrap_err().to_string();
    assert!(error.contains("raise limits.peer_mib there"), "{error}");
}

/// Answer of a connector to slabs that a listener lends it, and that it has to map, all else being right.
fn lent(config: ShmConfig, slabs: &[&OwnedFd], count: u32, slab_bytes: u64) -> Result<(), String> {
    let packet = Packet { slabs: count, slab_bytes, ..accept() };
    let sizes = [packet.arena_bytes as usize, PeerBell::BYTES];
    let memory = sizes.map(|bytes| SharedMemory::create("attack", bytes).unwrap().1);
    let fds: Vec<_> = memory.iter().chain(slabs.iter().copied()).map(AsFd::as_fd).collect();
    answered(config, &packet.encode(), &fds).map(drop).map_err(|error| error.to_string())
}

#[test]
fn slabs_that_a_listener_may_not_lend_are_refused() {
    let config = |peer_slabs_max| ShmConfig {
        peer_slabs_max,
        peer_slab_bytes_max: 4 * SLAB_BYTES,
        ..ShmConfig::default()
    };
    let good = with_pages(SLAB_BYTES, SEALS | SealFlags::FUTURE_WRITE);
    let bytes = SLAB_BYTES as u64;
    for (max, slabs) in [(0, 0), (1, 0), (1, 1), (4, 4)] {
        let slabs = vec![&good; slabs];
        assert_eq!(
            lent(config(max), &slabs, slabs.len() as u32, slabs.len() as u64 * bytes),
            Ok(())
        );
    }
    let long = with_pages(5 * SLAB_BYTES, SEALS | SealFlags::FUTURE_WRITE);
    let (writable, holes) =
        (with_pages(SLAB_BYTES, SEALS), unsealed(bytes, SEALS | SealFlags::FUTURE_WRITE));
    for (max, slabs, count, bytes) in [
        // Fewer or shorter ones are accepted.
        (1, vec![&good; 2], 2, 2 * bytes),
        (0, vec![&good], 1, bytes),
        (4, vec![&long], 1, 5 * bytes),
        // Bytes of none, or of others than come.
        (4, vec![], 0, bytes),
        (4, vec![&good], 1, 2 * bytes),
        (4, vec![&good; 2], 1, bytes),
        (4, vec![&writable], 1, bytes),
        (4, vec![&holes], 1, bytes),
    ] {
        let error = lent(config(max), &slabs, count, bytes).unwrap_err();
        assert!(error.contains("the handshake is malformed"), "{count} of {bytes}: {error}");
    }
}
