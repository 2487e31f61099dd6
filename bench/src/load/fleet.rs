//! The client cores of an engine, each on its own thread. A leader that measures nothing tells them
//! what to load and when to start, and combines their results.

use super::measurement::Measurement;
use super::outcome::{Measured, combine, reversed};
use super::session::{Beside, Callee, Rank, Session};
use super::status::{Status, until};
use super::workload::{Limits, Workload};
use crate::cores::CorePair;
use crate::env::{Holdings, memory_bytes};
use crate::failure::Failure;
use crate::floor::{Placed, cache_line_ns};
use crate::ranks;
use spinrpc::Engine;
use spinrpc::sys::clock::Clock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) struct Fleet {
    cores: Vec<Sender<Order>>,
    /// CPUs of the cores; none if they are not pinned.
    cpus: Vec<usize>,
    is_local: bool,
    workload: Option<Workload>,
    pub(crate) party: Option<Party>,
    /// Number of the last repeat that they began together.
    round: u32,
    /// Of the first idle connections: later ones find memory that these have left.
    setup: Option<Setup>,
}

#[derive(Clone, Copy, Debug)]
struct Setup {
    connections: usize,
    seconds: f64,
    bytes: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Party {
    pub(crate) rank: ranks::Rank,
    /// Distinguishes this process from another one of the same rank.
    pub(crate) process: u64,
    pub(crate) patience: Duration,
}

type Order = Box<dyn FnOnce(&mut Session<'_>) + Send>;
type Answer<T> = Receiver<Result<T, Failure>>;

/// Connects every core of the engine and lets `work` lead them. Blocks until it is done.
pub(crate) fn with_fleet<T>(
    engine: &Engine,
    callees: &[Callee<'_>],
    beside: Option<&Beside>,
    work: impl FnOnce(&mut Fleet) -> Result<T, Failure>,
) -> Result<T, Failure> {
    thread::scope(|scope| {
        let start = |index| {
            let (orders, inbox) = channel::<Order>();
            let (tell, told) = channel();
            scope.spawn(move || match Session::open(engine, index, callees, beside) {
                Ok(mut session) => {
                    drop(tell.send(Ok(())));
                    inbox.iter().for_each(|order| order(&mut session));
                }
                // If nothing receives it, the leader has failed already.
                Err(failure) => drop(tell.send(Err(failure))),
            });
            (orders, told)
        };
        let (cores, connected): (_, Vec<_>) = (0..engine.cores()).map(start).unzip();
        let config = engine.config();
        let cpus = if config.pins_cores() { config.cpus().to_vec() } else { Vec::new() };
        let is_local = callees.iter().all(|callee| callee.is_local());
        let (workload, party, setup) = (None, None, None);
        let mut fleet = Fleet { cores, cpus, is_local, workload, party, round: 0, setup };
        connected.into_iter().try_for_each(wait)?;
        work(&mut fleet)
    })
}

fn wait<T>(answer: Answer<T>) -> Result<T, Failure> {
    let lost = || Failure::Measurement("a client core exited early".to_owned());
    answer.recv().unwrap_or_else(|_| Err(lost()))
}

impl Fleet {
    pub(crate) fn announce(&self, workload: &Workload) -> Result<Option<[usize; 2]>, Failure> {
        let workload = *workload;
        self.first(move |session| session.announce(&workload))
    }

    pub(crate) fn load(&mut self, workload: &Workload) -> Result<(), Failure> {
        let workload = *self.workload.insert(*workload);
        let (before, began) = (memory_bytes(), Instant::now());
        self.all(move |_, session| session.load(workload))?;
        if workload.idle_connections > 0 && self.setup.is_none() {
            let connections = (workload.connections + workload.idle_connections) * workload.cores;
            let seconds = began.elapsed().as_secs_f64();
            let bytes = memory_bytes().zip(before).map(|(now, then)| now.saturating_sub(then));
            self.setup = Some(Setup { connections, seconds, bytes });
        }
        Ok(())
    }

    /// What idle connections have taken, if there were some.
    pub(crate) fn setup_note(&self) -> Option<String> {
        let Setup { connections, seconds, bytes } = self.setup?;
        let micros = seconds * 1e6 / connections as f64;
        let took = bytes.map_or_else(String::new, |bytes| {
            let kib = bytes as f64 / connections as f64 / 1024.0;
            format!(
                "; one takes {kib:.1} KiB of this process (Pss, in which shared pages count half at each end, page \
                 tables, and what huge pages of the heap round up)"
            )
        });
        Some(format!(
            "{connections} connections were made in {seconds:.2} s, {micros:.0} µs each{took}"
        ))
    }

    /// Drives the load once. A load in both directions returns two results.
    pub(crate) fn measure(&mut self, limits: &Limits) -> Result<Vec<Measured>, Failure> {
        let common = self.join(limits)?;
        self.measure_from(limits, common)
    }

    /// [`Fleet::measure`] of a load that is not a mix.
    pub(crate) fn measure_one(&mut self, limits: &Limits) -> Result<Measurement, Failure> {
        let nothing = || Failure::Measurement("nothing was measured".to_owned());
        self.measure(limits)?.into_iter().next().map(|(_, one)| one).ok_or_else(nothing)
    }

    fn measure_from(&self, limits: &Limits, common: Option<u64>) -> Result<Vec<Measured>, Failure> {
        let Some(workload) = self.workload else { return Ok(Vec::new()) };
        let before = self.server_status()?;
        let of = workload.cores;
        // Time for every thread to wake up, so that all start together.
        let lead = if of > 1 { LEAD } else { Duration::ZERO };
        let clock = Clock::shared();
        let begin = common.unwrap_or_else(|| clock.now().0 + clock.from_duration(lead));
        let limits = *limits;
        let drive = move |index, session: &mut Session<'_>| {
            session.drive(&limits, Rank { index, of, begin })
        };
        let mut driven = self.all(drive)?;
        let figures: Vec<_> = driven.iter_mut().filter_map(|one| one.reverse.take()).collect();
        // A server that does not answer calls does not answer questions.
        let is_stuck = driven.iter().any(|one| one.tally.is_stuck);
        let after = if is_stuck { None } else { self.server_status()? };
        let server = before.zip(after).map(|(before, after)| until(&before, &after));
        let mut measured = combine(&workload, &limits, driven, server)?;
        if workload.both
            && !is_stuck
            && let Some((_, forward)) = measured.first()
        {
            let reverse = reversed(&workload, forward, &figures)?;
            measured.push((workload.in_reverse(), reverse));
        }
        Ok(measured)
    }

    /// [`Fleet::measure`] from the start that [`Fleet::join`] returned, with the placement of the cores meanwhile. It is
    /// known if one core of this host calls one other that it may run on, and no other ranks measure.
    pub(crate) fn measure_placed(
        &self,
        limits: &Limits,
        common: Option<u64>,
    ) -> Result<(Vec<Measured>, Option<Placed>), Failure> {
        let before_ns = self.cache_line_ns()?;
        let measured = self.measure_from(limits, common)?;
        let is_stuck = measured.iter().any(|(_, one)| one.cut_short.is_stuck);
        // A server that ends only now has been measured.
        let after_ns = if is_stuck { None } else { self.cache_line_ns().ok().flatten() };
        let placed = before_ns.zip(after_ns).map(|(before, after)| Placed::between(before, after));
        Ok((measured, placed))
    }

    /// Takes turns with the server on its CPU if that one polls.
    fn cache_line_ns(&self) -> Result<Option<f64>, Failure> {
        let [client] = self.cpus[..] else { return Ok(None) };
        if !self.is_local || self.party.is_some() {
            return Ok(None);
        }
        let servers = self.server_status()?.unwrap_or_default();
        let [server] = &servers[..] else { return Ok(None) };
        let server = server.only_cpu().filter(|server| *server != client);
        let pair = server.map(|server| CorePair { client, server });
        Ok(pair.and_then(|pair| cache_line_ns(pair).ok()))
    }

    pub(crate) fn unload(&mut self) -> Result<(), Failure> {
        self.all(|_, session| {
            session.unload();
            Ok(())
        })?;
        self.workload = None;
        Ok(())
    }

    pub(crate) fn server_holdings(&self) -> Result<Holdings, Failure> {
        self.first(|session| session.server_holdings())
    }

    /// Waits for the other ranks, with memory for samples; returns the common start in ticks.
    pub(crate) fn join(&mut self, limits: &Limits) -> Result<Option<u64>, Failure> {
        let limits = *limits;
        self.all(move |_, session| session.prepare(&limits))?;
        let Some(party) = self.party.clone() else { return Ok(None) };
        self.round += 1;
        let round = self.round;
        self.first(move |session| session.join(&party, round)).map(Some)
    }

    fn server_status(&self) -> Result<Option<Vec<Status>>, Failure> {
        self.first(|session| session.server_status())
    }

    fn first<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        wait(self.order(0, work))
    }

    fn all<T: Send + 'static>(
        &self,
        work: impl Fn(usize, &mut Session<'_>) -> Result<T, Failure> + Copy + Send + 'static,
    ) -> Result<Vec<T>, Failure> {
        let cores = self.workload.map_or(0, |workload| workload.cores);
        let order = |index| self.order(index, move |session| work(index, session));
        let answers: Vec<_> = (0..cores).map(order).collect();
        // Takes every answer, whatever the others are.
        let answers: Vec<_> = answers.into_iter().map(wait).collect();
        answers.into_iter().collect()
    }

    fn order<T: Send + 'static>(
        &self,
        index: usize,
        work: impl FnOnce(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<T> {
        let (tell, told) = channel();
        let order: Order = Box::new(move |session| drop(tell.send(work(session))));
        // A thread that has ended answers nothing.
        let _ = self.cores.get(index).map(|core| core.send(order));
        told
    }
}

const LEAD: Duration = Duration::from_millis(20);
