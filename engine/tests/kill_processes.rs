//! Two processes, one of which is killed with SIGKILL at a random moment of load: the other one
//! notices within a second, ends every call once, frees everything and serves its others on.
//!
//! The other process is this test's own binary, which an environment variable turns into a server
//! or a client. It ends when its standard input does, so that none outlives a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;
#[path = "kill_processes/reverse.rs"]
mod reverse;
#[path = "kill_processes/slabs.rs"]
mod slabs;

use common::child::{Other, say_ready};
use common::prelude::*;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::sync::{MutexGuard, PoisonError};
use std::time::SystemTime;

const ROLE: &str = "SPINRPC_TEST_ROLE";
const ADDRESS: &str = "SPINRPC_TEST_ADDRESS";
const ROUNDS: u32 = 20;
/// Time that a survivor may take to notice. A sanitized process takes longer to end.
const NOTICE: Duration = Duration::from_secs(if cfg!(sanitized) { 5 } else { 1 });

/// Expects survivors to have noticed in time. In a few rounds a thread may have been paused.
#[track_caller]
fn expect_noticed(mut times: Vec<Duration>) {
    times.sort_unstable();
    assert!(times[times.len() * 3 / 4] < NOTICE, "noticed after {times:?}");
}

/// Tests here count descriptors and mappings of the process: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Not a test in itself: the body of the other process. Without the variable there is nothing to
/// do.
#[test]
fn other_process() {
    let (Ok(role), Ok(address)) = (std::env::var(ROLE), std::env::var(ADDRESS)) else { return };
    std::thread::spawn(move || {
        let _ = std::panic::catch_unwind(|| match role.as_str() {
            "server" => serve(&address),
            reverse::SERVER => reverse::call_for_ever(&address),
            reverse::CLIENT => reverse::be_called_for_ever(&address),
            slabs::LENDER => slabs::lend_for_ever(&address),
            _ => load_for_ever(&address),
        });
        // Nothing of these ends but by a panic, which has been printed. The parent waits for what it would have said.
        std::process::exit(1);
    });
    // Until the parent goes, or kills this process.
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

fn serve(address: &str) {
    let engine = Engine::new(valid(small())).unwrap();
    common::serve(&engine);
    engine.listen(address).unwrap();
    say_ready();
    engine.run().unwrap();
}

fn load_for_ever(address: &str) {
    let (_engine, mut core) = with_core(client_config());
    let load = Load::connect(&mut core, address);
    load.fill();
    run_core(&mut core, "a reply", || load.ended() > 0);
    say_ready();
    core.run_until(|| false);
}

fn start(role: &str, address: &str) -> Other {
    Other::start("other_process", &[(ROLE, role), (ADDRESS, address)])
}

/// Calls of several kinds, kept in flight; each must end once.
#[derive(Clone)]
struct Load {
    client: Client,
    state: Rc<RefCell<LoadState>>,
    /// Calls among the first ones that are not answered.
    open_calls: u64,
}

#[derive(Default)]
struct LoadState {
    next: u64,
    in_flight: BTreeSet<u64>,
    ended: u64,
    disconnected: u64,
    down: Option<(DownCause, usize)>,
}

impl Load {
    #[track_caller]
    fn connect(core: &mut spinrpc::Core, address: &str) -> Self {
        let state = Rc::default();
        let make = |client| Self { client, state: Rc::clone(&state), open_calls: 0 };
        let client = core.connect_wait(address, PROGRAM, VERSION, make, LIMIT).unwrap();
        Self { client, state, open_calls: 0 }
    }

    /// Starts calls until credits or memory run out.
    fn fill(&self) {
        while self.state.borrow().in_flight.len() < 40 {
            let token = self.state.borrow().next;
            let started = match token % 8 {
                _ if (1..=self.open_calls).contains(&token) => {
                    let spec = &mut CallSpec::short().no_deadline();
                    self.client.call(LATER, Token(token), spec, |args| args.u32(0)).is_ok()
                }
                0 => self.mix(token, vec![70_000], vec![]),
                1 => self.mix(token, vec![], vec![90_000]),
                2 => self.mix(token, vec![5000, 5000], vec![5000]),
                _ => {
                    let spec = &mut CallSpec::short();
                    let encode = |args: &mut Encoder<'_>| args.opaque(&[7; 100]);
                    self.client.call(ECHO, Token(token), spec, encode).is_ok()
                }
            };
            if !started {
                return;
            }
            let state = &mut *self.state.borrow_mut();
            state.in_flight.insert(token);
            state.next += 1;
        }
    }

    fn mix(&self, token: u64, arguments: Vec<usize>, results: Vec<usize>) -> bool {
        let offers = results.clone();
        let call = MixCall { seed: 1, arguments, results, offers, ..MixCall::default() };
        call.start(&self.client, token).is_ok()
    }

    fn ended(&self) -> u64 {
        self.state.borrow().ended
    }
}

impl ReplyHandler for Load {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        let mut state = self.state.borrow_mut();
        assert!(state.in_flight.remove(&token.0), "call {token:?} ended twice");
        state.ended += 1;
        match reply {
            Ok(_) => {}
            Err(CallError::Disconnected(_)) => state.disconnected += 1,
            Err(error) => panic!("{token:?}: {error:?}"),
        }
        drop(state);
        self.fill();
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let ConnectionEvent::Down { cause, in_flight, .. } = event {
            self.state.borrow_mut().down = Some((cause.clone(), *in_flight));
        }
    }
}

