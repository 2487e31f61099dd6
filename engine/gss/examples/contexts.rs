//! Contexts per second by MIT's library, in a realm that is made for this.
//!
//! ```sh
//! cargo run --release -p spinrpc-gss --features krb5-library --example contexts
//! ```
#![allow(clippy::unwrap_used, clippy::panic, reason = "of the tests' realm")]

#[path = "../tests/kerberos/realm.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod realm;

use realm::{Home, in_realm};
use spinrpc_gss::library::{AcceptorOptions, InitiatorOptions, Kerberos};
use spinrpc_gss::mechanism::{Acceptance, Initiation, Mechanism};
use spinrpc_proto::ids::Instant;
use std::time::{Duration, Instant as Clock};

const NOW: Instant = Instant(0);
const TARGET: &str = "nfs@localhost";
/// Time of a measurement.
const ROUND: Duration = Duration::from_secs(2);
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
        Initiation::Continue(state, token) => (state, token),
        Initiation::Complete(_) => panic!("a context without an answer"),
    };
    let accept = |token: &[u8]| match server.accept(None, token, NOW).unwrap() {
        Acceptance::Complete(_, answer) => answer,
        Acceptance::Continue(never, _) => match never {},
    };
    // Without a replay cache a token makes any number of contexts.
    let (_, again) = begin();
    let both = || {
        let (state, token) = begin();
        client.go_on(state, &accept(&token), NOW).unwrap();
    };
    for threads in [1, 2] {
        println!("  {threads} threads: acceptor {:.0}", rate(threads, &|| drop(accept(&again))));
        println!("  {threads} threads: initiator and acceptor {:.0}", rate(threads, &both));
    }
}

/// Calls per second of all threads together.
fn rate(threads: usize, call: &(dyn Fn() + Sync)) -> f64 {
    let began = Clock::now();
    let count = || {
        let mut calls = 0_u32;
        while began.elapsed() < ROUND {
            call();
            calls += 1;
        }
        calls
    };
    let calls: u32 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(count)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    f64::from(calls) / began.elapsed().as_secs_f64()
}
