//! Measurement with busy cores: both ends of the connection on this thread, callers on the other
//! CPU.

use super::{
    Count, DEPTH, HandleValue, NULL, PROGRAM, THREADS, TIME_MAX, VERSION, engine, failed,
    handle_latency_ns, latency_ns, serve, start,
};
use crate::child::own_address;
use crate::cores::{CorePair, pin};
use crate::failure::Failure;
use spinrpc::config::IdlePolicy;
use spinrpc::{AnswerQueue, CallSpec, Client, ClientHandle, ConnectOptions, Core, Token};
use std::cell::Cell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The latency, whose floor the caller measures, and the rate.
pub(super) struct Busy {
    pub(super) latency: HandleValue,
    pub(super) rate: HandleValue,
}

pub(super) fn measure(pair: CorePair) -> Result<Busy, Failure> {
    let [server, client] = [(); 2].map(|()| engine(pair.client, IdlePolicy::Busy));
    let (server, client, address) = (server?, client?, own_address()?);
    serve(&server, &address)?;
    let core = |engine: &spinrpc::Engine| engine.core(0).map_err(failed("starting a core"));
    let mut ends = Ends { server: core(&server)?, client: core(&client)? };
    let handle = client
        .connect(0, &address, PROGRAM, VERSION, &ConnectOptions::new())
        .map_err(failed("connecting"))?;
    let ended = Count::default();
    let own = ends
        .client
        .connect(&address, PROGRAM, VERSION, |_| ended.clone())
        .map_err(failed("connecting"))?;
    let began = Instant::now();
    while !(own.is_up() && handle.is_up()) {
        ends.turn();
        if began.elapsed() > CONNECT_TIME {
            return Err(failed("connecting")("it took too long"));
        }
    }
    let own_ns = ends.own_latency_ns(&own, &ended);
    let handle_ns = ends.while_runs(pair, || handle_latency_ns(&handle, CALLS))?;
    let handle_ns = handle_ns.map_err(failed("calling"))?;
    let own_rate = ends.own_rate(&own, &ended);
    let handle_rate = ends.while_runs(pair, || rate(&handle))?;
    Ok(Busy {
        latency: HandleValue { own: own_ns, handle: handle_ns, floor: f64::NAN },
        rate: HandleValue { own: own_rate, handle: handle_rate?, floor: own_rate },
    })
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

    /// Runs both ends while a thread on the other CPU does something.
    fn while_runs<T: Send>(
        &mut self,
        pair: CorePair,
        run: impl FnOnce() -> T + Send,
    ) -> Result<T, Failure> {
        let is_over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let result = pin(pair.server).map(|()| run());
                is_over.store(true, Ordering::Release);
                result
            });
            while !is_over.load(Ordering::Acquire) && !thread.is_finished() {
                self.turn();
            }
            thread.join().unwrap_or_else(|_| Err(failed("calling")("a thread panicked")))
        })
    }

    fn own_latency_ns(&mut self, client: &Client, Count(ended): &Count) -> f64 {
        latency_ns(CALLS, || {
            let due = ended.get() + 1;
            while client.is_up() && !start(client) {
                self.turn();
            }
            while client.is_up() && ended.get() != due {
                self.turn();
            }
        })
    }

    fn own_rate(&mut self, client: &Client, Count(ended): &Count) -> f64 {
        self.own_calls(client, ended, WARM_UP_CALLS);
        let began = Instant::now();
        let calls = self.own_calls(client, ended, RATE_CALLS);
        f64::from(calls) / began.elapsed().as_secs_f64()
    }

    /// Keeps as many calls in flight as all threads have together. Returns how many ended, fewer than wanted after
    /// [`TIME_MAX`].
    fn own_calls(&mut self, client: &Client, ended: &Cell<u32>, mut wanted: u32) -> u32 {
        let (began, first, mut started) = (Instant::now(), ended.get(), 0);
        while ended.get() - first < wanted {
            let in_flight_max = ended.get() - first + THREADS * DEPTH;
            while started < in_flight_max.min(wanted) && start(client) {
                started += 1;
            }
            self.turn();
            if began.elapsed() > TIME_MAX {
                wanted = started;
            }
        }
        wanted
    }
}

/// Calls per second of all threads together, from this thread's CPU. Measured from the first
/// thread's start, after all have warmed up, to the last thread's end.
fn rate(handle: &ClientHandle) -> Result<f64, Failure> {
    let are_warm = Barrier::new(THREADS as usize);
    let parts = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|_| scope.spawn(|| part(handle, &are_warm))).collect();
        let joined = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(failed("calling")("a thread panicked")))
        });
        joined.collect::<Result<Vec<_>, Failure>>()
    })?;
    let began = parts.iter().map(|part| part.began).min();
    let ended = parts.iter().map(|part| part.ended).max();
    let time = began.zip(ended).map_or(Duration::ZERO, |(began, ended)| ended - began);
    Ok(parts.iter().map(|part| f64::from(part.calls)).sum::<f64>() / time.as_secs_f64())
}

/// What one thread did.
struct Part {
    began: Instant,
    ended: Instant,
    calls: u32,
}

fn part(handle: &ClientHandle, are_warm: &Barrier) -> Result<Part, Failure> {
    let queue = AnswerQueue::new(DEPTH as usize).map_err(failed("creating a queue"));
    let warm = queue.and_then(|queue| many(handle, &queue, WARM_UP_CALLS / THREADS).map(|_| queue));
    // Also after an error, or the other threads would wait forever.
    are_warm.wait();
    let (queue, began) = (warm?, Instant::now());
    let calls = many(handle, &queue, RATE_CALLS / THREADS)?;
    Ok(Part { began, ended: Instant::now(), calls })
}

/// Yields to the other threads when all calls of this one are in flight. Returns how many ended, fewer than wanted
/// after [`TIME_MAX`].
fn many(handle: &ClientHandle, queue: &AnswerQueue, mut wanted: u32) -> Result<u32, Failure> {
    let (began, mut started, mut ended) = (Instant::now(), 0, 0);
    while ended < wanted {
        while started < wanted && started - ended < DEPTH {
            match handle.start_to_queue(queue, Token(0), NULL, CallSpec::new(), |_| {}) {
                Ok(()) => started += 1,
                Err(refused) if refused.is_transient() => break,
                Err(refused) => return Err(failed("calling")(refused)),
            }
        }
        let before = ended;
        while let Some((_, answer)) = queue.next() {
            answer.map_err(failed("calling"))?;
            ended += 1;
        }
        if ended == before {
            std::thread::yield_now();
        }
        if began.elapsed() > TIME_MAX {
            wanted = started;
        }
    }
    Ok(wanted)
}

const CALLS: u32 = 10_000;
const RATE_CALLS: u32 = 60_000;
const WARM_UP_CALLS: u32 = 6_000;
const CONNECT_TIME: Duration = Duration::from_secs(10);
