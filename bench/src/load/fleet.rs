//! Several client cores at once, each on its own thread. A leader that measures nothing tells them
//! what to load and when to start, and combines their results.

use super::both::Both;
use super::callee::Callee;
use super::control::{Figures, Intent, Welcome};
use super::outcome::{Driven, Measured, combine, reversed};
use super::rendezvous::Join;
use super::session::{Load, Rank, Session, until};
use super::status::Status;
use super::workload::{Limits, Workload};
use crate::env::Holdings;
use crate::failure::Failure;
use crate::ranks;
use spinrpc::Engine;
use spinrpc::sys::clock::Clock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// The client cores of an engine, connected.
pub(crate) struct Fleet {
    members: Vec<Member>,
    workload: Option<Workload>,
    /// The load goes in both directions.
    both: bool,
    /// The other processes that measure at the same time.
    party: Option<Party>,
    /// Number of the last repeat that they began together.
    round: u32,
}

/// Processes that start each repeat together.
#[derive(Clone, Debug)]
pub(crate) struct Party {
    pub(crate) rank: ranks::Rank,
    /// Distinguishes this process from another one of the same rank.
    pub(crate) process: u64,
    /// Maximum wait for the others.
    pub(crate) patience: Duration,
}

/// The leader's end of a core's thread.
struct Member {
    orders: Sender<Order>,
    answers: Receiver<Result<Answer, Failure>>,
}

enum Order {
    Announce(Intent),
    Load(Workload),
    LoadBoth(Workload),
    Drive(Limits, Rank),
    Unload,
    Status,
    Holdings,
    Join(Join, Duration),
}

enum Answer {
    Done,
    Welcome(Option<Welcome>),
    Driven(Box<Driven>, Option<Figures>),
    Status(Option<Vec<Status>>),
    Holdings(Holdings),
    /// Start in ticks.
    Begin(u64),
}

