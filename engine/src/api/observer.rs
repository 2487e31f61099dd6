//! Data source and actions of an engine's control socket. Reads the counters that cores have
//! published, and asks each core by mail for the facts that only the core has. Runs on the socket's
//! thread and does not keep an engine alive.

use super::metrics::Metrics;
use super::served_programs::Directory;
use crate::config::{Config, IdlePolicy};
use crate::control::{
    CoreFacts, CoreLatencies, EngineFacts, Inside, LATENCY_LEASE, MetricSeries, render,
    render_latencies, render_slow,
};
use crate::reactor::StatsCells;
use crate::reactor::in_flight::mailbox::{Inbox, Mail};
use crate::reactor::in_flight::observation::Observation;
use crate::reactor::types::idle::IdleSwitch;
use spinrpc_proto::ids::{Program, Version};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Time that cores have for the next answer. The report leaves out the details of a core that is in
/// a handler for longer.
const PATIENCE: Duration = Duration::from_millis(100);
/// Time that they have for all answers; a core with many connections sends many.
const PATIENCE_MAX: Duration = Duration::from_secs(1);
/// Lifetime of a result, which bounds the work that other processes can cause for cores.
const FRESH: Duration = Duration::from_millis(10);

/// Programs that a core serves, in the order of its services; there once they are made.
pub(super) type Served = Arc<OnceLock<Box<[(Program, Version)]>>>;

/// The state of a core that is visible from other threads.
pub(super) struct Observed {
    pub(super) inbox: Arc<Inbox>,
    pub(super) cells: Arc<StatsCells>,
    pub(super) idle: Arc<IdleSwitch>,
    pub(super) served: Served,
    /// A letter is on its way: a core that does not read its mail gets one, and no more.
    pub(super) is_asked: bool,
}

impl Observed {
    /// Has the core measure latencies from one of its next turns on, or no longer.
    fn measure(&self, is_wanted: bool) {
        let latencies = self.inbox.latencies();
        match self.served.get() {
            Some(served) if is_wanted => latencies.begin(served),
            _ => latencies.end(),
        }
        if latencies.is_to_switch() {
            self.inbox.wake();
        }
    }

    fn is_measuring(&self) -> bool {
        self.inbox.is_read() && self.inbox.latencies().is_on()
    }

    fn read_latencies(&self) -> CoreLatencies {
        CoreLatencies {
            is_running: self.inbox.is_read(),
            is_measuring: self.is_measuring(),
            measured: self.inbox.latencies().read().collect(),
        }
    }
}

