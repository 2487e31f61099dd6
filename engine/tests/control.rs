//! The control socket: its reports on an engine, its effects on it, and misuse, which must not keep
//! it from other users, or the engine from its calls.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::control::{ask, connect, control_of, effective_user, line, number, parse};
use common::prelude::*;
use serde_json::json;
use spinrpc::control::{Metric, REQUEST_BYTES_MAX, SCHEMA};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc::channel;

const USER: &str = "SPINRPC_TEST_CONTROL";
/// Exit status of a process of another user that was not answered: it never ends so by itself, or
/// because the test does not exist.
const NOT_ANSWERED: i32 = 42;

/// Asks for snapshots, which may be 10 ms old, until one is as expected.
#[track_caller]
fn ask_until(name: &str, request: &str, is_expected: impl Fn(&str) -> bool) -> String {
    let end = Instant::now() + LIMIT;
    loop {
        let snapshot = ask(name, request);
        if is_expected(&snapshot) {
            return snapshot;
        }
        assert!(Instant::now() < end, "waited {LIMIT:?}: {snapshot}");
    }
}

/// True for a read at the end of everything that was sent; false for one that had to give up.
fn is_hung_up(end: &std::io::Result<usize>) -> bool {
    match end {
        Ok(bytes) => *bytes == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// A server with its control socket, of which tests ask wrongly.
struct Asked {
    server: Server,
    control: String,
}

impl Asked {
    fn start() -> Self {
        Self::on(Server::start())
    }

    fn on(server: Server) -> Self {
        let control = control_of(&server.address).expect("a control socket");
        Self { server, control }
    }

    /// Others are answered, and calls are served.
    #[track_caller]
    fn expect_well(&self) {
        ask(&self.control, "snapshot");
        let before = self.server.stats().calls_received;
        let mut caller = Caller::connect(&self.server.address, all_words);
        caller.start(NULL, 1, |_| {}).unwrap();
        assert!(caller.replies(1)[0].1.is_ok());
        self.server.wait_for("the count", |stats| stats.calls_received > before);
    }

    fn connect(&self) -> UnixStream {
        connect(&self.control).expect("a control socket")
    }
}

/// Make calls over a connection, then ask. Expect the counts of the core and of the connection, the
/// memory, and the keys that were set.
#[test]
fn a_snapshot_tells_of_engine_core_connection_and_memory() {
    let asked = Asked::on(Server::with(small_with(|raw| raw.rpc.credits = 9)));
    let mut caller = Caller::connect(&asked.server.address, all_words);
    for token in 0..5 {
        caller.start(NULL, token, |_| {}).unwrap();
        caller.replies(1);
    }
    // With the one by which the caller waited for its credits. A core that is paused does not answer in time.
    let snapshot = ask_until(&asked.control, "snapshot", |snapshot| {
        number(snapshot, "replies_sent") > 5 && snapshot.contains("\"answered\":true")
    });
    let calls = number(&snapshot, "calls_received");
    let told = parse(&snapshot);
    let (core, connection) = (&told["cores"][0], &told["cores"][0]["connections"][0]);
    let pid = std::process::id();
    for (actual, expected) in [
        (&told["schema"], json!(SCHEMA)),
        (&told["pid"], json!(pid)),
        (&told["listens"], json!([asked.server.address])),
        (&told["fabric"], json!("shm")),
        (&told["settings"]["rpc.credits"], json!("9")),
        (&core["running"], json!(true)),
        (&core["connections_open"], json!(1)),
        (&connection["made_by"], json!("peer")),
        (&connection["state"], json!("up")),
        (
            &connection["responder"],
            json!({ "calls": calls, "credits_granted": 9, "in_progress": 0 }),
        ),
        (&connection["blocks"], json!({ "calls": 0, "fetches": 0, "pulls": 0, "exports": 0 })),
        (&connection["memory_used_bytes"], json!(0)),
    ] {
        assert_eq!(*actual, expected, "{snapshot}");
    }
    assert!(snapshot.contains(&format!("process {pid}\"")), "{snapshot}");
    assert!(connection["version"].is_u64() && connection["memory_bytes"].is_u64(), "{snapshot}");
    assert!(number(&snapshot, "uptime_ns") > 0 && number(&snapshot, "ticks_per_second") > 0);
    let class = &core["memory"][0];
    assert!(class["block_bytes"].as_u64() > Some(0) && class["free"].as_u64() > Some(0), "{class}");
    let beside = unique_address();
    caller.engine.listen(&beside).unwrap();
    let of_client = control_of(&beside).expect("the client's control socket");
    // The client's core moves on this thread alone.
    let asking = std::thread::spawn(move || {
        ask_until(&of_client, "snapshot", |snapshot| {
            let requester = &parse(snapshot)["cores"][0]["connections"][0]["requester"];
            number(snapshot, "calls_sent") == calls && requester["calls"] == calls
        })
    });
    caller.core.run_until(|| asking.is_finished());
    asking.join().unwrap();
}

#[test]
fn a_snapshot_shows_as_many_connections_as_asked_for_and_counts_all() {
    let asked = Asked::start();
    let callers: Vec<_> =
        (0..20).map(|_| Caller::connect(&asked.server.address, all_words)).collect();
    for (shown, request) in [(20, "snapshot"), (3, "snapshot 3"), (0, "snapshot 0")] {
        let snapshot = ask_until(&asked.control, request, |snapshot| {
            number(snapshot, "connections_open") == 20 && snapshot.contains("\"answered\":true")
        });
        assert_eq!(snapshot.matches("\"made_by\"").count(), shown, "{request}: {snapshot}");
    }
    drop(callers);
}

/// Publish a metric of a running engine with more series than it announces. Expect the first one, and one for the others.
#[test]
fn a_snapshot_has_the_metrics_of_the_application() {
    let asked = Asked::start();
    let metric = Metric { name: "hits", help: "Hits", labels: &["tier"], series_max: 1 };
    let published = asked.server.engine.publish_metric(metric, |series| {
        [("a\"b", 7), ("c", 2), ("d", 3)]
            .iter()
            .for_each(|(tier, hits)| series.count(&[tier], *hits));
    });
    published.unwrap();
    let series = json!([{ "values": ["a\"b"], "count": 7 }, { "values": ["other"], "count": 5 }]);
    let expected =
        json!([{ "name": "hits", "help": "Hits", "labels": ["tier"], "series": series }]);
    ask_until(&asked.control, "snapshot 0", |snapshot| parse(snapshot)["application"] == expected);
}

/// Ask cores that poll to sleep. Expect that they do, and that a snapshot says so.
#[test]
fn idle_policies_are_switched_while_cores_run() {
    let asked = Asked::on(Server::with(small_with(|raw| raw.poll.mode = IdlePolicy::Busy)));
    let polls_on = |policy: &str| {
        let answer = parse(&ask(&asked.control, &format!("idle {policy}")));
        assert_eq!(answer, json!({ "idle": policy, "cores": 1 }));
        let snapshot = ask(&asked.control, "snapshot");
        assert!(snapshot.contains(&format!("\"idle\":{policy:?}")), "{snapshot}");
    };
    assert_eq!(asked.server.stats().parks, 0);
    polls_on("sleep");
    asked.server.wait_for("a core that sleeps", |stats| stats.parks > 3);
    asked.expect_well();
    polls_on("adaptive");
    polls_on("busy");
    asked.expect_well();
    let refused = ask(&asked.control, "idle lazy");
    assert!(refused.contains("allowed are idle busy, idle adaptive, idle sleep"), "{refused}");
}

#[test]
fn an_engine_that_exports_nothing_has_no_control_socket() {
    let server = Server::with(small_with(|raw| raw.stats.export = StatsExport::None));
    assert_eq!(control_of(&server.address), None);
}

#[test]
fn the_socket_ends_with_the_engine() {
    let asked = Asked::start();
    let (mut waiting, control) = (asked.connect(), asked.control.clone());
    // Answered, so that it is accepted and not only connected.
    waiting.write_all(b"idle nothing\n").unwrap();
    line(&mut BufReader::new(&waiting));
    drop(asked.server);
    let end = waiting.read(&mut [0]);
    assert!(is_hung_up(&end), "{end:?}");
    // Another test's engine may get its number, and end before it has answered.
    wait_until("the end of the socket", || {
        connect(&control).is_none_or(|mut stream| {
            let asked = stream.write_all(b"snapshot\n");
            let answered = BufReader::new(stream).read_line(&mut String::new());
            asked.is_ok() && answered.is_ok_and(|bytes| bytes > 0)
        })
    });
}

/// A core whose thread does not move gets one letter, however often one asks. Expect answers that
/// say so, in time.
#[test]
fn a_core_that_does_not_move_is_told_of_without_what_only_it_knows() {
    let engine = Engine::new(valid(small())).unwrap();
    serve(&engine);
    let address = listening(&engine);
    let mut core = engine.core(0).unwrap();
    let control = control_of(&address).expect("a control socket");
    // Another test, which looked for its engine, may have had a snapshot from before this core ran.
    let hangs = |snapshot: &str| {
        let core = &parse(snapshot)["cores"][0];
        core["running"] == true && core["answered"] == false
    };
    ask_until(&control, "snapshot", hangs);
    for _ in 0..20 {
        let snapshot = ask(&control, "snapshot");
        assert!(hangs(&snapshot), "{snapshot}");
    }
    assert_eq!(core.poll_once().events, 1);
    // Other tests that look for their engines ask this one, too.
    let events: usize = (0..20).map(|_| core.poll_once().events).sum();
    assert!(events < 10, "{events} more letters");
}

/// A handler that does not return does not keep the socket from answering.
#[test]
fn a_core_that_hangs_in_a_handler_is_seen_to() {
    let engine = Engine::new(valid(small())).unwrap();
    let (go_on, gate) = channel::<()>();
    let gate = std::sync::Mutex::new(Some(gate));
    engine
        .serve(PROGRAM, VERSION, move |_| {
            let gate = spinrpc::sync::lock(&gate).take();
            move |call: Call<'_>| {
                if call.procedure() == ECHO {
                    let _ = gate.as_ref().map(|gate| gate.recv_timeout(LIMIT));
                }
                call.reply(|_| {});
            }
        })
        .unwrap();
    let asked = Asked::on(Server::started(engine, Default::default()));
    let mut caller = Caller::connect(&asked.server.address, all_words);
    caller.start(ECHO, 1, |_| {}).unwrap();
    let end = Instant::now() + LIMIT;
    while !ask(&asked.control, "snapshot").contains("\"answered\":false") {
        caller.core.poll_once();
        assert!(Instant::now() < end, "the handler is never seen to hang");
    }
    go_on.send(()).unwrap();
    assert!(caller.replies(1)[0].1.is_ok());
    drop(go_on);
    asked.expect_well();
}

#[test]
fn receive_what_is_no_request_expect_an_error_and_the_next_one_answered() {
    let asked = Asked::start();
    for wrong in [
        &b""[..],
        b"snapshots",
        b"snapshot x",
        b"snapshot 1 2",
        b"idle",
        b"idle x",
        b"\xff\xfe\0",
        b"{\"a\":1}",
    ] {
        let mut stream = BufReader::new(asked.connect());
        stream.get_mut().write_all(&[wrong, b"\n"].concat()).unwrap();
        let answer = line(&mut stream);
        assert!(answer.starts_with("{\"error\":\""), "{wrong:?}: {answer}");
    }
    // A request comes byte by byte, with another one behind it: the first is answered, and then comes the end.
    let mut stream = BufReader::new(asked.connect());
    for byte in b"snapshot" {
        stream.get_mut().write_all(&[*byte]).unwrap();
    }
    stream.get_mut().write_all(b"\nidle busy\n").unwrap();
    assert!(line(&mut stream).contains(SCHEMA));
    assert!(is_hung_up(&stream.read(&mut [0])));
}

#[test]
fn receive_a_line_without_end_expect_an_error_and_the_end() {
    let asked = Asked::start();
    let mut stream = asked.connect();
    // The peer may hang up in the middle.
    let _ = stream.write_all(&vec![b'x'; 1 << 20]);
    let mut reader = BufReader::new(stream);
    let answer = line(&mut reader);
    assert!(answer.contains(&format!("at most {REQUEST_BYTES_MAX} bytes")), "{answer}");
    let end = reader.read(&mut [0]);
    assert!(is_hung_up(&end), "{end:?}");
    asked.expect_well();
}

/// Connect and say nothing, or ask without end. Expect that others are answered after them, and that the silent one is
/// disconnected.
#[test]
fn a_peer_that_is_silent_is_hung_up_on() {
    let asked = Asked::start();
    let (began, mut silent) = (Instant::now(), asked.connect());
    let mut reader = asked.connect();
    reader.set_nonblocking(true).unwrap();
    while reader.write(b"snapshot\n").is_ok_and(|bytes| bytes > 0) {}
    asked.expect_well();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
}

/// Not a test in itself: the body of another user's process. Without the variable there is nothing
/// to do.
#[test]
fn another_users_process() {
    let Ok(control) = std::env::var(USER) else { return };
    let mut stream = connect(&control).expect("a control socket");
    // The peer may have hung up already.
    let _ = stream.write_all(b"snapshot\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    std::process::exit(if answer.is_empty() { NOT_ANSWERED } else { 3 });
}

/// Ask as another user, which only root can become. Expect no word, and others answered.
#[test]
fn another_user_is_not_answered() {
    if effective_user() != "0" {
        not_tested("another user, which only root can become");
        return;
    }
    let asked = Asked::start();
    for _ in 0..3 {
        let mut other = Command::new("/proc/self/exe");
        other.args(["--exact", "another_users_process"]).env(USER, &asked.control).uid(65534);
        assert_eq!(other.output().unwrap().status.code(), Some(NOT_ANSWERED));
    }
    asked.expect_well();
}

/// Runs in a separate process: an engine of the overflow user in a user namespace that maps no
/// users.
#[test]
fn an_engine_of_the_overflow_user() {
    if std::env::var(USER).is_err() || effective_user() != "65534" {
        return;
    }
    let engine = Engine::new(valid(small())).unwrap();
    serve(&engine);
    let refused = engine.listen(&unique_address()).map_err(|error| error.to_string());
    println!("{refused:?}");
    let is_named = refused.is_err_and(|error| error.contains("run as a user that is mapped"));
    std::process::exit(if is_named { NOT_ANSWERED } else { 3 });
}

/// Start an engine in a user namespace without a map, where each user is shown as 65534. Expect it to
/// refuse to listen, because it would take all of them for its own.
#[test]
fn an_engine_of_the_overflow_user_does_not_listen() {
    let mut other = Command::new("unshare");
    other.args(["--user", "--"]).arg(std::env::current_exe().unwrap());
    other.args(["--exact", "--nocapture", "an_engine_of_the_overflow_user"]).env(USER, "");
    let output = other.output();
    let said = output.as_ref().map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    if !said.unwrap_or_default().contains("running 1 test") {
        not_tested(&format!("user namespaces: {output:?}"));
        return;
    }
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(NOT_ANSWERED), "{output:?}");
}

/// The cores of an engine are told of one by one.
#[test]
fn cores_that_do_not_run_are_told_of() {
    let cpus: Vec<_> = valid(small_with(|raw| raw.cores.max = 2)).cpus().to_vec();
    let engine =
        Engine::new(valid(small_with(|raw| raw.cores.list = CoreList::Cpus(cpus.clone()))))
            .unwrap();
    let address = listening(&engine);
    let snapshot = ask(&control_of(&address).expect("a control socket"), "snapshot");
    assert_eq!(snapshot.matches("\"running\":false").count(), cpus.len(), "{snapshot}");
}
