//! Both ends of connections on one thread, in turns: the cost of a call when no cache line travels
//! between cores, in nanoseconds of CPU time, or, under valgrind, in instructions
//! (`bench/instructions/run`).
//!
//! `cargo run --release -p spinrpc --example lockstep -- --depth 32 --bytes 64`

use clap::Parser;
use spinrpc::config::{Driver, RawConfig, Versions};
use spinrpc::{
    AuthSys, Call, CallError, CallSpec, Client, ConnectionEvent, Core, CoreContext, Engine,
    IdlePolicy, Procedure, Program, Reply, ReplyHandler, Service, Token, Version,
};
use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

const PROGRAM: Program = Program(0x2000_0002);
const VERSION: Version = Version(1);
const NULL: Procedure = Procedure(0);
const ECHO: Procedure = Procedure(1);
const DEFERRED: Procedure = Procedure(2);
/// Bytes of the largest echo.
const ECHO_BYTES_MAX: usize = 4_096;
/// Bytes of a message that has room for it.
const INLINE_BYTES: u64 = 8_192;
/// Shared memory of all connections at most, in MiB. It is address space, of which calls without chunks touch little.
const SHARED_MIB: u64 = 1 << 20;
/// Turns between the warm-up and the rounds that count.
const IDLE_TURNS: u32 = 32;
/// Rounds before those that count.
const WARM_UP: u64 = 100;

/// The procedure to call, and the form of the call.
#[derive(Parser)]
#[command(about = "Measure the cost of a call with both ends on one thread")]
struct Args {
    /// Rounds; each makes as many calls as `--depth` on each connection, and waits for them
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Calls of a round on each connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    depth: u64,
    /// Connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    connections: u64,
    /// Echo this number of bytes; without it, the null call
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=ECHO_BYTES_MAX as u64))]
    bytes: Option<u64>,
    /// The handler defers each call, and answers it then
    #[arg(long, conflicts_with = "bytes")]
    deferred: bool,
    /// Calls carry an AUTH_SYS credential
    #[arg(long)]
    auth_sys: bool,
    /// Address of a device of this host, rdma://HOST:PORT, instead of shared memory; needs the feature verbs
    #[arg(long)]
    address: Option<String>,
    /// Version of RPC-over-RDMA
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    version: u8,
}

impl Args {
    /// Pause between turns until a connection is up.
    fn pause(&self) -> Duration {
        Duration::from_millis(if self.address.is_some() { 3 } else { 0 })
    }
}

struct TestService;

impl Service for TestService {
    fn call(&mut self, call: Call<'_>) {
        match call.procedure() {
            ECHO => echo(call),
            DEFERRED => defer(call),
            _ => call.reply(|_| {}),
        }
    }
}

// Out of line, as procedures of a service are: the stack that one needs costs the others nothing.
#[inline(never)]
fn echo(mut call: Call<'_>) {
    match call.args().opaque(ECHO_BYTES_MAX) {
        Ok(bytes) => call.reply(|results| results.opaque(bytes)),
        Err(_) => drop(call),
    }
}

#[inline(never)]
fn defer(call: Call<'_>) {
    if let Some(deferred) = call.defer() {
        deferred.reply(|_| {});
    }
}

/// Counts the calls that have ended, and those that failed, as a connection that is not made does.
struct Count(Rc<[Cell<u64>; 2]>);

impl ReplyHandler for Count {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        let [ended, failed] = &*self.0;
        ended.set(ended.get() + 1);
        failed.set(failed.get() + u64::from(reply.is_err()));
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let ConnectionEvent::ConnectFailed { .. } = event {
            eprintln!("lockstep: {event:?}");
            self.0[1].set(self.0[1].get() + 1);
        }
    }
}

/// Both ends.
struct Bench {
    server: Core,
    core: Core,
    clients: Vec<Client>,
    counts: Rc<[Cell<u64>; 2]>,
    _engines: [Engine; 2],
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let mut bench = Bench::new(&args)?;
    bench.run(&args, WARM_UP)?;
    bench.rest();
    let start = cpu_ns();
    measured(&mut bench, &args)?;
    let calls = args.rounds * args.depth * args.connections;
    let per_call = (cpu_ns() - start) as f64 / calls as f64;
    println!("{per_call:.1} ns per call, both ends together, {calls} calls");
    Ok(())
}

