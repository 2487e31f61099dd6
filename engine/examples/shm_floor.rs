//! Cost of the shared-memory driver on this machine, without the engine above it, against the
//! cache-line round trip:
//! `cargo run --release -p spinrpc --example shm_floor [CORE CORE [IDLE_CONNECTIONS]]`

use spinrpc::fabric::shm::{ShmConfig, ShmConnector, ShmFabric};
use spinrpc::fabric::{
    Acceptor, CompletionKind, Completions, ConnectRequest, Connector, Endpoint, Fabric,
    ListenRequest, QpId, SendWr,
};
use spinrpc::mem::{BufPool, Region};
use spinrpc::sync::CachePadded;
use spinrpc::sys::affinity;
use spinrpc::sys::mmap::{Mapping, PageRequest};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

type Failure = Box<dyn Error + Send + Sync>;

const ADDRESS: &str = "shm:floor";
const ROUNDS: u32 = 100_000;
const DEPTH: usize = 32;
const REPEATS: u32 = 7;

fn main() -> Result<(), Failure> {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let here = given.first().copied().unwrap_or(0);
    let there = given.get(1).copied().unwrap_or(1);
    let idle = given.get(2).copied().unwrap_or(0);
    println!("work of an exchange, both ends: {:.1} ns", work(here, 136, 120)?);
    for _ in 0..REPEATS {
        let line = cache_line_round_trip(here, there);
        let one = ping_pong(here, there, 136, 120, 1, idle)?;
        let null = ping_pong(here, there, 68, 52, DEPTH, idle)?;
        println!(
            "cache line {line:6.1} ns   136/120 byte round trip {one:6.1} ns ({:.2} x)   \
             68/52 byte exchanges at depth {DEPTH}: {:5.2} M/s",
            one / line,
            1e3 / null,
        );
    }
    Ok(())
}

/// Nanoseconds for a word to go to the other core and another one back.
fn cache_line_round_trip(here: usize, there: usize) -> f64 {
    let (ask, answer) = (CachePadded::new(AtomicU64::new(0)), CachePadded::new(AtomicU64::new(0)));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = affinity::pin_current_thread(there);
            for round in 1..=u64::from(ROUNDS) {
                while ask.load(Ordering::Acquire) != round {}
                answer.store(round, Ordering::Release);
            }
        });
        let _ = affinity::pin_current_thread(here);
        let start = Instant::now();
        for round in 1..=u64::from(ROUNDS) {
            ask.store(round, Ordering::Release);
            while answer.load(Ordering::Acquire) != round {}
        }
        start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
    })
}

struct HandOver(Sender<Endpoint>);

impl Acceptor for HandOver {
    fn pick_core(&mut self, _full: &[usize]) -> Option<usize> {
        Some(1)
    }

    fn accepted(&mut self, _core: usize, endpoint: Endpoint) {
        let _ = self.0.send(endpoint);
    }
}

/// One end, with its buffers.
struct End {
    fabric: ShmFabric,
    pool: BufPool,
    batch: Completions,
}

impl End {
    fn new(connector: &ShmConnector, core: usize) -> Result<Self, Failure> {
        let bytes = BufPool::region_bytes(4096, 1024)?;
        let region =
            Mapping::anonymous(bytes, PageRequest { prefault: true, ..Default::default() })?;
        let pool = BufPool::new(Region::from_mapping(region), 4096, 1024)?;
        let fabric = connector.fabric(core)?;
        let batch = Completions::with_limit(64);
        Ok(Self { fabric, pool, batch })
    }

    fn adopt(&mut self, endpoint: Endpoint) -> Result<QpId, Failure> {
        let qp = self.fabric.adopt(endpoint)?;
        for _ in 0..2 * DEPTH {
            let buf = self.pool.take().ok_or("no buffer")?;
            self.fabric.post_recv(qp, buf).map_err(|_| "receive queue full")?;
        }
        Ok(qp)
    }

    #[inline]
    fn send(&mut self, qp: QpId, bytes: usize, number: u64) -> Result<(), Failure> {
        let mut message = self.pool.take().ok_or("no buffer")?;
        message.set_range(0..bytes);
        message.bytes_mut()[..8].copy_from_slice(&number.to_ne_bytes());
        let wr = SendWr::Send { message, invalidate: None };
        self.fabric.post(qp, wr).map_err(|_| "send queue full".into())
    }