/// Connects every core of the engine and lets `work` lead them. Blocks until it is done.
pub(crate) fn with_fleet<T>(
    engine: &Engine,
    callees: &[Callee<'_>],
    party: Option<Party>,
    work: impl FnOnce(&mut Fleet) -> Result<T, Failure>,
) -> Result<T, Failure> {
    thread::scope(|scope| {
        let start = |index| {
            let (orders, inbox) = channel();
            let (outbox, answers) = channel();
            scope.spawn(move || serve(engine, index, callees, &inbox, &outbox));
            Member { orders, answers }
        };
        let members = (0..engine.cores()).map(start).collect();
        let mut fleet = Fleet { members, workload: None, both: false, party, round: 0 };
        // The first answer of each means that it is connected.
        fleet.members.iter().try_for_each(|member| member.answer().map(drop))?;
        work(&mut fleet)
    })
}

impl Fleet {
    /// The server's inline sizes, if it reports them; an error if it rejects this workload.
    pub(crate) fn announce(&mut self, workload: &Workload) -> Result<Option<[usize; 2]>, Failure> {
        match self.first()?.ask(Order::Announce(Intent::of(workload, false)))? {
            Answer::Welcome(welcome) => {
                Ok(welcome.map(|one| [one.inline_recv_bytes, one.inline_send_bytes]))
            }
            _ => Err(thread_lost()),
        }
    }

    /// Opens the connections of a workload on as many cores as it wants.
    pub(crate) fn load(&mut self, workload: &Workload) -> Result<(), Failure> {
        (self.workload, self.both) = (Some(*workload), false);
        self.all(|_| Order::Load(*workload)).map(drop)
    }

    /// Opens the connections of a workload to be driven in both directions at once.
    pub(crate) fn load_both(&mut self, workload: &Workload) -> Result<(), Failure> {
        (self.workload, self.both) = (Some(*workload), true);
        self.all(|_| Order::LoadBoth(*workload)).map(drop)
    }

    /// Drives the load once. A load in both directions returns two results.
    pub(crate) fn measure(&mut self, limits: &Limits) -> Result<Vec<Measured>, Failure> {
        let common = self.join()?;
        self.measure_from(limits, common)
    }

    /// [`Fleet::measure`] from the start that [`Fleet::join`] returned.
    pub(crate) fn measure_from(
        &mut self,
        limits: &Limits,
        common: Option<u64>,
    ) -> Result<Vec<Measured>, Failure> {
        let Some(workload) = self.workload else { return Ok(Vec::new()) };
        let before = self.server_status()?;
        let of = workload.cores;
        // Time for every thread to wake up, so that all start together.
        let lead = if of > 1 { LEAD } else { Duration::ZERO };
        let clock = Clock::shared();
        let begin = common.unwrap_or_else(|| clock.now().0 + clock.from_duration(lead));
        let answers = self.all(|index| Order::Drive(*limits, Rank { index, of, begin }))?;
        let (mut driven, mut figures) = (Vec::with_capacity(of), Vec::new());
        for answer in answers {
            let Answer::Driven(one, reverse) = answer else { return Err(thread_lost()) };
            driven.push(*one);
            figures.extend(reverse);
        }
        // A server that does not answer calls does not answer questions.
        let is_stuck = driven.iter().any(|one| one.tally.is_stuck);
        let after = if is_stuck { None } else { self.server_status()? };
        let server = before.zip(after).map(|(before, after)| until(&before, &after));
        let mut measured = combine(&workload, limits, driven, server)?;
        if self.both
            && !is_stuck
            && let Some((_, forward)) = measured.first()
        {
            let reverse = reversed(&workload, forward, &figures)?;
            measured.push((workload.in_reverse(), reverse));
        }
        Ok(measured)
    }

    /// Closes the connections of the load.
    pub(crate) fn unload(&mut self) -> Result<(), Failure> {
        self.all(|_| Order::Unload)?;
        self.workload = None;
        Ok(())
    }

    /// Resources that the server holds.
    pub(crate) fn server_holdings(&mut self) -> Result<Holdings, Failure> {
        match self.first()?.ask(Order::Holdings)? {
            Answer::Holdings(holdings) => Ok(holdings),
            _ => Err(thread_lost()),
        }
    }

    /// Waits for the other ranks; returns the common start in ticks.
    pub(crate) fn join(&mut self) -> Result<Option<u64>, Failure> {
        let Some(Party { rank, process, patience }) = self.party.clone() else { return Ok(None) };
        self.round += 1;
        let join = Join { rank, process, round: self.round };
        match self.first()?.ask(Order::Join(join, patience))? {
            Answer::Begin(ticks) => Ok(Some(ticks)),
            _ => Err(thread_lost()),
        }
    }

    fn server_status(&mut self) -> Result<Option<Vec<Status>>, Failure> {
        match self.first()?.ask(Order::Status)? {
            Answer::Status(status) => Ok(status),
            _ => Err(thread_lost()),
        }
    }

    /// Makes the cores of the workload do something at the same time, and waits for all of them.
    fn all(&self, order: impl Fn(usize) -> Order) -> Result<Vec<Answer>, Failure> {
        let cores = self.workload.map_or(0, |workload| workload.cores);
        let members = || self.members.iter().take(cores);
        members().enumerate().try_for_each(|(index, member)| member.tell(order(index)))?;
        // Takes every answer, whatever the others are.
        let answers: Vec<_> = members().map(Member::answer).collect();
        answers.into_iter().collect()
    }

    fn first(&self) -> Result<&Member, Failure> {
        self.members.first().ok_or_else(thread_lost)
    }
}

impl Member {
    fn tell(&self, order: Order) -> Result<(), Failure> {
        self.orders.send(order).map_err(|_| thread_lost())
    }

    fn answer(&self) -> Result<Answer, Failure> {
        self.answers.recv().unwrap_or_else(|_| Err(thread_lost()))
    }

    fn ask(&self, order: Order) -> Result<Answer, Failure> {
        self.tell(order)?;
        self.answer()
    }
}

/// A core's thread: connects, and obeys orders until the leader hangs up.
fn serve(
    engine: &Engine,
    index: usize,
    callees: &[Callee<'_>],
    orders: &Receiver<Order>,
    answers: &Sender<Result<Answer, Failure>>,
) {
    let mut session = match Session::open(engine, index, callees) {
        Ok(session) => session,
        Err(failure) => {
            // If nothing receives it, the leader has failed already.
            let _ = answers.send(Err(failure));
            return;
        }
    };
    let mut load: Option<Loaded> = None;
    let mut is_heard = answers.send(Ok(Answer::Done)).is_ok();
    while is_heard && let Ok(order) = orders.recv() {
        is_heard = answers.send(obey(&mut session, &mut load, order)).is_ok();
    }
    if let Some((load, _)) = load {
        session.unload(load);
    }
}

/// The load of a core, and the server's loop if there is one.
type Loaded = (Load, Option<Both>);

fn obey(
    session: &mut Session<'_>,
    loaded: &mut Option<Loaded>,
    order: Order,
) -> Result<Answer, Failure> {
    match (order, &*loaded) {
        (Order::Announce(intent), _) => session.announce(&intent).map(Answer::Welcome),
        (Order::Load(workload), _) => {
            *loaded = Some((session.load(workload)?, None));
            Ok(Answer::Done)
        }
        (Order::LoadBoth(workload), _) => {
            let (load, both) = session.load_both(workload)?;
            *loaded = Some((load, Some(both)));
            Ok(Answer::Done)
        }
        (Order::Drive(limits, rank), Some((load, None))) => {
            let driven = session.drive(load, &limits, rank)?;
            Ok(Answer::Driven(Box::new(driven), None))
        }
        (Order::Drive(limits, rank), Some((load, Some(both)))) => {
            let (driven, figures) = session.drive_both(load, both, &limits, rank)?;
            Ok(Answer::Driven(Box::new(driven), figures))
        }
        (Order::Drive(..), None) => Err(thread_lost()),
        (Order::Unload, _) => {
            loaded.take().into_iter().for_each(|(load, _)| session.unload(load));
            Ok(Answer::Done)
        }
        (Order::Join(join, patience), _) => session.join(&join, patience).map(Answer::Begin),
        (Order::Status, _) => session.server_status().map(Answer::Status),
        (Order::Holdings, _) => session.server_holdings().map(Answer::Holdings),
    }
}

fn thread_lost() -> Failure {
    Failure::Measurement("a client core exited early".to_owned())
}

const LEAD: Duration = Duration::from_millis(2);
