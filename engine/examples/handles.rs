//! What calls from other threads cost: `ClientHandle` beside calls of the core itself, and beside the least that two
//! threads need to talk to each other, measured in turns.
//!
//! Busy: both ends of the connection share one thread and one CPU, the caller has another one; so two CPUs are
//! enough, and a call from the core itself crosses none. Idle: client and server have a CPU each and sleep.
//!
//! `cargo run --release -p spinrpc --example handles`

use clap::Parser;
use rustix::event::{EventfdFlags, eventfd};
use spinrpc::config::CoreList;
use spinrpc::{
    AnswerQueue, Call, CallError, CallSpec, Client, ClientHandle, Config, ConnectOptions, Core,
    CoreContext, Engine, IdlePolicy, Procedure, Program, RawConfig, Reply, ReplyHandler, Token,
    Version, spawn_helper,
};
use std::cell::Cell;
use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const PROGRAM: Program = Program(0x2000_0003);
const VERSION: Version = Version(1);
const NULL: Procedure = Procedure(0);
/// Calls that a thread keeps under way where the rate is measured.
const DEPTH: usize = 32;

#[derive(Parser)]
#[command(about = "Measure calls from other threads beside calls of the core itself")]
struct Args {
    /// Rounds; figures are medians over them
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Round trips, or calls, of each measurement
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
}

/// Figures of one name, a round each.
struct Row {
    name: &'static str,
    unit: &'static str,
    values: Vec<f64>,
}

impl Row {
    fn median(&self) -> f64 {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let names = [
        ("cache-line round trip between two threads", "ns"),
        ("busy: null call of the core itself, p50", "ns"),
        ("busy: null call by a handle, p50", "ns"),
        ("busy: null calls of the core itself, 32 under way", "k/s"),
        ("busy: null calls by handles, 1 thread, 32 under way", "k/s"),
        ("busy: null calls by handles, 4 threads, 32 under way each", "k/s"),
        ("eventfd ping-pong of two threads, p50", "ns"),
        ("idle: null call of the core itself, p50", "ns"),
        ("idle: null call by a handle, p50", "ns"),
    ];
    let mut rows = names.map(|(name, unit)| Row { name, unit, values: Vec::new() });
    for _ in 0..args.rounds {
        let busy = busy(args.calls)?;
        let idle = idle(args.calls / 20 + 1)?;
        for (row, value) in rows.iter_mut().zip(busy.into_iter().chain(idle)) {
            row.values.push(value);
        }
    }
    for row in &rows {
        println!("{:10.0} {:3}  {}", row.median(), row.unit, row.name);
    }
    let [line, own, handle, rate, one, four, event, idle_own, idle_handle] =
        [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|row: usize| rows[row].median());
    println!("busy: a handle adds {:.1} cache-line round trips", (handle - own) / line);
    println!(
        "busy: of the core's own rate 1 thread has {:.2}, 4 threads {:.2}",
        one / rate,
        four / rate
    );
    println!("idle: a handle adds {:.2} eventfd ping-pongs", (idle_handle - idle_own) / event);
    Ok(())
}

fn config(cpus: &[usize], mode: IdlePolicy) -> Result<Config, Box<dyn Error>> {
    let mut raw = RawConfig::default();
    raw.poll.mode = mode;
    raw.cores.list = CoreList::Cpus(cpus.to_vec());
    raw.mem.arena_mib = 8;
    Ok(raw.validate()?)
}

fn serve(engine: &Engine, address: &str) -> Result<(), Box<dyn Error>> {
    engine.serve(PROGRAM, VERSION, |_: &CoreContext| |call: Call<'_>| call.reply(|_| {}));
    Ok(engine.listen(address)?)
}

fn two_cpus() -> Result<[usize; 2], Box<dyn Error>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let mut cpus = (0..1024).filter(|cpu| set.is_set(*cpu));
    cpus.next()
        .zip(cpus.next())
        .map(|(one, other)| [one, other])
        .ok_or("two CPUs are needed".into())
}

fn unique_address() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("shm:handles-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn p50(mut times: Vec<u64>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2] as f64
}

/// Both ends on this thread, callers on others.
fn busy(calls: u32) -> Result<[f64; 6], Box<dyn Error>> {
    let [cpu, _] = two_cpus()?;
    let address = unique_address();
    let engines =
        [(); 2].map(|()| config(&[cpu], IdlePolicy::Busy).and_then(|it| Ok(Engine::new(it)?)));
    let [server, client] = engines;
    let (server, client) = (server?, client?);
    serve(&server, &address)?;
    let mut ends = Ends { server: server.core(0)?, client: client.core(0)? };
    let handle = client.connect(0, &address, PROGRAM, VERSION, &ConnectOptions::new())?;
    let own = Own::connect(&mut ends, &address)?;
    ends.until(|| handle.is_up());
    let line = cache_line(calls)?;
    let own_p50 = own.p50(&mut ends, calls);
    let by_handle = handle.clone();
    let handle_p50 = ends.while_runs(move || times(&by_handle, calls))?;
    let own_rate = own.rate(&mut ends, calls);
    let mut rates = [0.0; 2];
    for (threads, rate) in [1, 4].into_iter().zip(&mut rates) {
        let handle = handle.clone();
        *rate = ends.while_runs(move || rate_of(&handle, threads, calls))?;
    }
    Ok([line, own_p50, p50(handle_p50), own_rate, rates[0], rates[1]])
}

/// Client and server on CPUs of their own, asleep between calls.
fn idle(calls: u32) -> Result<[f64; 3], Box<dyn Error>> {
    let cpus = two_cpus()?;
    let address = unique_address();
    let server = Engine::new(config(&cpus[..1], IdlePolicy::Sleep)?)?;
    serve(&server, &address)?;
    let running = server.start()?;
    let engine = Engine::new(config(&cpus[1..], IdlePolicy::Sleep)?)?;
    let mut core = engine.core(0)?;
    let ended = Rc::new(Cell::new(0));
    let make = |_| Count(Rc::clone(&ended));
    let own = core.connect_wait(&address, PROGRAM, VERSION, make, Duration::from_secs(5))?;
    let own_times = (0..calls).map(|_| {
        let (began, due) = (Instant::now(), ended.get() + 1);
        start(&own);
        core.run_until(|| ended.get() == due);
        began.elapsed().as_nanos() as u64
    });
    let own_p50 = p50(own_times.collect());
    let handle = engine.connect(0, &address, PROGRAM, VERSION, &ConnectOptions::new())?;
    core.run_until(|| handle.is_up());
    let (done, is_done) = channel();
    let waker = handle.clone();
    let thread = spawn_helper("caller", move || {
        let _ = done.send(times(&handle, calls));
        // So that the core looks once more.
        let _ = waker.start(NULL, CallSpec::new(), |_| {});
    })?;
    let mut handle_times = Vec::new();
    core.run_until(|| {
        is_done.try_recv().is_ok_and(|times| {
            handle_times = times;
            true
        })
    });
    thread.join().map_err(|_| "a caller panicked")?;
    server.shutdown();
    running.join()?;
    Ok([eventfd_ping_pong(calls, cpus)?, own_p50, p50(handle_times)])
}

/// Both ends of the connection, on one thread.
struct Ends {
    server: Core,
    client: Core,
}

impl Ends {
    fn turn(&mut self) {
        self.client.poll_once();
        self.server.poll_once();
    }

