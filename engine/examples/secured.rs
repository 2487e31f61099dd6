//! What RPCSEC_GSS costs: both ends on one thread, in turns, in CPU time, so that what else the machine does matters
//! little. Echoes of 64 bytes under each service and without a context, in rounds that take turns; calls with 4 KiB under
//! integrity and none;
//! then such echoes while calls of a mebibyte under privacy go on on the same two cores, and while many of 16 KiB do.
//!
//! `cargo run --release -p spinrpc --features gss-test --example secured`
//!
//! With a number, only that number of echoes under enctype 18 and `GssService::None`, to count their instructions. Valgrind has no
//! instructions for SHA-1, so that it counts those of the hash in software, about 14,000 of a call:
//!
//! `valgrind --tool=callgrind --toggle-collect='*secured::measured*' target/release/examples/secured 1000`

use spinrpc::config::RawConfig;
use spinrpc::gss::mechanism::GivenKeys;
use spinrpc::gss::{Enctype, GssAcceptor, GssInitiator, GssService};
use spinrpc::{
    Call, CallError, CallSpec, Client, ConnectOptions, ConnectionEvent, Core, CoreContext, Engine,
    IdlePolicy, Procedure, Program, Reply, ReplyHandler, Service, Token, Version,
};
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::rc::Rc;

const PROGRAM: Program = Program(0x2000_0003);
const VERSION: Version = Version(1);
const ECHO: Procedure = Procedure(1);
/// `opaque` in, nothing out.
const WRITE: Procedure = Procedure(2);
const WRITE_BYTES: usize = 4096;
const SHORT_BYTES: usize = 64;
const LONG_BYTES: usize = 1 << 20;
/// Echoes of a round, of which there are [`ROUNDS`] of each kind.
const ECHOES: u64 = 500;
const ROUNDS: usize = 41;
/// Echoes before those that are counted.
const WARM_UP: u64 = 100;
/// Long calls, one in flight at a time, while short ones are measured.
const LONG_CALLS: usize = 40;
/// Calls of about the length of a step, many in flight at a time, while short ones are measured.
const MIDDLE_CALLS: u64 = 2000;
const MIDDLE_BYTES: usize = 15 << 10;

/// `opaque` in, the same out.
struct Echo;

impl Service for Echo {
    fn call(&mut self, mut call: Call<'_>) {
        if call.procedure() == Procedure(0) {
            return call.reply(|_| {});
        }
        let answers = call.procedure() == ECHO;
        match call.args().opaque(2 * LONG_BYTES) {
            Ok(_) if !answers => call.reply(|_| {}),
            Ok(bytes) => call.reply(|results| results.opaque(bytes)),
            Err(_) => drop(call),
        }
    }
}

/// Counts replies.
#[derive(Clone, Default)]
struct Heard {
    replies: Rc<Cell<u64>>,
    error: Rc<RefCell<Option<String>>>,
}

impl ReplyHandler for Heard {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        self.replies.set(self.replies.get() + 1);
        if let Err(error) = reply {
            *self.error.borrow_mut() = Some(error.to_string());
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let ConnectionEvent::ConnectFailed { error } = event {
            *self.error.borrow_mut() = Some(error.to_string());
        }
    }
}

impl Heard {
    fn check(&self) -> Result<(), String> {
        self.error.borrow().clone().map_or(Ok(()), Err)
    }
}

struct Peer {
    client: Client,
    heard: Heard,
}

/// Both ends.
struct Bench {
    server: Core,
    core: Core,
    address: String,
    _engines: [Engine; 2],
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(calls) = std::env::args().nth(1) {
        return count(calls.parse()?);
    }
    for (enctype, number) in [(Enctype::Aes256Sha1, 18), (Enctype::Aes256Sha384, 20)] {
        let mut bench = Bench::new(enctype)?;
        let plain = bench.client(None)?;
        for service in [GssService::None, GssService::Integrity, GssService::Privacy] {
            let secured = bench.client(Some((enctype, service)))?;
            let (without, with) = bench.compare((&plain, &secured), Bench::echo)?;
            println!(
                "enctype {number}, {service:?}: {without:.0} ns without, {with:.0} ns with: {:.0} ns more",
                with - without
            );
        }
        let krb5 = bench.client(Some((enctype, GssService::None)))?;
        let krb5i = bench.client(Some((enctype, GssService::Integrity)))?;
        let (without, with) = bench.compare((&krb5, &krb5i), Bench::write)?;
        println!(
            "enctype {number}, 4 KiB written: {without:.0} ns with None, {with:.0} ns with Integrity: {:.0} ns more",
            with - without
        );
        show(number, "1 MiB", bench.beside_long_calls(enctype)?);
        show(number, "15 KiB", bench.beside_many_calls(enctype)?);
    }
    Ok(())
}

