//! Tests: results that the peer fetches out of a slab that it is lent.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::super::fetch::FETCHES_MAX;
use super::super::{ShmConfig, ShmConnector, ShmFabric};
use crate::fabric::conformance::{End, Event, accept_into_channel, pattern};
use crate::fabric::{
    Access, ConnectRequest, Connector, DownCause, Fabric, QpId, RemoteSlice, SendWr,
};
use crate::mem::{Bulk, Slab};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sys::mmap::PageRequest;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
const BLOCK_BYTES: usize = 64 << 10;
/// What is fetched in one turn.
const STEP_BYTES: usize = 16 << 10;

/// A listener with a slab that it lends, and a connection to it.
struct Lending {
    near: End<ShmFabric>,
    far: End<ShmFabric>,
    at_near: QpId,
    at_far: QpId,
    slab: Slab,
    _listener: Box<dyn Send>,
}

impl Lending {
    fn new() -> Self {
        Self::with(ShmConfig::default())
    }

    /// The connector is configured like this.
    fn with(near: ShmConfig) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let address = format!("shm:fetches-{}-{number}", std::process::id());
        let near = ShmConfig { copy_bytes_per_flush: STEP_BYTES, ..near };
        let (near, far) = (ShmConnector::new(near).unwrap(), ShmConfig::default());
        let far = ShmConnector::new(far).unwrap();
        let slab = Slab::new(BLOCK_BYTES, FETCHES_MAX + 40, PageRequest::default()).unwrap();
        let (acceptor, endpoints) = accept_into_channel(Some(0));
        let lent = std::slice::from_ref(&slab);
        let listener = far.listen_lending(&address, &[], acceptor, lent).unwrap();
        let endpoint = near.connect(&ConnectRequest::new(&address, PATIENCE)).unwrap();
        let accepted = endpoints.recv_timeout(PATIENCE).unwrap();
        let mut near = End::new(near.fabric(0).unwrap());
        let mut far = End::new(far.fabric(0).unwrap());
        near.takes_shorts = near.fabric.take_shorts();
        let at_near = near.fabric.adopt(endpoint).unwrap();
        let at_far = far.fabric.adopt(accepted).unwrap();
        Self { near, far, at_near, at_far, slab, _listener: listener }
    }

    /// Memory of the connection that the far end may write, and where it is.
    fn expose(&mut self, bytes: usize) -> (Bulk, RemoteSlice) {
        let mut bulk = self.near.bulk(self.at_near, &vec![0; bytes]);
        let lease = bulk.lease(0..bytes);
        let slice = self.near.fabric.expose(self.at_near, lease, Access::RemoteWrite).unwrap();
        (bulk, slice)
    }

    /// The far end writes a pattern out of a block of the slab, and sends a message behind it.
    fn write(&mut self, to: RemoteSlice, seed: usize, invalidate: bool) {
        let bytes = to.length as usize;
        let mut block = self.slab.take(bytes).unwrap();
        block.bytes_mut().copy_from_slice(&pattern(bytes, seed));
        self.far.post(self.at_far, SendWr::Write { from: block.lease(0..bytes), to });
        let message = self.far.message(b"written");
        let invalidate = invalidate.then_some(to.handle);
        self.far.post(self.at_far, SendWr::Send { message, invalidate });
    }

    #[track_caller]
    fn near_event(&mut self) -> Event {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            self.far.turn();
            self.near.turn();
            if let Some(event) = self.near.next(self.at_near) {
                return event;
            }
        }
        panic!("no event");
    }

    /// All blocks are free, in time.
    #[track_caller]
    fn expect_all_free(&mut self, blocks: usize) {
        let start = Instant::now();
        while self.slab.free() < blocks {
            assert!(start.elapsed() < PATIENCE, "{} of {blocks} are free", self.slab.free());
            self.far.turn();
        }
    }
}

#[test]
fn bytes_of_a_lent_slab_are_fetched_before_the_message_behind_them() {
    let mut lending = Lending::new();
    let blocks = lending.slab.free();
    lending.near.post_recvs(lending.at_near, 4);
    for (seed, bytes) in [(1, 1), (2, STEP_BYTES), (3, STEP_BYTES + 1), (4, BLOCK_BYTES)] {
        let (mut memory, slice) = lending.expose(bytes);
        lending.write(slice, seed, false);
        lending.far.turn();
        (0..100).for_each(|_| lending.far.turn());
        assert_eq!(lending.slab.free(), blocks - 1, "the peer has not looked");
        assert_eq!(lending.near_event(), Event::Message(b"written".to_vec(), None));
        lending.near.revoke(lending.at_near, slice.handle);
        assert!(!lending.near.fabric.is_home(lending.at_near, slice.handle), "it has none");
        let mut fetched = vec![0; bytes];
        memory.set_len(bytes);
        memory.copy_to(0, &mut fetched);
        assert_eq!(fetched, pattern(bytes, seed));
        lending.expect_all_free(blocks);
    }
}

