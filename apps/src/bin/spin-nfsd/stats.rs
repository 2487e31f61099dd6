//! Server statistics, as a table.

use spinrpc::sys::journal::event;
use spinrpc::{Engine, StatsSnapshot};
use spinrpc_nfs::nfs3;
use spinrpc_nfs::protocol::ProcedureId;
use spinrpc_nfs::server::Server;
use spinrpc_nfs::server::mount::Registry;
use spinrpc_nfs::server::stats::ServerStats;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A server with its engine, which is dropped before it.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) engine: Engine,
    pub(crate) registry: Arc<Registry>,
    pub(crate) server: Arc<Server>,
    pub(crate) began: Instant,
}

struct Sample {
    seconds: f64,
    server: ServerStats,
    mounts_refused: u64,
    cores: Vec<StatsSnapshot>,
}

impl Served {
    fn sample(&self) -> Sample {
        let cores =
            (0..self.engine.cores()).filter_map(|core| self.engine.stats(core).ok()).collect();
        let seconds = self.began.elapsed().as_secs_f64();
        let mounts_refused = self.registry.refused();
        Sample { seconds, server: self.server.stats(), mounts_refused, cores }
    }
}

impl Sample {
    fn connections(&self) -> u64 {
        let open =
            |core: &StatsSnapshot| core.connections_opened.saturating_sub(core.connections_closed);
        self.cores.iter().map(open).sum()
    }

    fn table(&self, earlier: &Self) -> String {
        let seconds = (self.seconds - earlier.seconds).max(f64::MIN_POSITIVE);
        let rate = |now: u64, then: u64| now.wrapping_sub(then) as f64 / seconds;
        let (now, then) = (&self.server, &earlier.server);
        let mut table =
            format!("{:<12} {:>12} {:>15} {:>12}\n", "procedure", "calls/s", "calls", "errors");
        for (number, (now, then)) in now.procedures.iter().zip(&then.procedures).enumerate() {
            if now.calls > 0 {
                let (name, rate) = (name(number), rate(now.calls, then.calls));
                let _ =
                    writeln!(table, "{name:<12} {rate:>12.0} {:>15} {:>12}", now.calls, now.errors);
            }
        }
        let megabytes = |now, then| rate(now, then) / 1e6;
        let _ = writeln!(
            table,
            "read {:.1} MB/s, written {:.1} MB/s, {} connections, {} denied, \
             {} mounts refused, {:.0} s",
            megabytes(now.bytes_read, then.bytes_read),
            megabytes(now.bytes_written, then.bytes_written),
            self.connections(),
            now.denied,
            self.mounts_refused,
            self.seconds,
        );
        table
    }
}

/// Name in RFC 1813 without the common prefix.
pub(crate) fn name(number: usize) -> String {
    let operation = ProcedureId::new(number as u32);
    operation.map_or_else(|| number.to_string(), |operation| nfs3::name(operation).to_owned())
}

pub(crate) struct LiveTable {
    end: Option<Sender<()>>,
    printer: Option<JoinHandle<()>>,
}

impl LiveTable {
    pub(crate) fn start(source: Served, every: Duration) -> io::Result<Self> {
        let (end, ended) = channel();
        let print = move || {
            let mut earlier = source.sample();
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let now = source.sample();
                if let Err(error) = show(&now.table(&earlier)) {
                    event!(WARN, "statistics are no longer printed: standard output: {error}");
                    break;
                }
                earlier = now;
            }
        };
        let printer = thread::Builder::new().name("stats".into()).spawn(print)?;
        Ok(Self { end: Some(end), printer: Some(printer) })
    }
}

impl Drop for LiveTable {
    fn drop(&mut self) {
        drop(self.end.take());
        drop(self.printer.take().map(JoinHandle::join));
    }
}

fn show(table: &str) -> io::Result<()> {
    const CLEAR: &str = "\x1b[H\x1b[2J";
    let mut out = io::stdout().lock();
    let before = if out.is_terminal() { CLEAR } else { "" };
    writeln!(out, "{before}{table}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, calls: u64, bytes_read: u64) -> Sample {
        let mut server = ServerStats { bytes_read, denied: 2, ..ServerStats::default() };
        server.procedures[1].calls = calls;
        server.procedures[1].errors = 1;
        let core = StatsSnapshot::default();
        Sample { seconds, server, mounts_refused: 3, cores: vec![core] }
    }

    #[test]
    fn rates_are_of_the_time_between_and_counts_of_all() {
        let table = sample(4.0, 500, 6_000_000).table(&sample(2.0, 300, 2_000_000));
        let row = table.lines().find(|line| line.starts_with("GETATTR")).unwrap();
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["GETATTR", "100", "500", "1"]);
        let last =
            "read 2.0 MB/s, written 0.0 MB/s, 0 connections, 2 denied, 3 mounts refused, 4 s";
        assert!(table.lines().any(|line| line == last), "{table}");
        assert!(!table.contains("READDIR"), "{table}");
    }
}
