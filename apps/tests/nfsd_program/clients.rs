//! Operators: who is connected, calls by client and export, and ending a client's connections.

use crate::common;
use crate::server::{PROGRAM, Place, Server, answer, in_time};
use rustix::process::{Signal, geteuid};
use serde_json::Value;
use spinrpc::{Procedure, blocking};
use spinrpc_nfs::nfs3;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

/// Asks the server of this place.
fn ask(place: &Place, words: &[&str]) -> Output {
    let state = format!("--state={}", place.path("state"));
    common::run(PROGRAM, &[words, &[&state]].concat())
}

/// The clients that are connected.
pub(crate) fn clients(place: &Place) -> Vec<Value> {
    let output = ask(place, &["clients", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema"], "spin-nfsd-clients/1");
    document["clients"].as_array().unwrap().clone()
}

fn me() -> String {
    format!("local:{}", geteuid().as_raw())
}

/// The socket is that of a server that is stopped: it has room for a connection, and does not answer.
#[test]
fn a_server_that_does_not_answer_is_not_waited_for_like_a_reload() {
    /// Far shorter than a reload is waited for.
    const SOON: Duration = Duration::from_secs(60);
    let place = Place::new("no-answer");
    fs::create_dir(place.path("state")).unwrap();
    let _server = UnixListener::bind(place.path("state/control")).unwrap();
    let began = Instant::now();
    thread::scope(|scope| {
        for words in [&["clients"][..], &["slow"], &["disconnect", "local:7"]] {
            scope.spawn(|| common::fails(&ask(&place, words), 1, &[]));
        }
    });
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn clients_are_listed_with_their_calls_and_disconnected() {
    let place = Place::new("clients");
    let server = place.serve(&[&place.export("")]);
    assert_eq!(clients(&place), Vec::<Value>::new());
    let connect = || blocking::Client::connect(&place.address(), nfs3::PROGRAM, nfs3::VERSION);
    let [mut one, mut other] = [connect().unwrap(), connect().unwrap()];
    let null = |client: &mut blocking::Client| client.call(Procedure(0), |_| {}, |_| Ok(()));
    null(&mut one).unwrap();
    null(&mut other).unwrap();
    null(&mut one).unwrap();
    let listed = clients(&place);
    let [client] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!(client["address"], me());
    assert_eq!(
        (&client["connections"], &client["calls"]),
        (&2.into(), &5.into()),
        "each connects with a NULL"
    );
    assert_eq!(client["last"]["procedure"], "NULL");
    assert!(client["seconds"].as_f64() > Some(0.0) && client["since"].as_u64() > Some(0));
    let table = ask(&place, &["clients"]).stdout;
    let table = String::from_utf8_lossy(&table).into_owned();
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((row[0], row[1], row[3], row[5]), (&me()[..], "2", "5", "NULL"), "{table}");

    let output = ask(&place, &["disconnect", &me(), "--json"]);
    assert!(output.status.success(), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&said["schema"], &said["connections"]),
        (&"spin-nfsd-disconnect/1".into(), &2.into())
    );
    for client in [&mut one, &mut other] {
        in_time(|| null(client).err());
    }
    in_time(|| clients(&place).is_empty().then_some(()));
    // It may come back, as the exports still list it, and goes on counting.
    let mut again = connect().unwrap();
    null(&mut again).unwrap();
    assert!(clients(&place)[0]["calls"].as_u64() >= Some(4));
    assert_eq!(server.end_by(Signal::TERM).0, Some(0));
}

#[test]
fn commands_for_clients_or_servers_that_are_not_there_fail() {
    let place = Place::new("clients-none");
    assert_eq!(ask(&place, &["clients"]).status.code(), Some(1));
    let _server = place.serve(&[&place.export("")]);
    assert_eq!(ask(&place, &["disconnect", "192.0.2.7"]).status.code(), Some(1));
    assert_eq!(ask(&place, &["disconnect", "no address"]).status.code(), Some(2));
}

/// Metrics of the process, as its control socket has them.
pub(crate) fn metrics(server: &Server) -> Vec<Value> {
    let name = format!("spinrpc-control/{}/{}/0", geteuid().as_raw(), server.id());
    let mut stream =
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    stream.write_all(b"snapshot 0\n").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let snapshot: Value = serde_json::from_str(&line).unwrap();
    snapshot["application"].as_array().unwrap().clone()
}

/// The series of a metric with this label value.
pub(crate) fn series<'m>(metrics: &'m [Value], name: &str, value: &str) -> &'m Value {
    find_series(metrics, name, value).unwrap()
}

