//! Tests: results that the peer fetches out of a slab that it is lent.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::super::copy_order::{FETCH_COST_BYTES, FETCHES_MAX};
use super::super::exposure::EXPOSURES_MAX;
use super::*;
use crate::mem::{Bulk, Lease};

const PATIENCE: Duration = Duration::from_secs(20);
const BLOCK_BYTES: usize = 64 << 10;
/// Bytes fetched in one turn.
const STEP_BYTES: usize = 16 << 10;

impl ShmFabric {
    /// Gives an exposure a home. False if it cannot have that one.
    fn set_home(&mut self, qp: QpId, handle: u32, home: Lease) -> bool {
        self.pair(qp).is_some_and(|pair| pair.set_home(handle, home))
    }

    /// Number of bytes that have been fetched to the home of an exposure.
    fn home_bytes(&self, qp: QpId, handle: u32) -> Option<u32> {
        self.pair_ref(qp)?.home_bytes(handle)
    }
}

/// A listener with a slab that it lends, and a connection to it.
struct Lending {
    near: End<ShmFabric>,
    far: End<ShmFabric>,
    at_near: QpId,
    at_far: QpId,
    slab: Slab,
    connectors: (ShmConnector, ShmConnector),
    address: String,
    endpoints: Receiver<Endpoint>,
    _listener: Box<dyn Send>,
}

impl Lending {
    fn new() -> Self {
        Self::with(ShmConfig { copy_bytes_alone: STEP_BYTES, ..ShmConfig::default() })
    }

