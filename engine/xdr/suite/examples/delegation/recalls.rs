//! The callback program of a client: answers the recalls of its delegations.

use spinrpc::AcceptStatus;
use spinrpc_xdr::rpc::{TypedCall, TypedDeferred};
use spinrpc_xdr::{Array, Opaque};
use spinrpc_xdr_suite::nfs41::nfs_cb::{self, CbCompound};
use spinrpc_xdr_suite::nfs41::{
    CbCompound4args, CbCompound4res, CbRecall4args, CbSequence4args, CbSequence4res,
    CbSequence4resok, NfsCbArgop4, NfsCbResop4, Nfsstat4, Sequenceid4, Stateid4, Status4res,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The answer to a recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    AtOnce,
    /// This time to the first one, and at once to those that are sent again.
    After(Duration),
    /// NFS4ERR_DELAY to the first one, and success to the next.
    NotYet,
    /// SYSTEM_ERR to the first one, and success to the next.
    Reject,
    Never,
}

#[derive(Debug)]
pub(crate) struct Recall {
    pub(crate) stateid: Stateid4,
    /// Number of the call in the slot of the back channel.
    pub(crate) sequence: Sequenceid4,
    /// Calls of the client that had no reply then.
    pub(crate) in_flight: usize,
}

/// A call that is not answered yet.
#[derive(Debug)]
struct Open {
    due: Option<Instant>,
    call: TypedDeferred<CbCompound>,
    sequence: CbSequence4resok,
}

#[derive(Debug)]
pub(crate) struct Recalls {
    answer: Answer,
    pub(crate) seen: Vec<Recall>,
    open: Vec<Open>,
    /// Calls of the load without a reply, now and at most.
    pub(crate) in_flight: usize,
    pub(crate) most_in_flight: usize,
}

pub(crate) type SharedRecalls = Arc<Mutex<Recalls>>;

impl Recalls {
    pub(crate) fn new(answer: Answer) -> Self {
        Self { answer, seen: Vec::new(), open: Vec::new(), in_flight: 0, most_in_flight: 0 }
    }

    /// Number of calls that wait for their answers.
    pub(crate) fn unanswered(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn answer_due(&mut self) {
        let now = Instant::now();
        let is_due = |open: &mut Open| open.due.is_some_and(|due| due <= now);
        for open in self.open.extract_if(.., is_due) {
            let results = results(&open.sequence, Nfsstat4::Nfs4Ok);
            open.call.reply(&compound(Nfsstat4::Nfs4Ok, &results));
        }
    }

    fn recall(
        &mut self,
        sequence: &CbSequence4args<'_>,
        recall: &CbRecall4args<'_>,
        call: TypedCall<'_, CbCompound>,
    ) {
        let (stateid, in_flight) = (recall.stateid, self.in_flight);
        self.seen.push(Recall { stateid, sequence: sequence.csa_sequenceid, in_flight });
        let is_first = self.seen.len() == 1;
        let sequence = CbSequence4resok {
            csr_sessionid: sequence.csa_sessionid,
            csr_sequenceid: sequence.csa_sequenceid,
            csr_slotid: sequence.csa_slotid,
            csr_highest_slotid: sequence.csa_highest_slotid,
            csr_target_highest_slotid: sequence.csa_highest_slotid,
        };
        let status = match self.answer {
            Answer::Reject if is_first => return call.into_inner().reject(AcceptStatus::SystemErr),
            Answer::Never => return self.defer(call, sequence, None),
            Answer::After(time) if is_first => {
                return self.defer(call, sequence, Some(Instant::now() + time));
            }
            Answer::NotYet if is_first => Nfsstat4::Nfs4errDelay,
            _ => Nfsstat4::Nfs4Ok,
        };
        call.reply(&compound(status, &results(&sequence, status)));
    }

    fn defer(
        &mut self,
        call: TypedCall<'_, CbCompound>,
        sequence: CbSequence4resok,
        due: Option<Instant>,
    ) {
        self.open.extend(call.defer().map(|call| Open { due, call, sequence }));
    }
}

fn results(sequence: &CbSequence4resok, recall: Nfsstat4) -> [NfsCbResop4; 2] {
    [
        NfsCbResop4::OpCbSequence(CbSequence4res::Nfs4Ok(*sequence)),
        NfsCbResop4::OpCbRecall(Status4res { status: recall }),
    ]
}

fn compound(status: Nfsstat4, results: &[NfsCbResop4]) -> CbCompound4res<'_> {
    let resarray = Array::new(results).unwrap_or_default();
    CbCompound4res { status, tag: Opaque::default(), resarray }
}

/// The service of the engine. It has one core, so that the lock is always free.
pub(crate) struct Service(pub(crate) SharedRecalls);

impl nfs_cb::Service for Service {
    fn cb_compound(&mut self, args: CbCompound4args<'_>, call: TypedCall<'_, CbCompound>) {
        let mut recalls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut operations = args.argarray.iter();
        let first = (operations.next(), operations.next(), operations.next());
        match (args.minorversion, first) {
            (
                1,
                (
                    Some(NfsCbArgop4::OpCbSequence(sequence)),
                    Some(NfsCbArgop4::OpCbRecall(recall)),
                    None,
                ),
            ) => recalls.recall(&sequence, &recall, call),
            _ => call.into_inner().reject(AcceptStatus::GarbageArgs),
        }
    }
}
