//! `spinperf metrics` reports real engines to Prometheus, and malformed or missing requests do not
//! block it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::{Server, command, spinperf, text, wait_at_most};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Far longer than any answer takes, even on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Value of a metric of the server's first core.
fn value(metrics: &str, name: &str, pid: u32) -> f64 {
    let begins = format!("{name}{{");
    let of_process = format!("pid=\"{pid}\"");
    let line = metrics
        .lines()
        .find(|line| line.starts_with(&begins) && line.contains(&of_process))
        .unwrap_or_else(|| panic!("no {name} of {pid} in\n{metrics}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// Repeats `get` until it returns these words: an engine of which a thread is paused does not answer in time.
#[track_caller]
fn until(words: &str, mut get: impl FnMut() -> String) -> String {
    let begin = Instant::now();
    loop {
        let got = get();
        if got.contains(words) {
            return got;
        }
        assert!(begin.elapsed() < LIMIT, "no {words} in\n{got}");
    }
}

/// The output of `spinperf metrics` once the server and its core answer.
fn metrics_of(pid: u32, options: &[&str], words: &str) -> String {
    until(words, || {
        let printed = spinperf(&[&["metrics", &pid.to_string()], options].concat());
        let metrics = text(&printed.stdout);
        let has_answered = printed.status.success()
            && metrics.contains("spinrpc_core_answered{")
            && value(&metrics, "spinrpc_core_answered", pid) > 0.0;
        if has_answered { metrics } else { text(&printed.stderr) }
    })
}

#[test]
fn a_server_is_called_expect_its_counts() {
    let (_cores, server) = Server::alone("metrics");
    assert!(server.client(&["--duration", "200ms"]).status().unwrap().success());
    let pid = server.child.id();
    let metrics = metrics_of(pid, &[], "");
    assert!(metrics.ends_with("# EOF\n"));
    assert!(value(&metrics, "spinrpc_calls_received_total", pid) >= 1.0);
    assert!(value(&metrics, "spinrpc_uptime_seconds", pid) > 0.0);
    assert!(
        metrics.contains("# TYPE spinrpc_sent_bytes counter\n# UNIT spinrpc_sent_bytes bytes\n")
    );
}

/// Ask twice, with calls in between. Expect the complete histogram of these calls.
#[test]
fn a_server_is_called_while_it_measures_expect_histograms_of_latencies() {
    let (_cores, server) = Server::alone("metrics-latency");
    let pid = server.child.id();
    let name = "spinrpc_call_duration_seconds";
    let before = metrics_of(pid, &["--latency"], &format!("# TYPE {name} histogram\n"));
    assert!(!before.contains(&format!("{name}_count")), "nothing was measured yet");
    assert!(server.client(&["--duration", "200ms"]).status().unwrap().success());
    let after = metrics_of(pid, &["--latency"], &format!("{name}_count{{"));
    assert!(after.ends_with("# EOF\n"));
    let of = |series: &str| -> f64 {
        let begins = format!("{name}_{series}");
        let lines = after.lines().filter(|line| line.starts_with(&begins));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    };
    assert!(of("count{") >= 1.0 && of("sum{") > 0.0);
    assert_eq!(of("bucket{le=\"+Inf\""), of("count{"));
    // Every call since the first request; there were none before.
    assert_eq!(of("count{"), value(&after, "spinrpc_calls_received_total", pid));
}

/// A metrics server that is killed when it goes out of scope.
struct Exporter {
    child: Child,
    address: String,
}

impl Exporter {
    fn start() -> Self {
        let mut child = command(&["metrics", "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit_once("http://").unwrap().1.strip_suffix("/metrics");
        Self { address: address.unwrap().to_owned(), child }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    fn ask(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        // A client with an overlong request finds the connection reset.
        let _ = stream.read_to_end(&mut answer);
        text(&answer)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        wait_at_most(&mut self.child, LIMIT);
    }
}

#[test]
fn prometheus_asks_by_http_expect_an_answer_whatever_others_do() {
    let (_cores, server) = Server::alone("metrics-http");
    let exporter = Exporter::start();
    // More than are served at a time: some send nothing, some half a line, some too much.
    let silent: Vec<_> = (0..12).map(|_| exporter.connect()).collect();
    let halves: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = exporter.connect();
            stream.write_all(b"GET /met").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            stream
        })
        .collect();
    assert_eq!(exporter.ask(&[b'x'; 64 << 10]), "");
    let get = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let of_server = format!("pid=\"{}\"", server.child.id());
    let answer = until(&of_server, || exporter.ask(get));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text"));
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
    assert_eq!(value(body, "spinrpc_core_running", server.child.id()), 1.0);
    let status = |request: &[u8]| until("HTTP/1.1 ", || exporter.ask(request))[9..12].to_owned();
    assert_eq!(status(b"GET /other HTTP/1.1\r\n\r\n"), "404");
    assert_eq!(status(b"PUT /metrics HTTP/1.1\r\n\r\n"), "405");
    assert_eq!(status(b"hello\r\n\r\n"), "400");
    drop((silent, halves));
    drop(server);
    let without_engines = until("HTTP/1.1 ", || exporter.ask(get));
    assert!(without_engines.ends_with("# EOF\n"), "{without_engines}");
}
