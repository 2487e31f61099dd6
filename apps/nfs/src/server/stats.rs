//! Counters of a server. Every thread that answers calls has its own counters, which only it
//! writes; readers add them up.

use crate::nfs3::PROCEDURES;
use crate::protocol::{Nfsstat3, ProcedureId};
use spinrpc::control::{Durations, LatencyHistogram};
use spinrpc::sys::clock::{Clock, Ticks};
use std::array::from_fn;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of clients whose calls are counted separately: those that are connected, and then those that left last. Calls of
/// others are not counted for a client: those of clients that have lost their places are forgotten, and clients that are
/// connected beyond this number share one counter. A call that is still executed when its client loses its place counts
/// for the next one there.
pub const CLIENTS_MAX: usize = 512;

/// Maximum number of exports of a server: each has a place in the reply to EXPORT.
pub const EXPORTS_MAX: usize = 256;

/// Counters of one procedure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcedureStats {
    /// Calls received.
    pub calls: u64,
    /// Calls answered with a status other than NFS3_OK.
    pub errors: u64,
    /// Those of `errors` that were executed. Others are calls to be retried (NFS3ERR_JUKEBOX), those with a handle of no file,
    /// and those of clients that the export does not list.
    pub failed: u64,
    /// Time from the beginning of execution, when the arguments are there, to the results, of calls that were executed.
    pub durations: Durations,
}

/// Calls of a client, or to an export, that were answered or rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Their number.
    pub calls: u64,
    /// Sum of their durations, in nanoseconds.
    pub ns: u64,
    /// The last one.
    pub last: Option<LastCall>,
}

/// The last call of a client that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LastCall {
    at: Ticks,
    /// Number of its procedure.
    pub procedure: u32,
    /// Number of its export, if it was to one.
    pub export: Option<u32>,
}

impl LastCall {
    /// Time since its arrival.
    pub fn elapsed(&self) -> Duration {
        let clock = Clock::shared();
        Duration::from_nanos(clock.to_ns(clock.now().0.saturating_sub(self.at.0)))
    }
}

impl Usage {
    pub(super) fn add(&mut self, more: &Self) {
        self.calls += more.calls;
        self.ns += more.ns;
        self.last = self.last.max(more.last);
    }

    pub(super) fn since(&self, before: &Self) -> Self {
        let calls = self.calls.saturating_sub(before.calls);
        let ns = self.ns.saturating_sub(before.ns);
        Self { calls, ns, last: self.last.filter(|last| Some(*last) > before.last) }
    }
}

/// What a call is counted for, from its arrival to its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    pub(super) operation: ProcedureId,
    /// Place of its client in the table.
    client: u32,
    export: Option<u32>,
    began: Ticks,
    is_refused: bool,
}

impl Ticket {
    pub(super) fn to(self, export: u32) -> Self {
        Self { export: Some(export), ..self }
    }

    /// The call is not executed: its duration and status tell nothing about calls that are.
    pub(super) fn refused(self) -> Self {
        Self { is_refused: true, ..self }
    }
}

