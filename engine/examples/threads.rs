//! Calls of other threads than the core's, next to the core's own, and the same way there and back through queues alone: those
//! that these calls go by, and those of crossbeam and rtrb.
//!
//! Both ends of the connection share one CPU, as in `spinperf`, and all threads that call share another one: so two CPUs are
//! enough. Each round measures everything once, and again if something else had one of the CPUs meanwhile. A figure is the
//! median of the rounds, and its spread is half the distance of the quartiles.
//!
//! `cargo run --release -p spinrpc --example threads`

use clap::Parser;
use crossbeam::channel::{self, Receiver, Sender};
use crossbeam::queue::ArrayQueue;
use rtrb::{Consumer, Producer, RingBuffer};
use spinrpc::config::{CoreList, RawConfig};
use spinrpc::sys::clock::Clock;
use spinrpc::{
    Answer, AnswerQueue, Call, CallError, CallSpec, Client, ClientHandle, ConnectOptions, Core,
    CoreContext, Engine, IdlePolicy, Procedure, Program, Reply, ReplyHandler, Token, Version,
};
use spinrpc_fabric::sync::box_queue::{BATCH, BoxQueue, Item, prefetch_line};
use spinrpc_fabric::sys::affinity::pin_current_thread;
use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

const PROGRAM: Program = Program(0x2000_0002);
const VERSION: Version = Version(1);
const NULL: Procedure = Procedure(0);
/// Threads that call.
const THREADS: [usize; 3] = [1, 2, 4];

#[derive(Parser)]
#[command(about = "Compare calls of other threads with those of the core itself, and with queues")]
struct Args {
    /// Rounds
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Measure only these rows
    #[arg(long, value_delimiter = ',')]
    by: Vec<String>,
    /// Milliseconds of each measurement
    #[arg(long, default_value_t = 5)]
    ms: u64,
    /// Calls in flight of each thread
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=256))]
    depth: u64,
}

/// One thread's way to the core and back.
trait Lane: Send {
    /// Starts a call; false if there is no room.
    fn send(&mut self) -> bool;
    /// Takes an answer.
    fn take(&mut self) -> bool;
    /// Gives back the memory of answers that were taken.
    fn give_back(&mut self) {}
}

/// Clock ticks of a call: at the core, and of starting it, taking its answer and giving memory back on the thread that calls;
/// and calls in a second.
#[derive(Clone, Copy, Default)]
struct Figures {
    per_second: f64,
    core: f64,
    stages: [f64; 3],
    /// Nothing else had one of the two CPUs for more than a hundredth of the time.
    is_quiet: bool,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    calls: u64,
    cpu_ns: u64,
    ticks: [u64; 3],
}

impl Tally {
    fn add(self, other: Self) -> Self {
        let ticks = std::array::from_fn(|at| self.ticks[at] + other.ticks[at]);
        let (calls, cpu_ns) = (self.calls + other.calls, self.cpu_ns + other.cpu_ns);
        Self { calls, cpu_ns, ticks }
    }
}

/// CPU time of this thread. None of those here sleeps, so that it is the time that passes, unless others have the CPU.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn is_quiet(cpu_ns: u64, of: Duration) -> bool {
    cpu_ns as f64 > 0.99 * of.as_nanos() as f64
}

/// Has the core take its turns when all threads have started their calls, and the threads wait for it: so both sides find as
/// many calls at once as there are, as where the other one is the slower.
#[derive(Default)]
struct Gate {
    waiting: AtomicUsize,
    rounds: AtomicUsize,
}

impl Gate {
    fn wait(&self) {
        let round = self.rounds.load(Ordering::Acquire);
        self.waiting.fetch_add(1, Ordering::Release);
        while self.rounds.load(Ordering::Acquire) == round {
            thread::yield_now();
        }
    }

    fn open(&self) {
        self.waiting.store(0, Ordering::Relaxed);
        self.rounds.fetch_add(1, Ordering::Release);
    }
}

