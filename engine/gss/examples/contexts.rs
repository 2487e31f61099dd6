//! Contexts per second by MIT's library, in a realm that is made for this: of CPU time of the thread, and of the clock's.
//!
//! ```sh
//! cargo run --release -p spinrpc-gss --features krb5-library --example contexts
//! ```
#![allow(clippy::unwrap_used, clippy::panic, reason = "of the tests' realm")]

#[path = "../tests/kerberos/realm.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod realm;

use realm::{Home, in_realm};
use rustix::time::{ClockId, clock_gettime};
use spinrpc_gss::library::{AcceptorOptions, InitiatorOptions, Kerberos};
use spinrpc_gss::mechanism::{Mechanism, Negotiation};
use spinrpc_proto::ids::Instant;
use std::time::{Duration, Instant as Clock};

const NOW: Instant = Instant(0);
const TARGET: &str = "nfs@localhost";
/// Time of a measurement.
const ROUND: Duration = Duration::from_secs(1);
const ENCTYPES: [&str; 2] = ["aes256-cts-hmac-sha1-96", "aes256-cts-hmac-sha384-192"];

fn main() {
    for enctype in ENCTYPES {
        in_realm("contexts", enctype, |home| {
            println!("{enctype}, contexts per second:");
            measure(home);
        });
    }
}

fn measure(home: &Home) {
    let cache = home.kinit("alice", &[]);
    let client = Kerberos::initiator(InitiatorOptions::new().cache(cache)).unwrap();
    let keytab = AcceptorOptions::new().keytab(home.path("nfs.keytab")).service("nfs");
    let server = Kerberos::acceptor(keytab).unwrap();
    let begin = || match client.begin(TARGET, NOW).unwrap() {
        Negotiation::Continue(go_on, token) => (go_on, token),
        Negotiation::Complete(..) => panic!("a context without an answer"),
    };
    let accept = |token: &[u8]| match server.accept(token, NOW).unwrap() {
        Negotiation::Complete(_, answer) => answer,
        Negotiation::Continue(..) => panic!("a context of several tokens"),
    };
    // Without a replay cache a token makes any number of contexts.
    let (_, again) = begin();
    let both = || {
        let (go_on, token) = begin();
        go_on(&accept(&token), NOW).unwrap();
    };
    for threads in [1, 2] {
        print_rates("initiator, first token", threads, &|| drop(begin()));
        print_rates("acceptor", threads, &|| drop(accept(&again)));
        print_rates("both ends", threads, &both);
    }
}

/// Calls per second of a thread, on average.
fn print_rates(what: &str, threads: u32, call: &(dyn Fn() + Sync)) {
    let count = || {
        let (began, cpu_before) = (Clock::now(), cpu_time());
        let mut calls = 0_u32;
        while began.elapsed() < ROUND {
            call();
            calls += 1;
        }
        let per = |time: Duration| f64::from(calls) / time.as_secs_f64();
        (per(cpu_time() - cpu_before), per(began.elapsed()))
    };
    let rates: Vec<(f64, f64)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(count)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mean =
        |part: fn(&(f64, f64)) -> f64| rates.iter().map(part).sum::<f64>() / f64::from(threads);
    let (cpu, clock) = (mean(|rate| rate.0), mean(|rate| rate.1));
    println!("  {threads} threads, {what}: {cpu:.0} by CPU time, {clock:.0} by the clock");
}

/// CPU time of this thread, system calls included.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
