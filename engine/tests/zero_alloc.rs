//! No message allocates: after a warm-up, calls of every kind leave the allocator alone on both
//! cores, in busy mode. A separate binary, because it counts through the global allocator.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::control::{ask, control_of, latency_counts};
use common::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// True on threads of cores; other threads may allocate.
    static IS_CORE: Cell<bool> = const { Cell::new(false) };
}

static CORES: AtomicU64 = AtomicU64::new(0);
static ALONE: Mutex<()> = Mutex::new(());

/// Under a sanitizer a call takes tens of times as long.
const SLOWER: u64 = if cfg!(sanitized) { 20 } else { 1 };

/// Counts this thread's allocations from now on.
fn become_core() {
    IS_CORE.set(true);
    CORES.fetch_add(1, Ordering::Relaxed);
}

/// Counts a call of the allocator that a core makes in the steady state.
fn count() {
    if COUNTS.load(Ordering::Relaxed) && IS_CORE.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every method passes its arguments on to the system's allocator and adds a count, which
// does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`, which is that of the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count();
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Null,
    Echo(usize),
    /// A Write chunk of this number of bytes.
    Read(usize),
    /// A Read chunk of this number of bytes, which comes back inline or not at all.
    Write(usize),
    /// A long call with a long reply.
    Long(usize),
    /// A Read chunk of this length in bytes, of a slab that the connection is lent.
    Lent(usize),
    Deferred,
}

/// Keeps calls of one kind in flight until enough have been answered.
struct Load {
    client: Client,
    state: Rc<State>,
}

struct State {
    kind: Cell<Kind>,
    left: Cell<u64>,
    answered: Cell<u64>,
    spec: RefCell<CallSpec>,
    /// Buffers to use again.
    spare: RefCell<Vec<Bulk>>,
    slab: RefCell<Option<Slab>>,
    bytes: Vec<u8>,
}

impl State {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            kind: Cell::new(Kind::Null),
            left: Cell::new(0),
            answered: Cell::new(0),
            spec: RefCell::default(),
            spare: RefCell::new(Vec::with_capacity(64)),
            slab: RefCell::default(),
            bytes: vec![7; 100_000],
        })
    }

    fn begin(&self, kind: Kind, calls: u64) {
        self.kind.set(kind);
        self.left.set(calls);
        self.answered.set(0);
        *self.spec.borrow_mut() = match kind {
            Kind::Long(length) => CallSpec::new().reply_bytes_max(length + 4),
            _ => CallSpec::short(),
        };
    }

    fn start(&self, client: &Client) {
        if self.left.get() == 0 {
            return;
        }
        self.left.set(self.left.get() - 1);
        let spec = &mut *self.spec.borrow_mut();
        let token = Token(0);
        match self.kind.get() {
            Kind::Null => {
                client.call(NULL, token, spec, |_| {}).unwrap();
            }
            Kind::Deferred => {
                client.call(LATER, token, spec, |args| args.u32(1)).unwrap();
            }
            Kind::Echo(length) | Kind::Long(length) => {
                let bytes = &self.bytes[..length];
                client.call(ECHO, token, spec, |args| args.opaque(bytes)).unwrap();
            }
            Kind::Read(length) => {
                spec.add_result_into(self.buffer(client, length));
                client.call(SHARED, token, spec, |args| args.u32(length as u32)).unwrap();
            }
            Kind::Lent(length) => {
                let block = self.slab.borrow().as_ref().and_then(|slab| slab.take(length));
                spec.add_argument(block.unwrap());
                spec.add_result_into(self.buffer(client, length));
                client.call(BOUNCE, token, spec, |args| args.bulk()).unwrap();
            }
            Kind::Write(length) => {
                spec.add_argument(self.buffer(client, length));
                spec.add_result_into(self.buffer(client, length));
                client.call(BOUNCE, token, spec, |args| args.bulk()).unwrap();
            }
        }
    }

    fn buffer(&self, client: &Client, length: usize) -> Bulk {
        let mut bulk =
            self.spare.borrow_mut().pop().unwrap_or_else(|| client.bulk(length).unwrap());
        bulk.set_len(length);
        bulk
    }
}