/// Calls of one thread, until it is to stop and all have been answered.
fn drive(lane: &mut impl Lane, depth: u64, stop: &AtomicBool, gate: Option<&Gate>) -> Tally {
    let (mut tally, mut in_flight) = (Tally::default(), 0);
    let clock = Clock::shared();
    loop {
        let start = clock.now().0;
        let before = in_flight;
        let is_over = stop.load(Ordering::Relaxed);
        while !is_over && in_flight < depth && lane.send() {
            in_flight += 1;
        }
        let left = clock.now().0;
        gate.inspect(|gate| gate.wait());
        let sent = clock.now().0;
        let most = in_flight;
        while lane.take() {
            in_flight -= 1;
        }
        let taken = clock.now().0;
        lane.give_back();
        // A look that finds nothing is no call's.
        if most > before {
            tally.ticks[0] += left - start;
        }
        if in_flight < most {
            tally.calls += most - in_flight;
            tally.ticks[1] += taken - sent;
            tally.ticks[2] += clock.now().0 - taken;
        } else if is_over && in_flight == 0 {
            return tally;
        } else {
            thread::yield_now();
        }
    }
}

/// Counts a thread that has ended, also one that panics.
struct End<'a>(&'a AtomicUsize);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Args {
    /// Runs a thread for each lane on the other CPU, and turns of the core here. A turn returns true if it found work.
    fn measure(&self, lanes: Vec<impl Lane>, turn: impl FnMut() -> bool) -> Figures {
        self.measure_by(None, lanes, turn)
    }

    fn measure_by(
        &self,
        gate: Option<&Gate>,
        lanes: Vec<impl Lane>,
        mut turn: impl FnMut() -> bool,
    ) -> Figures {
        let (stop, left) = (AtomicBool::new(false), AtomicUsize::new(lanes.len()));
        let all_here = Barrier::new(lanes.len() + 1);
        thread::scope(|scope| {
            let run = |mut lane| {
                let (stop, left, all_here) = (&stop, &left, &all_here);
                scope.spawn(move || {
                    let _end = End(left);
                    let pinned = pin_current_thread(1);
                    all_here.wait();
                    let start_ns = cpu_ns();
                    let tally = pinned.map(|()| drive(&mut lane, self.depth, stop, gate));
                    tally.map(|tally| Tally { cpu_ns: cpu_ns() - start_ns, ..tally })
                })
            };
            let threads: Vec<_> = lanes.into_iter().map(run).collect();
            all_here.wait();
            let (began, start_ns, clock, mut busy) = (Instant::now(), cpu_ns(), Clock::shared(), 0);
            let mut at = clock.now().0;
            let end = at + clock.from_duration(Duration::from_millis(self.ms));
            let mut idle_turns = 0;
            loop {
                let threads = left.load(Ordering::Acquire);
                if threads == 0 {
                    break;
                }
                if gate.is_some_and(|gate| gate.waiting.load(Ordering::Acquire) < threads) {
                    at = clock.now().0;
                    continue;
                }
                let found = turn();
                let now = clock.now().0;
                busy += if found { now - at } else { 0 };
                idle_turns = if found { 0 } else { idle_turns + 1 };
                at = now;
                if now > end {
                    stop.store(true, Ordering::Relaxed);
                }
                if idle_turns > IDLE_TURNS {
                    gate.inspect(|gate| gate.open());
                }
            }
            let (lasted, own_ns) = (began.elapsed(), cpu_ns() - start_ns);
            let tallies = threads.into_iter().filter_map(|thread| thread.join().ok()?.ok());
            let Tally { calls, cpu_ns, ticks } = tallies.fold(Tally::default(), Tally::add);
            let each = |ticks| ticks as f64 / calls as f64;
            Figures {
                per_second: calls as f64 / lasted.as_secs_f64(),
                core: each(busy),
                stages: ticks.map(each),
                is_quiet: is_quiet(cpu_ns, lasted) && is_quiet(own_ns, lasted),
            }
        })
    }
}

struct Count(Rc<Cell<u64>>);

impl ReplyHandler for Count {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        if reply.is_ok() {
            self.0.set(self.0.get() + 1);
        }
    }
}

struct ByHandle {
    handle: ClientHandle,
    answers: AnswerQueue,
    taken: Vec<Answer>,
}

impl Lane for ByHandle {
    fn send(&mut self) -> bool {
        let Self { handle, answers, .. } = self;
        handle.start_to_queue(answers, Token(0), NULL, CallSpec::short(), |_| {}).is_ok()
    }

    fn take(&mut self) -> bool {
        let answer = self.answers.next();
        let is_there = answer.is_some();
        self.taken.extend(answer.and_then(|(_, answer)| answer.ok()));
        is_there
    }

