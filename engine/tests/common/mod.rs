//! Common code of the tests of the public API: a server with a test program, a client that records
//! its events, and deadlines, so that no test waits forever.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod caller;
pub(crate) mod child;
pub(crate) mod control;
pub(crate) mod log;
pub(crate) mod prelude;
pub(crate) mod program;
pub(crate) mod raw;
pub(crate) mod raw_server;
pub(crate) mod two_way;

use program::{Shared, TestProgram};
use spinrpc::config::{CoreList, Driver, Host, IdlePolicy, OnPanic, RawConfig, Versions, Want};
use spinrpc::{Config, Engine, Program, Running, StatsSnapshot, TransportVersion, Version};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) const PROGRAM: Program = Program(0x2000_00aa);
pub(crate) const VERSION: Version = Version(3);
/// Longer than any operation here takes on a busy machine; a test that waits that long has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Address of an RDMA device of this host, or `iwarp://` and an address: the suite then runs over that instead of shared
/// memory, except for tests with a raw peer ([`raw`]) or of features that only shared memory has.
const DEVICE_VARIABLE: &str = "SPINRPC_TEST_DEVICE";

/// Names the part of a test that this host or user cannot run (see the README), past the harness,
/// which hides the output of passing tests.
pub(crate) fn not_tested(what: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let _ = writeln!(std::io::stderr(), "NOT TESTED: {test}: {what}");
}

pub(crate) fn device() -> Option<String> {
    std::env::var(DEVICE_VARIABLE).ok()
}

/// Expects the end of a peer that was killed. Only shared memory can always tell that from one that left: of a socket or a
/// device whose bytes had all been read, the system says the same.
#[track_caller]
pub(crate) fn expect_killed(cause: Option<&spinrpc::DownCause>) {
    let is_killed = cause == Some(&spinrpc::DownCause::PeerDied);
    let is_gone = device().is_some() && cause == Some(&spinrpc::DownCause::Remote);
    assert!(is_killed || is_gone, "{cause:?}");
}

/// An address that no other test, and no other run, uses.
pub(crate) fn unique_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let Some(host) = device() else { return format!("shm:test-{process}-{number}") };
    let scheme = if host.contains("://") { "" } else { "rdma://" };
    // Five hundred for each process, below the ports that the kernel hands out.
    format!("{scheme}{host}:{}", 12_000 + process % 40 * 500 + number % 500)
}

/// An address at which the engine listens from now on.
pub(crate) fn listening(engine: &Engine) -> String {
    let address = unique_address();
    engine.listen(&address).unwrap();
    address
}

/// Versions of RPC-over-RDMA that engines of tests speak (`rpc.version`), where a test does not care:
/// the suite is run again, from the same binaries, with this set.
const VERSIONS_VARIABLE: &str = "SPINRPC_TEST_VERSION";

pub(crate) fn versions() -> Versions {
    match std::env::var(VERSIONS_VARIABLE).as_deref() {
        Err(_) | Ok("1") => Versions::One,
        Ok("2") => Versions::Two,
        Ok("auto") => Versions::Both,
        Ok(other) => panic!("{VERSIONS_VARIABLE} = {other}: expected 1, 2 or auto"),
    }
}

/// The version in which engines of tests call each other, if the test does not say.
pub(crate) fn version() -> TransportVersion {
    versions().high()
}

/// Small memory and idle cores that sleep: many tests share few CPUs.
pub(crate) fn small() -> RawConfig {
    let mut raw = RawConfig::default();
    raw.rpc.version = versions();
    // A handler's failed assertion fails its test.
    raw.rpc.on_panic = OnPanic::End;
    raw.poll.mode = IdlePolicy::Adaptive;
    raw.poll.spin_us = 20;
    raw.mem.arena_mib = 8;
    raw.mem.lock = Want::Off;
    raw.mem.hugepages = Want::Off;
    if let Some(device) = device() {
        by_device(&mut raw, &device);
    }
    raw
}

/// Settings for devices on a busy host: seconds, before a late peer is given up.
fn by_device(raw: &mut RawConfig, device: &str) {
    raw.fabric.driver = if device.contains("://") { Driver::Iwarp } else { Driver::Verbs };
    raw.verbs.ack_timeout = Some(20);
    raw.verbs.connect_timeout_ms = 20_000;
    if raw.fabric.driver == Driver::Iwarp {
        // There, data of connections lie in the memory of the core.
        raw.mem.arena_mib = 16;
    }
}