impl ReplyHandler for Load {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        let mut reply = reply.unwrap();
        let mut spare = self.state.spare.borrow_mut();
        if matches!(self.state.kind.get(), Kind::Lent(_)) {
            // Back to its slab.
            drop(reply.take_argument());
        }
        while let Some(bulk) = reply.take_argument().or_else(|| reply.take_result()) {
            spare.push(bulk);
        }
        drop(spare);
        self.state.answered.set(self.state.answered.get() + 1);
        self.state.start(&self.client);
    }
}

fn run(core: &mut Core, load: &Load, shared: &Shared, (kind, depth, calls): (Kind, u64, u64)) {
    let Load { client, state } = load;
    state.begin(kind, calls);
    (0..depth).for_each(|_| state.start(client));
    let mut last = (0, Instant::now());
    // The clock is looked at seldom enough.
    let mut turns = 0_u32;
    core.run_until(|| {
        turns = turns.wrapping_add(1);
        // To the server this is another thread.
        shared.answer_all();
        let answered = state.answered.get();
        if turns.is_multiple_of(4096) && answered > last.0 {
            last = (answered, Instant::now());
        }
        answered == calls || (turns.is_multiple_of(4096) && last.1.elapsed() > LIMIT)
    });
    assert_eq!(state.answered.get(), calls, "{kind:?}: no answer for {LIMIT:?}");
    state.spare.borrow_mut().clear();
}

#[test]
fn calls_of_every_kind_allocate_nothing_after_the_first_ones() {
    nothing_is_allocated(Engine::new, 1, |_| {});
}

#[test]
fn captured_calls_allocate_nothing_on_their_cores_either() {
    let captured = |config| Engine::with_capture(config, CaptureSink::new(std::io::sink()));
    nothing_is_allocated(captured, 10, |_| {});
}

/// Latencies are measured: neither the switch nor the measuring allocates.
#[test]
fn measured_calls_allocate_nothing_either() {
    nothing_is_allocated(Engine::new, 10, |server| {
        let control = control_of(&server.address).expect("a control socket");
        let before = counted_latencies(&control);
        let calls = server.shared.calls.load(Ordering::Relaxed);
        assert_eq!(before > 0, calls > 1, "measured from the second asking on: {calls} calls");
    });
}

/// Asks for latencies while the cores count, on a thread that is none; returns the number of calls measured.
fn counted_latencies(control: &str) -> u64 {
    let asked = std::thread::scope(|scope| {
        let ask = || {
            COUNTS.store(true, Ordering::SeqCst);
            let mut answer = String::new();
            // A core that is paused does not obey in time.
            wait_until("a core that measures", || {
                answer = ask(control, "latency");
                answer.contains("\"measuring\":true")
            });
            COUNTS.store(false, Ordering::SeqCst);
            latency_counts(&answer)
        };
        scope.spawn(ask).join().unwrap()
    });
    asked.iter().map(|(_, count)| count).sum()
}

/// Padded calls, with chunk lists in addition to the padding and without.
#[test]
fn padded_calls_allocate_nothing_either() {
    let padded = |config: Config| {
        let mut raw = config.raw().clone();
        raw.rpc.protocol = Profile::Rfc5666;
        raw.rpc.msgp_align_bytes = 1024;
        Engine::new(valid(raw))
    };
    nothing_is_allocated(padded, 10, |_| {});
}