    fn give_back(&mut self) {
        self.taken.clear();
    }
}

/// Both ends of a connection, whose turns this thread takes.
struct Ends {
    server: Core,
    core: Core,
    client: Client,
    handle: ClientHandle,
    answered: Rc<Cell<u64>>,
    _engines: [Engine; 2],
}

impl Ends {
    fn new(args: &Args) -> Result<Self, Box<dyn Error>> {
        let address = format!("shm:threads-{}", std::process::id());
        let engines = [engine(args)?, engine(args)?];
        engines[0]
            .serve(PROGRAM, VERSION, |_: &CoreContext| |call: Call<'_>| call.reply(|_| {}))?;
        engines[0].listen(&address)?;
        let (mut server, mut core) = (engines[0].core(0)?, engines[1].core(0)?);
        let answered = Rc::default();
        let count = Count(Rc::clone(&answered));
        let client = core.connect(&address, PROGRAM, VERSION, |_| count)?;
        let options = ConnectOptions::new();
        let handle = engines[1].connect(0, &address, PROGRAM, VERSION, &options)?;
        while !client.is_up() || !handle.is_up() {
            server.poll_once();
            core.poll_once();
        }
        Ok(Self { server, core, client, handle, answered, _engines: engines })
    }

    fn turn(&mut self) -> bool {
        self.core.poll_once().events + self.server.poll_once().events > 0
    }

    fn by_handles(
        &mut self,
        args: &Args,
        threads: usize,
        gate: Option<&Gate>,
    ) -> Result<Figures, Box<dyn Error>> {
        let lane = |_| {
            let (handle, taken) = (self.handle.clone(), Vec::with_capacity(args.depth as usize));
            Ok(ByHandle { handle, answers: AnswerQueue::new(args.depth as usize)?, taken })
        };
        let lanes = (0..threads).map(lane).collect::<std::io::Result<_>>()?;
        Ok(args.measure_by(gate, lanes, || self.turn()))
    }

    /// The core's own calls, as many in flight as by all of these threads.
    fn own(&mut self, args: &Args, threads: usize) -> Figures {
        let (began, start_ns, clock) = (Instant::now(), cpu_ns(), Clock::shared());
        let start = clock.now().0;
        let end = start + clock.from_duration(Duration::from_millis(args.ms));
        let first = self.answered.get();
        let (depth, mut sent) = (args.depth * threads as u64, first);
        let mut spec = CallSpec::short();
        while clock.now().0 < end {
            while sent < self.answered.get() + depth
                && self.client.call(NULL, Token(0), &mut spec, |_| {}).is_ok()
            {
                sent += 1;
            }
            self.turn();
        }
        let (calls, spent) = ((self.answered.get() - first) as f64, clock.now().0 - start);
        let (lasted, own_ns) = (began.elapsed(), cpu_ns() - start_ns);
        while self.answered.get() < sent {
            self.turn();
        }
        Figures {
            per_second: calls / lasted.as_secs_f64(),
            core: spent as f64 / calls,
            stages: [0.0; 3],
            is_quiet: is_quiet(own_ns, lasted),
        }
    }
}

fn engine(args: &Args) -> Result<Engine, Box<dyn Error>> {
    let mut raw = RawConfig::default();
    raw.poll.mode = IdlePolicy::Busy;
    raw.cores.list = CoreList::Cpus(vec![0]);
    raw.rpc.credits = args.depth * THREADS[2] as u64;
    raw.mem.arena_mib = 8;
    Ok(Engine::new(raw.validate()?)?)
}

/// What queues move: a line that the thread writes, and then the core.
#[repr(align(64))]
#[derive(Default)]
struct Line {
    lane: usize,
    number: u64,
}

/// A bounded queue of any make, whose two ends are one value.
trait Queue: Send + Sync {
    fn new(room: usize) -> Self;
    fn push(&self, line: Box<Line>);
    fn pop(&self) -> Option<Box<Line>>;
}

impl Queue for ArrayQueue<Box<Line>> {
    fn new(room: usize) -> Self {
        Self::new(room)
    }

    fn push(&self, line: Box<Line>) {
        drop(self.push(line));
    }

