//! Counts the copies of calls with 1 MiB over shared memory, for each kind of memory that a client can use:
//! `cargo run --release -p spinrpc --example slab [CPU]`
//!
//! Client and server take turns on one thread, and its CPU time is compared with that of copies of 1 MiB in the
//! same run: 1.00 is one copy of the bytes, by both ends together. Other programs on the machine hardly affect that.
//! Reads are answered out of private memory of the server, and out of a slab that it lends (`ListenOptions::lend`).
//! When a read with `Bulk` or a slab has ended, the client may borrow the bytes (`&[u8]`).

use rustix::time::{ClockId, clock_gettime};
use spinrpc::config::{CoreList, IdlePolicy, RawConfig};
use spinrpc::{
    AcceptStatus, Bulk, Call, CallError, CallSpec, Client, Config, ConnectOptions, ConnectionEvent,
    Core, CoreContext, Encoder, Engine, ExposedBulk, ListenOptions, Procedure, Program, Reply,
    ReplyData, ReplyHandler, Service, SharedBulk, Slab, SlabLayout, Token, Version,
};
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

type Failure = Box<dyn Error>;

const PROGRAM: Program = Program(0x2000_0077);
const VERSION: Version = Version(1);
const READ: Procedure = Procedure(1);
const WRITE: Procedure = Procedure(2);
/// As [`READ`], out of a slab that the server lends its clients.
const READ_LENT: Procedure = Procedure(3);
const ADDRESS: &str = "shm:example-slab";
const BYTES: usize = 1 << 20;
const DEPTH: usize = 2;
/// Calls of one measurement.
const CALLS: usize = 2000;
const REPEATS: usize = 9;

/// Serves reads out of one block, or another one that is lent, and throws away what is written.
struct Store {
    private: SharedBulk,
    lent: SharedBulk,
}

impl Service for Store {
    fn call(&mut self, mut call: Call<'_>) {
        let block = match call.procedure() {
            READ => Some(&self.private),
            READ_LENT => Some(&self.lent),
            _ => None,
        };
        if let Some(block) = block {
            let data = ReplyData::new().shared(block, 0..BYTES);
            return call.reply_with(data, |results| results.bulk());
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
        let spec = CallSpec::short();
        let mut spec = match (memory, procedure) {
            (Memory::Private(bulk), WRITE) => spec.argument(bulk),
            (Memory::Private(bulk), _) => spec.result_into(bulk),
            (Memory::Exposed(bulk), WRITE) => spec.exposed_argument(bulk),
            (Memory::Exposed(bulk), _) => spec.exposed_result_into(bulk),
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
        let mut exposed = || reply.take_exposed_argument().or_else(|| reply.take_exposed_result());
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

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Nanoseconds that `one` takes, the first ones apart, which warm it up.
fn measure(mut many: impl FnMut(usize) -> Result<(), Failure>) -> Result<f64, Failure> {
    many(CALLS / 8)?;
    let start = cpu_time();
    many(CALLS)?;
    Ok((cpu_time() - start).as_nanos() as f64 / CALLS as f64)
}

/// Both ends.
struct Ends {
    client: Core,
    server: Core,
    load: Rc<Load>,
}

impl Ends {
    fn turn(&mut self) -> Result<(), Failure> {
        self.client.poll_once();
        self.server.poll_once();
        match self.load.failure.take() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    fn run(
        &mut self,
        calls: usize,
        procedure: Procedure,
        memory: impl Fn() -> Option<Memory>,
    ) -> Result<(), Failure> {
        let load = Rc::clone(&self.load);
        load.procedure.set(Some(procedure));
        load.left.set(calls);
        load.spare.borrow_mut().extend((0..DEPTH).map_while(|_| memory()));
        for _ in 0..DEPTH {
            load.start()?;
        }
        while load.in_flight.get() > 0 {
            self.turn()?;
        }
        load.spare.borrow_mut().clear();
        Ok(())
    }
}

/// Copies into blocks by turns, as calls use them.
fn copy(copies: usize, from: &[u8], to: &mut [u8]) {
    for at in (0..copies).map(|copy| copy % DEPTH * BYTES) {
        to[at..at + BYTES].copy_from_slice(black_box(from));
        black_box(&mut *to);
    }
}

fn config(cpu: usize) -> Result<Config, Failure> {
    let mut raw = RawConfig::default();
    raw.poll.mode = IdlePolicy::Busy;
    raw.cores.list = CoreList::Cpus(vec![cpu]);
    raw.mem.arena_mib = 32;
    Ok(raw.validate()?)
}

fn main() -> Result<(), Failure> {
    let cpu = std::env::args().nth(1).map_or(Ok(0), |cpu| cpu.parse())?;
    let (here, there) = (Engine::new(config(cpu)?)?, Engine::new(config(cpu)?)?);
    let of_server = there.slab(SlabLayout::new().block_bytes(BYTES).blocks(1))?;
    let lent = of_server.take(BYTES).ok_or("no block")?.freeze();
    there.serve(PROGRAM, VERSION, move |_: &CoreContext| Store {
        private: Bulk::from_vec(vec![7; BYTES]).freeze(),
        lent: lent.clone(),
    })?;
    there.listen_with(ADDRESS, &ListenOptions::new().lend(&of_server))?;
    let slab = here.slab(SlabLayout::new().block_bytes(BYTES).blocks(DEPTH))?;
    let load = Rc::new(Load::default());
    let (client, server) = (here.core(0)?, there.core(0)?);
    let mut ends = Ends { client, server, load: Rc::clone(&load) };
    let options = ConnectOptions::new().lend(&slab);
    let handler = Handler(Rc::clone(&load));
    let client = ends.client.connect_with(ADDRESS, PROGRAM, VERSION, &options, |_| handler)?;
    while !client.is_up() {
        ends.turn()?;
    }
    *load.client.borrow_mut() = Some(client.clone());
    report(&mut ends, &client, &slab)
}

fn report(ends: &mut Ends, client: &Client, slab: &Slab) -> Result<(), Failure> {
    let private = || client.bulk(BYTES).map(Memory::Private);
    let exposed = || client.exposed_bulk(BYTES).map(Memory::Exposed);
    let of_slab = || slab.take(BYTES).map(Memory::Private);
    let kinds: [(&str, &dyn Fn() -> Option<Memory>); 3] =
        [("Bulk", &private), ("ExposedBulk", &exposed), ("Slab", &of_slab)];
    let (from, mut to) = (vec![1_u8; BYTES], vec![0_u8; DEPTH * BYTES]);
    let mut rows: Vec<(String, Vec<f64>)> = Vec::new();
    for repeat in 0..REPEATS {
        let one = measure(|copies| {
            copy(copies, &from, &mut to);
            Ok(())
        })?;
        let cases =
            [READ, READ_LENT, WRITE].into_iter().flat_map(|op| kinds.map(|kind| (op, kind)));
        for (index, (op, (kind, memory))) in cases.enumerate() {
            let ratio = measure(|calls| ends.run(calls, op, memory))? / one;
            if repeat == 0 {
                let op = match op {
                    READ => "read",
                    READ_LENT => "read out of a slab of the server",
                    _ => "write",
                };
                rows.push((format!("{op}, {kind}"), Vec::new()));
            }
            rows[index].1.push(ratio);
        }
    }
    for (name, mut ratios) in rows {
        ratios.sort_by(f64::total_cmp);
        let [first, .., last] = ratios[..] else { continue };
        println!("{name:45} {:.2} copies ({first:.2} to {last:.2})", ratios[REPEATS / 2]);
    }
    Ok(())
}
