//! Memory of connections that are not used, as the kernel counts it: pages that exist, and not time. A separate binary
//! with one test, because it counts the whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::prelude::*;

/// Both ends together: spinperf has the same goal.
const IDLE_KIB_MAX: u64 = 64;
/// The control blocks, and the first page of each ring.
const IDLE_PAGES: u64 = 3;
/// Enough that what the process takes anyway does not count.
const CONNECTIONS: u64 = 400;
const PAGE_KIB: u64 = 4;

struct Quiet;

impl ReplyHandler for Quiet {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        reply.unwrap();
    }
}

struct Ends {
    cores: Cores,
    clients: Vec<Client>,
}

impl Ends {
    fn new(raw: RawConfig) -> Self {
        let cores = Cores::of(raw, |there| {
            there.serve(PROGRAM, VERSION, |_| |call: Call<'_>| call.reply(|_| {})).unwrap();
        });
        Self { cores, clients: Vec::new() }
    }

    /// Makes further connections. Each checks with a call that the server has the program.
    fn connect(&mut self, count: u64) {
        let options = ConnectOptions::new();
        self.clients.extend((0..count).map(|_| self.cores.connect(&options, |_| Quiet)));
    }

    fn call(&mut self, client: usize, calls: u64) {
        let client = &self.clients[client];
        for _ in 0..calls {
            client.call(NULL, Token(0), &mut CallSpec::short(), |_| {}).unwrap();
            self.cores.until("a reply", || client.in_flight() == 0);
        }
    }
}

/// KiB of all mappings whose name has `name` in it; a page that is mapped twice counts once.
fn proportional_kib(name: &str) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut kib, mut counts) = (0, false);
    for line in smaps.lines() {
        match line.strip_prefix("Pss:") {
            Some(of_mapping) if counts => {
                kib += of_mapping.trim_end_matches("kB").trim().parse::<u64>().unwrap();
            }
            Some(_) => {}
            None if !line.split_whitespace().next().is_some_and(|word| word.ends_with(':')) => {
                counts = line.contains(name);
            }
            None => {}
        }
    }
    kib
}

fn rings_kib() -> u64 {
    proportional_kib("memfd:spinrpc-connection")
}

#[test]
fn idle_connections_hold_few_pages_and_one_that_is_used_has_all_of_its_rings() {
    let mut ends = Ends::new(small_with(|raw| raw.poll.mode = IdlePolicy::Busy));
    // What comes with the first ones, as threads and tables of the cores.
    ends.connect(20);

    let (all_before, rings_before) = (proportional_kib(""), rings_kib());
    assert!(rings_before > 0, "the rings have another name");
    ends.connect(CONNECTIONS);
    let rings = (rings_kib() - rings_before) / CONNECTIONS;
    assert_eq!(rings, IDLE_PAGES * PAGE_KIB, "KiB of the rings of an idle connection");
    // Sanitizers have memory of their own for each byte.
    if !cfg!(sanitized) {
        let all = (proportional_kib("") - all_before).div_ceil(CONNECTIONS);
        assert!(all <= IDLE_KIB_MAX, "{all} KiB for an idle connection");
    }

    let before = rings_kib();
    ends.call(7, 100);
    let in_use = rings_kib() - before;
    let ring_pages = 256 * 256 / 4096;
    assert_eq!(in_use, (2 * ring_pages - 2) * PAGE_KIB, "KiB that come with use");
    ends.call(7, 1000);
    assert_eq!(rings_kib() - before, in_use, "all pages come at once");
}
