//! An engine at its start and its end, and what the driver gets of its configuration.

use super::super::call::Call;
use super::super::client::{Reply, ReplyHandler, Token};
use super::super::errors::CallError;
use super::super::runtime::SIMULATED_LETTERS;
use super::*;
use crate::config::{CoreList, Host, RawConfig, Want};
#[cfg(feature = "verbs")]
use crate::config::{DeviceName, RawVerbs};
use crate::fabric::sim::{Network, World};
#[cfg(feature = "verbs")]
use spinrpc_proto::dialect::Profile;
use std::time::Instant;

const LIMIT: Duration = Duration::from_secs(30);
const PROGRAM: Program = Program(0x2000_0001);

struct Deaf;

impl ReplyHandler for Deaf {
    fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {}
}

fn two_cores() -> Config {
    let mut raw = RawConfig::default();
    raw.cores.list = CoreList::Cpus(vec![0, 1]);
    raw.mem.arena_mib = 8;
    raw.mem.hugepages = Want::Off;
    raw.mem.lock = Want::Off;
    raw.fixed.is_near_cpu = false;
    raw.validate_for(&Host { allowed: vec![0, 1], ..Host::default() }).unwrap()
}

fn turn_until(core: &mut Core, what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "waited {LIMIT:?} for {what}");
        core.poll_once();
    }
}

fn changed(change: impl FnOnce(&mut RawConfig)) -> Config {
    let mut raw = RawConfig::default();
    change(&mut raw);
    raw.validate_for(&Host { allowed: vec![0], ..Host::default() }).unwrap()
}

#[test]
fn keys_of_shared_memory_reach_its_driver() {
    let of = |change: fn(&mut RawConfig)| shm_config(&changed(change));
    assert_eq!(of(|raw| raw.shm.ring_slots = 1024).ring_slots, 1024);
    assert_eq!(of(|raw| raw.limits.handshakes = 5).handshakes_max, 5);
    assert_eq!(of(|raw| raw.limits.conns = 6).conns_max, 6);
    assert_eq!(of(|raw| raw.limits.peer_slab_mib = 5).peer_slab_bytes_max, 5 << 20);
    assert_eq!(of(|raw| raw.limits.peer_mib = 8).peer_memory_bytes_max, 8 << 20);
    assert_eq!(of(|raw| raw.limits.core_mib = 9).core_memory_bytes_max, 9 << 20);
    assert!(of(|_| {}).near_cores);
    assert!(!of(|raw| raw.cores.list = CoreList::Any).near_cores);
    let room = |config: ShmConfig| crate::mem::BulkPool::region_bytes(&config.arena).unwrap();
    let arena_bytes = room(of(|raw| raw.mem.conn_arena_mib = 64));
    assert!((63 << 20..=64 << 20).contains(&arena_bytes), "{arena_bytes}");
}

#[test]
fn keys_of_sockets_reach_their_driver() {
    let of = |change: fn(&mut RawConfig)| iwarp_config(&changed(change));
    assert!(of(|_| {}).crc);
    assert!(!of(|raw| raw.iwarp.crc = false).crc);
}

#[cfg(feature = "verbs")]
#[test]
fn keys_of_connections_reach_the_driver_of_rdma_devices() {
    let of = |change: fn(&mut RawConfig)| verbs_config(&changed(change));
    assert_eq!(of(|raw| raw.limits.host_conns = 7).host_conns_max, 7);
    assert_eq!(of(|raw| raw.limits.conns = 6).conns_max, 6);
}

#[cfg(feature = "verbs")]
fn of_verbs(change: fn(&mut RawVerbs)) -> VerbsConfig {
    verbs_config(&changed(|raw| {
        raw.fabric.driver = Driver::Verbs;
        change(&mut raw.verbs);
    }))
}

#[cfg(feature = "verbs")]
#[test]
fn keys_of_queues_reach_the_driver_of_rdma_devices() {
    let keys = |config: VerbsConfig| (config.keys_first, config.keys_max);
    assert_eq!(keys(of_verbs(|_| {})), (64, 256), "one for each credit");
    let fetched = verbs_config(&changed(|raw| {
        raw.fabric.driver = Driver::Verbs;
        raw.rpc.protocol = Profile::Rfc5666;
    }));
    assert_eq!(keys(fetched), (256, 256), "replies do not wait for windows");
    let few = verbs_config(&changed(|raw| {
        raw.fabric.driver = Driver::Verbs;
        (raw.rpc.credits, raw.rpc.max_segments, raw.rpc.max_rdma_reads) = (1, 16, 0);
    }));
    assert_eq!(
        (few.keys_max, few.signal_every),
        (64, 9),
        "those of a call; a quarter of the queue"
    );
    assert_eq!((few.reads_in_max, few.reads_out_max), (1, 1), "Linux servers refuse 0");
}

#[cfg(feature = "verbs")]
#[test]
fn keys_of_queue_pairs_reach_the_driver_of_rdma_devices() {
    assert_eq!(of_verbs(|verbs| verbs.ack_timeout = Some(21)).ack_timeout, Some(21));
    assert_eq!(of_verbs(|verbs| verbs.tos = Some(104)).type_of_service, Some(104));
    let by_default = of_verbs(|_| {});
    assert_eq!((by_default.ack_timeout, by_default.type_of_service), (None, None));
    let timeout = of_verbs(|verbs| verbs.connect_timeout_ms = 250).handshake_timeout;
    assert_eq!(timeout, Duration::from_millis(250));
}

#[cfg(feature = "verbs")]
#[test]
fn keys_of_memory_reach_the_driver_of_rdma_devices() {
    let named = of_verbs(|verbs| verbs.device = DeviceName::Named("rxe7".into()));
    assert_eq!(named.device.as_deref(), Some("rxe7"));
    let pool = of_verbs(|verbs| verbs.registration = config::Registration::Pool);
    assert_eq!(pool.registration, Registration::Pool);
    let room = |config: VerbsConfig| crate::mem::BulkPool::region_bytes(&config.arena).unwrap();
    let arena_bytes = room(verbs_config(&changed(|raw| raw.mem.conn_arena_mib = 32)));
    assert!((31 << 20..=32 << 20).contains(&arena_bytes), "{arena_bytes}");
}

/// The first core never takes a turn, so that nothing leaves its mailbox.
#[test]
fn drain_with_a_full_mailbox_expect_the_others_asked_and_shutdown_to_cut_it_short() {
    let world = World::new(Network::default());
    let engine = Engine::simulated(two_cores(), |device| world.connector(device)).unwrap();
    engine.serve(PROGRAM, Version(1), |_| |call: Call<'_>| call.reply(|_| {})).unwrap();
    engine.listen("server").unwrap();
    let (mut full, mut moving) = (engine.core(0).unwrap(), engine.core(1).unwrap());
    for _ in 0..SIMULATED_LETTERS {
        full.connect("nobody", PROGRAM, Version(1), |_| Deaf).unwrap();
    }
    // Connections go to the cores in turn; the connection of the first core is lost.
    let mut connect = || moving.connect("server", PROGRAM, Version(1), |_| Deaf).unwrap();
    let (_lost, client) = (connect(), connect());
    turn_until(&mut moving, "the connection", || client.is_up());
    let began = Instant::now();
    let draining = {
        let engine = engine.clone();
        std::thread::spawn(move || engine.drain(2 * LIMIT))
    };
    turn_until(&mut moving, "the end of the connection", || !client.is_up());
    engine.shutdown();
    assert_eq!(draining.join().unwrap(), 1, "the core that was never asked");
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
}
