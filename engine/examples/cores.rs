//! Two cores of a server and two of a client, each on a thread of its own, whose turns are taken one after the other. Under
//! valgrind, `bench/sharing/run` finds the cache lines that one core writes and another core of the process touches in the trace of
//! their memory.
//!
//! `cargo run --release -p spinrpc --example cores`

use clap::Parser;
use spinrpc::config::{CoreList, RawConfig};
use spinrpc::{
    Call, CallError, CallSpec, Client, Core, CoreContext, Engine, EngineError, IdlePolicy,
    Procedure, Program, Reply, ReplyHandler, Service, Token, Version,
};
use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

const PROGRAM: Program = Program(0x2000_0002);
const VERSION: Version = Version(1);
const ECHO: Procedure = Procedure(1);
/// Bytes of an echo.
const BYTES: usize = 64;
/// Cores of each end.
const CORES: usize = 2;
/// Rounds before those that count, in which connections are made.
const WARM_UP: u64 = 200;
const PANICKED: &str = "a thread panicked";

#[derive(Parser)]
#[command(about = "Let cores take turns, for a trace of their memory")]
struct Args {
    /// Rounds that count, in each of which a core takes one turn
    #[arg(long, default_value_t = 1_000)]
    rounds: u64,
    /// Calls of each connection in a round
    #[arg(long, default_value_t = 4)]
    depth: u64,
    /// All cores count their turns in one cache line: the tool has to find that
    #[arg(long)]
    planted: bool,
}

/// On two lines of its own, as processors fetch lines in pairs.
#[repr(align(128))]
struct Mark(AtomicU64);

/// Written when the turn of a core begins, by core: those of the server first.
static BEGIN: [Mark; 2 * CORES] = [const { Mark(AtomicU64::new(0)) }; 2 * CORES];
/// Written when a turn ends.
static END: Mark = Mark(AtomicU64::new(0));
/// Written when the rounds begin that count.
static COUNT: Mark = Mark(AtomicU64::new(0));
static PLANTED: Mark = Mark(AtomicU64::new(0));

struct EchoService;

impl Service for EchoService {
    fn call(&mut self, mut call: Call<'_>) {
        match call.args().opaque(BYTES) {
            Ok(bytes) => call.reply(|results| results.opaque(bytes)),
            Err(_) => drop(call),
        }
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

/// The number of turns taken, and the threads to wake, in the order of their turns.
struct Baton {
    turn: AtomicUsize,
    threads: Mutex<Vec<Thread>>,
    all_here: Barrier,
}

impl Baton {
    /// Takes `turns` turns of this thread, whose place is `index`.
    fn take_turns(&self, index: usize, turns: u64, mut turn: impl FnMut(u64)) {
        for number in 0..turns {
            while self.turn.load(Ordering::Acquire) % BEGIN.len() != index {
                thread::park();
            }
            turn(number);
            let next = self.turn.fetch_add(1, Ordering::AcqRel) + 1;
            self.threads()[next % BEGIN.len()].unpark();
        }
    }

    fn join(&self, index: usize) {
        self.threads()[index] = thread::current();
        self.all_here.wait();
    }

    fn threads(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a turn of the core with this index between marks.
#[inline(never)]
fn marked(index: usize, planted: bool, turn: impl FnOnce()) {
    BEGIN[index].0.fetch_add(1, Ordering::SeqCst);
    turn();
    if planted {
        PLANTED.0.fetch_add(1, Ordering::SeqCst);
    }
    END.0.fetch_add(1, Ordering::SeqCst);
}

/// A client's core and its connection.
struct Caller {
    core: Core,
    client: Client,
    answered: Rc<Cell<u64>>,
}

impl Caller {
    fn new(engine: &Engine, index: usize, address: &str) -> Result<Self, Box<dyn Error>> {
        let (mut core, answered) = (engine.core(index)?, Rc::default());
        let count = Rc::clone(&answered);
        let client = core.connect(address, PROGRAM, VERSION, |_| Count(count))?;
        Ok(Self { core, client, answered })
    }

    fn turn(&mut self, depth: u64, spec: &mut CallSpec) {
        for token in (0..depth).map(Token) {
            // Without credits there is nothing to do in this turn.
            let _ = self.client.call(ECHO, token, spec, |args| args.opaque(&[7; BYTES]));
        }
        self.core.poll_once();
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let address = |mark: &Mark| format!("{:p}", &raw const mark.0);
    println!("begin {}", BEGIN.iter().map(address).collect::<Vec<_>>().join(" "));
    println!("end {}\ncount {}", address(&END), address(&COUNT));
    let listening = format!("shm:cores-{}", std::process::id());
    let engines = [engine()?, engine()?];
    engines[0].serve(PROGRAM, VERSION, |_: &CoreContext| EchoService)?;
    engines[0].listen(&listening)?;
    let baton = Baton {
        turn: AtomicUsize::new(0),
        threads: Mutex::new(vec![thread::current(); BEGIN.len()]),
        all_here: Barrier::new(BEGIN.len()),
    };
    let [server, client] = &engines;
    let answered: Result<u64, String> = thread::scope(|scope| {
        let (args, baton, listening) = (&args, &baton, listening.as_str());
        let servers = (0..CORES).map(|core| scope.spawn(move || serve(server, core, args, baton)));
        let callers =
            (0..CORES).map(|core| scope.spawn(move || call(client, core, args, baton, listening)));
        let threads: Vec<_> = servers.chain(callers).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(PANICKED.into()))).sum()
    });
    let served = (0..CORES).map(|core| server.stats(core).map(|stats| stats.calls_received));
    if served.collect::<Result<Vec<_>, _>>()?.contains(&0) {
        return Err("a core of the server got no calls".into());
    }
    println!("{} calls", answered?);
    Ok(())
}

fn serve(engine: &Engine, index: usize, args: &Args, baton: &Baton) -> Result<u64, String> {
    let core = engine.core(index);
    baton.join(index);
    let mut core = core.map_err(|error| error.to_string())?;
    baton.take_turns(index, WARM_UP + args.rounds, |number| {
        if index == 0 && number == WARM_UP {
            COUNT.0.store(1, Ordering::SeqCst);
        }
        marked(index, args.planted, || {
            core.poll_once();
        });
    });
    Ok(0)
}

/// Returns the number of calls that were answered in the rounds that count.
fn call(
    engine: &Engine,
    index: usize,
    args: &Args,
    baton: &Baton,
    address: &str,
) -> Result<u64, String> {
    let caller = Caller::new(engine, index, address);
    baton.join(CORES + index);
    let mut caller = caller.map_err(|error| error.to_string())?;
    let (mut spec, mut before) = (CallSpec::short(), 0);
    baton.take_turns(CORES + index, WARM_UP + args.rounds, |number| {
        if !caller.client.is_up() {
            // The handshake is made by other threads.
            thread::sleep(Duration::from_millis(3));
        }
        if number == WARM_UP {
            before = caller.answered.get();
        }
        marked(CORES + index, args.planted, || caller.turn(args.depth, &mut spec));
    });
    match caller.answered.get() - before {
        answered if answered < args.rounds => Err(format!("only {answered} calls were answered")),
        answered => Ok(answered),
    }
}

fn engine() -> Result<Engine, EngineError> {
    let mut raw = RawConfig::default();
    raw.poll.mode = IdlePolicy::Busy;
    raw.cores.list = CoreList::Cpus((0..CORES).collect());
    raw.mem.arena_mib = 8;
    Engine::new(raw.validate()?)
}
