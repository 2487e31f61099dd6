//! Bodies under RPCSEC_GSS that are too long to be sealed or opened at once: a core does a bounded part of one in each
//! turn, so that its other connections do not wait for a mebibyte of encryption. Connections take turns; the bodies of one
//! are done one after the other, in the order in which they came.

use crate::fabric::ConnId;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::pending::gss_calls::SentCall;
use crate::reactor::words::protection::{LaidOut, Protection, Unprotected};
use crate::reactor::words::reply_plan::ReplyData;
use spinrpc_gss::context::Context;
use spinrpc_gss::{BodyOpening, BodySealing, Progress};
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::output::SlotId;
use std::collections::VecDeque;
use std::ops::Range;

/// Most bodies of a core; more are done at once, as are those beyond the share of a connection.
const BODIES_MAX: usize = 64;
/// They lie in blocks of the core's memory, and may take one of so many.
const BLOCKS_SHARE: usize = 4;
/// A connection may have one of so many bodies.
const CONN_SHARE: usize = 2;

/// A body that is not finished.
#[expect(clippy::large_enum_variant, reason = "bodies lie in the queue, not on the heap")]
pub(crate) enum Work {
    Call(CallOpening),
    Reply(ReplyOpening),
    Seal(ReplySealing),
}

/// A verified call, whose arguments are being opened.
pub(crate) struct CallOpening {
    pub(crate) conn: ConnId,
    pub(crate) slot: SlotId,
    /// The whole RPC message, in private memory.
    pub(crate) message: Bulk,
    /// The body begins there.
    pub(crate) at: usize,
    pub(crate) protection: Protection,
    pub(crate) opening: BodyOpening,
}

/// A verified reply, whose results are being opened. Its call has ended.
pub(crate) struct ReplyOpening {
    pub(crate) conn: ConnId,
    pub(crate) token: u64,
    pub(crate) sent: SentCall,
    /// The body, in private memory.
    pub(crate) message: Bulk,
    pub(crate) opening: BodyOpening,
    /// Buffers that go back to the application.
    pub(crate) arguments: [Option<Bulk>; ITEMS_MAX],
    pub(crate) results: [Option<Bulk>; ITEMS_MAX],
}

/// The answer to a call, being sealed.
pub(crate) struct ReplySealing {
    pub(crate) conn: ConnId,
    pub(crate) slot: SlotId,
    pub(crate) protection: Protection,
    pub(crate) reply: LaidOut,
    pub(crate) sealing: BodySealing,
    /// Without items, which stand in the body.
    pub(crate) data: ReplyData,
}

/// A body that is finished, and the place of arguments or results in it if it was opened.
#[expect(clippy::large_enum_variant, reason = "it is looked at where it is made")]
pub(crate) enum Finished {
    Call(CallOpening, Result<Range<usize>, Unprotected>),
    Reply(ReplyOpening, Result<Range<usize>, Unprotected>),
    Seal(ReplySealing, Result<(), Unprotected>),
}

/// What a step came to.
type Step = Option<Result<Range<usize>, Unprotected>>;

/// The unfinished bodies of a core.
pub(crate) struct GssWork {
    waiting: VecDeque<Work>,
    /// How many may be there: each holds memory that calls and replies need.
    bodies_max: usize,
    /// Index of the connection that had the last step.
    last: u32,
    /// Calls that were denied may wait for another context.
    pub(in crate::reactor) denied: bool,
    /// Longest part that is done in one turn.
    step_bytes: usize,
}

impl GssWork {
    /// Of a core that has this memory.
    pub(in crate::reactor) fn new(step_bytes: usize, pool: &BulkPool) -> Self {
        let blocks = pool.classes().last().map_or(0, |longest| longest.total);
        let bodies_max = (blocks / BLOCKS_SHARE).clamp(1, BODIES_MAX);
        let waiting = VecDeque::with_capacity(bodies_max);
        Self { waiting, bodies_max, last: u32::MAX, denied: false, step_bytes }
    }

    pub(in crate::reactor) fn step_bytes(&self) -> usize {
        self.step_bytes
    }

    /// A body of so many bytes takes more than one turn.
    pub(in crate::reactor) fn is_long(&self, bytes: usize) -> bool {
        bytes > self.step_bytes
    }

