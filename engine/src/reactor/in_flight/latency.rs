//! Latency histograms of a core, and the switch for measuring. Created by the control socket's thread, which sends
//! them to the core in a letter (`Mail::Measure`) and reads them without asking it.

use crate::reactor::types::latency::{Durations, Histogram, Row};
use crate::sync::atomic::{AtomicBool, Ordering};
use spinrpc_proto::ids::{Procedure, Program, Version};
use std::sync::mpsc::SyncSender;

/// Number of procedures of a program with a latency histogram of their own: those with numbers below this. All others
/// share one.
pub const PROCEDURES_MEASURED: u32 = 64;
/// Histograms of a program.
const ROWS: usize = PROCEDURES_MEASURED as usize + 1;

/// Histograms of all programs of one core.
pub(crate) struct Latencies {
    /// In the order of the core's services.
    programs: Box<[(Program, Version)]>,
    histograms: Box<[Histogram]>,
    /// Measuring is requested.
    is_wanted: AtomicBool,
    /// The core measures.
    is_on: AtomicBool,
    /// A letter with the request is in flight.
    is_told: AtomicBool,
    /// Rung when the core has obeyed.
    obeyed: SyncSender<()>,
}

/// Histogram of one procedure, as read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) program: Program,
    pub(crate) version: Version,
    /// `None` for those from [`PROCEDURES_MEASURED`] on.
    pub(crate) procedure: Option<Procedure>,
    pub(crate) durations: Durations,
}

/// The histogram of a procedure of the service with this index.
pub(crate) fn row_of(service: usize, procedure: Procedure) -> Row {
    Row::new(service * ROWS + procedure.0.min(PROCEDURES_MEASURED) as usize)
}

impl Latencies {
    pub(crate) fn new(programs: &[(Program, Version)], obeyed: SyncSender<()>) -> Self {
        let count = programs.len() * ROWS;
        Self {
            programs: programs.into(),
            histograms: (0..count).map(|_| Histogram::default()).collect(),
            is_wanted: AtomicBool::new(false),
            is_on: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            obeyed,
        }
    }

    /// Switches measuring. Returns true if the core needs a letter to notice, which the caller must post; a core that
    /// does not read its mail has at most one such letter. Called by one thread only.
    #[must_use]
    pub(crate) fn want(&self, is_wanted: bool) -> bool {
        if self.is_wanted.load(Ordering::Relaxed) == is_wanted {
            return false;
        }
        self.is_wanted.store(is_wanted, Ordering::Relaxed);
        // Release: pairs with the exchange in `obey`. Either this finds no letter in flight, or the core that reads
        // that letter sees the latest request.
        !self.is_told.swap(true, Ordering::AcqRel)
    }

    /// The letter could not be posted: restores the state before [`Latencies::want`].
    pub(crate) fn take_back(&self) {
        let was_wanted = !self.is_wanted.load(Ordering::Relaxed);
        self.is_wanted.store(was_wanted, Ordering::Relaxed);
        self.is_told.store(false, Ordering::Release);
    }

    /// The core has read the letter: returns the requested state.
    pub(crate) fn obey(&self) -> bool {
        // Acquire: pairs with `want`.
        self.is_told.swap(false, Ordering::AcqRel);
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// The core measures from now on, or no longer.
    pub(crate) fn set_on(&self, is_on: bool) {
        // Relaxed: a state to report; measurements do not depend on it.
        self.is_on.store(is_on, Ordering::Relaxed);
        // A single ring wakes the waiting thread.
        let _ = self.obeyed.try_send(());
    }

    /// The core measures.
    pub(crate) fn is_on(&self) -> bool {
        // Relaxed: as above.
        self.is_on.load(Ordering::Relaxed)
    }

    pub(in crate::reactor) fn record(&self, row: Row, ns: u64) {
        if let Some(histogram) = self.histograms.get(row.index()) {
            histogram.record(ns);
        }
    }

    /// Histograms that have counted a call.
    pub(crate) fn read(&self) -> impl Iterator<Item = Measured> {
        let programs = self.programs.iter().zip(self.histograms.chunks(ROWS));
        programs.flat_map(|((program, version), rows)| {
            (0..).zip(rows).filter_map(|(number, histogram)| {
                let procedure = (number < PROCEDURES_MEASURED).then_some(Procedure(number));
                let (program, version, durations) = (*program, *version, histogram.read());
                let measured = Measured { program, version, procedure, durations };
                (durations.count() > 0).then_some(measured)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    fn latencies() -> Latencies {
        Latencies::new(&[(Program(7), Version(1)), (Program(8), Version(2))], sync_channel(1).0)
    }

    #[test]
    fn procedures_have_histograms_of_their_own_below_a_limit() {
        let latencies = latencies();
        for (service, procedure) in [(0, 0), (1, 63), (1, 64), (1, u32::MAX), (1, 63), (2, 0)] {
            latencies.record(row_of(service, Procedure(procedure)), 5);
        }
        let read: Vec<_> = latencies.read().collect();
        let counted = read.iter().map(|it| {
            (it.program.0, it.version.0, it.procedure.map(|it| it.0), it.durations.count())
        });
        assert_eq!(
            counted.collect::<Vec<_>>(),
            [(7, 1, Some(0), 1), (8, 2, Some(63), 2), (8, 2, None, 2)]
        );
    }

    /// Expect one letter in flight at a time, and the last request obeyed.
    #[test]
    fn a_core_that_does_not_read_its_mail_gets_one_letter() {
        let latencies = latencies();
        assert!(latencies.want(true));
        assert!(!latencies.want(false) && !latencies.want(true));
        assert!(latencies.obey());
        latencies.set_on(true);
        assert!(!latencies.want(true), "it measures already");
        assert!(latencies.want(false));
        assert!(!latencies.want(true) && !latencies.want(false));
        assert!(!latencies.obey());
        latencies.set_on(false);
        assert!(!latencies.want(false), "it does not measure");
        assert!(latencies.want(true));
        latencies.take_back();
        assert!(latencies.want(true));
        assert!(latencies.obey());
    }
}