/// Calls in reverse (RFC 8167), concurrently with calls forward: both ends on this thread.
#[test]
fn calls_in_both_directions_allocate_nothing_either() {
    let _alone = alone();
    let raw = small_with(|raw| {
        raw.poll.mode = IdlePolicy::Busy;
        raw.rpc.reverse_calls = 16;
        raw.mem.arena_mib = 16;
    });
    let [here, there] = [(); 2].map(|()| engine(raw.clone()));
    let (at_near, at_far) = (serve(&here), serve(&there));
    let mut cores = Cores::new(here, there, |_| {});
    let (forward, reverse) = (State::new(), State::new());
    let make = |client| Load { client, state: Rc::clone(&forward) };
    let client = cores.connect(&ConnectOptions::new().take_reverse_calls(), make);
    let make = |client| Load { client, state: Rc::clone(&reverse) };
    let (connection, options) = (connections(&at_far)[0], ReverseOptions::new());
    let back = cores.far.reverse_client(connection, PROGRAM, VERSION, &options, make).unwrap();
    let kinds = [Kind::Null, Kind::Echo(3000), Kind::Read(1 << 18), Kind::Deferred];
    let loads = [(&client, &*forward), (&back, &*reverse)];
    turned_cores_allocate_nothing(&mut cores, &[&at_near, &at_far], &kinds, &loads, 5000 / SLOWER);
}

/// Runs calls of these kinds in both cores, which the test turns, and counts those behind the first.
#[track_caller]
fn turned_cores_allocate_nothing(
    cores: &mut Cores,
    shared: &[&Shared],
    kinds: &[Kind],
    loads: &[(&Client, &State)],
    counted: u64,
) {
    shared.iter().for_each(|shared| lock(&shared.deferred).reserve(1024));
    IS_CORE.set(true);
    for kind in kinds {
        for (depth, calls, counts) in [(1, 8, false), (8, 64, false), (8, counted, true)] {
            COUNTS.store(counts, Ordering::SeqCst);
            for (client, state) in loads {
                state.begin(*kind, calls);
                (0..depth).for_each(|_| state.start(client));
            }
            cores.until("all replies", || {
                shared.iter().for_each(|shared| shared.answer_all());
                loads.iter().all(|(_, state)| state.answered.get() == calls)
            });
            COUNTS.store(false, Ordering::SeqCst);
            loads.iter().for_each(|(_, state)| state.spare.borrow_mut().clear());
        }
        let allocations = ALLOCATIONS.swap(0, Ordering::SeqCst);
        assert_eq!(allocations, 0, "uses of the allocator in calls of {kind:?}");
    }
    IS_CORE.set(false);
}

/// Calls under RPCSEC_GSS: both ends on this thread, contexts on another one.
#[cfg(feature = "gss-test")]
#[test]
fn protected_calls_allocate_nothing_either() {
    use spinrpc::gss::mechanism::GivenKeys;
    use spinrpc::gss::{Enctype, GssAcceptor, GssInitiator, GssService};
    let _alone = alone();
    let (enctype, key, name) = (Enctype::Aes256Sha1, vec![1; 32], "user".to_owned());
    let keys = GivenKeys { enctype, key, name, tokens: 1, lifetime: u64::MAX };
    let raw = small_with(|raw| (raw.poll.mode, raw.mem.arena_mib) = (IdlePolicy::Busy, 32));
    let mut shared = Default::default();
    let mut cores = Cores::of(raw, |there| {
        shared = serve(there);
        there.gss(GssAcceptor::new(keys.clone())).unwrap();
    });
    for service in [GssService::None, GssService::Integrity, GssService::Privacy] {
        let initiator = GssInitiator::new(keys.clone(), "test@server").service(service);
        let options = ConnectOptions::new().gss(initiator);
        let state = State::new();
        let make = |client| Load { client, state: Rc::clone(&state) };
        let client = cores.connect(&options, make);
        println!("under {service:?}");
        let short = [Kind::Null, Kind::Echo(64), Kind::Echo(3000), Kind::Deferred];
        let kinds = [&short[..], &[Kind::Long(50_000), Kind::Read(1 << 17)]].concat();
        turned_cores_allocate_nothing(&mut cores, &[&shared], &kinds, &[(&client, &state)], 500);
        client.close();
    }
}

