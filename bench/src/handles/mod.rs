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
use crate::latency::{median, upper_median};
use crate::report::Goal;
use crate::units::{show_count, show_us};
use serde::Serialize;
use spinrpc::config::{CoreList, IdlePolicy, RawConfig};
use spinrpc::{
    Call, CallError, CallSpec, Client, ClientHandle, CoreContext, Engine, Procedure, Program,
    Reply, ReplyHandler, Token, Version,
};
use std::cell::Cell;
use std::fmt::Display;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Meaning of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    /// Median latency with polling cores, in nanoseconds; the limit is a cache-line round trip.
    BusyLatency,
    /// Median latency with sleeping cores, in nanoseconds; the limit is an eventfd ping-pong.
    IdleLatency,
    /// Calls per second; the limit is the rate of the core itself.
    Rate,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct HandleValue {
    /// Calls made on the core itself.
    pub(crate) own: f64,
    /// Calls made through handles.
    pub(crate) handle: f64,
    /// Limit to compare with.
    pub(crate) floor: f64,
}

/// One figure in all repeats.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HandleRow {
    pub(crate) name: String,
    pub(crate) figure: Figure,
    pub(crate) values: Vec<HandleValue>,
    pub(crate) median: HandleValue,
    /// Median of the ratios within the repeats.
    pub(crate) ratio: f64,
}

impl Figure {
    /// A value with its unit.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::BusyLatency | Self::IdleLatency => format!("{} µs", show_us(value)),
            Self::Rate => format!("{}/s", show_count(value)),
        }
    }

    /// Unit of the ratio.
    pub(crate) fn ratio_name(self) -> &'static str {
        match self {
            Self::BusyLatency => "cache-line RTT more",
            Self::IdleLatency => "eventfd ping-pong more",
            Self::Rate => "x the core itself",
        }
    }

    fn ratio(self, value: &HandleValue) -> f64 {
        match self {
            Self::BusyLatency | Self::IdleLatency => (value.handle - value.own) / value.floor,
            Self::Rate => value.handle / value.floor,
        }
    }

    fn middle(self, values: impl Iterator<Item = f64>) -> f64 {
        if self == Self::Rate { median(values) } else { upper_median(values) }
    }
}

impl HandleRow {
    fn new(name: String, figure: Figure, values: Vec<HandleValue>) -> Self {
        let of = |get: fn(&HandleValue) -> f64| figure.middle(values.iter().map(get));
        let median = HandleValue {
            own: of(|value| value.own),
            handle: of(|value| value.handle),
            floor: of(|value| value.floor),
        };
        let ratio = figure.middle(values.iter().map(|value| figure.ratio(value)));
        Self { name, figure, values, median, ratio }
    }

    /// Target of the figure.
    pub(crate) fn goal(&self) -> Goal {
        match self.figure {
            Figure::BusyLatency => Goal::at_most(
                "call through a handle, busy cores: cache-line RTT more",
                self.ratio,
                3.0,
            ),
            Figure::IdleLatency => Goal::at_most(
                "call through a handle, idle cores: eventfd ping-pong more",
                self.ratio,
                1.5,
            ),
            Figure::Rate => Goal::at_least(
                format!("calls/s through handles, {THREADS} threads, x the core itself"),
                self.ratio,
                0.8,
            ),
        }
    }
}

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
fn latency_ns(handle: &ClientHandle, calls: u32) -> Result<f64, CallError> {
    let one = |_| {
        let began = Instant::now();
        handle.call(NULL, |_| {}, |_| Ok(())).map(|()| began.elapsed().as_nanos() as f64)
    };
    let times: Result<Vec<f64>, CallError> = (0..calls).map(one).collect();
    Ok(upper_median(times?))
}

const PROGRAM: Program = Program(0x2000_0003);
const VERSION: Version = Version(1);
const NULL: Procedure = Procedure(0);
const ARENA_MIB: u64 = 8;
/// Number of measured threads, and calls in flight of each thread or of the core itself.
const THREADS: u32 = 4;
const DEPTH: u32 = 32;
const FLOOR_TIME: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn row(figure: Figure, values: &[(f64, f64, f64)]) -> HandleRow {
        let value = |(own, handle, floor): &(f64, f64, f64)| HandleValue {
            own: *own,
            handle: *handle,
            floor: *floor,
        };
        HandleRow::new("row".to_owned(), figure, values.iter().map(value).collect())
    }

    #[test]
    fn latencies_are_compared_by_what_a_handle_adds() {
        let values = [(200.0, 500.0, 100.0), (200.0, 550.0, 100.0), (900.0, 950.0, 50.0)];
        let row = row(Figure::BusyLatency, &values);
        assert_eq!((row.ratio, row.median.handle), (3.0, 550.0));
        assert!(row.goal().met);
    }

    #[test]
    fn rates_are_compared_by_their_quotient_expect_the_worse_of_an_even_number() {
        let row = row(Figure::Rate, &[(10e6, 9e6, 10e6), (10e6, 7e6, 10e6)]);
        assert_eq!(row.ratio, 0.7);
        assert!(!row.goal().met);
        assert_eq!(row.figure.show(row.median.handle), "7.00M/s");
    }
}