/// `bench/instructions/run` counts the instructions of this function, by its name.
#[inline(never)]
fn measured(bench: &mut Bench, args: &Args) -> Result<(), Box<dyn Error>> {
    bench.run(args, args.rounds)
}

/// CPU time of this thread: other work on the same CPU does not count.
fn cpu_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

impl Bench {
    fn new(args: &Args) -> Result<Self, Box<dyn Error>> {
        let shm = || format!("shm:lockstep-{}", std::process::id());
        let address = args.address.clone().unwrap_or_else(shm);
        let engines = [engine(args)?, engine(args)?];
        engines[0].serve(PROGRAM, VERSION, |_: &CoreContext| TestService)?;
        engines[0].listen(&address)?;
        let (mut server, mut core) = (engines[0].core(0)?, engines[1].core(0)?);
        let counts = Rc::<[Cell<u64>; 2]>::default();
        let mut clients = Vec::new();
        for _ in 0..args.connections {
            let client = core.connect(&address, PROGRAM, VERSION, |_| Count(Rc::clone(&counts)))?;
            while !client.is_up() {
                server.poll_once();
                core.poll_once();
                // The control thread of a device needs the one processor that valgrind has.
                std::thread::sleep(args.pause());
                if counts[1].get() > 0 {
                    return Err("not all connections are up".into());
                }
            }
            if args.auth_sys {
                client.set_auth_sys(Some(&credential()))?;
            }
            clients.push(client);
        }
        Ok(Self { server, core, clients, counts, _engines: engines })
    }

    /// Takes turns that find nothing, which make both cores look around. A core also does so after as many messages as a
    /// turn may handle: if it had handled one more or less than a multiple of that, a round of that many calls would take
    /// a turn more.
    fn rest(&mut self) {
        for _ in 0..IDLE_TURNS {
            self.server.poll_once();
            self.core.poll_once();
        }
    }

    fn run(&mut self, args: &Args, rounds: u64) -> Result<(), Box<dyn Error>> {
        let data = vec![7; args.bytes.unwrap_or(0) as usize];
        let mut spec = CallSpec::short();
        let [ended, failed] = &*self.counts;
        let calls = args.depth * args.connections;
        // An end takes as many turns as its messages need. With fewer, the other end would poll connections that
        // have nothing for it yet.
        let turns = calls.div_ceil(RawConfig::default().poll.budget);
        for _ in 0..rounds {
            let due = ended.get() + calls;
            for token in (0..args.depth).map(Token) {
                for client in &self.clients {
                    match (args.bytes, args.deferred) {
                        (Some(_), _) => {
                            client.call(ECHO, token, &mut spec, |args| args.opaque(&data))?;
                        }
                        (None, true) => {
                            client.call(DEFERRED, token, &mut spec, |_| {})?;
                        }
                        (None, false) => {
                            client.call(NULL, token, &mut spec, |_| {})?;
                        }
                    }
                }
            }
            while ended.get() < due {
                for _ in 0..turns {
                    self.server.poll_once();
                }
                for _ in 0..turns {
                    self.core.poll_once();
                }
            }
        }
        if failed.get() > 0 {
            return Err(format!("{} calls failed", failed.get()).into());
        }
        Ok(())
    }
}

fn engine(args: &Args) -> Result<Engine, Box<dyn Error>> {
    let mut raw = RawConfig::default();
    if args.address.is_some() {
        raw.fabric.driver = Driver::Verbs;
        raw.verbs.connect_timeout_ms = 60_000;
    }
    raw.poll.mode = IdlePolicy::Busy;
    raw.rpc.version = if args.version == 2 { Versions::Two } else { Versions::One };
    (raw.rpc.inline_send_bytes, raw.rpc.inline_recv_bytes) = (INLINE_BYTES, INLINE_BYTES);
    raw.limits.conns = raw.limits.conns.max(args.connections);
    (raw.limits.peer_mib, raw.limits.core_mib) = (SHARED_MIB, SHARED_MIB);
    raw.mem.arena_mib = 8;
    Ok(Engine::new(raw.validate()?)?)
}

fn credential() -> AuthSys<'static> {
    AuthSys {
        stamp: 1,
        machine_name: b"lockstep",
        uid: 1000,
        gid: 1000,
        groups: Default::default(),
    }
}
