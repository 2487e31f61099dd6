//! Peers that let nothing complete: they post no receives, or answer no RDMA Read. Each holds memory of a core for a
//! while, never so much that others get none, and then loses its connection.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

use spinrpc::config::{CoreList, Host, Want};
use spinrpc::fabric::sim::{Device, Network, SimFabric, World};
use spinrpc::fabric::{Access, ConnectRequest, Connector, Fabric, QpId, RemoteSlice, SendWr};
use spinrpc::mem::{BufPool, BulkClass, Region};
use spinrpc::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

const PROGRAM: Program = Program(0x2000_0091);
/// Takes an item of data, and answers with nothing.
const PUT: Procedure = Procedure(1);
/// Answers with [`ITEM_BYTES`] bytes of memory of the core.
const GET: Procedure = Procedure(2);
const NOTHING: Procedure = Procedure(0);
/// Is answered when the test says so.
const LATER: Procedure = Procedure(3);
const ITEM_BYTES: usize = 1 << 20;
const CREDITS: u32 = 64;
/// RFC 8797: 4096 bytes each way, no remote invalidation.
const PRIVATE_DATA: [u8; 8] = [0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3];

const MS: u64 = 1_000_000;
const STALL_TIMEOUT_MS: u64 = 100;

fn config(change: impl FnOnce(&mut RawConfig)) -> Config {
    let mut raw = RawConfig::default();
    raw.cores.list = CoreList::Cpus(vec![0]);
    raw.mem.arena_mib = 32;
    raw.mem.hugepages = Want::Off;
    raw.mem.lock = Want::Off;
    raw.fixed.is_near_cpu = false;
    raw.rpc.credits = CREDITS.into();
    raw.rpc.stall_timeout_ms = STALL_TIMEOUT_MS;
    change(&mut raw);
    raw.validate_for(&Host { allowed: vec![0], ..Host::default() }).unwrap()
}

/// A server in a simulated network whose devices retry for ever, as RNR retries of 7 do.
struct Setup {
    world: World,
    server: Engine,
    cores: Vec<Core>,
    deferred: Waiting,
}

type Waiting = Arc<Mutex<Vec<Deferred>>>;

impl Setup {
    fn new() -> Self {
        Self::with(|_| {}, |device| device)
    }

    /// The server's configuration and devices, changed.
    fn with(configure: impl FnOnce(&mut RawConfig), change: impl Fn(Device) -> Device) -> Self {
        let network = Network { rnr_timeout_ns: u64::MAX, poll_ns: 10_000, ..Network::default() };
        let world = World::new(network);
        let connector = |device| world.connector(change(device));
        let server = Engine::simulated(config(configure), connector).unwrap();
        let deferred = Waiting::default();
        let waiting = Arc::clone(&deferred);
        server
            .serve(PROGRAM, Version(1), move |core: &CoreContext| {
                let (core, waiting) = (core.clone(), Arc::clone(&waiting));
                move |call: Call<'_>| match call.procedure() {
                    LATER => waiting.lock().unwrap().extend(call.defer()),
                    _ => answer(&core, call),
                }
            })
            .unwrap();
        server.listen("server").unwrap();
        let cores = vec![server.core(0).unwrap()];
        Self { world, server, cores, deferred }
    }

    fn run_for(&mut self, ns: u64) {
        let end = self.world.now_ns() + ns;
        while self.world.now_ns() < end {
            self.cores.iter_mut().for_each(|core| {
                core.poll_once();
            });
        }
    }

    fn free(&self) -> usize {
        let blocks: Vec<Bulk> = std::iter::from_fn(|| self.cores[0].bulk(ITEM_BYTES)).collect();
        blocks.len()
    }

    /// Counters of the server. They are published after many idle turns.
    fn stats(&mut self) -> StatsSnapshot {
        self.run_for(15 * MS);
        self.server.stats(0).unwrap()
    }

    /// A client that keeps the rules, of another engine.
    fn honest(&mut self) -> Honest {
        let engine = Engine::simulated(config(|_| {}), |device| self.world.connector(device));
        let engine = engine.unwrap();
        self.cores.push(engine.core(0).unwrap());
        let (client, ends) = self.connect_last();
        Honest { client, ends, _engine: engine }
    }

    /// One more connection of the engine that came last.
    fn connect_last(&mut self) -> (Client, Ends) {
        let ends = Ends::default();
        let core = self.cores.last_mut().unwrap();
        let client = core.connect("server", PROGRAM, Version(1), |_| ends.clone()).unwrap();
        self.run_for(MS);
        (client, ends)
    }

    /// Calls on all credits that are answered later; returns how many of these the server took.
    fn defer_all(&mut self, client: &Client) -> usize {
        self.defer_all_with(client, None)
    }

    /// The same of calls with data, of so many bytes each.
    fn defer_all_with(&mut self, client: &Client, data_bytes: Option<usize>) -> usize {
        let before = self.deferred.lock().unwrap().len();
        let start = |token| {
            let data = data_bytes.map(|bytes| client.bulk(bytes).unwrap());
            let has_data = data.is_some();
            let mut spec = data.into_iter().fold(CallSpec::short(), CallSpec::argument);
            let encode = |args: &mut Encoder<'_>| {
                if has_data {
                    args.bulk();
                }
            };
            client.call(LATER, Token(token), &mut spec, encode).is_ok()
        };
        assert!((0..CREDITS.into()).all(start), "not all credits are free");
        self.run_for(MS);
        self.deferred.lock().unwrap().len() - before
    }
}