fn show(enctype: u32, length: &str, mut times: Vec<f64>) {
    times.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] / 1000.0;
    println!(
        "enctype {enctype}: {} short calls during {length} calls under privacy: p50 {:.1} us, p99 {:.1} us, most {:.1} us",
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

/// Number of echoes under enctype 18 and [`GssService::None`].
fn count(calls: u64) -> Result<(), Box<dyn Error>> {
    let mut bench = Bench::new(Enctype::Aes256Sha1)?;
    let secured = bench.client(Some((Enctype::Aes256Sha1, GssService::None)))?;
    bench.echoes(&secured, WARM_UP)?;
    measured(&mut bench, &secured, calls)
}

/// Valgrind counts the instructions of this function, by its name.
#[inline(never)]
fn measured(bench: &mut Bench, peer: &Peer, calls: u64) -> Result<(), Box<dyn Error>> {
    bench.echoes(peer, calls)
}

/// CPU time of this thread.
fn cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn engine() -> Result<Engine, Box<dyn Error>> {
    let mut raw = RawConfig::default();
    raw.poll.mode = IdlePolicy::Busy;
    raw.mem.arena_mib = 256;
    raw.rpc.max_read_bytes = 4 << 20;
    raw.rpc.max_write_bytes = 4 << 20;
    Ok(Engine::new(raw.validate()?)?)
}

fn keys(enctype: Enctype) -> GivenKeys {
    let (key, name) = (vec![0x5a; 32], "user".to_owned());
    GivenKeys { enctype, key, name, tokens: 1, lifetime: u64::MAX }
}

impl Bench {
    fn new(enctype: Enctype) -> Result<Self, Box<dyn Error>> {
        let address = format!("shm:secured-{}-{enctype:?}", std::process::id());
        let engines = [engine()?, engine()?];
        engines[0].serve(PROGRAM, VERSION, |_: &CoreContext| Echo)?;
        engines[0].gss(GssAcceptor::new(keys(enctype)))?;
        engines[0].listen(&address)?;
        let (server, core) = (engines[0].core(0)?, engines[1].core(0)?);
        Ok(Self { server, core, address, _engines: engines })
    }

    /// A client, under that service if there is one.
    fn client(&mut self, secured: Option<(Enctype, GssService)>) -> Result<Peer, Box<dyn Error>> {
        let mut options = ConnectOptions::new();
        if let Some((enctype, service)) = secured {
            options = options.gss(GssInitiator::new(keys(enctype), "test@server").service(service));
        }
        let heard = Heard::default();
        let handler = heard.clone();
        let connected =
            self.core.connect_with(&self.address, PROGRAM, VERSION, &options, |_| handler);
        let client = connected?;
        while !client.is_up() {
            self.turn();
            heard.check()?;
        }
        Ok(Peer { client, heard })
    }

    fn turn(&mut self) {
        self.server.poll_once();
        self.core.poll_once();
    }

    /// Median CPU time of a call by each of two clients, both ends together. Their rounds take turns.
    fn compare(
        &mut self,
        (one, other): (&Peer, &Peer),
        call: impl Fn(&mut Self, &Peer) -> Result<(), Box<dyn Error>>,
    ) -> Result<(f64, f64), Box<dyn Error>> {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..=ROUNDS {
            for (peer, times) in [one, other].into_iter().zip(&mut times) {
                let began = cpu_ns();
                (0..ECHOES).try_for_each(|_| call(self, peer))?;
                times.push((cpu_ns() - began) / ECHOES as f64);
            }
        }
        let median = |times: &mut Vec<f64>| {
            // The first round is that of cold caches.
            times.remove(0);
            times.sort_unstable_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let [one, other] = &mut times;
        Ok((median(one), median(other)))
    }

    fn echoes(&mut self, peer: &Peer, calls: u64) -> Result<(), Box<dyn Error>> {
        for _ in 0..calls {
            self.echo(peer)?;
        }
        Ok(())
    }

    fn echo(&mut self, peer: &Peer) -> Result<(), Box<dyn Error>> {
        self.call(peer, ECHO, &[7; SHORT_BYTES])
    }

    fn write(&mut self, peer: &Peer) -> Result<(), Box<dyn Error>> {
        self.call(peer, WRITE, &[7; WRITE_BYTES])
    }

    fn call(
        &mut self,
        peer: &Peer,
        procedure: Procedure,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error>> {
        let due = peer.heard.replies.get() + 1;
        peer.client.call(procedure, Token(1), &mut CallSpec::short(), |args| args.opaque(bytes))?;
        while peer.heard.replies.get() < due {
            self.turn();
        }
        peer.heard.check()?;
        Ok(())
    }

    /// CPU time of each short call, while a long one of another connection is always in flight. Both ends seal and open that in
    /// steps; its arguments are written, and copied, outside of the time measured.
    fn beside_long_calls(&mut self, enctype: Enctype) -> Result<Vec<f64>, Box<dyn Error>> {
        let long = self.client(Some((enctype, GssService::Privacy)))?;
        let short = self.client(Some((enctype, GssService::Privacy)))?;
        let data = vec![7; LONG_BYTES];
        let mut times = Vec::new();
        for call in 1..=LONG_CALLS as u64 {
            let mut spec = CallSpec::new().reply_bytes_max(LONG_BYTES + 64);
            long.client.call(ECHO, Token(2), &mut spec, |args| args.opaque(&data))?;
            while long.heard.replies.get() < call {
                let began = cpu_ns();
                self.echo(&short)?;
                times.push(cpu_ns() - began);
            }
            long.heard.check()?;
        }
        Ok(times)
    }

    /// The same while as many calls of a step's length are in flight as their connection lets.
    fn beside_many_calls(&mut self, enctype: Enctype) -> Result<Vec<f64>, Box<dyn Error>> {
        let many = self.client(Some((enctype, GssService::Privacy)))?;
        let short = self.client(Some((enctype, GssService::Privacy)))?;
        let data = vec![7; MIDDLE_BYTES];
        let mut times = Vec::new();
        while many.heard.replies.get() < MIDDLE_CALLS {
            let mut spec = CallSpec::new().reply_bytes_max(MIDDLE_BYTES + 64);
            // Refused where there is no credit.
            while many.client.call(ECHO, Token(2), &mut spec, |args| args.opaque(&data)).is_ok() {}
            let began = cpu_ns();
            self.echo(&short)?;
            times.push(cpu_ns() - began);
            many.heard.check()?;
        }
        Ok(times)
    }
}
