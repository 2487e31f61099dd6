//! Turns of the core, and the calls that a client has in flight meanwhile, each in a slot of its session.

use super::recalls::SharedRecalls;
use super::session::{Arrived, Failure, SLOTS, start};
use spinrpc::{Backpressure, Core};
use spinrpc_xdr::Array;
use spinrpc_xdr_suite::nfs41::nfs_v4;
use spinrpc_xdr_suite::nfs41::{Getattr4args, NfsArgop4, Sequence4args, Sessionid4};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// FATTR4_TYPE, FATTR4_CHANGE and FATTR4_SIZE.
const ATTRIBUTES: u32 = 1 << 1 | 1 << 3 | 1 << 4;

/// The core, and what happens between its turns.
pub(crate) struct Turns {
    pub(crate) core: Core,
    pub(crate) load: Option<Load>,
    pub(crate) recalls: SharedRecalls,
}

impl Turns {
    /// Runs a turn, and starts calls of the load.
    pub(crate) fn turn(&mut self) -> Result<(), Failure> {
        self.turn_without_load();
        match &mut self.load {
            Some(load) => load.pump(&self.recalls),
            None => Ok(()),
        }
    }

    pub(crate) fn turn_without_load(&mut self) {
        let work = self.core.poll_once();
        self.recalls.lock().unwrap_or_else(PoisonError::into_inner).answer_due();
        if work.events == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Runs turns until `done`; an error after `at_most`.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        at_most: Duration,
        mut done: impl FnMut() -> Option<T>,
    ) -> Result<T, Failure> {
        let end = Instant::now() + at_most;
        loop {
            if let Some(value) = done() {
                return Ok(value);
            }
            if Instant::now() > end {
                return Err(format!("waited {at_most:?} for {what}").into());
            }
            self.turn()?;
        }
    }

    /// Starts no more calls of the load, and waits for those in flight.
    pub(crate) fn unload(&mut self, at_most: Duration) -> Result<(), Failure> {
        let Some(load) = self.load.take() else { return Ok(()) };
        self.until("the last calls", at_most, || (load.in_flight() == 0).then_some(()))?;
        load.check()
    }
}

/// Calls in flight, as many as possible.
pub(crate) struct Load {
    client: nfs_v4::Client,
    session: Sessionid4,
    arrived: Rc<RefCell<Arrived>>,
    /// Number of the last call of each slot.
    sequences: Vec<u32>,
    calls: usize,
}

impl Load {
    pub(crate) fn new(
        client: nfs_v4::Client,
        session: Sessionid4,
        arrived: Rc<RefCell<Arrived>>,
        calls: usize,
    ) -> Self {
        arrived.borrow_mut().free_slots = (1..=calls).collect();
        Self { client, session, arrived, sequences: vec![0; calls + 1], calls }
    }

    fn in_flight(&self) -> usize {
        self.calls - self.arrived.borrow().free_slots.len()
    }

    fn check(&self) -> Result<(), Failure> {
        self.arrived.borrow_mut().failed.take().map_or(Ok(()), |failed| Err(failed.into()))
    }

    /// Starts a call in each free slot.
    fn pump(&mut self, recalls: &SharedRecalls) -> Result<(), Failure> {
        self.check()?;
        while let Some(slot) = self.next_free() {
            match self.start(slot) {
                Ok(()) => self.sequences[slot] += 1,
                Err(refused) => {
                    self.arrived.borrow_mut().free_slots.push(slot);
                    if refused == Backpressure::NoCredit {
                        break;
                    }
                    return Err(refused.into());
                }
            }
        }
        let mut recalls = recalls.lock().unwrap_or_else(PoisonError::into_inner);
        recalls.in_flight = self.in_flight();
        recalls.most_in_flight = recalls.most_in_flight.max(recalls.in_flight);
        Ok(())
    }

    fn start(&self, slot: usize) -> Result<(), Backpressure> {
        let sequence = sequence(self.session, slot, self.sequences[slot] + 1);
        let attr_request = Array::new(&[ATTRIBUTES]).unwrap_or_default();
        let getattr = NfsArgop4::OpGetattr(Getattr4args { attr_request });
        start(&self.client, slot, &[sequence, NfsArgop4::OpPutrootfh, getattr])
    }

    fn next_free(&self) -> Option<usize> {
        self.arrived.borrow_mut().free_slots.pop()
    }
}

/// Operation SEQUENCE of the call with this number in a slot.
pub(crate) fn sequence(session: Sessionid4, slot: usize, number: u32) -> NfsArgop4<'static> {
    NfsArgop4::OpSequence(Sequence4args {
        sa_sessionid: session,
        sa_sequenceid: number,
        sa_slotid: slot as u32,
        sa_highest_slotid: SLOTS - 1,
        sa_cachethis: false,
    })
}
