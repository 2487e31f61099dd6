//! Bulk transfers between slabs of both ends, compared with memcpy: what a storage program gets that keeps its data in memory
//! of its own ([`Slab`]).
//!
//! Client and server are of this process, each with the CPU that it has in the rest of the job. A read is copied once,
//! by the client, out of a slab that the server lends; a write once, by the server, out of one that the client lends.

use crate::child::own_address;
use crate::cores::CorePair;
use crate::failure::Failure;
use crate::floor::Probe;
use crate::report::slabs::{SlabRow, SlabValue};
use spinrpc::config::{CoreList, IdlePolicy, RawConfig};
use spinrpc::{
    AcceptStatus, Bulk, Call, CallError, CallSpec, Client, ConnectOptions, ConnectionEvent, Core,
    CoreContext, Encoder, Engine, ListenOptions, Procedure, Program, Reply, ReplyData,
    ReplyHandler, Service, SharedBulk, Slab, SlabLayout, Token, Version,
};
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Measures both directions `repeats` times. The calling thread becomes the client's core and is left on its CPU.
pub(crate) fn measure(pair: CorePair, repeats: u32) -> Result<Vec<SlabRow>, Failure> {
    let (server, address) = (engine(pair.server)?, own_address()?);
    let slab = server
        .slab(SlabLayout::new().block_bytes(BYTES).blocks(1))
        .map_err(failed("mapping a slab"))?;
    let mut block = slab.take(BYTES).ok_or_else(|| failed("taking a block")("it has none"))?;
    block.bytes_mut().fill(7);
    let served = block.freeze();
    server.serve(PROGRAM, VERSION, move |_: &CoreContext| Store(served.clone()));
    let options = ListenOptions::new().lend(&slab);
    server.listen_with(&address, &options).map_err(failed("listening"))?;
    let running = server.start().map_err(failed("starting the server"))?;
    let measured = measure_with(pair, &address, repeats);
    server.shutdown();
    running.join().map_err(failed("ending the server"))?;
    measured
}

fn measure_with(pair: CorePair, address: &str, repeats: u32) -> Result<Vec<SlabRow>, Failure> {
    let engine = engine(pair.client)?;
    let slab = engine
        .slab(SlabLayout::new().block_bytes(BYTES).blocks(DEPTH))
        .map_err(failed("mapping a slab"))?;
    let core = engine.core(0).map_err(failed("starting the client"))?;
    let mut end = End::connect(core, address, slab)?;
    let [mut reads, mut writes] = [const { Vec::new() }; 2];
    for _ in 0..repeats {
        // On the client's CPU, which waits for it: the server polls on the other one.
        let free = CorePair { server: pair.client, client: pair.server };
        let probe = Probe::Copy { block_bytes: BYTES, blocks: DEPTH };
        let memcpy = probe.measure(free, FLOOR_TIME)?;
        for (procedure, values) in [(READ, &mut reads), (WRITE, &mut writes)] {
            let bytes_per_second = end.run(procedure)?;
            values.push(SlabValue { bytes_per_second, memcpy });
        }
    }
    end.client.close();
    Ok(vec![SlabRow::new("1 MiB read, slabs", reads), SlabRow::new("1 MiB write, slabs", writes)])
}

fn engine(cpu: usize) -> Result<Engine, Failure> {
    let mut raw = RawConfig::default();
    raw.poll.mode = IdlePolicy::Busy;
    raw.cores.list = CoreList::Cpus(vec![cpu]);
    raw.mem.arena_mib = ARENA_MIB;
    let config = raw.validate().map_err(failed("configuring an engine"))?;
    Engine::new(config).map_err(failed("starting an engine"))
}

fn failed<E: Display>(what: &str) -> impl Fn(E) -> Failure {
    move |error| Failure::Measurement(format!("{what}, for transfers between slabs: {error}"))
}

/// Serves reads out of one block, and throws away what is written.
struct Store(SharedBulk);

impl Service for Store {
    fn call(&mut self, mut call: Call<'_>) {
        match call.procedure() {
            READ => {
                let data = ReplyData::new().shared(&self.0, 0..BYTES);
                call.reply_with(data, |results| results.bulk());
            }
            WRITE => match call.args().data(BYTES) {
                Ok(data) => {
                    black_box(data.bytes().first());
                    drop(data);
                    call.reply(|_| ());
                }
                Err(_) => call.reject(AcceptStatus::GarbageArgs),
            },
            _ => call.reply(|_| ()),
        }
    }
}