    fn until(&mut self, done: impl Fn() -> bool) {
        while !done() {
            self.turn();
        }
    }

    /// Moves both ends while another thread does something.
    fn while_runs<T: Send + 'static>(
        &mut self,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Box<dyn Error>> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = spawn_helper("caller", move || {
            let result = run();
            over.store(true, Ordering::Release);
            result
        })?;
        self.until(|| is_over.load(Ordering::Acquire));
        thread.join().map_err(|_| "a caller panicked".into())
    }
}

/// Counts replies.
struct Count(Rc<Cell<u64>>);

impl ReplyHandler for Count {
    fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {
        self.0.set(self.0.get() + 1);
    }
}

/// A client of the core itself.
struct Own {
    client: Client,
    ended: Rc<Cell<u64>>,
}

fn start(client: &Client) -> bool {
    client.call(NULL, Token(0), &mut CallSpec::new(), |_| {}).is_ok()
}

impl Own {
    fn connect(ends: &mut Ends, address: &str) -> Result<Self, Box<dyn Error>> {
        let ended = Rc::new(Cell::new(0));
        let client =
            ends.client.connect(address, PROGRAM, VERSION, |_| Count(Rc::clone(&ended)))?;
        ends.until(|| client.is_up());
        Ok(Self { client, ended })
    }

    fn p50(&self, ends: &mut Ends, calls: u32) -> f64 {
        let times = (0..calls).map(|_| {
            let (began, due) = (Instant::now(), self.ended.get() + 1);
            start(&self.client);
            ends.until(|| self.ended.get() == due);
            began.elapsed().as_nanos() as u64
        });
        p50(times.collect())
    }

