//! Latency histograms of a core, and the switch for measuring. Both are set by the control socket's thread, which wakes
//! the core and reads them without asking it.

use crate::reactor::types::latency::{Durations, Histogram, Row};
use crate::sync::atomic::{AtomicBool, Ordering};
use spinrpc_proto::ids::{Procedure, Program, Version};
use std::sync::OnceLock;

/// Number of procedures of a program with a latency histogram of their own: those with numbers below this. All others
/// share one.
pub const PROCEDURES_MEASURED: u32 = 64;
/// Histograms of a program.
const ROWS: usize = PROCEDURES_MEASURED as usize + 1;

/// Latencies of one core.
#[derive(Default)]
pub(crate) struct Latencies {
    /// Made by the first request; kept when measuring ends, for calls that are still deferred.
    table: OnceLock<Table>,
    is_wanted: AtomicBool,
    /// The core measures.
    is_on: AtomicBool,
}

struct Table {
    /// In the order of the core's services.
    programs: Box<[(Program, Version)]>,
    histograms: Box<[Histogram]>,
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

impl Table {
    fn new(programs: &[(Program, Version)]) -> Self {
        let count = programs.len() * ROWS;
        let histograms = (0..count).map(|_| Histogram::default()).collect();
        Self { programs: programs.into(), histograms }
    }
}

// Relaxed throughout: each flag stands for itself, and a core may be late.
impl Latencies {
    /// Calls of these programs are to be measured.
    pub(crate) fn begin(&self, programs: &[(Program, Version)]) {
        self.table.get_or_init(|| Table::new(programs));
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.is_wanted.store(false, Ordering::Relaxed);
    }

    /// The core does not do what is wanted yet.
    pub(crate) fn is_to_switch(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed) != self.is_on()
    }

    /// The core does what is wanted from now on. Returns true if it measures.
    pub(in crate::reactor) fn switch(&self) -> bool {
        let is_on = self.is_wanted.load(Ordering::Relaxed);
        self.is_on.store(is_on, Ordering::Relaxed);
        is_on
    }

    /// The core measures.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(in crate::reactor) fn record(&self, row: Row, ns: u64) {
        let table = self.table.get();
        if let Some(histogram) = table.and_then(|table| table.histograms.get(row.index())) {
            histogram.record(ns);
        }
    }

    /// Histograms that have counted a call.
    pub(crate) fn read(&self) -> impl Iterator<Item = Measured> {
        let tables = self.table.get().into_iter();
        let programs = tables.flat_map(|it| it.programs.iter().zip(it.histograms.chunks(ROWS)));
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
    #[test]
    fn procedures_have_histograms_of_their_own_below_a_limit() {
        let latencies = Latencies::default();
        latencies.record(row_of(0, Procedure(0)), 5);
        latencies.begin(&[(Program(7), Version(1)), (Program(8), Version(2))]);
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
}