#[test]
fn bytes_go_home_where_there_is_a_home_and_that_is_known_when_the_key_is_dead() {
    let mut lending = Lending::new();
    lending.near.post_recvs(lending.at_near, 4);
    let own = Slab::new(BLOCK_BYTES, 1, PageRequest::default()).unwrap();
    for (seed, invalidate) in [(1, false), (2, true)] {
        let (memory, slice) = lending.expose(BLOCK_BYTES);
        let (at, handle) = (lending.at_near, slice.handle);
        let mut home = own.take(BLOCK_BYTES).unwrap();
        assert!(!lending.near.fabric.set_home(at, handle, home.lease(0..8)), "too short");
        assert!(lending.near.fabric.set_home(at, handle, home.lease(0..BLOCK_BYTES)));
        assert!(home.is_leased() && !lending.near.fabric.is_home(at, handle));
        lending.write(slice, seed, invalidate);
        let invalidated = invalidate.then_some(handle);
        assert_eq!(lending.near_event(), Event::Message(b"written".to_vec(), invalidated));
        lending.near.fabric.revoke(at, handle);
        assert!(!home.is_leased() && lending.near.fabric.is_home(at, handle));
        assert_eq!(home.bytes(), pattern(BLOCK_BYTES, seed));
        let mut exposed = vec![1; BLOCK_BYTES];
        memory.copy_to(0, &mut exposed);
        assert!(exposed.iter().all(|byte| *byte == 0), "nothing was written there");
    }
}

#[test]
fn memory_that_is_not_lent_is_written_to_what_is_exposed() {
    let mut lending = Lending::new();
    lending.near.post_recvs(lending.at_near, 1);
    let own = Slab::new(4096, 1, PageRequest::default()).unwrap();
    let (mut memory, slice) = lending.expose(9);
    let mut home = own.take(9).unwrap();
    assert!(lending.near.fabric.set_home(lending.at_near, slice.handle, home.lease(0..9)));
    let mut from = lending.far.bulk(lending.at_far, b"elsewhere");
    lending.far.post(lending.at_far, SendWr::Write { from: from.lease(0..9), to: slice });
    lending.far.send(lending.at_far, b"written");
    assert_eq!(lending.near_event(), Event::Message(b"written".to_vec(), None));
    lending.near.revoke(lending.at_near, slice.handle);
    assert!(!lending.near.fabric.is_home(lending.at_near, slice.handle));
    let mut bytes = [0; 9];
    memory.set_len(9);
    memory.copy_to(0, &mut bytes);
    assert_eq!(&bytes, b"elsewhere");
}

#[test]
fn a_peer_that_accepts_no_slabs_is_lent_none_and_written_to() {
    for config in [
        ShmConfig { peer_slabs_max: 0, ..ShmConfig::default() },
        ShmConfig { peer_slab_bytes_max: BLOCK_BYTES, ..ShmConfig::default() },
    ] {
        let mut lending = Lending::with(config);
        lending.near.post_recvs(lending.at_near, 1);
        let (_memory, slice) = lending.expose(8);
        let own = Slab::new(4096, 1, PageRequest::default()).unwrap();
        let home = own.take(8).unwrap().lease(0..8);
        assert!(!lending.near.fabric.set_home(lending.at_near, slice.handle, home));
        let blocks = lending.slab.free();
        lending.write(slice, 1, false);
        lending.expect_all_free(blocks);
        assert_eq!(lending.near_event(), Event::Message(b"written".to_vec(), None));
    }
}

#[test]
fn a_peer_that_does_not_look_holds_so_many_blocks_and_no_more() {
    let mut lending = Lending::new();
    let blocks = lending.slab.free();
    let (_memory, slice) = lending.expose(8);
    let mut posted = 0;
    while posted < FETCHES_MAX + 10 {
        let from = lending.slab.take(8).unwrap().lease(0..8);
        lending.far.post(lending.at_far, SendWr::Write { from, to: slice });
        posted += 1;
        lending.far.turn();
    }
    assert!(lending.far.fabric.has_unsent(lending.at_far));
    assert_eq!(lending.slab.free(), blocks - posted);
    // The rest is sent as the peer goes on, and all come back.
    let start = Instant::now();
    while lending.far.fabric.has_unsent(lending.at_far) {
        assert!(start.elapsed() < PATIENCE);
        lending.near.turn();
        lending.far.turn();
    }
    assert_eq!(lending.slab.free(), blocks);
}

#[test]
fn blocks_come_back_when_the_connection_ends_and_what_was_not_fetched_is_not_delivered() {
    let mut lending = Lending::new();
    let blocks = lending.slab.free();
    lending.near.post_recvs(lending.at_near, 1);
    let (memory, slice) = lending.expose(BLOCK_BYTES);
    lending.write(slice, 1, false);
    // The first step, of several.
    lending.far.turn();
    lending.near.turn();
    lending.far.fabric.close(lending.at_far);
    assert_eq!(lending.slab.free(), blocks, "at once");
    assert_eq!(lending.near_event(), Event::RecvFlushed);
    assert_eq!(lending.near_event(), Event::Down(DownCause::Remote));
    assert!(!memory.is_leased());
}

/// A core that sleeps looks at its connections now and then; the peer does not ring.
#[test]
fn a_lender_that_sleeps_gets_its_blocks_back() {
    let mut lending = Lending::new();
    let blocks = lending.slab.free();
    lending.near.post_recvs(lending.at_near, 1);
    let (_memory, slice) = lending.expose(8);
    lending.write(slice, 1, false);
    assert_eq!(lending.near_event(), Event::Message(b"written".to_vec(), None));
    let start = Instant::now();
    while lending.slab.free() < blocks {
        assert!(start.elapsed() < PATIENCE);
        lending.far.fabric.park(Duration::from_millis(50));
    }
}