/// As [`series`], if it is there.
pub(crate) fn find_series<'m>(metrics: &'m [Value], name: &str, value: &str) -> Option<&'m Value> {
    let all = metrics.iter().find(|metric| metric["name"] == name).unwrap();
    let mut series = all["series"].as_array().unwrap().iter();
    series.find(|series| series["values"][0] == value)
}

#[test]
fn calls_are_counted_and_measured_by_procedure_client_and_export() {
    let place = Place::new("clients-metrics");
    let server = place.serve(&[&place.export(",path=/data")]);
    fs::write(place.data().join("file"), [7; 100_000]).unwrap();
    answer(&["cat", &format!("{}//data/file", place.address())]);
    let refused = common::run(
        env!("CARGO_BIN_EXE_spin-nfs"),
        &["cat", &format!("{}//data/absent", place.address())],
    );
    assert!(!refused.status.success());
    let metrics = metrics(&server);
    let read = series(&metrics, "nfs_procedure", "READ");
    let buckets: u64 = read["buckets"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
    assert!(read["count"].as_u64() > Some(0) && read["sum_ns"].as_u64() > Some(0), "{read}");
    assert_eq!(read["count"].as_u64(), Some(buckets));
    assert_eq!(series(&metrics, "nfs_errors", "LOOKUP")["count"], 1);
    assert_eq!(series(&metrics, "nfs_data_bytes", "read")["count"], 100_000);
    let all = metrics.iter().find(|metric| metric["name"] == "nfs_procedure").unwrap();
    let all = all["series"].as_array().unwrap().iter().filter_map(|one| one["count"].as_u64());
    let (client, all) = (series(&metrics, "nfs_client", &me()), all.sum::<u64>());
    assert_eq!(client["count"].as_u64(), Some(all), "every call is its own");
    let export = series(&metrics, "nfs_export", "/data");
    assert!(
        export["count"].as_u64() >= read["count"].as_u64() && export["sum_ns"].as_u64() > Some(0)
    );
}

#[test]
fn slow_calls_are_shown_with_their_procedures_and_stages() {
    let place = Place::new("clients-slow");
    assert_eq!(ask(&place, &["slow"]).status.code(), Some(1), "no server");
    let _server = place.serve(&[&place.export(",path=/data")]);
    fs::write(place.data().join("file"), [7; 100_000]).unwrap();
    let slow = || {
        let output = ask(&place, &["slow", "--json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    // From then on all calls are timed.
    in_time(|| slow()["silent"].as_array().is_some_and(Vec::is_empty).then_some(()));
    answer(&["cat", &format!("{}//data/file", place.address())]);
    let read = in_time(|| {
        let document = slow();
        assert_eq!(document["schema"], "spin-nfsd-slow/1");
        let mut calls = document["calls"].as_array().unwrap().iter();
        calls.find(|call| call["procedure_name"] == "READ").cloned()
    });
    assert_eq!((&read["role"], &read["procedure"]), (&"server".into(), &6.into()));
    let longest = read["longest"].as_str().unwrap();
    assert!(read["stages"][longest].as_u64() > Some(0), "{read}");
    assert!(read["peer"].as_str().is_some_and(|peer| !peer.is_empty()), "{read}");
    let table = ask(&place, &["slow"]);
    assert!(table.status.success(), "{table:?}");
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let is_read = |line: &str| line.split_whitespace().any(|word| word == "READ");
    assert!(table.lines().any(is_read), "{table}");
}
