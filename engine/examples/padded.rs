//! Cost of an inline write whose data the server keeps: as RDMA_MSG, with a copy by the
//! application, and as RDMA_MSGP, whose data arrive in memory that the application gets (RFC 5666
//! section 3.9). Both ends on one thread, in turns.
//!
//! `cargo run --release -p spinrpc --example padded -- [ROUNDS]`

use spinrpc::config::RawConfig;
use spinrpc::{
    Bulk, Call, CallError, CallSpec, Client, Core, CoreContext, Data, Engine, IdlePolicy,
    Procedure, Program, Reply, ReplyHandler, Service, Token, Version,
};
use spinrpc_proto::profile::Profile;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

const PROGRAM: Program = Program(0x2000_0003);
const VERSION: Version = Version(1);
const WRITE: Procedure = Procedure(1);
/// Writes the server keeps before it lets go of the oldest.
const KEPT: usize = 32;

type Failure = Box<dyn std::error::Error>;

/// Keeps all writes, each in separate memory.
struct Store {
    context: CoreContext,
    kept: VecDeque<Bulk>,
}

impl Store {
    fn keep(&mut self, data: Data<'_>) -> Option<()> {
        let bulk = match data {
            Data::Bulk(bulk) => bulk,
            Data::Inline(bytes) => {
                let mut bulk = self.context.bulk(bytes.len())?;
                bulk.bytes_mut().copy_from_slice(bytes);
                bulk
            }
        };
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(bulk);
        Some(())
    }
}

impl Service for Store {
    fn call(&mut self, mut call: Call<'_>) {
        if call.procedure() == WRITE {
            let mut args = call.args();
            let kept = args.u64().and_then(|_offset| args.data(1 << 20));
            if kept.is_ok_and(|data| self.keep(data).is_none()) {
                return;
            }
        }
        call.reply(|_| {});
    }
}

/// Counts replies, and has the buffer of the last call.
struct Writer {
    replies: Rc<Cell<u64>>,
    buffer: Rc<RefCell<Option<Bulk>>>,
}

impl ReplyHandler for Writer {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        let Ok(mut reply) = reply else { return };
        if let Some(bulk) = reply.take_argument() {
            *self.buffer.borrow_mut() = Some(bulk);
        }
        self.replies.set(self.replies.get() + 1);
    }
}

/// Both ends of one connection.
struct Pair {
    server: Core,
    core: Core,
    client: Client,
    replies: Rc<Cell<u64>>,
    buffer: Rc<RefCell<Option<Bulk>>>,
    engines: [Engine; 2],
}

impl Pair {
    fn new(align_bytes: u64) -> Result<Self, Failure> {
        let address = format!("shm:padded-{}-{align_bytes}", std::process::id());
        let engines = [engine(align_bytes)?, engine(align_bytes)?];
        engines[0].serve(PROGRAM, VERSION, |context: &CoreContext| Store {
            context: context.clone(),
            kept: VecDeque::with_capacity(KEPT),
        })?;
        engines[0].listen(&address)?;
        let mut server = engines[0].core(0)?;
        let mut core = engines[1].core(0)?;
        let (replies, buffer) = <(Rc<Cell<u64>>, Rc<RefCell<Option<Bulk>>>)>::default();
        let handler = Writer { replies: Rc::clone(&replies), buffer: Rc::clone(&buffer) };
        let client = core.connect(&address, PROGRAM, VERSION, |_| handler)?;
        while !client.is_up() {
            server.poll_once();
            core.poll_once();
        }
        Ok(Self { server, core, client, replies, buffer, engines })
    }

    /// Nanoseconds of CPU time per write of `length` bytes.
    fn measure(&mut self, length: usize, rounds: u64) -> Result<f64, Failure> {
        let mut bulk = self.client.bulk(length).ok_or("no memory for the writes")?;
        bulk.bytes_mut().fill(7);
        *self.buffer.borrow_mut() = Some(bulk);
        let mut spec = CallSpec::short();
        self.run(&mut spec, rounds / 10)?;
        let start = cpu_ns();
        self.run(&mut spec, rounds)?;
        Ok((cpu_ns() - start) as f64 / rounds as f64)
    }

    fn run(&mut self, spec: &mut CallSpec, rounds: u64) -> Result<(), Failure> {
        for offset in 0..rounds {
            let bulk = self.buffer.borrow_mut().take().ok_or("the buffer did not come back")?;
            spec.add_argument(bulk);
            self.client.call(WRITE, Token(0), spec, |args| {
                args.u64(offset);
                args.bulk();
            })?;
            let before = self.replies.get();
            while self.replies.get() == before {
                self.server.poll_once();
                self.core.poll_once();
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), Failure> {
    let rounds = std::env::args().nth(1).map_or(Ok(200_000), |text| text.parse::<u64>())?;
    let (mut plain, mut padded) = (Pair::new(0)?, Pair::new(1024)?);
    println!("ns per write, both ends together: RDMA_MSG and a copy | RDMA_MSGP | difference");
    for length in [1024, 3 << 10, 8 << 10, 16 << 10, 32 << 10] {
        let rounds = rounds * 1024 / length as u64;
        // In turns, and the best of each: other work on the host takes time from both.
        let (mut copied, mut owned) = (f64::MAX, f64::MAX);
        for _ in 0..5 {
            copied = copied.min(plain.measure(length, rounds)?);
            owned = owned.min(padded.measure(length, rounds)?);
        }
        println!("{length:6} bytes: {copied:8.0} | {owned:8.0} | {:+8.0}", owned - copied);
    }
    for (pair, name) in [(&plain, "RDMA_MSG"), (&padded, "RDMA_MSGP")] {
        let stats = pair.engines[0].stats(0)?;
        println!("{name}: joins {}, bytes read {}", stats.joins, stats.bytes_read);
    }
    Ok(())
}

/// CPU time of this thread: other work on the same CPU does not count.
fn cpu_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn engine(align_bytes: u64) -> Result<Engine, Failure> {
    let mut raw = RawConfig::default();
    raw.poll.mode = IdlePolicy::Busy;
    raw.mem.arena_mib = 32;
    raw.shm.ring_slots = 1024;
    raw.rpc.inline_send_bytes = 36 << 10;
    raw.rpc.inline_recv_bytes = 36 << 10;
    raw.rpc.protocol = Profile::Rfc5666;
    raw.rpc.msgp_align_bytes = align_bytes;
    Ok(Engine::new(raw.validate()?)?)
}