/// Resources of a process that could be left behind.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    shared: usize,
    size_kb: usize,
}

/// Only a sanitizer's shadow memory is as large as this, a tebibyte, and it grows as it likes.
const SHADOWED_KB: usize = 1 << 30;

/// Descriptors of a sanitizer to its symbolizer, a child process that it starts when it first needs
/// names.
fn symbolizer_descriptors() -> usize {
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children: String = lists.collect();
    let name = |child: &str| fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
    2 * children
        .split_whitespace()
        .filter(|child| name(child).starts_with("llvm-symbolize"))
        .count()
}

impl Holdings {
    fn now() -> Self {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        Self {
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count() - symbolizer_descriptors(),
            shared: maps.lines().filter(|line| line.contains("memfd:")).count(),
            size_kb: size.trim().trim_end_matches(" kB").parse().unwrap(),
        }
    }

    /// The allocator may have kept a little; a connection takes more than a hundred times that.
    fn is_back_to(&self, earlier: &Self) -> bool {
        self.descriptors <= earlier.descriptors
            && self.shared <= earlier.shared
            && (self.size_kb <= earlier.size_kb + 256 || earlier.size_kb > SHADOWED_KB)
    }
}

/// Holdings of this process after the first round, in which what stays is allocated: buffers of the allocator,
/// thread-local data.
#[derive(Default)]
struct Kept {
    before: Option<Holdings>,
    larger: u32,
}

impl Kept {
    /// Waits until no more is held than after the first round. The address space alone may be larger after one or two of
    /// the others: a thread that started late has a stack, and a part of the allocator's memory.
    #[track_caller]
    fn expect_back(&mut self) {
        let Some(before) = &mut self.before else {
            self.before = Some(Holdings::now());
            return;
        };
        let end = Instant::now() + LIMIT;
        let mut now = Holdings::now();
        while !now.is_back_to(before) && Instant::now() < end {
            std::thread::yield_now();
            now = Holdings::now();
        }
        if !now.is_back_to(before) {
            let is_larger = Holdings { size_kb: before.size_kb, ..now }.is_back_to(before);
            assert!(is_larger && self.larger < 2, "held before: {before:?}, and still: {now:?}");
            (self.larger, before.size_kb) = (self.larger + 1, now.size_kb);
        }
    }
}

/// What lay in `/dev/shm` when a test began: whatever else runs on the host, or was killed there, may have left it.
struct SharedMemoryFiles(BTreeSet<OsString>);

impl SharedMemoryFiles {
    fn now() -> Self {
        let files = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        Self(files.map(|file| file.file_name()).collect())
    }

