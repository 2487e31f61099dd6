//! The handshake: three packets, two of them with the memory of the connection.
//!
//! The listener sends READY as soon as it knows that the peer is trusted: only then does it let
//! descriptors in. The connector sends HELLO with the connection's memory, its arena, its core's
//! bell and the slabs that it lends; the listener answers ACCEPT with its own arena, bell and slabs, or REJECT. READY and
//! HELLO say which slabs their sender accepts; a listener whose slabs are more lends none. Everything that arrives is
//! looked at while the socket still holds it, and taken once it is checked and mapped, so that this
//! thread closes no descriptor that could make it wait.

use super::config::CONNS_MAX;
use super::core::{CoreShared, PeerBell, PlaceLease};
use super::layout::{Layout, Side};
use super::window::Window;
use crate::connector_common::{PRIVATE_DATA_BYTES, PrivateData};
use crate::mem::{BulkClass, BulkPool, Region, SLABS_MAX, Slab};
use crate::sys::mmap::{AddressPool, BorrowedMemory, SharedMemory};
use crate::sys::peer_socket::{DESCRIPTORS_MAX, Peeked, PeerFd, PeerSocket};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"spinshm\n";
const VERSION: u32 = 4;

const HEADER_BYTES: usize = 56;

pub(super) const PACKET_BYTES: usize = HEADER_BYTES + PRIVATE_DATA_BYTES;

const _: () = assert!(Kind::Hello.descriptors() + SLABS_MAX < DESCRIPTORS_MAX);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// With the listener's number of slots, and the largest arena that it accepts.
    Ready,
    Hello,
    Accept,
    Reject(Refusal),
}

impl Kind {
    /// Descriptors that come with it, slabs apart.
    const fn descriptors(self) -> usize {
        match self {
            Self::Hello => 3,
            Self::Accept => 2,
            Self::Ready | Self::Reject(_) => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub(super) enum Refusal {
    #[error("the handshake is malformed")]
    Malformed = 0,
    #[error("it speaks another version of the handshake")]
    Version = 1,
    // 2 was for other users, whose connections are closed without a packet.
    #[error(
        "the rings are not of the listener's size (shm.ring_slots), or the arena is larger than it accepts \
         (limits.peer_mib), or the slabs are (limits.peer_slab_mib)"
    )]
    Limits = 3,
    #[error("the listener has as many connections as it takes")]
    Full = 4,
    #[error("the listener is out of memory or descriptors")]
    Resources = 5,
    #[error(
        "the listener's limit on the shared memory of a process or a core is reached (limits.peer_mib, \
         limits.core_mib)"
    )]
    Memory = 6,
}

const REFUSALS: [Refusal; 6] = [
    Refusal::Malformed,
    Refusal::Version,
    Refusal::Limits,
    Refusal::Full,
    Refusal::Resources,
    Refusal::Memory,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) kind: Kind,
    /// Of each ring; the listener decides and READY says how many.
    pub(super) slots: u32,
    /// Bit that the receiver of this packet rings at the sender's doorbell.
    pub(super) place: u32,
    pub(super) arena_bytes: u64,
    /// Slabs that come with it.
    pub(super) slabs: u32,
    pub(super) slab_bytes: u64,
    /// Slabs that its sender accepts.
    pub(super) slabs_max: u32,
    pub(super) slab_bytes_max: u64,
    pub(super) private_data: PrivateData,
}

impl Packet {
    pub(super) fn reject(refusal: Refusal) -> Self {
        Self { kind: Kind::Reject(refusal), ..Self::EMPTY }
    }

    pub(super) const EMPTY: Self = Self {
        kind: Kind::Ready,
        slots: 0,
        place: 0,
        arena_bytes: 0,
        slabs: 0,
        slab_bytes: 0,
        slabs_max: 0,
        slab_bytes_max: 0,
        private_data: [0; PRIVATE_DATA_BYTES],
    };

    pub(super) fn accepts(&self, lent: &[Slab]) -> bool {
        let (count, bytes) = (lent.len(), bytes_of(lent));
        count == 0 || (count <= self.slabs_max as usize && bytes <= self.slab_bytes_max)
    }