    fn pop(&self) -> Option<Box<Line>> {
        self.pop()
    }
}

struct Channel(Sender<Box<Line>>, Receiver<Box<Line>>);

impl Queue for Channel {
    fn new(room: usize) -> Self {
        let (sender, receiver) = channel::bounded(room);
        Self(sender, receiver)
    }

    fn push(&self, line: Box<Line>) {
        drop(self.0.try_send(line));
    }

    fn pop(&self) -> Option<Box<Line>> {
        self.1.try_recv().ok()
    }
}

impl Queue for BoxQueue<Line> {
    fn new(room: usize) -> Self {
        Self::new(room)
    }

    fn push(&self, line: Box<Line>) {
        drop(self.push(Item::Main(line)));
    }

    fn pop(&self) -> Option<Box<Line>> {
        match self.pop_one() {
            Some(Item::Main(line)) => Some(line),
            _ => None,
        }
    }
}

/// A thread with lines of its own, of which those that are not on their way are here.
struct ByQueue<P, C> {
    lines: VecDeque<Box<Line>>,
    to_core: P,
    from_core: C,
}

impl<P, C> ByQueue<P, C> {
    fn new(depth: u64, lane: usize, to_core: P, from_core: C) -> Self {
        let line = |number| Box::new(Line { lane, number });
        Self { lines: (0..depth).map(line).collect(), to_core, from_core }
    }
}

/// A thread with two queues of one make.
type ByQueues<Q> = ByQueue<Arc<Q>, Arc<Q>>;

impl<Q: Queue> Lane for ByQueues<Q> {
    fn send(&mut self) -> bool {
        let Some(mut line) = self.lines.pop_back() else { return false };
        line.number += 1;
        self.to_core.push(line);
        true
    }

    fn take(&mut self) -> bool {
        let line = self.from_core.pop();
        let is_there = line.as_ref().is_some_and(|line| line.number > 0);
        self.lines.extend(line);
        is_there
    }
}

impl Lane for ByQueue<Producer<Box<Line>>, Consumer<Box<Line>>> {
    fn send(&mut self) -> bool {
        let Some(mut line) = self.lines.pop_back() else { return false };
        line.number += 1;
        self.to_core.push(line).is_ok()
    }

