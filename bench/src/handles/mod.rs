//! Calls from other threads: the cost of a `ClientHandle` compared with calls on the core itself,
//! and with the minimum for communication between threads on two CPUs.
//!
//! Client and server are in this process, because the callers need a CPU, too. Busy cores share one
//! thread and one CPU, so that a call on the core itself crosses none, and callers have the other
//! CPU. Sleeping cores have a CPU each.

mod busy;
mod idle;

use crate::cores::CorePair;
use crate::failure::Failure;
use crate::floor::Probe;
use crate::latency::upper_median;
use crate::report::handles::{Figure, HandleRow, HandleValue, THREADS};
use spinrpc::config::{CoreList, IdlePolicy, RawConfig};
use spinrpc::{
    Call, CallError, CallSpec, Client, ClientHandle, CoreContext, Engine, Procedure, Program,
    Reply, ReplyHandler, Token, Version,
};
use std::cell::Cell;
use std::fmt::Display;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Measures everything `repeats` times. Pins the calling thread to the client's CPU and leaves it
/// there.
pub(crate) fn measure(pair: CorePair, repeats: u32) -> Result<Vec<HandleRow>, Failure> {
    let [mut latency, mut rate, mut idle] = [const { Vec::new() }; 3];
    for _ in 0..repeats {
        let line = Probe::CacheLine.measure(pair, FLOOR_TIME)?;
        let busy = busy::measure(pair)?;
        latency.push(HandleValue { floor: line, ..busy.latency });
        rate.push(busy.rate);
        let event = Probe::EventfdPingPong.measure(pair, FLOOR_TIME)?;
        idle.push(HandleValue { floor: event, ..idle::measure(pair)? });
    }
    Ok(vec![
        HandleRow::new("latency, busy cores".to_owned(), Figure::BusyLatency, latency),
        HandleRow::new("latency, sleeping cores".to_owned(), Figure::IdleLatency, idle),
        HandleRow::new(format!("{THREADS} threads, depth {DEPTH} each"), Figure::Rate, rate),
    ])
}

/// An engine with one core on this CPU.
fn engine(cpu: usize, mode: IdlePolicy) -> Result<Engine, Failure> {
    let mut raw = RawConfig::default();
    raw.poll.mode = mode;
    raw.cores.list = CoreList::Cpus(vec![cpu]);
    raw.mem.arena_mib = ARENA_MIB;
    let config = raw.validate().map_err(failed("configuring an engine"))?;
    Engine::new(config).map_err(failed("starting an engine"))
}

/// Serves null calls at `address`.
fn serve(engine: &Engine, address: &str) -> Result<(), Failure> {
    engine.serve(PROGRAM, VERSION, |_: &CoreContext| |call: Call<'_>| call.reply(|_| {}));
    engine.listen(address).map_err(failed("listening"))
}

fn failed<E: Display>(what: &str) -> impl Fn(E) -> Failure {
    move |error| Failure::Measurement(format!("{what}, for calls from other threads: {error}"))
}

/// Counts replies.
#[derive(Clone, Default)]
struct Count(Rc<Cell<u32>>);

impl ReplyHandler for Count {
    fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {
        self.0.set(self.0.get() + 1);
    }
}

/// Starts a null call on the core itself; returns false if that is not possible yet.
fn start(client: &Client) -> bool {
    client.call(NULL, Token(0), &mut CallSpec::new(), |_| {}).is_ok()
}

/// Median latency of null calls through a handle, one at a time, in nanoseconds.
fn handle_latency_ns(handle: &ClientHandle, calls: u32) -> Result<f64, CallError> {
    let mut answered = Ok(());
    let ns = latency_ns(calls, || {
        if answered.is_ok() {
            answered = handle.call(NULL, |_| {}, |_| Ok(()));
        }
    });
    answered.map(|()| ns)
}

/// Median latency of this many calls, or of as many as fit into [`TIME_MAX`], in nanoseconds.
fn latency_ns(calls: u32, mut call: impl FnMut()) -> f64 {
    let began = Instant::now();
    let times = (0..calls).map_while(|number| {
        let asked = Instant::now();
        let is_due = number == 0 || asked - began < TIME_MAX;
        is_due.then(|| {
            call();
            asked.elapsed().as_nanos() as f64
        })
    });
    upper_median(times)
}

const PROGRAM: Program = Program(0x2000_0003);
const VERSION: Version = Version(1);
const NULL: Procedure = Procedure(0);
const ARENA_MIB: u64 = 8;
/// Calls in flight of each thread, or of the core itself.
const DEPTH: u32 = 32;
const FLOOR_TIME: Duration = Duration::from_millis(20);
/// Measurements end by their number of calls; this limit ends them where other programs have the CPUs.
const TIME_MAX: Duration = Duration::from_millis(200);