    pub(super) fn encode(&self) -> [u8; PACKET_BYTES] {
        let kind = match self.kind {
            Kind::Hello => 1,
            Kind::Accept => 2,
            Kind::Ready => 3,
            Kind::Reject(refusal) => 16 + refusal as u32,
        };
        let mut packet = [0; PACKET_BYTES];
        packet[..8].copy_from_slice(&MAGIC);
        packet[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        packet[12..16].copy_from_slice(&kind.to_ne_bytes());
        packet[16..20].copy_from_slice(&self.slots.to_ne_bytes());
        packet[20..24].copy_from_slice(&self.place.to_ne_bytes());
        packet[24..32].copy_from_slice(&self.arena_bytes.to_ne_bytes());
        packet[32..36].copy_from_slice(&self.slabs.to_ne_bytes());
        packet[36..40].copy_from_slice(&self.slabs_max.to_ne_bytes());
        packet[40..48].copy_from_slice(&self.slab_bytes.to_ne_bytes());
        packet[48..56].copy_from_slice(&self.slab_bytes_max.to_ne_bytes());
        packet[HEADER_BYTES..].copy_from_slice(&self.private_data);
        packet
    }

    pub(super) fn decode(packet: &[u8]) -> Result<Self, Refusal> {
        // Before the length, which differs between versions.
        check_version(packet)?;
        let packet: &[u8; PACKET_BYTES] = packet.try_into().map_err(|_| Refusal::Malformed)?;
        let word = |at: usize| {
            u32::from_ne_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
        };
        let kind = match word(12) {
            1 => Kind::Hello,
            2 => Kind::Accept,
            3 => Kind::Ready,
            other => {
                let refusal = REFUSALS.into_iter().find(|refusal| 16 + *refusal as u32 == other);
                Kind::Reject(refusal.ok_or(Refusal::Malformed)?)
            }
        };
        let long = |at: usize| {
            let bytes = packet[at..].first_chunk();
            u64::from_ne_bytes(*bytes.unwrap_or(&[0; 8]))
        };
        let mut private_data = [0; PRIVATE_DATA_BYTES];
        private_data.copy_from_slice(&packet[HEADER_BYTES..]);
        Ok(Self {
            kind,
            slots: word(16),
            place: word(20),
            arena_bytes: long(24),
            slabs: word(32),
            slab_bytes: long(40),
            slabs_max: word(36),
            slab_bytes_max: long(48),
            private_data,
        })
    }
}

/// Checks what packets of all versions start with, whatever their length.
fn check_version(packet: &[u8]) -> Result<(), Refusal> {
    let rest = packet.strip_prefix(&MAGIC).ok_or(Refusal::Malformed)?;
    let version = rest.first_chunk().ok_or(Refusal::Malformed)?;
    if u32::from_ne_bytes(*version) != VERSION {
        return Err(Refusal::Version);
    }
    Ok(())
}

pub(super) fn bytes_of(slabs: &[Slab]) -> u64 {
    slabs.iter().map(|slab| slab.bytes() as u64).fold(0, u64::saturating_add)
}

/// A packet that is taken is one that is sent, and its rings have a layout or none. For fuzzing.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let Ok(packet) = Packet::decode(bytes) else { return };
    assert_eq!(packet.encode(), *bytes);
    if let Some(layout) = Layout::new(packet.slots) {
        assert!(layout.message_bytes_max() < layout.bytes());
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    System(#[from] io::Error),
}

impl HandshakeError {
    pub(super) fn refusal(&self) -> Refusal {
        match self {
            Self::Refused(refusal) => *refusal,
            Self::System(_) => Refusal::Resources,
        }
    }
}

/// Looks at the packet that has arrived at `socket`, with exactly `N` descriptors if it is of `kind`, and those of
/// the slabs behind them. It stays there until [`take`].
pub(super) fn peek<const N: usize>(
    socket: &PeerSocket,
    kind: Kind,
) -> Result<(Packet, [PeerFd; N], Vec<PeerFd>), HandshakeError> {
    // One byte more, so that a longer packet shows.
    let mut bytes = [0; PACKET_BYTES + 1];
    let Peeked { length, fds, is_whole } = socket.peek(&mut bytes)?;
    if length == 0 && fds.is_empty() {
        let why = "the other side hung up during the handshake";
        return Err(io::Error::new(io::ErrorKind::ConnectionReset, why).into());
    }
    let packet = Packet::decode(&bytes[..length])?;
    if let Kind::Reject(refusal) = packet.kind {
        return Err(refusal.into());
    }
    let mut fds = fds;
    let slabs = packet.slabs as usize;
    let is_kind = packet.kind == kind && packet.place < CONNS_MAX;
    if !is_whole || !is_kind || slabs > SLABS_MAX || fds.len() != N + slabs {
        return Err(Refusal::Malformed.into());
    }
    let slabs = fds.split_off(N);
    let fds = fds.try_into().map_err(|_| Refusal::Malformed)?;
    Ok((packet, fds, slabs))
}

/// The packet that [`peek`] has shown. All of its descriptors have been mapped.
pub(super) fn take(socket: &PeerSocket) -> io::Result<()> {
    socket.take(PACKET_BYTES)
}

#[derive(Debug)]
pub(super) struct Own {
    pub(super) arena: OwnedFd,
    pub(super) arena_bytes: usize,
    pub(super) bulk: BulkPool,
    pub(super) place: PlaceLease,
}

impl Own {
    pub(super) fn new(
        core: &Arc<CoreShared>,
        classes: &[BulkClass],
    ) -> Result<Self, HandshakeError> {
        let place = PlaceLease::take(core).ok_or(Refusal::Full)?;
        let bytes = BulkPool::region_bytes(classes).map_err(io::Error::other)?;
        let (memory, arena) = SharedMemory::create("spinrpc-arena", bytes)?;
        let arena_bytes = memory.len();
        if let Some(node) = core.node() {
            memory.prefer_node(0..arena_bytes, node);
        }
        let bulk = BulkPool::new(Region::from_shared(Arc::new(memory)), classes);
        Ok(Self { arena, arena_bytes, bulk: bulk.map_err(io::Error::other)?, place })
    }

    pub(super) fn packet(
        &self,
        kind: Kind,
        layout: Layout,
        lent: &[Slab],
        private_data: PrivateData,
    ) -> Packet {
        Packet {
            kind,
            slots: layout.slots(),
            place: self.place.index(),
            arena_bytes: self.arena_bytes as u64,
            slabs: lent.len() as u32,
            slab_bytes: bytes_of(lent),
            private_data,
            ..Packet::EMPTY
        }
    }
}

#[derive(Debug)]
pub(super) struct Theirs {
    pub(super) arena: Window,
    pub(super) bell: PeerBell,
    pub(super) slabs: Box<[BorrowedMemory]>,
}

impl Theirs {
    pub(super) fn map(
        packet: &Packet,
        [arena, bell]: [PeerFd; 2],
        slabs: Vec<PeerFd>,
    ) -> Result<Self, HandshakeError> {
        let arena = map_arena(arena, packet.arena_bytes)?;
        Ok(Self { arena, bell: map_bell(bell)?, slabs: map_slabs(slabs, packet.slab_bytes)? })
    }
}

pub(super) fn place_near(window: &Window, layout: Layout, side: Side, node: Option<u32>) {
    let Some(node) = node else { return };
    for part in layout.near(side).into_iter().filter(|part| !part.is_empty()) {
        window.memory.prefer_node(part, node);
    }
}

/// Brings into being what a connection touches with its first messages, as far as this side does. The core brings in the
/// rest when there are more: a connection that is never used holds three pages.
pub(super) fn prefault_idle(window: &Window, layout: Layout, side: Side) {
    for part in layout.idle_parts(side).into_iter().filter(|part| !part.is_empty()) {
        // Without it the core takes page faults; nothing else is lost.
        let _ = window.memory.prefault(part);
    }
}

pub(super) fn map_connection(
    fd: PeerFd,
    layout: Layout,
    core: &CoreShared,
) -> Result<Window, HandshakeError> {
    let bytes_max = layout.bytes().next_multiple_of(rustix::param::page_size());
    let memory = map(Some(&core.rings), fd, bytes_max, Refusal::Malformed)?;
    if memory.len() < layout.bytes() {
        return Err(Refusal::Malformed.into());
    }
    Ok(Window::new(Arc::new(memory)))
}

pub(super) fn map_arena(fd: PeerFd, bytes: u64) -> Result<Window, HandshakeError> {
    let bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX);
    let memory = map(None, fd, bytes_max, Refusal::Malformed)?;
    if memory.len() as u64 != bytes {
        return Err(Refusal::Malformed.into());
    }
    Ok(Window::new(Arc::new(memory)))
}

fn map_slabs(fds: Vec<PeerFd>, bytes: u64) -> Result<Box<[BorrowedMemory]>, HandshakeError> {
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut slabs = Vec::with_capacity(fds.len());
    for fd in fds {
        let slab = BorrowedMemory::from_fd(&fd, left).map_err(or_refusal(Refusal::Malformed))?;
        // Memory it is: closing it takes no time.
        drop(fd.into_fd());
        left -= slab.len();
        slabs.push(slab);
    }
    match left {
        0 => Ok(slabs.into()),
        _ => Err(Refusal::Malformed.into()),
    }
}

pub(super) fn map_bell(fd: PeerFd) -> Result<PeerBell, HandshakeError> {
    let bytes_max = PeerBell::BYTES.next_multiple_of(rustix::param::page_size());
    let memory = map(None, fd, bytes_max, Refusal::Malformed)?;
    Ok(PeerBell::new(Arc::new(memory)).map_err(|_| Refusal::Malformed)?)
}

fn map(
    pool: Option<&Arc<AddressPool>>,
    fd: PeerFd,
    bytes_max: usize,
    refusal: Refusal,
) -> Result<SharedMemory, HandshakeError> {
    let memory = SharedMemory::from_fd_in(pool, &fd, bytes_max).map_err(or_refusal(refusal))?;
    // Memory it is: closing it takes no time.
    drop(fd.into_fd());
    Ok(memory)
}

/// Consequence of memory that cannot be mapped: `refusal`, unless this side has no room for it.
fn or_refusal(refusal: Refusal) -> impl Fn(io::Error) -> HandshakeError {
    move |error| match error.kind() {
        io::ErrorKind::OutOfMemory => error.into(),
        _ => refusal.into(),
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn hello() -> Packet {
        Packet {
            kind: Kind::Hello,
            slots: 256,
            place: 7,
            arena_bytes: 1 << 33,
            slabs: 3,
            slab_bytes: 5 << 33,
            slabs_max: 9,
            slab_bytes_max: 7 << 33,
            private_data: std::array::from_fn(|index| index as u8),
        }
    }

    #[test]
    fn packets_come_back_as_they_were() {
        let kinds =
            REFUSALS.map(Kind::Reject).into_iter().chain([Kind::Hello, Kind::Accept, Kind::Ready]);
        for kind in kinds {
            let packet = Packet { kind, ..hello() };
            assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
        }
    }

    /// Connectors of an earlier build know them.
    #[test]
    fn refusals_keep_their_numbers() {
        let numbers = REFUSALS.map(|refusal| Packet::reject(refusal).encode()[12]);
        assert_eq!(numbers, [16, 17, 19, 20, 21, 22]);
        let mut packet = Packet::reject(Refusal::Version).encode();
        packet[12] = 18;
        assert_eq!(Packet::decode(&packet), Err(Refusal::Malformed));
    }

    #[test]
    fn anything_else_is_refused() {
        let good = hello().encode();
        assert_eq!(Packet::decode(&good[1..]), Err(Refusal::Malformed));
        assert_eq!(Packet::decode(&good[..PACKET_BYTES - 1]), Err(Refusal::Malformed));
        assert_eq!(Packet::decode(&[&good[..], &[0]].concat()), Err(Refusal::Malformed));
        for length in [0, 7, 8, 11, 12] {
            assert_eq!(Packet::decode(&good[..length]), Err(Refusal::Malformed), "{length}");
        }
        for (at, refusal) in
            [(0, Refusal::Malformed), (8, Refusal::Version), (13, Refusal::Malformed)]
        {
            let mut bad = good;
            bad[at] ^= 0x40;
            assert_eq!(Packet::decode(&bad), Err(refusal));
        }
    }

    /// Version 2 had packets of 88 bytes, version 3 of 104, and a later one may have longer ones.
    #[test]
    fn packets_of_another_version_and_length_are_refused_for_their_version() {
        for (version, length) in [(2, 88), (3, 104), (5, PACKET_BYTES + 8), (5, 12)] {
            let mut packet = hello().encode().to_vec();
            packet.resize(length, 0);
            packet[8..12].copy_from_slice(&u32::to_ne_bytes(version));
            assert_eq!(Packet::decode(&packet), Err(Refusal::Version), "{version} {length}");
        }
    }

    /// A user sees why a connection was refused, and which setting decides it.
    #[test]
    fn each_refusal_has_a_text_of_its_own_that_names_the_settings() {
        let texts = REFUSALS.map(|refusal| HandshakeError::from(refusal).to_string());
        for (at, text) in texts.iter().enumerate() {
            assert!(!text.is_empty() && !texts[..at].contains(text), "{text:?}");
        }
        let limits = Refusal::Limits.to_string();
        assert!(limits.contains("shm.ring_slots") && limits.contains("limits.peer_mib"));
        assert!(limits.contains("limits.peer_slab_mib"));
        let memory = Refusal::Memory.to_string();
        assert!(memory.contains("limits.peer_mib") && memory.contains("limits.core_mib"));
    }
}