/// State shared by the handler of replies and the loop.
#[derive(Default)]
struct Shared {
    spare: RefCell<Vec<Bulk>>,
    ended: Cell<u64>,
    failure: RefCell<Option<String>>,
}

struct Handler(Rc<Shared>);

impl ReplyHandler for Handler {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        let Self(shared) = self;
        match reply {
            Ok(mut reply) => {
                let block = reply.take_argument().or_else(|| reply.take_result());
                shared.spare.borrow_mut().extend(block);
                shared.ended.set(shared.ended.get() + 1);
            }
            Err(error) => *shared.failure.borrow_mut() = Some(error.to_string()),
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        let why = match event {
            ConnectionEvent::ConnectFailed { error } => error.to_string(),
            ConnectionEvent::Down { cause, .. } => cause.to_string(),
            _ => return,
        };
        *self.0.failure.borrow_mut() = Some(why);
    }
}

/// The client's end.
struct End {
    core: Core,
    client: Client,
    shared: Rc<Shared>,
}

impl End {
    fn connect(mut core: Core, address: &str, slab: Slab) -> Result<Self, Failure> {
        let shared = Rc::new(Shared::default());
        let options = ConnectOptions::new().lend(&slab);
        let handler = Handler(Rc::clone(&shared));
        let client = core
            .connect_with(address, PROGRAM, VERSION, &options, |_| handler)
            .map_err(failed("connecting"))?;
        shared.spare.borrow_mut().extend((0..DEPTH).map_while(|_| slab.take(BYTES)));
        let mut end = Self { core, client, shared };
        end.turn_until(|end| end.client.is_up())?;
        Ok(end)
    }

    fn turn_until(&mut self, is_over: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let began = Instant::now();
        while !is_over(self) {
            self.core.poll_once();
            if let Some(why) = self.shared.failure.take() {
                return Err(failed("calling")(why));
            }
            if began.elapsed() > PATIENCE {
                return Err(failed("calling")("there is no answer"));
            }
        }
        Ok(())
    }

    /// Bytes per second, after a warm-up of a quarter of the time.
    fn run(&mut self, procedure: Procedure) -> Result<f64, Failure> {
        self.run_for(procedure, RUN_TIME / 4)?;
        let (began, before) = (Instant::now(), self.shared.ended.get());
        self.run_for(procedure, RUN_TIME)?;
        let bytes = (self.shared.ended.get() - before) * BYTES as u64;
        Ok(bytes as f64 / began.elapsed().as_secs_f64())
    }

    /// Keeps all blocks in calls for this long, and waits for the last answers.
    fn run_for(&mut self, procedure: Procedure, time: Duration) -> Result<(), Failure> {
        let began = Instant::now();
        while began.elapsed() < time {
            self.start(procedure)?;
            let ended = self.shared.ended.get();
            self.turn_until(|end| end.shared.ended.get() > ended)?;
        }
        self.turn_until(|end| end.shared.spare.borrow().len() == DEPTH)
    }

    /// Starts a call with each block that none has.
    fn start(&mut self, procedure: Procedure) -> Result<(), Failure> {
        let next = || self.shared.spare.borrow_mut().pop();
        while let Some(block) = next() {
            let spec = CallSpec::new();
            let mut spec = match procedure {
                READ => spec.result_into(block),
                _ => spec.argument(block),
            };
            let encode = |args: &mut Encoder<'_>| {
                if procedure == WRITE {
                    args.bulk();
                }
            };
            self.client.call(procedure, Token(0), &mut spec, encode).map_err(failed("calling"))?;
        }
        Ok(())
    }
}

const PROGRAM: Program = Program(0x2000_0004);
const VERSION: Version = Version(1);
const READ: Procedure = Procedure(1);
const WRITE: Procedure = Procedure(2);
const BYTES: usize = 1 << 20;
/// One transfer in flight while the reply to another is handled.
const DEPTH: usize = 2;
const ARENA_MIB: u64 = 16;
const FLOOR_TIME: Duration = Duration::from_millis(40);
const RUN_TIME: Duration = Duration::from_millis(80);
const PATIENCE: Duration = Duration::from_secs(10);