    /// Takes a turn and returns the number of messages; their receives are posted again.
    #[inline]
    fn turn(&mut self, qp: QpId) -> Result<usize, Failure> {
        if self.fabric.poll(&mut self.batch) == 0 {
            return Ok(0);
        }
        let mut messages = 0;
        for completion in self.batch.drain() {
            let CompletionKind::Received { message, .. } = completion.kind else {
                return Err("the connection went down".into());
            };
            self.fabric.post_recv(qp, message).map_err(|_| "receive queue full")?;
            messages += 1;
        }
        Ok(messages)
    }
}

/// Nanoseconds per exchange of `request` and `reply` bytes, `depth` of them in flight.
fn ping_pong(
    here: usize,
    there: usize,
    request: usize,
    reply: usize,
    depth: usize,
    idle: usize,
) -> Result<f64, Failure> {
    let connector = ShmConnector::new(ShmConfig::default())?;
    let (sender, receiver) = channel();
    let guard = connector.listen(&ListenRequest::new(ADDRESS), Box::new(HandOver(sender)))?;
    let stop = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        let (connector, stop) = (&connector, &stop);
        let server = scope.spawn(move || -> Result<(), Failure> {
            let _ = affinity::pin_current_thread(there);
            let mut end = End::new(connector, 1)?;
            let qp = end.adopt(receiver.recv_timeout(Duration::from_secs(5))?)?;
            for _ in 0..idle {
                end.fabric.adopt(receiver.recv_timeout(Duration::from_secs(5))?)?;
            }
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..end.turn(qp)? {
                    end.send(qp, reply, 1)?;
                }
                end.fabric.flush();
            }
            Ok(())
        });
        let client = || -> Result<(f64, End), Failure> {
            let _ = affinity::pin_current_thread(here);
            let mut end = End::new(connector, 0)?;
            let qp = end
                .adopt(connector.connect(&ConnectRequest::new(ADDRESS, Duration::from_secs(5)))?)?;
            for _ in 0..idle {
                end.fabric.adopt(
                    connector.connect(&ConnectRequest::new(ADDRESS, Duration::from_secs(5)))?,
                )?;
            }
            drive(&mut end, qp, request, depth, ROUNDS / 4)?;
            let rounds = if depth > 1 { ROUNDS * 20 } else { ROUNDS };
            let start = Instant::now();
            drive(&mut end, qp, request, depth, rounds)?;
            Ok((start.elapsed().as_nanos() as f64 / f64::from(rounds), end))
        };
        // The client's end lives until the server is done: its end would be news for the server.
        let result = client();
        stop.store(true, Ordering::Relaxed);
        let served = server.join().map_err(|_| "the server panicked")?;
        result.and_then(|(nanoseconds, _)| served.map(|()| nanoseconds))
    });
    drop(guard);
    result
}

/// Nanoseconds of work that one exchange takes, both ends on one core: nothing crosses over.
fn work(here: usize, request: usize, reply: usize) -> Result<f64, Failure> {
    let _ = affinity::pin_current_thread(here);
    let connector = ShmConnector::new(ShmConfig::default())?;
    let (sender, receiver) = channel();
    let _guard = connector.listen(&ListenRequest::new(ADDRESS), Box::new(HandOver(sender)))?;
    let (mut client, mut server) = (End::new(&connector, 0)?, End::new(&connector, 1)?);
    let from =
        client.adopt(connector.connect(&ConnectRequest::new(ADDRESS, Duration::from_secs(5)))?)?;
    let to = server.adopt(receiver.recv_timeout(Duration::from_secs(5))?)?;
    let mut best = f64::INFINITY;
    for _ in 0..100 {
        let start = Instant::now();
        for round in 0..ROUNDS / 100 {
            client.send(from, request, round.into())?;
            client.fabric.flush();
            while server.turn(to)? == 0 {}
            server.send(to, reply, round.into())?;
            server.fabric.flush();
            while client.turn(from)? == 0 {}
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(ROUNDS / 100));
    }
    Ok(best)
}

/// Makes `rounds` exchanges.
fn drive(
    end: &mut End,
    qp: QpId,
    request: usize,
    depth: usize,
    rounds: u32,
) -> Result<(), Failure> {
    let (mut sent, mut received) = (0, 0);
    while received < rounds {
        while sent < rounds && (sent - received) < depth as u32 {
            end.send(qp, request, sent.into())?;
            sent += 1;
        }
        end.fabric.flush();
        received += end.turn(qp)? as u32;
    }
    Ok(())
}