/// Counters since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// By procedure number.
    pub procedures: [ProcedureStats; PROCEDURES],
    /// Bytes returned by READ.
    pub bytes_read: u64,
    /// Bytes accepted by WRITE.
    pub bytes_written: u64,
    /// NFS3ERR_JUKEBOX answers: a resource was exhausted.
    pub jukebox: u64,
    /// Handles that this server did not make (NFS3ERR_BADHANDLE).
    pub bad_handles: u64,
    /// Calls denied because of their credential.
    pub denied: u64,
    /// Calls with malformed arguments.
    pub garbage: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Not atomic: there is one writer, and readers only need a recent value.
    pub(super) fn add(&self, more: u64) {
        self.0.store(self.value().wrapping_add(more), Ordering::Relaxed);
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct UsageCounters {
    calls: Counter,
    ns: Counter,
    /// Number of the export plus one, or 0: of the last call of a client, or the export itself.
    export: Counter,
    /// Of the last call: ticks of its arrival, and its procedure in the lowest bits.
    last: Counter,
}

const PROCEDURE_BITS: u32 = 5;
const _: () = assert!(PROCEDURES <= 1 << PROCEDURE_BITS);
/// Places for exports, those before a reload included. Calls to others are counted without their export.
const EXPORT_PLACES: usize = 2 * EXPORTS_MAX;
/// Places that an export may have, from its number on: each call looks through those before its own.
const EXPORT_PROBES_MAX: usize = 32;

impl UsageCounters {
    fn count(&self, call: &Ticket, ns: u64) {
        self.calls.add(1);
        self.ns.add(ns);
        self.export.set(call.export.map_or(0, |id| u64::from(id) + 1));
        self.last.set(call.began.0 << PROCEDURE_BITS | call.operation as u64);
    }

    fn export(&self) -> Option<u32> {
        u32::try_from(self.export.value().checked_sub(1)?).ok()
    }

    /// The last call may be one that is counted meanwhile.
    fn usage(&self) -> Usage {
        let (calls, ns, last) = (self.calls.value(), self.ns.value(), self.last.value());
        let procedure = (last & ((1 << PROCEDURE_BITS) - 1)) as u32;
        let at = Ticks(last >> PROCEDURE_BITS);
        let last = (calls > 0).then(|| LastCall { at, procedure, export: self.export() });
        Usage { calls, ns, last }
    }
}

#[derive(Debug)]
pub(super) struct Counters {
    clock: Clock,
    durations: [LatencyHistogram; PROCEDURES],
    /// By place in the table of clients.
    clients: Box<[UsageCounters]>,
    /// Each at the first free place from its number on.
    exports: Box<[UsageCounters]>,
    calls: [Counter; PROCEDURES],
    failed: [Counter; PROCEDURES],
    refused: [Counter; PROCEDURES],
    pub(super) bytes_read: Counter,
    pub(super) bytes_written: Counter,
    jukebox: Counter,
    bad_handles: Counter,
    pub(super) denied: Counter,
    pub(super) garbage: Counter,
}

impl Default for Counters {
    fn default() -> Self {
        let places = |count| (0..count).map(|_| UsageCounters::default()).collect();
        Self {
            clock: Clock::shared(),
            durations: from_fn(|_| LatencyHistogram::default()),
            clients: places(CLIENTS_MAX + 1),
            exports: places(EXPORT_PLACES),
            calls: Default::default(),
            failed: Default::default(),
            refused: Default::default(),
            bytes_read: Counter::default(),
            bytes_written: Counter::default(),
            jukebox: Counter::default(),
            bad_handles: Counter::default(),
            denied: Counter::default(),
            garbage: Counter::default(),
        }
    }
}

impl Counters {
    pub(super) fn begin(&self, operation: ProcedureId, client: u32) -> Ticket {
        count(&self.calls, operation);
        Ticket { operation, client, export: None, began: self.clock.now(), is_refused: false }
    }

    pub(super) fn now(&self) -> Ticks {
        self.clock.now()
    }

    pub(super) fn elapsed(&self, since: Ticks) -> Duration {
        Duration::from_nanos(self.clock.to_ns(self.now().0.saturating_sub(since.0)))
    }

    pub(super) fn end(&self, call: &Ticket) {
        let ns = self.clock.to_ns(self.clock.now().0.saturating_sub(call.began.0));
        if let Some(durations) = self.durations.get(call.operation as usize)
            && !call.is_refused
        {
            durations.record(ns);
        }
        if let Some(client) = self.clients.get(call.client as usize) {
            client.count(call, ns);
        }
        if let Some(export) = call.export.and_then(|id| self.export(id)) {
            export.count(call, ns);
        }
    }

    /// The counters of an export. Only this thread takes free places.
    fn export(&self, id: u32) -> Option<&UsageCounters> {
        let (before, from) = self.exports.split_at(id as usize % EXPORT_PLACES);
        let is_its = |place: &&UsageCounters| place.export().is_none_or(|own| own == id);
        from.iter().chain(before).take(EXPORT_PROBES_MAX).find(is_its)
    }

    pub(super) fn client_usage(&self, place: usize) -> Usage {
        self.clients.get(place).map(UsageCounters::usage).unwrap_or_default()
    }

    pub(super) fn add_exports_to(&self, sum: &mut BTreeMap<u32, Usage>) {
        for place in &self.exports {
            if let Some(id) = place.export() {
                sum.entry(id).or_default().add(&place.usage());
            }
        }
    }

    /// Counts a call that fails; returns it refused if that is what the status says.
    pub(super) fn fail(&self, call: Ticket, status: Nfsstat3) -> Ticket {
        let refused = match status {
            Nfsstat3::Nfs3errJukebox => Some(&self.jukebox),
            Nfsstat3::Nfs3errBadhandle => Some(&self.bad_handles),
            _ => None,
        };
        if let Some(counter) = refused {
            counter.add(1);
        }
        if refused.is_none() && status != Nfsstat3::Nfs3errStale && !call.is_refused {
            count(&self.failed, call.operation);
            return call;
        }
        count(&self.refused, call.operation);
        call.refused()
    }

    pub(super) fn add_to(&self, sum: &mut ServerStats) {
        for (number, procedure) in sum.procedures.iter_mut().enumerate() {
            procedure.calls += self.calls[number].value();
            let failed = self.failed[number].value();
            procedure.errors += failed + self.refused[number].value();
            procedure.failed += failed;
            procedure.durations += self.durations[number].read();
        }
        sum.bytes_read += self.bytes_read.value();
        sum.bytes_written += self.bytes_written.value();
        sum.jukebox += self.jukebox.value();
        sum.bad_handles += self.bad_handles.value();
        sum.denied += self.denied.value();
        sum.garbage += self.garbage.value();
    }
}

fn count(counters: &[Counter; PROCEDURES], operation: ProcedureId) {
    if let Some(counter) = counters.get(operation as usize) {
        counter.add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_threads_add_up() {
        let (core, thread) = (Counters::default(), Counters::default());
        let call = core.begin(ProcedureId::Nfsproc3Lookup, 7).to(9);
        thread.end(&thread.fail(call, Nfsstat3::Nfs3errNoent));
        core.bytes_read.add(7);
        let mut sum = ServerStats::default();
        core.add_to(&mut sum);
        thread.add_to(&mut sum);
        let ProcedureStats { calls, errors, failed, durations } = sum.procedures[3];
        assert_eq!((calls, errors, failed, durations.count()), (1, 1, 1, 1));
        let usage = thread.client_usage(7);
        let last = usage.last.unwrap();
        assert_eq!((usage.calls, usage.ns), (1, durations.sum_ns));
        assert_eq!((last.procedure, last.export), (3, Some(9)));
        assert_eq!(core.client_usage(7), Usage::default());
        assert_eq!((sum.bytes_read, sum.jukebox, sum.bad_handles), (7, 0, 0));
    }

    /// They are answered at once: many would hide how slow the others are, and how many of these fail.
    #[test]
    fn calls_that_are_not_executed_count_apart() {
        use Nfsstat3::{Nfs3errAcces, Nfs3errBadhandle, Nfs3errIo, Nfs3errJukebox, Nfs3errStale};
        let (counters, mut sum) = (Counters::default(), ServerStats::default());
        let begin = || counters.begin(ProcedureId::Nfsproc3Read, 7);
        for status in [Nfs3errIo, Nfs3errBadhandle, Nfs3errJukebox, Nfs3errStale] {
            counters.end(&counters.fail(begin(), status));
        }
        counters.end(&counters.fail(begin().refused(), Nfs3errAcces));
        // Denied, or without sound arguments.
        counters.end(&begin().refused());
        counters.add_to(&mut sum);
        let ProcedureStats { calls, errors, failed, durations } = sum.procedures[6];
        assert_eq!((calls, errors, failed, durations.count()), (6, 5, 1, 1));
        assert_eq!((sum.jukebox, sum.bad_handles, counters.client_usage(7).calls), (1, 1, 6));
    }

    /// More exports than places that one may have, one after another, whose numbers begin at one place. Expect each to be
    /// counted once, as long as there are places.
    #[test]
    fn exports_are_counted_by_number_and_those_without_a_place_are_not() {
        let counters = Counters::default();
        let call = |id| counters.end(&counters.begin(ProcedureId::Nfsproc3Read, 0).to(id));
        let all = (0..=EXPORT_PROBES_MAX as u32)
            .map(|number| number.wrapping_mul(EXPORT_PLACES as u32) + 511);
        all.clone().for_each(call);
        all.clone().for_each(call);
        let mut sum = BTreeMap::new();
        counters.add_exports_to(&mut sum);
        let counted: BTreeMap<_, _> = sum.iter().map(|(id, usage)| (*id, usage.calls)).collect();
        assert_eq!(counted, all.take(EXPORT_PROBES_MAX).map(|id| (id, 2)).collect());
    }
}
