//! Several client cores at once, each on its own thread: they begin every repeat together.

use super::callee::Callee;
use super::measurement::Measurement;
use super::session::{Driven, Load, Session, Status, combine};
use super::workload::{Limits, Workload};
use crate::failure::Failure;
use spinrpc::Engine;
use std::sync::Barrier;
use std::thread;

/// Drives `workload` from every core of the engine, `repeats` times; `on_repeat` hears of each.
/// Blocks until all are done.
pub(crate) fn run(
    engine: &Engine,
    callee: Callee<'_>,
    workload: Workload,
    limits: Limits,
    repeats: u32,
) -> Result<Vec<Measurement>, Failure> {
    let cores = engine.cores();
    let gate = &Barrier::new(cores);
    let members: Vec<Member> = thread::scope(|scope| {
        let start = |index| {
            scope.spawn(move || Member::run(engine, index, callee, workload, limits, repeats, gate))
        };
        let threads: Vec<_> = (0..cores).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Member, Failure>>| {
            thread.join().unwrap_or_else(|_| Err(thread_lost()))
        };
        threads.into_iter().map(join).collect::<Result<_, _>>()
    })?;
    repeat_by_repeat(&workload, members)
}

/// What one core brings home: one entry per repeat.
struct Member {
    driven: Vec<Driven>,
    /// The server before and after each repeat, if it told.
    server: Vec<[Option<Status>; 2]>,
}

impl Member {
    fn run(
        engine: &Engine,
        index: usize,
        callee: Callee<'_>,
        workload: Workload,
        limits: Limits,
        repeats: u32,
        gate: &Barrier,
    ) -> Result<Self, Failure> {
        let mut open = Session::open(engine, index, callee)
            .and_then(|mut session| session.load(workload).map(|load| (session, load)));
        let mut member = Ok(Self { driven: Vec::new(), server: Vec::new() });
        for _ in 0..repeats {
            // Whoever failed still comes to the gate: the others would wait for ever.
            gate.wait();
            if let (Ok((session, load)), Ok(own)) = (&mut open, &mut member)
                && let Err(failure) = own.repeat(session, load, limits)
            {
                member = Err(failure);
            }
        }
        let (mut session, load) = open?;
        session.unload(load);
        member
    }

    fn repeat(
        &mut self,
        session: &mut Session<'_>,
        load: &Load,
        limits: Limits,
    ) -> Result<(), Failure> {
        let before = session.server_status_if_told()?;
        self.driven.push(session.drive(load, limits)?);
        self.server.push([before, session.server_status_if_told()?]);
        Ok(())
    }
}

/// The server's use is what the first core was told: with several server cores, that of one.
fn repeat_by_repeat(
    workload: &Workload,
    members: Vec<Member>,
) -> Result<Vec<Measurement>, Failure> {
    let server = members.first().map(|first| first.server.clone()).unwrap_or_default();
    let mut columns: Vec<_> = members.into_iter().map(|member| member.driven.into_iter()).collect();
    let row = |[before, after]: [Option<Status>; 2]| {
        let driven = columns.iter_mut().filter_map(Iterator::next).collect();
        let server = before.zip(after).map(|(before, after)| before.until(after));
        combine(workload, driven, server)
    };
    server.into_iter().map(row).collect()
}

fn thread_lost() -> Failure {
    Failure::Measurement("a client core ended early".to_owned())
}