/// Calls of another thread, by a handle: neither that thread nor a core allocates. All three are this one here.
#[test]
fn calls_by_handles_allocate_nothing_either() {
    let _alone = alone();
    let raw = small_with(|raw| raw.poll.mode = IdlePolicy::Busy);
    let mut cores = Cores::of(raw, |there| drop(serve(there)));
    let options = ConnectOptions::new();
    let client = cores.here.connect(0, &cores.address, PROGRAM, VERSION, &options).unwrap();
    cores.until("the connection", || client.is_up());
    let queue = AnswerQueue::new(8).unwrap();
    IS_CORE.set(true);
    for bytes in [0, 64, 3000] {
        let bytes = &vec![7; bytes][..];
        for (calls, counts) in [(4096, false), (5000 / SLOWER, true)] {
            COUNTS.store(counts, Ordering::SeqCst);
            let (mut pending, mut left, mut heard) = ([const { None }; 8], calls, 0);
            cores.until("all answers", || {
                for place in &mut pending {
                    if place.as_mut().is_some_and(is_answered) {
                        (*place, heard) = (None, heard + 1);
                    }
                    if place.is_none() && left > 0 {
                        left -= 1;
                        let encode = |args: &mut Encoder<'_>| args.opaque(bytes);
                        *place = Some(client.start(ECHO, CallSpec::short(), encode).unwrap());
                    }
                }
                while queue.next().is_some_and(|(_, answer)| answer.is_ok()) {
                    heard += 1;
                }
                // As many as there may be, so that the memory of all has been used before it counts.
                let start = || {
                    let encode = |args: &mut Encoder<'_>| args.opaque(bytes);
                    client.start_to_queue(&queue, Token(1), ECHO, CallSpec::short(), encode).is_ok()
                };
                while left > 0 && start() {
                    left -= 1;
                }
                heard == calls
            });
            COUNTS.store(false, Ordering::SeqCst);
        }
        let allocations = ALLOCATIONS.swap(0, Ordering::SeqCst);
        assert_eq!(allocations, 0, "uses of the allocator in echoes of {} bytes", bytes.len());
    }
    IS_CORE.set(false);
}

/// Answers with its argument, when it has been polled three times.
struct Awaits;

impl AsyncService for Awaits {
    type Request = u32;
    type Reply = Word;

    fn request(&self, call: &mut Call<'_>) -> Result<u32, AcceptStatus> {
        Ok(call.args().u32().unwrap_or(0))
    }

