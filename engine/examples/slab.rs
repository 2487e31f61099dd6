//! Reads and writes of 1 MiB over shared memory, with each kind of memory that a client can use, against memcpy
//! in the same run:
//! `cargo run --release -p spinrpc --example slab [SERVER_CPU CLIENT_CPU]`
//!
//! All of the client's bytes are there to be used by `&[u8]` when a read with `Bulk` or a slab has ended. Copies
//! of 1 MiB by one core are what "memcpy" says.

use spinrpc::config::{CoreList, IdlePolicy, RawConfig};
use spinrpc::sys::affinity;
use spinrpc::{
    AcceptStatus, Bulk, Call, CallError, CallSpec, Client, Config, ConnectOptions, ConnectionEvent,
    Core, CoreContext, Encoder, Engine, ExposedBulk, Procedure, Program, Reply, ReplyData,
    ReplyHandler, Service, SharedBulk, Slab, Token, Version,
};
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Instant;

type Failure = Box<dyn Error>;

const PROGRAM: Program = Program(0x2000_0077);
const VERSION: Version = Version(1);
const READ: Procedure = Procedure(1);
const WRITE: Procedure = Procedure(2);
const ADDRESS: &str = "shm:example-slab";
const BYTES: usize = 1 << 20;
const DEPTH: usize = 2;
/// Calls of one measurement.
const CALLS: usize = 4000;
const REPEATS: usize = 7;

/// Serves reads out of one block, and throws away what is written.
struct Store(SharedBulk);

impl Service for Store {
    fn call(&mut self, mut call: Call<'_>) {
        if call.procedure() == READ {
            return call.reply_with(ReplyData::new().shared(&self.0, 0..BYTES), |results| results.bulk());
        }
        match call.args().data(BYTES) {
            Ok(data) => {
                black_box(data.bytes().first());
                drop(data);
                call.reply(|_| ());
            }
            Err(_) => call.reject(AcceptStatus::GarbageArgs),
        }
    }
}

/// Memory of a call.
enum Memory {
    Private(Bulk),
    Exposed(ExposedBulk),
}

/// Calls in flight, and memory that no call has.
#[derive(Default)]
struct Load {
    client: RefCell<Option<Client>>,
    procedure: Cell<Option<Procedure>>,
    left: Cell<usize>,
    in_flight: Cell<usize>,
    spare: RefCell<Vec<Memory>>,
    failure: RefCell<Option<CallError>>,
}

impl Load {
    fn start(&self) -> Result<(), CallError> {
        let (client, procedure) = (self.client.borrow(), self.procedure.get());
        let (Some(client), Some(procedure)) = (&*client, procedure) else { return Ok(()) };
        let Some(memory) = self.spare.borrow_mut().pop() else { return Ok(()) };
        let spec = CallSpec::new();
        let mut spec = match (memory, procedure) {
            (Memory::Private(bulk), READ) => spec.result_into(bulk),
            (Memory::Private(bulk), _) => spec.argument(bulk),
            (Memory::Exposed(bulk), READ) => spec.exposed_result_into(bulk),
            (Memory::Exposed(bulk), _) => spec.exposed_argument(bulk),
        };
        let encode = |args: &mut Encoder<'_>| {
            if procedure == WRITE {
                args.bulk();
            }
        };
        client.call(procedure, Token(0), &mut spec, encode)?;
        self.left.set(self.left.get() - 1);
        self.in_flight.set(self.in_flight.get() + 1);
        Ok(())
    }

    fn end(&self, reply: Result<Reply<'_>, CallError>) -> Result<(), CallError> {
        self.in_flight.set(self.in_flight.get() - 1);
        let mut reply = reply?;
        let private = reply.take_argument().or_else(|| reply.take_result()).map(Memory::Private);
        let mut exposed =
            || reply.take_exposed_argument().or_else(|| reply.take_exposed_result());
        let memory = private.or_else(|| exposed().map(Memory::Exposed));
        self.spare.borrow_mut().extend(memory);
        if self.left.get() > 0 { self.start() } else { Ok(()) }
    }
}

struct Handler(Rc<Load>);

impl ReplyHandler for Handler {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        if let Err(error) = self.0.end(reply) {
            *self.0.failure.borrow_mut() = Some(error);
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let ConnectionEvent::Down { cause, .. } = event {
            *self.0.failure.borrow_mut() = Some(CallError::Disconnected(cause.clone()));
        }
    }
}

