//! Planned restarts in two processes, under a load of calls that must not be executed twice: each server
//! drains and the next one takes its place. Each executed call is answered, and each lost call was not executed.
//!
//! The other process is this test's own binary, which an environment variable turns into a server; it
//! drains when its standard input ends.

use crate::common::child::{Other, say_ready};
use crate::common::prelude::*;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::thread;

const ADDRESS: &str = "SPINRPC_TEST_ADDRESS";
const JOURNAL: &str = "SPINRPC_TEST_JOURNAL";
/// Number of restarts, where six take too long.
const RESTARTS: &str = "SPINRPC_TEST_RESTARTS";
const IN_FLIGHT: u64 = 16;
/// Calls between two restarts.
const CALLS: u64 = 400;
const NOTE: Procedure = Procedure(1);

/// Writes each call down before it answers it; every third one is answered by another thread.
struct Journal {
    file: File,
    later: Sender<(u64, Deferred)>,
}

impl Journal {
    fn new(path: &Path, _: &CoreContext) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        let (later, answers) = mpsc::channel::<(u64, Deferred)>();
        thread::spawn(move || {
            for (number, deferred) in answers {
                thread::yield_now();
                deferred.reply(|results| results.u64(number));
            }
        });
        Self { file, later }
    }
}

impl Service for Journal {
    fn call(&mut self, mut call: Call<'_>) {
        if call.procedure() != NOTE {
            return call.reply(|_| {});
        }
        let number = call.args().u64().unwrap();
        self.file.write_all(&number.to_be_bytes()).unwrap();
        match number % 3 {
            0 => drop(self.later.send((number, call.defer().unwrap()))),
            _ => call.reply(|results| results.u64(number)),
        }
    }
}

/// Not a test in itself: the body of the other process. Without the variable there is nothing to
/// do.
#[test]
fn other_process() {
    let (Ok(address), Ok(journal)) = (std::env::var(ADDRESS), std::env::var(JOURNAL)) else {
        return;
    };
    let engine = Engine::new(valid(small())).unwrap();
    engine
        .serve(PROGRAM, VERSION, move |context| Journal::new(Path::new(&journal), context))
        .unwrap();
    engine.listen(&address).unwrap();
    let running = engine.start().unwrap();
    say_ready();
    let _ = std::io::stdin().read(&mut [0]);
    let unfinished = engine.drain(LIMIT);
    running.join().unwrap();
    std::process::exit(i32::from(unfinished > 0));
}

fn start(address: &str, journal: &Path) -> Other {
    Other::start(
        "restart::other_process",
        &[(ADDRESS, address), (JOURNAL, journal.to_str().unwrap())],
    )
}

fn begin_drain(server: &mut Other) {
    drop(server.child.stdin.take());
}

/// True once it has ended, with nothing unfinished.
fn has_ended(server: &mut Other) -> bool {
    server.child.try_wait().unwrap().is_some_and(|status| {
        assert!(status.success(), "{status}");
        true
    })
}

#[derive(Default)]
struct Heard {
    answered: u64,
    failed: Vec<(u64, CallError)>,
}

struct Answers(Rc<RefCell<Heard>>);

impl ReplyHandler for Answers {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        let mut heard = self.0.borrow_mut();
        match reply {
            Ok(mut reply) => {
                assert_eq!(reply.results().u64(), Ok(token.0));
                heard.answered += 1;
            }
            Err(error) => heard.failed.push((token.0, error)),
        }
    }
}

struct Load {
    core: spinrpc::Core,
    client: Client,
    heard: Rc<RefCell<Heard>>,
    started: u64,
}

impl Load {
    fn connect(address: &str) -> Self {
        let (_engine, mut core) = with_core(client_config());
        let policy = Reconnect::default()
            .first_delay(Duration::from_micros(100))
            .max_delay(Duration::from_millis(5));
        let options = ConnectOptions::new().reconnect(policy);
        let heard = Rc::<RefCell<Heard>>::default();
        let answers = Answers(Rc::clone(&heard));
        let client = core.connect_with(address, PROGRAM, VERSION, &options, |_| answers).unwrap();
        // The engine's handle is dropped: its core is enough.
        Self { core, client, heard, started: 0 }
    }

    #[track_caller]
    fn run_until(&mut self, what: &str, mut done: impl FnMut(&Heard) -> bool, ends_at: u64) {
        let end = Instant::now() + LIMIT;
        loop {
            let ended = { self.heard.borrow().answered + self.heard.borrow().failed.len() as u64 };
            if self.started < ends_at && self.started - ended < IN_FLIGHT {
                let mut spec = CallSpec::short().resend(Resend::AtMostOnce).no_deadline();
                let number = self.started;
                let write = |args: &mut spinrpc::Encoder<'_>| args.u64(number);
                if self.client.call(NOTE, Token(number), &mut spec, write).is_ok() {
                    self.started += 1;
                }
            }
            self.core.poll_once();
            if done(&self.heard.borrow()) {
                return;
            }
            assert!(Instant::now() < end, "waited {LIMIT:?} for {what}");
        }
    }
}

fn executed(journal: &Path) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    for number in fs::read(journal).unwrap().chunks_exact(8) {
        let number = u64::from_be_bytes(*number.first_chunk().unwrap());
        *counts.entry(number).or_default() += 1;
    }
    counts
}

#[test]
fn drain_and_restart_under_load_expect_each_executed_call_answered_and_none_executed_twice() {
    let address = unique_address();
    let journal = std::env::temp_dir().join(format!("spinrpc-restart-{}", std::process::id()));
    let journal = Removed(journal);
    // One of a process that was killed, and had the number of this one.
    let _ = fs::remove_file(&journal.0);
    let mut server = start(&address, &journal.0);
    let mut load = Load::connect(&address);
    let restarts = std::env::var(RESTARTS).map_or(6, |number| number.parse().unwrap());
    for restart in 1..=restarts {
        let next = restart * CALLS;
        load.run_until(
            "calls",
            |heard| heard.answered + heard.failed.len() as u64 >= next,
            u64::MAX,
        );
        begin_drain(&mut server);
        load.run_until("the end of the server", |_| has_ended(&mut server), u64::MAX);
        server = start(&address, &journal.0);
    }
    let all = load.started;
    load.run_until("the rest", |heard| heard.answered + heard.failed.len() as u64 == all, all);
    let heard = load.heard.borrow();
    let executed = executed(&journal.0);
    for (number, error) in &heard.failed {
        assert!(matches!(error, CallError::Disconnected(_)), "{number}: {error:?}");
        assert!(!executed.contains_key(number), "{number} was executed: {error:?}");
    }
    assert_eq!(executed.len() as u64, heard.answered);
    let twice: Vec<_> = executed.iter().filter(|(_, count)| **count != 1).collect();
    assert!(twice.is_empty(), "executed more than once: {twice:?}");
}

struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
