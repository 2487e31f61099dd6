//! Both ends of a connection on one thread, in turns: what a call costs in
//! nanoseconds of CPU time when no cache line travels between cores.
//!
//! `cargo run --release -p spinrpc --example lockstep -- [ROUNDS [DEPTH [VERSION]]]`, VERSION being that of RPC-over-RDMA, 1 or 2

use spinrpc::config::{RawConfig, Versions};
use spinrpc::{
    Call, CallError, CallSpec, Client, Core, CoreContext, Engine, IdlePolicy, Procedure, Program,
    Reply, ReplyHandler, Service, Token, Version,
};
use std::cell::Cell;
use std::rc::Rc;

const PROGRAM: Program = Program(0x2000_0002);
const VERSION: Version = Version(1);

struct Null;

impl Service for Null {
    fn call(&mut self, call: Call<'_>) {
        call.reply(|_| {});
    }
}

struct Count(Rc<Cell<u64>>);

impl ReplyHandler for Count {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        self.0.set(self.0.get() + u64::from(reply.is_ok()));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let rounds = numbers.next().transpose()?.unwrap_or(200_000);
    let depth = numbers.next().transpose()?.unwrap_or(1);
    let versions = match numbers.next().transpose()? {
        Some(2) => Versions::Two,
        _ => Versions::One,
    };
    let address = format!("shm:lockstep-{}", std::process::id());
    let server_engine = engine(versions)?;
    server_engine.serve(PROGRAM, VERSION, |_: &CoreContext| Null);
    server_engine.listen(&address)?;
    let mut server = server_engine.core(0)?;
    let client_engine = engine(versions)?;
    let mut core = client_engine.core(0)?;
    let replies = Rc::new(Cell::new(0));
    let handler = Count(Rc::clone(&replies));
    let client = core.connect(&address, PROGRAM, VERSION, |_| handler)?;
    while !client.is_up() {
        server.poll_once();
        core.poll_once();
    }
    run(&client, &mut core, &mut server, &replies, rounds / 10, depth)?;
    let start = cpu_ns();
    run(&client, &mut core, &mut server, &replies, rounds, depth)?;
    let per_call = (cpu_ns() - start) as f64 / (rounds * depth) as f64;
    println!("{per_call:.1} ns per call, both ends together, depth {depth}");
    Ok(())
}

/// CPU time of this thread: what others do on the same CPU does not count.
fn cpu_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn engine(versions: Versions) -> Result<Engine, Box<dyn std::error::Error>> {
    let mut raw = RawConfig::default();
    raw.poll.mode = IdlePolicy::Busy;
    raw.rpc.version = versions;
    raw.mem.arena_mib = 8;
    Ok(Engine::new(raw.validate()?)?)
}

fn run(
    client: &Client,
    core: &mut Core,
    server: &mut Core,
    replies: &Cell<u64>,
    rounds: u64,
    depth: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut spec = CallSpec::new();
    for _ in 0..rounds {
        let before = replies.get();
        for token in 0..depth {
            client.call(Procedure(0), Token(token), &mut spec, |_| {})?;
        }
        while replies.get() < before + depth {
            server.poll_once();
            core.poll_once();
        }
    }
    Ok(())
}