/// Bytes per nanosecond of calls with this memory.
fn measure(
    core: &mut Core,
    load: &Rc<Load>,
    procedure: Procedure,
    memory: impl Fn() -> Option<Memory>,
) -> Result<f64, Failure> {
    load.procedure.set(Some(procedure));
    let mut rate = 0.0;
    // The first ones warm it up.
    for calls in [CALLS / 8, CALLS] {
        load.left.set(calls);
        load.spare.borrow_mut().extend((0..DEPTH).map_while(|_| memory()));
        let start = Instant::now();
        for _ in 0..DEPTH {
            load.start()?;
        }
        let is_over = || load.in_flight.get() == 0 || load.failure.borrow().is_some();
        core.run_until(is_over);
        rate = (calls * BYTES) as f64 / start.elapsed().as_nanos() as f64;
        load.spare.borrow_mut().clear();
        if let Some(error) = load.failure.take() {
            return Err(error.into());
        }
    }
    Ok(rate)
}

/// Bytes per nanosecond of copies by one core, of blocks by turns as calls use them.
fn memcpy() -> f64 {
    let (from, mut to) = (vec![1_u8; DEPTH * BYTES], vec![0_u8; DEPTH * BYTES]);
    let mut rate = 0.0;
    for copies in [CALLS / 8, CALLS] {
        let start = Instant::now();
        for at in (0..copies).map(|copy| copy % DEPTH * BYTES) {
            to[at..at + BYTES].copy_from_slice(black_box(&from[at..at + BYTES]));
            black_box(&mut to);
        }
        rate = (copies * BYTES) as f64 / start.elapsed().as_nanos() as f64;
    }
    rate
}

fn config(cpu: usize) -> Result<Config, Failure> {
    let mut raw = RawConfig::default();
    raw.poll.mode = IdlePolicy::Busy;
    raw.cores.list = CoreList::Cpus(vec![cpu]);
    raw.mem.arena_mib = 32;
    Ok(raw.validate()?)
}

fn main() -> Result<(), Failure> {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let at = |index, or| given.get(index).copied().unwrap_or(or);
    let (here, there) = (Engine::new(config(at(1, 1))?)?, Engine::new(config(at(0, 0))?)?);
    there.serve(PROGRAM, VERSION, |_: &CoreContext| Store(Bulk::from_vec(vec![7; BYTES]).freeze()));
    there.listen(ADDRESS)?;
    let server = there.start()?;
    let slab = here.slab(BYTES, DEPTH)?;
    let mut core = here.core(0)?;
    let load = Rc::new(Load::default());
    let options = ConnectOptions::new().lend(&slab);
    let handler = Handler(Rc::clone(&load));
    let client = core.connect_with(ADDRESS, PROGRAM, VERSION, &options, |_| handler)?;
    core.run_until(|| client.is_up() || load.failure.borrow().is_some());
    *load.client.borrow_mut() = Some(client.clone());
    let _ = affinity::pin_current_thread(at(1, 1));
    report(&mut core, &load, &client, &slab)?;
    there.shutdown();
    server.join()?;
    Ok(())
}

fn report(core: &mut Core, load: &Rc<Load>, client: &Client, slab: &Slab) -> Result<(), Failure> {
    let private = || client.bulk(BYTES).map(Memory::Private);
    let exposed = || client.exposed_bulk(BYTES).map(Memory::Exposed);
    let of_slab = || slab.take(BYTES).map(Memory::Private);
    let mut ratios: [Vec<f64>; 6] = Default::default();
    for _ in 0..REPEATS {
        let floor = memcpy();
        let mut rates = Vec::new();
        for procedure in [READ, WRITE] {
            rates.push(measure(core, load, procedure, private)?);
            rates.push(measure(core, load, procedure, exposed)?);
            rates.push(measure(core, load, procedure, of_slab)?);
        }
        let floor = (floor + memcpy()) / 2.0;
        ratios.iter_mut().zip(&rates).for_each(|(all, rate)| all.push(rate / floor));
        let rates: Vec<_> = rates.iter().map(|rate| format!("{rate:6.1}")).collect();
        println!("memcpy {floor:6.1} GB/s; read: Bulk, ExposedBulk, slab, write: the same: {}", rates.join(" "));
    }
    let names = ["read  Bulk", "read  ExposedBulk", "read  slab", "write Bulk", "write ExposedBulk", "write slab"];
    for (name, mut ratios) in names.into_iter().zip(ratios) {
        ratios.sort_by(f64::total_cmp);
        let [first, .., last] = ratios[..] else { continue };
        println!("{name:18} {:.2} x memcpy ({first:.2} to {last:.2})", ratios[ratios.len() / 2]);
    }
    Ok(())
}