    /// The connector is configured like this.
    fn with(near: ShmConfig) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let address = format!("shm:fetches-{}-{number}", std::process::id());
        let near = ShmConfig { copy_bytes_per_flush: STEP_BYTES, ..near };
        let far = ShmConfig::default();
        let connectors = (ShmConnector::new(near).unwrap(), ShmConnector::new(far).unwrap());
        let (near, far) = &connectors;
        let slab = slab(BLOCK_BYTES, FETCHES_MAX + 40);
        let (acceptor, endpoints) = accept_into_channel(Some(0));
        let lent = std::slice::from_ref(&slab);
        let request = ListenRequest { lent, ..ListenRequest::new(&address) };
        let listener = far.listen(&request, acceptor).unwrap();
        let mut near = End::new(near.fabric(0).unwrap());
        let far = End::new(far.fabric(0).unwrap());
        near.accept_shorts();
        let (at_near, at_far) = (QpId::new(0, 0), QpId::new(0, 0));
        let _listener = listener;
        let mut lending =
            Self { near, far, at_near, at_far, slab, connectors, address, endpoints, _listener };
        lending.connect();
        lending
    }

    /// One more connection, which is the one that is meant from now on.
    fn connect(&mut self) {
        let request = ConnectRequest::new(&self.address, PATIENCE);
        let endpoint = self.connectors.0.connect(&request).unwrap();
        let accepted = self.endpoints.recv_timeout(PATIENCE).unwrap();
        self.at_near = self.near.fabric.adopt(endpoint).unwrap();
        self.at_far = self.far.fabric.adopt(accepted).unwrap();
    }

    /// Memory of the connection that the far end may write, where it is, and a home for what is fetched.
    fn expose_with_home(&mut self, own: &Slab, bytes: usize) -> (Bulk, RemoteSlice, Bulk) {
        let (memory, slice) = self.expose(bytes);
        let mut home = own.take(bytes).unwrap();
        assert!(self.near.fabric.set_home(self.at_near, slice.handle, home.lease(0..bytes)));
        (memory, slice, home)
    }

    fn home_bytes(&self, slice: RemoteSlice) -> Option<u32> {
        self.near.fabric.home_bytes(self.at_near, slice.handle)
    }

    /// The far end has `bytes` bytes fetched.
    fn order(&mut self, to: RemoteSlice, at: u64, bytes: u32) {
        let from = self.slab.take(bytes as usize).unwrap().lease(0..bytes as usize);
        let to = RemoteSlice { offset: to.offset + at, length: bytes, ..to };
        self.far.post(self.at_far, SendWr::Write { from, to });
    }

    /// Blocks of the slab that the far end has back, after so many turns that it has looked.
    fn free(&mut self) -> usize {
        (0..100).for_each(|_| self.far.turn());
        self.slab.free()
    }

    /// Memory of the connection that the far end may write, and where it is.
    fn expose(&mut self, bytes: usize) -> (Bulk, RemoteSlice) {
        let mut bulk = self.near.bulk(self.at_near, &vec![0; bytes]);
        let lease = bulk.lease(0..bytes);
        let slice =
            self.near.fabric.expose(self.at_near, lease, Access::RemoteWrite, None).unwrap();
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
        assert_eq!(lending.home_bytes(slice), None, "it has none");
        lending.near.revoke(lending.at_near, slice.handle);
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
    let own = slab(BLOCK_BYTES, 1);
    for (seed, invalidate) in [(1, false), (2, true)] {
        let (memory, slice) = lending.expose(BLOCK_BYTES);
        let (at, handle) = (lending.at_near, slice.handle);
        let mut home = own.take(BLOCK_BYTES).unwrap();
        assert!(!lending.near.fabric.set_home(at, handle, home.lease(0..8)), "too short");
        assert!(lending.near.fabric.set_home(at, handle, home.lease(0..BLOCK_BYTES)));
        assert!(home.is_leased() && lending.home_bytes(slice).is_none());
        lending.write(slice, seed, invalidate);
        let invalidated = invalidate.then_some(handle);
        assert_eq!(lending.near_event(), Event::Message(b"written".to_vec(), invalidated));
        assert_eq!(home.is_leased(), !invalidate);
        assert_eq!(lending.home_bytes(slice), Some(BLOCK_BYTES as u32));
        lending.near.fabric.revoke(at, handle);
        assert!(!home.is_leased());
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
    let own = slab(4096, 1);
    let (mut memory, slice) = lending.expose(9);
    let mut home = own.take(9).unwrap();
    assert!(lending.near.fabric.set_home(lending.at_near, slice.handle, home.lease(0..9)));
    let mut from = lending.far.bulk(lending.at_far, b"elsewhere");
    lending.far.post(lending.at_far, SendWr::Write { from: from.lease(0..9), to: slice });
    lending.far.send(lending.at_far, b"written");
    assert_eq!(lending.near_event(), Event::Message(b"written".to_vec(), None));
    assert_eq!(lending.home_bytes(slice), None);
    lending.near.revoke(lending.at_near, slice.handle);
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
        // With room for the connection, and not for the slab.
        ShmConfig { peer_memory_bytes_max: 36 << 20, ..ShmConfig::default() },
        ShmConfig { core_memory_bytes_max: 36 << 20, ..ShmConfig::default() },
    ] {
        let mut lending = Lending::with(config);
        lending.near.post_recvs(lending.at_near, 1);
        let (_memory, slice) = lending.expose(8);
        let own = slab(4096, 1);
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
    assert!(lending.far.fabric.outstanding(lending.at_far).is_unsent);
    assert_eq!(lending.slab.free(), blocks - posted);
    // The rest is sent as the peer goes on, and all come back.
    let start = Instant::now();
    while lending.far.fabric.outstanding(lending.at_far).is_unsent {
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

/// The reactor handles the first reply, whose handler starts the next call, before it gets to the second.
#[test]
fn two_results_in_one_batch_expect_both_known_when_a_key_is_made_between_them() {
    let mut lending = Lending::new();
    lending.near.post_recvs(lending.at_near, 4);
    let own = slab(STEP_BYTES, 4);
    let exposed = [1, 2].map(|seed| {
        let exposed = lending.expose_with_home(&own, STEP_BYTES / 4);
        lending.write(exposed.1, seed, true);
        exposed
    });
    for (_, slice, _) in &exposed {
        let killed = Event::Message(b"written".to_vec(), Some(slice.handle));
        assert_eq!(lending.near_event(), killed);
    }
    lending.near.fabric.revoke(lending.at_near, exposed[0].1.handle);
    let next = [(); 2].map(|()| lending.expose_with_home(&own, 8).1.handle);
    assert_eq!(lending.home_bytes(exposed[1].1), Some(STEP_BYTES as u32 / 4));
    assert_eq!(exposed[1].2.bytes(), pattern(STEP_BYTES / 4, 2));
    let places = next.map(|handle| handle % EXPOSURES_MAX as u32);
    assert!(places.contains(&(exposed[0].1.handle % EXPOSURES_MAX as u32)), "it is used again");
}

#[test]
fn bytes_with_a_gap_before_them_expect_only_those_before_it_counted() {
    let mut lending = Lending::new();
    lending.near.post_recvs(lending.at_near, 8);
    let own = slab(4096, 1);
    let (_memory, slice, _home) = lending.expose_with_home(&own, 100);
    for (at, bytes, home) in [(50, 10, 0), (0, 8, 8), (9, 8, 8), (8, 8, 16), (2, 4, 16)] {
        lending.order(slice, at, bytes);
        lending.far.send(lending.at_far, b"next");
        assert_eq!(lending.near_event(), Event::Message(b"next".to_vec(), None));
        assert_eq!(lending.home_bytes(slice), Some(home), "{bytes} at {at}");
    }
}

#[test]
fn nothing_of_a_slab_expect_no_order() {
    let mut lending = Lending::new();
    lending.near.post_recvs(lending.at_near, 1);
    let own = slab(4096, 1);
    let (_memory, slice, _home) = lending.expose_with_home(&own, 8);
    let blocks = lending.slab.free();
    lending.order(slice, 0, 0);
    assert_eq!(lending.free(), blocks, "the peer has not looked");
    lending.far.send(lending.at_far, b"next");
    assert_eq!(lending.near_event(), Event::Message(b"next".to_vec(), None));
    assert_eq!(lending.home_bytes(slice), None);
}

#[test]
fn short_orders_expect_a_bounded_number_in_a_turn() {
    let mut lending = Lending::new();
    let (_memory, slice) = lending.expose(8);
    let orders = FETCHES_MAX - 4;
    let blocks = lending.slab.free();
    (0..orders).for_each(|_| lending.order(slice, 0, 1));
    let mut free = lending.free();
    assert_eq!(free, blocks - orders);
    while free < blocks {
        lending.near.turn();
        let now = lending.free();
        assert!(now - free <= STEP_BYTES / FETCH_COST_BYTES, "{} in a turn", now - free);
        free = now;
    }
}

#[test]
fn long_orders_of_several_connections_expect_a_bounded_sum_in_a_turn() {
    let mut lending = Lending::new();
    let own = slab(BLOCK_BYTES, 8);
    let exposed: Vec<_> = (0..8)
        .map(|_| {
            let exposed = lending.expose_with_home(&own, BLOCK_BYTES);
            lending.order(exposed.1, 0, BLOCK_BYTES as u32);
            lending.far.turn();
            let at_near = lending.at_near;
            lending.connect();
            (at_near, exposed)
        })
        .collect();
    let fetched = |lending: &Lending| -> Vec<u32> {
        let of = |(qp, (_, slice, _)): &(QpId, (Bulk, RemoteSlice, Bulk))| {
            lending.near.fabric.home_bytes(*qp, slice.handle).unwrap_or(0)
        };
        exposed.iter().map(of).collect()
    };
    let mut before = fetched(&lending);
    while before.iter().any(|bytes| *bytes < BLOCK_BYTES as u32) {
        lending.near.turn();
        let after = fetched(&lending);
        let sum: u32 = after.iter().zip(&before).map(|(after, before)| after - before).sum();
        assert!(sum as usize <= exposed.len() * FETCH_COST_BYTES, "{sum} bytes in a turn");
        before = after;
    }
}

/// Two connections, each with a Read of this end and an order of the peer. Expect one budget for all of them.
#[test]
fn reads_and_orders_of_several_connections_expect_a_bounded_sum_in_a_turn() {
    let mut lending = Lending::new();
    let own = slab(BLOCK_BYTES, 2);
    let mut busy = Vec::new();
    for id in 0..2 {
        if id > 0 {
            lending.connect();
        }
        let exposed = lending.expose_with_home(&own, BLOCK_BYTES);
        lending.order(exposed.1, 0, BLOCK_BYTES as u32);
        let mut source = lending.far.bulk(lending.at_far, &pattern(BLOCK_BYTES, id));
        let from = source.lease(0..BLOCK_BYTES);
        let from =
            lending.far.fabric.expose(lending.at_far, from, Access::RemoteRead, None).unwrap();
        let mut target = lending.near.bulk(lending.at_near, &vec![0; BLOCK_BYTES]);
        let into = target.lease(0..BLOCK_BYTES);
        lending.near.post(lending.at_near, SendWr::Read { id: WrId(id as u64), from, into });
        lending.far.turn();
        busy.push((lending.at_near, exposed, source, target));
    }
    let (mut turns, mut reads) = (0, 0);
    let is_fetched = |lending: &Lending| {
        busy.iter().all(|(qp, (_, slice, _), ..)| {
            lending.near.fabric.home_bytes(*qp, slice.handle) == Some(BLOCK_BYTES as u32)
        })
    };
    while reads < busy.len() || !is_fetched(&lending) {
        lending.near.turn();
        turns += 1;
        assert!(turns < 10_000, "{reads} reads are over");
        reads += busy.iter().filter(|(qp, ..)| lending.near.next(*qp).is_some()).count();
    }
    // A connection that was cold begins with one step of the smallest size.
    let copied = 2 * busy.len() * BLOCK_BYTES - busy.len() * FETCH_COST_BYTES;
    assert!(copied <= turns * STEP_BYTES, "{copied} bytes in {turns} turns");
    for (id, (.., target)) in busy.iter().enumerate() {
        let mut bytes = vec![0; BLOCK_BYTES];
        target.copy_to(0, &mut bytes);
        assert!(bytes == pattern(BLOCK_BYTES, id), "other bytes");
    }
}

/// Most bytes that the near end fetches in a turn, of an order for a whole block.
fn longest_step(lending: &mut Lending, own: &Slab) -> u32 {
    let (_memory, slice, _home) = lending.expose_with_home(own, BLOCK_BYTES);
    lending.order(slice, 0, BLOCK_BYTES as u32);
    lending.far.turn();
    let (mut before, mut longest) = (0, 0);
    while before < BLOCK_BYTES as u32 {
        lending.near.turn();
        let after = lending.home_bytes(slice).unwrap_or(0);
        longest = longest.max(after - before);
        before = after;
    }
    longest
}

#[test]
fn long_orders_expect_longer_steps_while_there_is_one_connection() {
    let config = ShmConfig { copy_bytes_alone: 2 * STEP_BYTES, ..ShmConfig::default() };
    let mut lending = Lending::with(config);
    let own = slab(BLOCK_BYTES, 2);
    assert_eq!(longest_step(&mut lending, &own), 2 * STEP_BYTES as u32);
    lending.connect();
    assert_eq!(longest_step(&mut lending, &own), STEP_BYTES as u32);
}

#[test]
fn a_peer_that_never_looks_expect_its_orders_outstanding_and_the_blocks_back_at_the_end() {
    for orders in [3, FETCHES_MAX + 5] {
        let mut lending = Lending::new();
        let blocks = lending.slab.free();
        let (_memory, slice) = lending.expose(8);
        (0..orders).for_each(|_| lending.order(slice, 0, 1));
        lending.far.turn();
        let oldest = |lending: &Lending| lending.far.fabric.outstanding(lending.at_far).numbers;
        let first = oldest(&lending);
        assert!(first.is_some());
        for _ in 0..100 {
            lending.far.turn();
            lending.far.fabric.park(Duration::ZERO);
        }
        assert_eq!(oldest(&lending), first, "nothing has completed");
        assert!(lending.slab.free() < blocks);
        lending.far.fabric.close(lending.at_far);
        assert_eq!(oldest(&lending), None);
        assert_eq!(lending.near_event(), Event::Down(DownCause::Remote));
        lending.expect_all_free(blocks);
    }
}

#[test]
fn a_lender_is_about_to_sleep_expect_what_was_fetched_back() {
    let mut lending = Lending::new();
    let blocks = lending.slab.free();
    lending.near.post_recvs(lending.at_near, 1);
    let (_memory, slice) = lending.expose(8);
    lending.write(slice, 1, false);
    lending.far.turn();
    let start = Instant::now();
    while lending.near.next(lending.at_near).is_none() {
        assert!(start.elapsed() < PATIENCE);
        lending.near.turn();
    }
    assert_eq!(lending.slab.free(), blocks - 1);
    lending.far.fabric.park(Duration::ZERO);
    assert_eq!(lending.slab.free(), blocks);
}

#[test]
fn a_data_plane_has_ended_expect_nothing_left_to_look_at() {
    let mut lending = Lending::new();
    lending.far.turn();
    lending.far.fabric.end();
    (0..3).for_each(|_| lending.far.turn());
    lending.far.fabric.park(Duration::from_millis(20));
    assert!(lending.far.next(lending.at_far).is_none());
}