fn answer(core: &CoreContext, mut call: Call<'_>) {
    match call.procedure() {
        PUT => {
            drop(call.args().data(ITEM_BYTES));
            call.reply(|_| {});
        }
        GET => match core.bulk(ITEM_BYTES) {
            Some(item) => call.reply_with(ReplyData::new().bulk(item), |results| results.bulk()),
            None => call.reject(AcceptStatus::SystemErr),
        },
        _ => call.reply(|_| {}),
    }
}

#[derive(Clone, Default)]
struct Ends(Rc<RefCell<Vec<Result<(), CallError>>>>);

impl ReplyHandler for Ends {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        self.0.borrow_mut().push(reply.map(drop));
    }
}

struct Honest {
    client: Client,
    ends: Ends,
    _engine: Engine,
}

impl Honest {
    /// Calls both procedures; both must be answered soon.
    #[track_caller]
    fn is_served(&self, setup: &mut Setup) {
        let room = self.client.bulk(ITEM_BYTES).unwrap();
        let mut get = CallSpec::short().result_into(room);
        self.client.call(GET, Token(1), &mut get, |_| {}).unwrap();
        let mut put = CallSpec::short().argument(self.client.bulk(ITEM_BYTES).unwrap());
        self.client.call(PUT, Token(2), &mut put, |args| args.bulk()).unwrap();
        setup.run_for(10 * MS);
        let ends = self.ends.0.take();
        assert!(matches!(ends[..], [Ok(()), Ok(())]), "{ends:?}");
    }
}

/// A peer that uses the fabric directly, and posts no receives beyond those that it is told to.
struct Hostile {
    fabric: SimFabric,
    qp: QpId,
    buffers: BufPool,
    exposed: RemoteSlice,
}

impl Hostile {
    fn connect(setup: &mut Setup, receives: usize, access: Access) -> Self {
        let arena = vec![BulkClass { block_bytes: ITEM_BYTES, count: 1 }];
        let device = Device { arena, ..Device::default() };
        let connector = setup.world.connector(device);
        let mut fabric = connector.fabric(0).unwrap();
        let request = ConnectRequest::new("server", std::time::Duration::from_secs(1));
        let endpoint =
            connector.connect(&ConnectRequest { private_data: &PRIVATE_DATA, ..request }).unwrap();
        let qp = fabric.adopt(endpoint).unwrap();
        let bytes = BufPool::region_bytes(4096, 256).unwrap() + 64;
        let region = Region::from_boxed(vec![0; bytes].into());
        let buffers = BufPool::new(region, 4096, 256).unwrap();
        for _ in 0..receives {
            fabric.post_recv(qp, buffers.take().unwrap()).unwrap();
        }
        let lease = fabric.bulk(qp, ITEM_BYTES).unwrap().lease(0..ITEM_BYTES);
        let exposed = fabric.expose(qp, lease, access, None).unwrap();
        fabric.flush();
        setup.run_for(MS);
        Self { fabric, qp, buffers, exposed }
    }

    fn send(&mut self, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let mut message = self.buffers.take().unwrap();
        message.set_range(0..bytes.len());
        message.bytes_mut().copy_from_slice(&bytes);
        drop(self.fabric.post(self.qp, SendWr::Send { message, invalidate: None }));
        self.fabric.flush();
    }

    /// Posts one more receive, if it is still connected.
    fn receive(&mut self) {
        drop(self.fabric.post_recv(self.qp, self.buffers.take().unwrap()));
        self.fabric.flush();
    }