    /// In thousands of calls a second.
    fn rate(&self, ends: &mut Ends, calls: u32) -> f64 {
        let (began, first) = (Instant::now(), self.ended.get());
        let mut started = 0;
        while self.ended.get() - first < u64::from(calls) {
            while started - (self.ended.get() - first) < DEPTH as u64 && started < u64::from(calls)
            {
                started += u64::from(start(&self.client));
            }
            ends.turn();
        }
        f64::from(calls) / began.elapsed().as_secs_f64() / 1e3
    }
}

fn times(handle: &ClientHandle, calls: u32) -> Vec<u64> {
    let one = |_| {
        let began = Instant::now();
        let answer = handle.call(NULL, |_| {}, |_| Ok(()));
        assert!(answer.is_ok(), "{answer:?}");
        began.elapsed().as_nanos() as u64
    };
    (0..calls).map(one).collect()
}

/// In thousands of calls a second, of all threads together.
fn rate_of(handle: &ClientHandle, threads: u32, calls: u32) -> f64 {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| many(handle, calls / threads));
        }
    });
    f64::from(calls / threads * threads) / began.elapsed().as_secs_f64() / 1e3
}

fn many(handle: &ClientHandle, calls: u32) {
    let Ok(queue) = AnswerQueue::new(DEPTH) else { return };
    let (mut started, mut ended) = (0, 0);
    while ended < calls {
        let spec = CallSpec::new;
        while started < calls
            && handle.start_to_queue(&queue, Token(0), NULL, spec(), |_| {}).is_ok()
        {
            started += 1;
        }
        let before = ended;
        while queue.next().is_some() {
            ended += 1;
        }
        if ended == before {
            std::thread::yield_now();
        }
    }
}

/// A counter alone on its cache line.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Round trips that are timed together: reading the clock takes a good part of one.
const GROUP: usize = 20;

/// Median of a round trip, in nanoseconds. This thread is on the CPU of the core, the other one is not.
fn cache_line(calls: u32) -> Result<f64, Box<dyn Error>> {
    let lines = Arc::new([Line::default(), Line::default()]);
    let theirs = Arc::clone(&lines);
    let last = u64::from(calls);
    let thread = spawn_helper("line", move || {
        let [there, back] = &*theirs;
        let mut seen = 0;
        while seen < last {
            seen = there.0.load(Ordering::Acquire);
            back.0.store(seen, Ordering::Release);
        }
    })?;
    let [there, back] = &*lines;
    let mut times = Vec::new();
    for first in (1..=last).step_by(GROUP) {
        let began = Instant::now();
        let end = last.min(first + GROUP as u64 - 1);
        for count in first..=end {
            there.0.store(count, Ordering::Release);
            while back.0.load(Ordering::Acquire) != count {}
        }
        times.push(began.elapsed().as_nanos() as u64 / (end - first + 1));
    }
    thread.join().map_err(|_| "a thread panicked")?;
    Ok(p50(times))
}

/// Keeps the calling thread on one CPU.
fn pin(cpu: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// The median, in nanoseconds, of two threads that wake each other. Each has a CPU of its own, as caller and core
/// have; that is what it costs to wake a CPU. This thread stays on the second CPU.
fn eventfd_ping_pong(calls: u32, [cpu, other]: [usize; 2]) -> Result<f64, Box<dyn Error>> {
    let (there, back) = (Arc::new(event()?), Arc::new(event()?));
    let (their_there, their_back) = (Arc::clone(&there), Arc::clone(&back));
    let thread = std::thread::spawn(move || {
        pin(cpu)?;
        (0..calls).try_for_each(|_| take(&their_there).and_then(|()| give(&their_back)))
    });
    pin(other)?;
    let mut times = Vec::new();
    for _ in 0..calls {
        let began = Instant::now();
        give(&there)?;
        take(&back)?;
        times.push(began.elapsed().as_nanos() as u64);
    }
    thread.join().map_err(|_| "a thread panicked")??;
    Ok(p50(times))
}

fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC)?)
}

fn give(event: &OwnedFd) -> io::Result<()> {
    rustix::io::write(event, &1_u64.to_ne_bytes())?;
    Ok(())
}

fn take(event: &OwnedFd) -> io::Result<()> {
    rustix::io::read(event, &mut [0_u8; 8])?;
    Ok(())
}