pub(crate) fn small_with(change: impl FnOnce(&mut RawConfig)) -> RawConfig {
    let mut raw = small();
    change(&mut raw);
    raw
}

pub(crate) fn valid(raw: RawConfig) -> Config {
    raw.validate().unwrap_or_else(|error| panic!("the test's configuration: {error}"))
}

pub(crate) fn engine(raw: RawConfig) -> Engine {
    Engine::new(valid(raw)).unwrap()
}

/// [`small`], validated for the simulated fabric: one core, wherever it runs.
pub(crate) fn simulated() -> Config {
    let raw = small_with(|raw| {
        raw.cores.list = CoreList::Cpus(vec![0]);
        raw.fixed.is_near_cpu = false;
    });
    raw.validate_for(&Host { allowed: vec![0], ..Host::default() }).unwrap()
}

pub(crate) fn serve(engine: &Engine) -> Arc<Shared> {
    let shared = Arc::new(Shared::default());
    let of_program = Arc::clone(&shared);
    engine
        .serve(PROGRAM, VERSION, move |context| {
            TestProgram::new(context.clone(), Arc::clone(&of_program))
        })
        .unwrap();
    shared
}

/// Fails the test if `done` does not become true in time.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "waited {LIMIT:?} for {what}");
        pause();
    }
}

/// Lets other threads run before a test looks again. A thread that yields in a loop takes a share of the CPU, which the threads
/// that it waits for need: the cores of all tests poll on one or two CPUs.
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_micros(100));
}

/// The same after a turn of cores without an event.
pub(crate) fn pause_after(events: usize) {
    if events == 0 {
        pause();
    }
}

/// An engine on separate threads, which end with it; fails if a handler panicked.
pub(crate) struct Started {
    engine: Engine,
    running: Option<Running>,
}

impl Started {
    pub(crate) fn new(engine: Engine) -> Self {
        let running = Some(engine.start().unwrap());
        Self { engine, running }
    }

    pub(crate) fn stop(&mut self) {
        self.engine.shutdown();
        self.running.take().map_or(Ok(()), Running::join).unwrap();
    }
}

impl std::ops::Deref for Started {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.engine.shutdown();
        let joined = self.running.take().map_or(Ok(()), Running::join);
        if !std::thread::panicking() {
            joined.unwrap();
        }
    }
}

/// An engine that serves the test program on separate threads.
pub(crate) struct Server {
    pub(crate) engine: Started,
    pub(crate) address: String,
    pub(crate) shared: Arc<Shared>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(small())
    }

    pub(crate) fn with(raw: RawConfig) -> Self {
        Self::on(Engine::new(valid(raw)).unwrap())
    }

    /// Starts an engine that has not started yet.
    pub(crate) fn on(engine: Engine) -> Self {
        let shared = serve(&engine);
        Self::started(engine, shared)
    }

    /// An engine with a service that reports to `shared`: it listens, and starts.
    pub(crate) fn started(engine: Engine, shared: Arc<Shared>) -> Self {
        Self::started_at(unique_address(), engine, shared)
    }

    /// Starts one with one core, in the place of another one.
    pub(crate) fn at(address: &str) -> Self {
        Self::at_with(address, small())
    }

    pub(crate) fn at_with(address: &str, raw: RawConfig) -> Self {
        let engine = Engine::new(valid(raw)).unwrap();
        let shared = serve(&engine);
        wait_until("the address", || engine.listen(address).is_ok());
        Self { engine: Started::new(engine), address: address.to_owned(), shared }
    }

    fn started_at(address: String, engine: Engine, shared: Arc<Shared>) -> Self {
        engine.listen(&address).unwrap();
        Self { engine: Started::new(engine), address, shared }
    }

    pub(crate) fn stats(&self) -> StatsSnapshot {
        self.engine.stats(0).unwrap()
    }

    /// Waits until a counter of core 0 has the expected value.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, done: impl Fn(&StatsSnapshot) -> bool) {
        wait_until(what, || done(&self.stats()));
    }

    /// Ends it; fails if a handler panicked.
    pub(crate) fn stop(mut self) {
        self.engine.stop();
    }
}

/// `len` bytes that differ for each `seed`, so that a byte in the wrong place is noticed.
pub(crate) fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill_pattern(seed, &mut bytes);
    bytes
}

pub(crate) fn fill_pattern(seed: u32, bytes: &mut [u8]) {
    let mut word = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in bytes.chunks_mut(8) {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

pub(crate) fn is_pattern(seed: u32, bytes: &[u8]) -> bool {
    bytes == pattern(seed, bytes.len())
}