/// Reads the counters of security contexts, by name; none in a build without RPCSEC_GSS.
pub(super) type ReadContexts = Box<dyn Fn() -> Vec<(&'static str, u64)> + Send>;

pub(super) struct Observer {
    contexts: ReadContexts,
    metrics: Metrics,
    config: Config,
    directory: Directory,
    cores: Vec<Observed>,
    started: Instant,
    back: SyncSender<Box<Observation>>,
    answers: Receiver<Box<Observation>>,
    round: u64,
    seen: Option<Seen>,
    lease_ends: Option<Instant>,
}

struct Seen {
    at: Instant,
    uptime: Duration,
    cores: Vec<CoreFacts>,
    contexts: Vec<(&'static str, u64)>,
    application: Vec<MetricSeries>,
}

impl Observer {
    pub(super) fn new(
        config: Config,
        directory: Directory,
        (contexts, metrics): (ReadContexts, Metrics),
        cores: Vec<Observed>,
    ) -> Self {
        // Each core has one letter at most, which finds room.
        let (back, answers) = sync_channel(cores.len());
        Self {
            contexts,
            metrics,
            config,
            directory,
            started: Instant::now(),
            back,
            answers,
            round: 0,
            seen: None,
            lease_ends: None,
            cores,
        }
    }

    fn look(&mut self) -> Seen {
        let inside = self.ask();
        let cpus = self.config.cpus();
        let facts = |((core, inside), cpu): ((&Observed, _), &usize)| CoreFacts {
            cpu: self.config.pins_cores().then_some(*cpu),
            idle: core.idle.policy(),
            is_running: core.inbox.is_read(),
            stats: core.cells.snapshot(),
            inside,
        };
        let cores = self.cores.iter().zip(inside).zip(cpus).map(facts).collect();
        let contexts = (self.contexts)();
        let (uptime, application) = (self.started.elapsed(), self.metrics.read());
        Seen { at: Instant::now(), uptime, cores, contexts, application }
    }

    /// Asks every core that runs, all at a time, until they have answered or may wait no longer.
    fn ask(&mut self) -> Vec<Option<Inside>> {
        self.round += 1;
        while let Ok(late) = self.answers.try_recv() {
            self.cores[late.core].is_asked = false;
        }
        let mut awaited = 0;
        for index in 0..self.cores.len() {
            let letter = Box::new(Observation::new(index, self.round, self.back.clone()));
            awaited += usize::from(self.ask_core(letter));
        }
        let mut gathered = vec![Inside::default(); self.cores.len()];
        let mut inside: Vec<_> = self.cores.iter().map(|_| None).collect();
        let end = Instant::now() + PATIENCE_MAX;
        while awaited > 0 {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(answer) = self.answers.recv_timeout(left.min(PATIENCE)) else { break };
            let core = answer.core;
            self.cores[core].is_asked = false;
            if answer.round != self.round {
                continue;
            }
            gathered[core].add(&answer);
            if answer.is_whole {
                inside[core] = Some(std::mem::take(&mut gathered[core]));
                awaited -= 1;
            } else if !self.ask_core(answer) {
                awaited -= 1;
            }
        }
        inside
    }

    /// False if the core does not run, has a letter already, or no room for it.
    fn ask_core(&mut self, letter: Box<Observation>) -> bool {
        let core = &mut self.cores[letter.core];
        if core.is_asked || !core.inbox.is_read() {
            return false;
        }
        core.is_asked = core.inbox.post(Mail::Observe(letter)).is_ok();
        core.is_asked
    }

    /// Everything, on one line; of each core the given number of connections. May take a second, and bothers cores
    /// no more than a hundred times a second.
    pub(super) fn snapshot(&mut self, engine: u32, connections: usize) -> String {
        let seen = self.seen_now();
        let engine = EngineFacts {
            number: engine,
            config: &self.config,
            uptime: seen.uptime,
            listens: self.directory.addresses(),
            gss: &seen.contexts,
            application: &seen.application,
        };
        let line = render(&engine, &seen.cores, connections);
        self.seen = Some(seen);
        line
    }

    /// Tells cores how to idle; returns how many.
    pub(super) fn set_idle(&mut self, policy: IdlePolicy) -> usize {
        // Reported at once, and kept: this bounds the work that other processes can cause for
        // cores.
        if let Some(seen) = &mut self.seen {
            seen.cores.iter_mut().for_each(|core| core.idle = policy);
        }
        for core in &self.cores {
            core.idle.set(policy);
            core.inbox.wake();
        }
        self.cores.len()
    }

    /// Tells cores to measure latencies from `now` on, and returns their counts, on one line.
    pub(super) fn latency(&mut self, engine: u32, now: Instant) -> String {
        self.measure_until(now + LATENCY_LEASE);
        render_latencies(engine, self.cores.iter().map(Observed::read_latencies).collect())
    }

    /// Tells cores to measure as [`Observer::latency`] does, and returns their slowest calls, on one line.
    pub(super) fn slow(&mut self, engine: u32, now: Instant) -> String {
        self.measure_until(now + LATENCY_LEASE);
        let seen = self.seen_now();
        let line = render_slow(engine, &seen.cores);
        self.seen = Some(seen);
        line
    }

    fn measure_until(&mut self, end: Instant) {
        self.lease_ends = Some(end);
        self.cores.iter().for_each(|core| core.measure(true));
    }

    fn seen_now(&mut self) -> Seen {
        let seen = self.seen.take().filter(|seen| seen.at.elapsed() < FRESH);
        seen.unwrap_or_else(|| self.look())
    }

    /// Time at which [`Observer::on_time`] is to be called.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.lease_ends
    }

    /// Ends everything that expires by `now`.
    pub(super) fn on_time(&mut self, now: Instant) {
        if self.lease_ends.is_some_and(|end| end <= now) {
            self.cores.iter().for_each(|core| core.measure(false));
            self.lease_ends = None;
        }
    }
}

impl Inside {
    fn add(&mut self, answer: &Observation) {
        (self.deferred, self.put_off) = (answer.deferred, answer.put_off);
        self.memory.clone_from(&answer.memory);
        self.connections.extend_from_slice(&answer.rows);
        self.slow.clone_from(&answer.slow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{CallError, Client, Core, Engine, Reply, ReplyHandler, Token};
    use crate::config::{RawConfig, StatsExport, Want};
    use crate::reactor::CallSpec;
    use serde_json::Value;
    use spinrpc_proto::ids::Procedure;
    use std::cell::Cell;
    use std::rc::Rc;

    const PROGRAM: Program = Program(0x2000_0001);
    const LIMIT: Duration = Duration::from_secs(30);

    struct Counts(Rc<Cell<u64>>);

    impl ReplyHandler for Counts {
        fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
            self.0.set(self.0.get() + u64::from(reply.is_ok()));
        }
    }

    /// A server and its caller, both of which are polled on this thread alone, and the observer of
    /// the server.
    struct Pair {
        observer: Observer,
        server: Core,
        client: Core,
        calls: Client,
        replies: Rc<Cell<u64>>,
        _engines: [Engine; 2],
    }

    impl Pair {
        fn new(test: &str) -> Self {
            let mut raw = RawConfig::default();
            raw.stats.export = StatsExport::None;
            (raw.mem.arena_mib, raw.mem.lock) = (8, Want::Off);
            let config = raw.validate().unwrap();
            let engines = [(); 2].map(|()| Engine::new(config.clone()).unwrap());
            let answer = |call: crate::api::Call<'_>| call.reply(|_| {});
            engines[0].serve(PROGRAM, Version(1), move |_| answer).unwrap();
            let address = format!("shm:observer-{test}-{}", std::process::id());
            engines[0].listen(&address).unwrap();
            let [mut server, mut client] = [0, 1].map(|index| engines[index].core(0).unwrap());
            let replies = Rc::new(Cell::new(0));
            let handler = Counts(Rc::clone(&replies));
            let calls = client.connect(&address, PROGRAM, Version(1), |_| handler).unwrap();
            turn_until(&mut server, &mut client, || calls.is_up());
            let observer = engines[0].0.observer();
            Self { observer, server, client, calls, replies, _engines: engines }
        }

        fn call(&mut self) {
            let expected = self.replies.get() + 1;
            self.calls.call(Procedure(1), Token(1), &mut CallSpec::short(), |_| {}).unwrap();
            turn_until(&mut self.server, &mut self.client, || self.replies.get() == expected);
        }

        /// Takes turns until the core has begun to measure, or ended.
        fn settle(&mut self, is_on: bool) {
            let core = &self.observer.cores[0];
            turn_until(&mut self.server, &mut self.client, || core.is_measuring() == is_on);
        }

        /// Calls that were measured, asked without having the core measure.
        fn counted(&self) -> u64 {
            let read = self.observer.cores[0].read_latencies();
            read.measured.iter().map(|one| one.durations.count()).sum()
        }
    }

    fn turn_until(server: &mut Core, client: &mut Core, done: impl Fn() -> bool) {
        let end = Instant::now() + LIMIT;
        while !done() {
            assert!(Instant::now() < end, "waited {LIMIT:?}");
            server.poll_once();
            client.poll_once();
        }
    }

    #[test]
    fn a_lease_that_ends_ends_the_measuring_and_keeps_the_counts() {
        let mut pair = Pair::new("lease");
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        pair.call();
        pair.observer.latency(0, at(0));
        pair.settle(true);
        pair.call();
        assert_eq!(pair.counted(), 1, "only that after the request");
        pair.observer.on_time(at(59));
        pair.observer.latency(0, at(59));
        pair.observer.on_time(at(60));
        assert_eq!(pair.observer.next_due(), Some(at(119)));
        pair.settle(true);
        pair.call();
        assert_eq!(pair.counted(), 2, "the lease was renewed");
        pair.observer.on_time(at(119));
        assert_eq!(pair.observer.next_due(), None);
        pair.settle(false);
        pair.call();
        assert_eq!(pair.counted(), 2, "measuring has ended");
        pair.observer.latency(0, at(200));
        pair.settle(true);
        pair.call();
        assert_eq!(pair.counted(), 3, "counts are kept");
    }

    /// All counters of the engine by their names, or none in a build without RPCSEC_GSS.
    #[test]
    fn a_snapshot_has_the_counters_of_security_contexts() {
        let mut pair = Pair::new("contexts");
        let snapshot: Value = serde_json::from_str(&pair.observer.snapshot(0, 0)).unwrap();
        #[cfg(feature = "gss")]
        let expected = pair._engines[0].gss_stats().entries();
        #[cfg(not(feature = "gss"))]
        let expected = std::iter::empty::<(&str, u64)>();
        let expected = expected.map(|(name, count)| (name.to_owned(), count.into()));
        assert_eq!(snapshot["gss"], Value::Object(expected.collect()));
    }
}