    #[track_caller]
    fn expect_none_left_by_us(&self) {
        let named_by_us = |name: &&OsString| name.to_string_lossy().contains("spinrpc");
        let now = Self::now().0;
        let left: Vec<_> = now.difference(&self.0).filter(named_by_us).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Random moments, from a seed that a failure shows.
struct Moments(u64);

impl Moments {
    fn new() -> Self {
        let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
        println!("seed {seed}");
        Self(seed as u64 | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % 2000
    }
}

#[test]
fn kill_the_server_under_load_expect_every_call_ended_and_the_other_server_served() {
    let _alone = alone();
    let files = SharedMemoryFiles::now();
    let mut moments = Moments::new();
    let (engine, mut core) = with_core(client_config());
    let other_address = unique_address();
    let _other = start("server", &other_address);
    let other = Load::connect(&mut core, &other_address);
    let (mut kept, mut noticed) = (Kept::default(), Vec::new());
    for round in 0..=ROUNDS {
        noticed.push(kill_one_server(&mut core, &other, moments.next()));
        kept.expect_back();
        assert_eq!(engine.stats(0).unwrap().connections_closed, u64::from(round) + 1);
    }
    expect_noticed(noticed);
    files.expect_none_left_by_us();
}

/// Time that the survivor took to notice.
#[track_caller]
fn kill_one_server(core: &mut spinrpc::Core, other: &Load, calls: u64) -> Duration {
    let address = unique_address();
    let mut victim = start("server", &address);
    let load = Load::connect(core, &address);
    load.fill();
    other.fill();
    run_core(core, "calls before the kill", || load.ended() >= calls);
    victim.child.kill().unwrap();
    let killed = Instant::now();
    run_core(core, "the end of the connection", || load.state.borrow().down.is_some());
    let noticed = killed.elapsed();
    let (cause, in_flight) = load.state.borrow_mut().down.take().unwrap();
    common::expect_killed(Some(&cause));
    let state = load.state.borrow();
    assert!(state.in_flight.is_empty(), "never ended: {:?}", state.in_flight);
    assert_eq!((state.disconnected, state.ended), (in_flight as u64, state.next));
    let served = other.ended();
    other.fill();
    run_core(core, "calls to the other server", || other.ended() >= served + 200);
    noticed
}

#[test]
fn kill_a_client_under_load_expect_everything_freed_and_the_others_served() {
    let _alone = alone();
    let files = SharedMemoryFiles::now();
    let mut moments = Moments::new();
    let (server, mut caller) = served(MixCall::read);
    let mut count = open(&mut caller.core, &server.address, common::caller::all_words).unwrap();
    let sizes = [8000_u32, 100_000, 1 << 20];
    let (mut free_before, mut kept, mut noticed) = (None, Kept::default(), Vec::new());
    for round in 0..=ROUNDS {
        let mut victim = start("client", &server.address);
        let began = server.stats().calls_received;
        let calls = moments.next();
        server.wait_for("calls before the kill", |stats| stats.calls_received >= began + calls);
        victim.kill();
        let killed = Instant::now();
        wait_until("the end at the server", || server.shared.downs() == round as usize + 1);
        noticed.push(killed.elapsed());
        common::expect_killed(server.shared.last_down().as_ref());
        let call = MixCall { seed: round, arguments: vec![9000], tail: 100, ..MixCall::default() };
        call.start(&caller.client, 1).unwrap();
        call.check(&caller.reply().unwrap());
        let free = sizes.map(|size| free_blocks(&mut caller.core, &mut count, size));
        let free_before = *free_before.get_or_insert(free);
        assert_eq!(free, free_before, "blocks of the server's core, round {round}");
        kept.expect_back();
    }
    expect_noticed(noticed);
    files.expect_none_left_by_us();
}

type Counter = (Client, common::caller::SharedHeard<Vec<u32>>);

fn free_blocks(core: &mut spinrpc::Core, (client, heard): &mut Counter, size: u32) -> u32 {
    let encode = |args: &mut Encoder<'_>| args.u32(size);
    client.call(FREE_BLOCKS, Token(0), &mut CallSpec::short(), encode).unwrap();
    run_core(core, "a count", || !heard.borrow().replies.is_empty());
    heard.borrow_mut().replies.pop().unwrap().1.unwrap()[0]
}