    /// A call; its only chunk is the exposed memory.
    fn call(&mut self, xid: u32, procedure: Procedure) {
        let slice = self.exposed;
        let at = [slice.handle, slice.length, (slice.offset >> 32) as u32, slice.offset as u32];
        let header = [xid, 1, CREDITS, 0];
        let call = [xid, 0, 2, PROGRAM.0, 1, procedure.0, 0, 0, 0, 0];
        let message = match procedure {
            // Position 44: behind the length of the item.
            PUT => [&header[..], &[1, 44], &at, &[0, 0, 0], &call, &[slice.length]].concat(),
            GET => [&header[..], &[0, 1, 1], &at, &[0, 0], &call].concat(),
            _ => [&header[..], &[0, 0, 0], &call].concat(),
        };
        self.send(&message);
    }
}

/// Every GET is answered from memory of the core, and no reply leaves: expect only a part of that memory held, and others
/// served before the connections end.
#[test]
fn peers_that_post_no_receives_leave_memory_for_others() {
    let mut setup = Setup::new();
    let honest = setup.honest();
    let all = setup.free();
    let mut hostile: Vec<_> =
        (0..4).map(|_| Hostile::connect(&mut setup, 2, Access::RemoteWrite)).collect();
    for peer in &mut hostile {
        (0..CREDITS).for_each(|xid| peer.call(xid, GET));
    }
    setup.run_for(10 * MS);
    assert!((1..all / 2).contains(&setup.free()), "{} of {all} are free", setup.free());
    honest.is_served(&mut setup);
    assert_eq!(setup.stats().connections_stalled, 0, "they are still there");
    setup.run_for(2 * STALL_TIMEOUT_MS * MS);
    assert_eq!(setup.free(), all);
}

/// The same with arguments that are to be fetched first.
#[test]
fn peers_that_let_no_read_complete_leave_memory_for_others() {
    let mut setup = Setup::new();
    let honest = setup.honest();
    let mut hostile: Vec<_> =
        (0..4).map(|_| Hostile::connect(&mut setup, 0, Access::RemoteRead)).collect();
    for peer in &mut hostile {
        peer.call(0, NOTHING);
    }
    setup.run_for(MS);
    for peer in &mut hostile {
        (1..CREDITS).for_each(|xid| peer.call(xid, PUT));
    }
    setup.run_for(10 * MS);
    honest.is_served(&mut setup);
}

/// A client with more calls outstanding than its share of memory: they wait for one another, and all are answered.
#[test]
fn calls_beyond_the_share_wait_and_are_answered() {
    let mut setup = Setup::new();
    let honest = setup.honest();
    let rooms: Vec<Bulk> = (0..CREDITS).map_while(|_| honest.client.bulk(ITEM_BYTES)).collect();
    let calls = rooms.len();
    for room in rooms {
        let mut get = CallSpec::short().result_into(room);
        honest.client.call(GET, Token(1), &mut get, |_| {}).unwrap();
    }
    setup.run_for(50 * MS);
    let ends = honest.ends.0.take();
    assert!(ends.len() == calls && ends.iter().all(Result::is_ok), "{calls} calls: {ends:?}");
}

/// Clients defer more calls than there are places for: one that has none deferred gets some in any case.
#[test]
fn deferred_calls_of_some_clients_leave_places_for_others() {
    let mut setup = Setup::new();
    let other = setup.honest();
    let first = setup.honest();
    // Each connection of a simulated network is from a host of its own.
    let more: Vec<_> = (0..4).map(|_| setup.connect_last()).collect();
    let clients = || std::iter::once(&first.client).chain(more.iter().map(|(client, _)| client));
    let taken: Vec<usize> = clients().map(|client| setup.defer_all(client)).collect();
    assert_eq!(taken[0], CREDITS as usize, "{taken:?}");
    assert!(taken.iter().all(|calls| *calls > 0), "{taken:?}");
    assert!(taken[4] < CREDITS as usize, "{taken:?}");
    assert!(setup.defer_all(&other.client) > 0, "{taken:?}");
    setup.deferred.lock().unwrap().clear();
    setup.run_for(MS);
    assert_eq!(setup.defer_all(&more[3].0), CREDITS as usize);
}

/// The data of such calls lie in the same memory as their replies, of which there are 77 blocks, 64 of them small.
#[test]
fn deferred_calls_with_data_leave_blocks_for_others() {
    let mut setup = Setup::with(|raw| raw.mem.arena_mib = 8, |device| device);
    let other = setup.honest();
    let first = setup.honest();
    let second = setup.connect_last().0;
    let with_data = setup.defer_all_with(&first.client, Some(8 << 10));
    let without = setup.defer_all(&second);
    assert!(with_data > 8 && without > 8, "{with_data}, {without}");
    let others = setup.defer_all(&other.client);
    assert!(others > 0, "beside {with_data} and {without}");
}

