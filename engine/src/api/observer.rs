//! What the control socket of an engine tells, and does: reads what cores have published, and asks
//! each by mail for what only it knows. On the socket's thread; it keeps no engine alive.

use super::directory::Directory;
use crate::config::{Config, IdlePolicy};
use crate::control::{CoreFacts, EngineFacts, Inside, Source, render};
use crate::reactor::StatsCells;
use crate::reactor::pending::mailbox::{Inbox, Mail};
use crate::reactor::pending::observation::Observation;
use crate::reactor::words::idle::IdleSwitch;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How long cores have for the next answer: one that is in a handler for longer is told of without.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long they have for all answers, of which a core with many connections gives many.
const PATIENCE_MAX: Duration = Duration::from_secs(1);
/// How long what they said is good enough: what others can make cores do is bounded.
const FRESH: Duration = Duration::from_millis(10);

/// What of a core can be seen from other threads.
pub(super) struct Observed {
    inbox: Arc<Inbox>,
    cells: Arc<StatsCells>,
    idle: Arc<IdleSwitch>,
    /// A letter is on its way: a core that does not read its mail gets one, and no more.
    is_asked: bool,
}

impl Observed {
    pub(super) fn new(inbox: Arc<Inbox>, cells: Arc<StatsCells>, idle: Arc<IdleSwitch>) -> Self {
        Self { inbox, cells, idle, is_asked: false }
    }
}

/// See the module.
pub(super) struct Observer {
    config: Config,
    directory: Directory,
    cores: Vec<Observed>,
    started: Instant,
    back: SyncSender<Box<Observation>>,
    answers: Receiver<Box<Observation>>,
    round: u64,
    seen: Option<Seen>,
}

/// What was seen last.
struct Seen {
    at: Instant,
    uptime: Duration,
    cores: Vec<CoreFacts>,
}

impl Observer {
    pub(super) fn new(config: Config, directory: Directory, cores: Vec<Observed>) -> Self {
        // Each core has one letter at most, which finds room.
        let (back, answers) = sync_channel(cores.len());
        let (started, round, seen) = (Instant::now(), 0, None);
        Self { config, directory, cores, started, back, answers, round, seen }
    }

    fn look(&mut self) -> Seen {
        let inside = self.ask();
        let cpus = self.config.cpus();
        let facts = |((core, inside), cpu): ((&Observed, _), &usize)| CoreFacts {
            cpu: *cpu,
            idle: core.idle.policy(),
            is_running: core.inbox.is_read(),
            stats: core.cells.snapshot(),
            inside,
        };
        let cores = self.cores.iter().zip(inside).zip(cpus).map(facts).collect();
        Seen { at: Instant::now(), uptime: self.started.elapsed(), cores }
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
            awaited += usize::from(self.post(letter));
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
            } else if !self.post(answer) {
                awaited -= 1;
            }
        }
        inside
    }

    /// False if the core does not run, has a letter already, or no room for it.
    fn post(&mut self, letter: Box<Observation>) -> bool {
        let core = &mut self.cores[letter.core];
        if core.is_asked || !core.inbox.is_read() {
            return false;
        }
        core.is_asked = core.inbox.post(Mail::Observe(letter)).is_ok();
        core.is_asked
    }
}

impl Inside {
    fn add(&mut self, answer: &Observation) {
        (self.deferred, self.put_off) = (answer.deferred, answer.put_off);
        self.memory.clone_from(&answer.memory);
        self.connections.extend_from_slice(&answer.rows);
    }
}

impl Source for Observer {
    fn snapshot(&mut self, engine: u32, connections: usize) -> String {
        let seen = self.seen.take().filter(|seen| seen.at.elapsed() < FRESH);
        let seen = seen.unwrap_or_else(|| self.look());
        let engine = EngineFacts {
            number: engine,
            config: &self.config,
            uptime: seen.uptime,
            listens: self.directory.addresses(),
        };
        let line = render(&engine, &seen.cores, connections);
        self.seen = Some(seen);
        line
    }

    fn set_idle(&mut self, policy: IdlePolicy) -> usize {
        // Told of at once, and kept: what others can make cores do is bounded.
        if let Some(seen) = &mut self.seen {
            seen.cores.iter_mut().for_each(|core| core.idle = policy);
        }
        for core in &self.cores {
            core.idle.set(policy);
            core.inbox.wake();
        }
        self.cores.len()
    }
}