    fn take(&mut self) -> bool {
        let line = self.from_core.pop().ok();
        let is_there = line.as_ref().is_some_and(|line| line.number > 0);
        self.lines.extend(line);
        is_there
    }
}

/// One queue to the core, and one to each thread.
fn queues<Q: Queue>(args: &Args, threads: usize) -> (Vec<ByQueues<Q>>, Arc<Q>) {
    let room = args.depth as usize;
    let to_core = Arc::new(Q::new(threads * room));
    let lane = |lane| ByQueue::new(args.depth, lane, Arc::clone(&to_core), Arc::new(Q::new(room)));
    ((0..threads).map(lane).collect(), to_core)
}

/// Queues that move one item at a time.
fn one_by_one<Q: Queue>(args: &Args, threads: usize) -> Figures {
    let (lanes, to_core) = queues::<Q>(args, threads);
    let answers: Vec<_> = lanes.iter().map(|lane| Arc::clone(&lane.from_core)).collect();
    args.measure(lanes, || {
        let line = to_core.pop();
        let found = line.is_some();
        if let Some(mut line) = line {
            line.number += 1;
            answers[line.lane].push(line);
        }
        found
    })
}

/// The queues of calls by handles: the core takes and answers many at a time.
fn by_boxes(args: &Args, threads: usize) -> Figures {
    let (lanes, to_core) = queues::<BoxQueue<Line>>(args, threads);
    let answers: Vec<_> = lanes.iter().map(|lane| Arc::clone(&lane.from_core)).collect();
    let mut taken: Vec<_> = answers.iter().map(|_| Vec::new()).collect();
    let mut ordered = Vec::with_capacity(BATCH);
    args.measure(lanes, || {
        if to_core.is_empty() {
            return false;
        }
        to_core.pop(BATCH, |item| {
            if let Item::Main(line) = item {
                prefetch_line(&*line, 0);
                ordered.push(line);
            }
        });
        for mut line in ordered.drain(..) {
            line.number += 1;
            taken[line.lane].push(line);
        }
        for (lines, queue) in taken.iter_mut().zip(&answers) {
            queue.push_all(&mut lines.drain(..));
        }
        true
    })
}

/// A pair of rings for each thread, all of which the core looks at.
fn by_rings(args: &Args, threads: usize) -> Figures {
    let room = args.depth as usize;
    let ends = |lane| {
        let (to_core, calls) = RingBuffer::new(room);
        let (answers, from_core) = RingBuffer::new(room);
        (ByQueue::new(args.depth, lane, to_core, from_core), (calls, answers))
    };
    let (lanes, mut rings): (Vec<_>, Vec<_>) = (0..threads).map(ends).unzip();
    args.measure(lanes, || {
        let mut found = false;
        for (calls, answers) in &mut rings {
            while let Ok(mut line) = calls.pop() {
                line.number += 1;
                found |= answers.push(line).is_ok();
            }
        }
        found
    })
}

/// The median, and half the distance of the quartiles; of nothing, no number.
fn median(mut figures: Vec<f64>) -> (f64, f64) {
    figures.sort_by(f64::total_cmp);
    let last = figures.len().saturating_sub(1) as f64;
    let at = |share: f64| figures.get((last * share) as usize).copied().unwrap_or(f64::NAN);
    (at(0.5), (at(0.75) - at(0.25)) / 2.0)
}

/// Ways to the core and back, by name.
const WAYS: [&str; 7] = ["core", "handles", "in turns", "boxes", "ArrayQueue", "channel", "rtrb"];

fn measure(
    way: usize,
    threads: usize,
    args: &Args,
    ends: &mut Ends,
) -> Result<Figures, Box<dyn Error>> {
    Ok(match way {
        0 => ends.own(args, threads),
        1 => ends.by_handles(args, threads, None)?,
        2 => ends.by_handles(args, threads, Some(&Gate::default()))?,
        3 => by_boxes(args, threads),
        4 => one_by_one::<ArrayQueue<_>>(args, threads),
        5 => one_by_one::<Channel>(args, threads),
        _ => by_rings(args, threads),
    })
}

/// Turns without work after which the core has answered all calls.
const IDLE_TURNS: u32 = 4;
/// Tries of one measurement, until nothing else has the CPUs.
const TRIES: u32 = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    pin_current_thread(0)?;
    let mut ends = Ends::new(&args)?;
    let is_wanted = |way: usize| args.by.is_empty() || args.by.iter().any(|by| by == WAYS[way]);
    let ways: Vec<_> = (0..WAYS.len()).filter(|way| is_wanted(*way)).collect();
    let mut rows = vec![Vec::new(); THREADS.len() * ways.len()];
    let mut loud = 0;
    for _ in 0..args.rounds {
        let cells = THREADS.iter().flat_map(|threads| ways.iter().map(|way| (*way, *threads)));
        for (row, (way, threads)) in rows.iter_mut().zip(cells) {
            let mut figures = measure(way, threads, &args, &mut ends)?;
            for _ in 0..TRIES {
                if figures.is_quiet {
                    break;
                }
                figures = measure(way, threads, &args, &mut ends)?;
            }
            loud += u64::from(!figures.is_quiet);
            row.push(figures);
        }
    }
    println!(
        "threads  by             million/s     x core itself     ticks: core  start   take  give back"
    );
    for (at, row) in rows.iter().enumerate() {
        let own = &rows[at / ways.len() * ways.len()];
        let quiet = || row.iter().zip(own).filter(|(one, own)| one.is_quiet && own.is_quiet);
        let of =
            |figure: fn(&Figures) -> f64| median(quiet().map(|(one, _)| figure(one)).collect());
        let (rate, spread) = of(|one| one.per_second / 1e6);
        let (ratio, ratio_spread) =
            median(quiet().map(|(one, own)| one.per_second / own.per_second).collect());
        let stages: [fn(&Figures) -> f64; 4] =
            [|one| one.core, |one| one.stages[0], |one| one.stages[1], |one| one.stages[2]];
        let [core, start, take, give] = stages.map(|stage| of(stage).0);
        let (threads, way) = (THREADS[at / ways.len()], WAYS[ways[at % ways.len()]]);
        println!(
            "{threads:7}  {way:11} {rate:7.2} ± {spread:5.2}     {ratio:5.2} ± {ratio_spread:4.2}     {core:11.0} {start:6.0} {take:6.0} {give:10.0}"
        );
    }
    println!(
        "{loud} of {} measurements were disturbed, and do not count",
        rows.len() as u64 * args.rounds
    );
    Ok(())
}