    /// A connection may leave another body here.
    pub(in crate::reactor) fn has_room(&self, conn: ConnId) -> bool {
        let own = self.waiting.iter().filter(|work| work.conn() == conn).count();
        self.waiting.len() < self.bodies_max && own < self.bodies_max.div_ceil(CONN_SHARE)
    }

    pub(in crate::reactor) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(in crate::reactor) fn push(&mut self, work: Work) {
        self.waiting.push_back(work);
    }

    /// Does one part of the body whose turn it is; gives the body if that was the last.
    pub(in crate::reactor) fn step(&mut self) -> Option<Finished> {
        let index = self.next()?;
        let step_bytes = self.step_bytes;
        let work = self.waiting.get_mut(index)?;
        self.last = work.conn().index();
        let end = work.step(step_bytes)?;
        self.finish(index, end)
    }

    /// The rest of the first unfinished reply of a connection, at once.
    pub(in crate::reactor) fn finish_reply(&mut self, conn: ConnId) -> Option<Finished> {
        self.finish_first(|work| matches!(work, Work::Reply(reply) if reply.conn == conn))
    }

    /// The same of the first answer to a call.
    pub(in crate::reactor) fn finish_seal(&mut self, conn: ConnId) -> Option<Finished> {
        self.finish_first(|work| matches!(work, Work::Seal(reply) if reply.conn == conn))
    }

    fn finish_first(&mut self, is_meant: impl FnMut(&Work) -> bool) -> Option<Finished> {
        let index = self.waiting.iter().position(is_meant)?;
        let work = self.waiting.get_mut(index)?;
        let end = loop {
            if let Some(end) = work.step(usize::MAX) {
                break end;
            }
        };
        self.finish(index, end)
    }

    /// Forgets the calls of a connection that has gone.
    pub(in crate::reactor) fn forget_calls(&mut self, conn: ConnId) {
        self.waiting.retain(|work| matches!(work, Work::Reply(_)) || work.conn() != conn);
    }

    /// The first body of the connection behind that of the last step.
    fn next(&self) -> Option<usize> {
        let place = |index: &usize| {
            let conn = self.waiting[*index].conn().index();
            (conn <= self.last, conn)
        };
        (0..self.waiting.len()).min_by_key(place)
    }

    fn finish(&mut self, index: usize, end: Result<Range<usize>, Unprotected>) -> Option<Finished> {
        Some(match self.waiting.remove(index)? {
            Work::Call(call) => Finished::Call(call, end),
            Work::Seal(reply) => Finished::Seal(reply, end.map(drop)),
            Work::Reply(reply) => Finished::Reply(reply, end),
        })
    }
}

impl Work {
    fn conn(&self) -> ConnId {
        match self {
            Self::Call(call) => call.conn,
            Self::Reply(reply) => reply.conn,
            Self::Seal(reply) => reply.conn,
        }
    }

    fn step(&mut self, step_bytes: usize) -> Step {
        match self {
            Self::Call(CallOpening { protection, message, at, opening, .. }) => {
                let body = &mut message.bytes_mut()[*at..];
                open_step(&protection.context, opening, body, step_bytes)
            }
            Self::Reply(ReplyOpening { sent, message, opening, .. }) => {
                open_step(&sent.context.context, opening, message.bytes_mut(), step_bytes)
            }
            Self::Seal(ReplySealing { protection, reply, sealing, .. }) => {
                let body = &mut reply.message.bytes_mut()[reply.at..];
                match sealing.step(protection.context.send_keys(), body, step_bytes) {
                    // The bug that the canary plants: a reply leaves when its first part is sealed.
                    Ok(Progress::More) if cfg!(feature = "gss-canary") => Some(Ok(0..0)),
                    Ok(Progress::More) => None,
                    Ok(Progress::Done) => Some(Ok(0..0)),
                    Err(_) => Some(Err(Unprotected::Failed)),
                }
            }
        }
    }
}

fn open_step(
    context: &Context,
    opening: &mut BodyOpening,
    body: &mut [u8],
    step_bytes: usize,
) -> Step {
    let opened = opening.step(context.receive_keys(), body, step_bytes);
    opened.map_err(|_| Unprotected::Forged).transpose()
}