    async fn call(self: Rc<Self>, word: u32) -> Result<Word, AcceptStatus> {
        let (mut polls, mut kept) = (0, None);
        poll_fn(|context| {
            polls += 1;
            // A clone, as others keep it that wake the handler.
            kept = Some(context.waker().clone());
            kept.iter().for_each(Waker::wake_by_ref);
            if polls < 3 { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        Ok(Word(word))
    }
}

struct Word(u32);

impl Results for Word {
    fn encode(self, results: &mut Encoder<'_>) {
        results.u32(self.0);
    }
}

/// Handlers that are futures. All threads are this one here.
#[test]
fn calls_of_futures_allocate_nothing_either() {
    let _alone = alone();
    let [here, there] =
        [(); 2].map(|()| engine(small_with(|raw| raw.poll.mode = IdlePolicy::Busy)));
    there.serve(PROGRAM, VERSION, |core| async_service(core, 8, Awaits)).unwrap();
    let mut cores = Cores::new(here, there, |_| {});
    let options = ConnectOptions::new();
    let client = cores.here.connect(0, &cores.address, PROGRAM, VERSION, &options).unwrap();
    cores.until("connection", || client.is_up());
    let queue = AnswerQueue::new(8).unwrap();
    IS_CORE.set(true);
    for (total, counts) in [(4096, false), (5000 / SLOWER, true)] {
        COUNTS.store(counts, Ordering::SeqCst);
        let (mut left, mut heard) = (total, 0);
        cores.until("all answers", || {
            while let Some((token, answer)) = queue.next() {
                let word = answer.unwrap().results().u32().unwrap();
                assert_eq!(u64::from(word), token.0);
                heard += 1;
            }
            let start = |word: u64| {
                let (spec, token) = (CallSpec::short(), Token(word));
                let encode = |args: &mut Encoder<'_>| args.u32(word as u32);
                client.start_to_queue(&queue, token, ECHO, spec, encode).is_ok()
            };
            while left > 0 && start(left) {
                left -= 1;
            }
            heard == total
        });
        COUNTS.store(false, Ordering::SeqCst);
    }
    IS_CORE.set(false);
    assert_eq!(ALLOCATIONS.swap(0, Ordering::SeqCst), 0, "uses of the allocator");
}

fn is_answered(call: &mut PendingCall) -> bool {
    match Pin::new(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer.is_ok(),
        Poll::Pending => false,
    }
}

/// The counts are the process's, and one that failed may have left them on.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    let alone = lock(&ALONE);
    COUNTS.store(false, Ordering::SeqCst);
    ALLOCATIONS.store(0, Ordering::SeqCst);
    alone
}

/// Runs on two engines, with one in `part` of the calls; `prepare` is run before those of each
/// kind.
fn nothing_is_allocated(
    make_engine: fn(Config) -> Result<Engine, EngineError>,
    part: u64,
    prepare: fn(&Server),
) {
    let _alone = alone();
    CORES.store(0, Ordering::Relaxed);
    let busy = || small_with(|raw| (raw.poll.mode, raw.mem.arena_mib) = (IdlePolicy::Busy, 16));
    let server = Server::on(make_engine(valid(busy())).unwrap());
    *lock(&server.shared.on_core) = Some(become_core);
    let engine = make_engine(valid(busy())).unwrap();
    let mut core = engine.core(0).unwrap();
    become_core();
    let state = State::new();
    let make = |client| Load { client, state: Rc::clone(&state) };
    let slab = engine.slab(SlabLayout::new().block_bytes(1 << 20).blocks(4)).unwrap();
    let options = ConnectOptions::new().lend(&slab);
    let client = core.connect_with(&server.address, PROGRAM, VERSION, &options, make).unwrap();
    let end = Instant::now() + LIMIT;
    core.run_until(|| client.is_up() || Instant::now() > end);
    assert!(client.is_up(), "not connected within {LIMIT:?}");
    *state.slab.borrow_mut() = Some(slab);
    let load = Load { client, state };
    lock(&server.shared.deferred).reserve(1024);
    assert_eq!(CORES.load(Ordering::Relaxed), 2, "both cores count");
    COUNTS.store(true, Ordering::SeqCst);
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.swap(0, Ordering::SeqCst), 2, "the counter counts");
    for (kind, depth, calls) in [
        (Kind::Null, 32, 100_000),
        (Kind::Null, 1, 10_000),
        (Kind::Echo(64), 32, 100_000),
        (Kind::Echo(3000), 64, 20_000),
        (Kind::Read(1 << 20), 4, 2_000),
        (Kind::Write(1 << 20), 2, 2_000),
        (Kind::Lent(1 << 20), 2, 2_000),
        (Kind::Long(60_000), 4, 5000),
        (Kind::Deferred, 32, 50_000),
    ] {
        COUNTS.store(false, Ordering::SeqCst);
        prepare(&server);
        run(&mut core, &load, &server.shared, (kind, depth, depth * 4));
        COUNTS.store(true, Ordering::SeqCst);
        run(&mut core, &load, &server.shared, (kind, depth, calls / part / SLOWER));
        COUNTS.store(false, Ordering::SeqCst);
        let allocations = ALLOCATIONS.swap(0, Ordering::SeqCst);
        assert_eq!(allocations, 0, "uses of the allocator in {calls} calls of {kind:?}");
    }
}
