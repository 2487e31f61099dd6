//! Connection events of a service and their order: the peer's identity before the first call, and
//! the end after the last one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::child::{Other, say_ready};
use common::log::{Line, logged, print_long_lines};
use common::prelude::*;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

const NOTE: Procedure = Procedure(1);
/// As [`NOTE`], deferred and never answered.
const KEEP: Procedure = Procedure(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Up(ConnectionId, Peer),
    Call(ConnectionId),
    Down(ConnectionId),
}

#[derive(Clone, Default)]
struct Notes {
    heard: Arc<Mutex<Vec<Heard>>>,
    kept: Arc<Mutex<Vec<Deferred>>>,
}

impl Notes {
    fn note(&self, heard: Heard) {
        lock(&self.heard).push(heard);
    }

    fn downs(&self) -> usize {
        lock(&self.heard).iter().filter(|heard| matches!(heard, Heard::Down(_))).count()
    }
}

impl Service for Notes {
    fn call(&mut self, call: Call<'_>) {
        self.note(Heard::Call(call.connection()));
        match call.procedure() {
            KEEP => lock(&self.kept).extend(call.defer()),
            _ => call.reply(|_| {}),
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        match event {
            ConnectionEvent::Up { connection, peer, .. } => {
                self.note(Heard::Up(*connection, *peer))
            }
            ConnectionEvent::Down { connection, .. } => self.note(Heard::Down(*connection)),
            other => panic!("a service hears of its clients' {other:?}"),
        }
    }
}

fn serve(once: bool) -> (Server, Notes) {
    let engine = engine(small_with(|raw| raw.rpc.reply_cache_mib = 1));
    let notes = Notes::default();
    let of_service = notes.clone();
    let factory = move |_: &_| of_service.clone();
    match once {
        true => engine.serve_once(PROGRAM, VERSION, factory).unwrap(),
        false => engine.serve(PROGRAM, VERSION, factory).unwrap(),
    }
    (Server::started(engine, Default::default()), notes)
}

fn ourselves() -> Peer {
    let uid = std::fs::metadata("/proc/self").unwrap().uid();
    Peer::Process { uid, pid: std::process::id() }
}

/// Each connection is ended by its client in the middle of calls. Expect Up, calls, Down.
#[test]
fn up_comes_before_the_first_call_of_a_connection_and_down_after_the_last() {
    for once in [false, true] {
        let (server, notes) = serve(once);
        for round in 1..=20 {
            let mut caller = Caller::connect(&server.address, all_words);
            for token in 0..10 {
                let procedure = if token % 3 == 0 { KEEP } else { NOTE };
                caller.start(procedure, token, |_| {}).unwrap();
            }
            // As many as are answered by then: none, some, all.
            caller.run_until("replies", |heard| heard.replies.len() >= round % 7);
            drop(caller);
            wait_until("the end of the connection", || notes.downs() == round);
            lock(&notes.kept).clear();
        }
        server.stop();
        let heard = lock(&notes.heard);
        let mut rest = &heard[..];
        while let [Heard::Up(id, peer), behind @ ..] = rest {
            assert_eq!(*peer, ourselves());
            let calls = behind.iter().take_while(|heard| **heard == Heard::Call(*id)).count();
            assert_eq!(behind.get(calls), Some(&Heard::Down(*id)), "{heard:?}");
            rest = &behind[calls + 1..];
        }
        assert!(rest.is_empty(), "{rest:?}");
        assert!(heard.len() > 20 * 3, "hardly any calls: {heard:?}");
    }
}

/// Of two connections, end one from another thread. Expect both sides to hear of that, and calls on the other one.
#[test]
fn a_server_ends_a_connection_and_serves_the_others() {
    let (server, notes) = serve(false);
    let mut one = Caller::connect(&server.address, all_words);
    one.start(NOTE, 0, |_| {}).unwrap();
    one.replies(1);
    let Heard::Up(id, _) = lock(&notes.heard)[0] else { panic!("no connection") };
    let mut other = Caller::connect(&server.address, all_words);
    assert!(server.engine.disconnect(0, id).unwrap());
    assert!(matches!(one.down().0, DownCause::Remote));
    wait_until("the end of the connection", || notes.downs() == 1);
    assert!(lock(&notes.heard).contains(&Heard::Down(id)));
    // The connection that is not there any more is ignored, also when another one has its slot.
    let mut third = Caller::connect(&server.address, all_words);
    assert!(server.engine.disconnect(0, id).unwrap());
    for open in [&mut other, &mut third] {
        open.start(NOTE, 0, |_| {}).unwrap();
        assert!(open.replies(1)[0].1.is_ok());
    }
    assert_eq!(notes.downs(), 1);
    server.engine.disconnect(1, id).unwrap_err();
}

#[test]
fn the_client_hears_who_serves_it() {
    let (server, _) = serve(false);
    let caller = Caller::connect(&server.address, all_words);
    let events = &caller.heard.borrow().events;
    let [ConnectionEvent::Up { peer, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*peer, ourselves());
    assert!(peer.to_string().ends_with(&format!(", process {}", std::process::id())), "{peer}");
}

/// Both ends on this thread: expect of each a line with the peer for the beginning, and one with the reason for
/// the end.
#[test]
fn connections_that_come_and_go_are_logged_with_peer_and_reason() {
    let mut cores = Cores::of(small(), |there| {
        there.serve(PROGRAM, VERSION, |_: &_| Notes::default()).unwrap();
    });
    let server = cores.there.clone();
    let lines = logged(|| {
        let made = recorder(&SharedHeard::default(), all_words);
        let client = cores.connect(&ConnectOptions::new(), |_| made);
        client.close();
        cores.until("its end", || server.stats(0).unwrap().connections_closed == 1);
    });
    let told = |message: &str, name: &str| {
        let of_message = lines.iter().filter(|line| line.says(message));
        assert!(of_message.clone().all(|line| line.level == tracing::Level::INFO), "{lines:?}");
        let (us, peers) =
            (ourselves().to_string(), of_message.clone().map(|line| line.field("peer")));
        assert!(peers.eq([Some(&*us); 2]), "{lines:?}");
        let mut fields: Vec<_> = of_message.filter_map(|line| line.field(name)).collect();
        fields.sort_unstable();
        fields.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(told("a connection is open", "is_ours"), ["false", "true"]);
    assert_eq!(
        told("a connection has ended", "reason"),
        ["closed by the peer", "closed by this side"]
    );
}

#[test]
fn a_connection_that_cannot_be_made_is_logged_with_address_and_error() {
    let engine = engine(small());
    let (mut core, address) = (engine.core(0).unwrap(), unique_address());
    let heard = SharedHeard::default();
    let lines = logged(|| {
        let made = recorder(&heard, all_words);
        core.connect(&address, PROGRAM, VERSION, |_| made).unwrap();
        core.run_until(|| !heard.borrow().events.is_empty());
    });
    let failed: Vec<&Line> =
        lines.iter().filter(|line| line.says("a connection cannot be made")).collect();
    let [line] = failed[..] else { panic!("{lines:?}") };
    assert_eq!(line.field("address"), Some(&*address));
    assert!(
        line.field("error").is_some_and(|error| error.contains("no server listens")),
        "{line:?}"
    );
}

const ADDRESS: &str = "SPINRPC_TEST_EVENTS";

/// Not a test in itself: a program that serves and logs to standard error. Without the variable there is nothing to do.
#[test]
fn other_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    print_long_lines();
    let engine = engine(small());
    engine.serve(PROGRAM, VERSION, |_: &_| Notes::default()).unwrap();
    engine.listen(&address).unwrap();
    let running = engine.start().unwrap();
    say_ready();
    let _ = std::io::stdin().read(&mut [0]);
    engine.shutdown();
    running.join().unwrap();
    drop(engine);
    println!("ended");
}

/// Expect that a server whose standard error is a pipe that is never read accepts connections, answers, and ends.
#[test]
fn a_log_that_is_not_read_stops_no_core() {
    const CONNECTIONS: usize = 400;
    let address = unique_address();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut server =
        Other::run("other_process", command.env(ADDRESS, &address).stderr(Stdio::piped()));
    let mut victim = Caller::connect(&address, all_words);
    for _ in 0..CONNECTIONS {
        let made = |_| recorder(&SharedHeard::default(), all_words);
        drop(victim.core.connect_wait(&address, PROGRAM, VERSION, made, LIMIT).unwrap());
    }
    victim.start(Procedure(0), 1, |_| {}).unwrap();
    victim.run_until("an answer", |heard| heard.replies.len() == 1);
    assert!(matches!(victim.heard.borrow().replies[..], [(1, Ok(_))]));
    drop(server.child.stdin.take());
    assert!(server.lines.any(|line| line.is_ok_and(|line| line.ends_with("ended"))));
}