/// RFC 5666 section 3.3: "a reply never waits for a receive" of its client, and here not for a place in the send queue, which
/// holds eight: with all calls of a connection outstanding, those that have none wait, and are answered.
#[test]
fn a_call_without_a_place_for_its_reply_in_the_send_queue_waits() {
    let mut setup = Setup::with(|_| {}, |device| Device { send_queue_depth: 8, ..device });
    let honest = setup.honest();
    let calls = (0..CREDITS).map_while(|token| {
        honest.client.call(NOTHING, Token(token.into()), &mut CallSpec::short(), |_| {}).ok()
    });
    let calls = calls.count();
    assert!(calls > 8, "{calls}");
    setup.run_for(10 * MS);
    let ends = honest.ends.0.take();
    assert!(ends.len() == calls && ends.iter().all(Result::is_ok), "{calls} calls: {ends:?}");
    assert!(setup.stats().queue_full > 0, "none had to wait");
}

/// Listed clients only: a stranger is turned away before it has a connection.
#[test]
fn a_peer_that_the_listener_does_not_admit_gets_no_connection() {
    let world = World::new(Network::default());
    let server = Engine::simulated(config(|_| {}), |device| world.connector(device)).unwrap();
    server.serve(PROGRAM, Version(1), |_| |call: Call<'_>| call.reply(|_| {})).unwrap();
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    let second_only =
        ListenOptions::new().admit(move |_| counted.fetch_add(1, Ordering::Relaxed) == 1);
    server.listen_with("server", &second_only).unwrap();
    let connector = world.connector(Device::default());
    let _fabric = connector.fabric(0).unwrap();
    let request = ConnectRequest::new("server", std::time::Duration::from_secs(1));
    let refused = connector.connect(&request).map(drop).unwrap_err();
    assert!(refused.to_string().contains("not a client"), "{refused}");
    assert!(world.holdings().is_empty(), "nothing was made for it");
    assert!(connector.connect(&request).is_ok());
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

/// The oldest Send of a connection is never taken, and everything behind it is outstanding, for ever if the device is
/// asked: expect the end of that connection after `rpc.stall_timeout_ms`, and its memory back. The same of Reads that are never
/// answered, behind such a Send.
#[test]
fn a_peer_that_posts_no_receives_loses_its_connection_and_the_memory_is_free() {
    for (procedure, receives, access) in
        [(GET, 2, Access::RemoteWrite), (PUT, 0, Access::RemoteRead)]
    {
        let mut setup = Setup::new();
        let honest = setup.honest();
        let all = setup.free();
        let mut hostile = Hostile::connect(&mut setup, receives, access);
        let mut first = 0;
        if procedure == PUT {
            hostile.call(first, NOTHING);
            setup.run_for(MS);
            first += 1;
        }
        (first..CREDITS).for_each(|xid| hostile.call(xid, procedure));
        setup.run_for(STALL_TIMEOUT_MS * MS / 2);
        assert!(setup.free() < all, "{procedure:?}: it holds memory");
        setup.run_for(STALL_TIMEOUT_MS * MS);
        assert_eq!(setup.free(), all, "{procedure:?}");
        assert_eq!(setup.stats().connections_stalled, 1, "{procedure:?}");
        honest.is_served(&mut setup);
    }
}

/// Receives come one at a time, each within the limit, and many replies wait for theirs: expect the end of that connection when
/// one of the replies has waited for the limit.
#[test]
fn a_peer_that_takes_one_reply_at_a_time_loses_its_connection() {
    let mut setup = Setup::new();
    let honest = setup.honest();
    let all = setup.free();
    let mut hostile = Hostile::connect(&mut setup, 1, Access::RemoteWrite);
    (0..CREDITS).for_each(|xid| hostile.call(xid, GET));
    for _ in 0..4 {
        setup.run_for(STALL_TIMEOUT_MS * MS / 2);
        hostile.receive();
    }
    assert_eq!((setup.free(), setup.stats().connections_stalled), (all, 1));
    honest.is_served(&mut setup);
}

/// Connections with nothing outstanding, and those whose requests complete in time, stay.
#[test]
fn an_idle_connection_and_a_slow_one_stay() {
    let mut setup = Setup::new();
    let (idle, slow) = (setup.honest(), setup.honest());
    for _ in 0..8 {
        slow.is_served(&mut setup);
        setup.run_for(STALL_TIMEOUT_MS * MS / 2);
    }
    idle.is_served(&mut setup);
    assert_eq!(setup.stats().connections_stalled, 0);
}
