//! Bodies under RPCSEC_GSS that are too long to be sealed or opened at once: a core processes a bounded part of one
//! in each turn, so that its other connections do not wait for the encryption of a mebibyte. Connections take turns;
//! the bodies of one connection are processed in order of arrival.

use crate::fabric::ConnId;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::pending::gss_calls::{DeniedCall, SentCall};
use crate::reactor::words::calls::{CallSpec, PartCopied};
use crate::reactor::words::protection::{ClientContext, LaidOut, Protection, Unprotected};
use crate::reactor::words::reply_plan::ReplyData;
use spinrpc_gss::context::Context;
use spinrpc_gss::{BodyOpening, BodySealing, Progress};
use spinrpc_proto::ids::Instant;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::output::SlotId;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Most bodies of a core. Further ones are processed at once, as are those beyond the share of a connection.
const BODIES_MAX: usize = 64;
/// Bodies may use this fraction of the blocks of the core's memory: one in four.
const BLOCKS_SHARE: usize = 4;
/// A connection may have this fraction of the bodies: one in two.
const CONN_SHARE: usize = 2;

/// A body that is not finished.
#[expect(clippy::large_enum_variant, reason = "bodies lie in the queue, not on the heap")]
pub(crate) enum Work {
    Call(CallOpening),
    Reply(ReplyOpening),
    Seal(ReplySealing),
    Send(CallSealing),
}

/// A call whose arguments are being sealed, and which has its slot.
pub(crate) struct CallSealing {
    pub(in crate::reactor) conn: ConnId,
    pub(in crate::reactor) slot: SlotId,
    pub(in crate::reactor) context: Arc<ClientContext>,
    /// The whole RPC message; none after an end that should not be.
    pub(in crate::reactor) message: Option<Bulk>,
    /// The body begins there.
    pub(in crate::reactor) at: usize,
    pub(in crate::reactor) sealing: BodySealing,
    pub(in crate::reactor) deadline: Instant,
    /// What the application asked for, without its buffers, which lie in the slot.
    pub(in crate::reactor) spec: CallSpec,
}

/// A verified call, whose arguments are being opened.
pub(crate) struct CallOpening {
    pub(crate) conn: ConnId,
    pub(crate) slot: SlotId,
    /// The whole RPC message, in private memory.
    pub(crate) message: Bulk,
    /// Offset of the body.
    pub(crate) at: usize,
    pub(crate) protection: Protection,
    pub(crate) opening: BodyOpening,
}

/// A verified reply, whose results are being opened. Its call has ended.
pub(crate) struct ReplyOpening {
    pub(crate) conn: ConnId,
    pub(crate) token: u64,
    pub(crate) sent: SentCall,
    /// The reply, in private memory.
    pub(crate) message: Bulk,
    /// The body begins there.
    pub(crate) at: usize,
    /// Source of the part that is not copied yet.
    pub(crate) rest: Option<PartCopied>,
    /// Set once all has been copied.
    pub(crate) opening: Option<BodyOpening>,
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
    /// Without items, which are already in the body.
    pub(crate) data: ReplyData,
}

/// A body that is finished, and the place of arguments or results in it if it was opened.
#[expect(clippy::large_enum_variant, reason = "it is looked at where it is made")]
pub(crate) enum Finished {
    Call(CallOpening, Result<Range<usize>, Unprotected>),
    Reply(ReplyOpening, Result<Range<usize>, Unprotected>),
    Seal(ReplySealing, Result<(), Unprotected>),
    Send(CallSealing, Result<(), Unprotected>),
}

/// Result of a step.
type Step = Option<Result<Range<usize>, Unprotected>>;

/// The unfinished bodies of a core.
pub(crate) struct GssWork {
    waiting: VecDeque<Work>,
    /// Sealed calls that could not be sent yet.
    pub(in crate::reactor) sealed: VecDeque<CallSealing>,
    /// Largest number of bodies: each holds memory that calls and replies need.
    bodies_max: usize,
    /// Index of the connection that had the last step.
    last: u32,
    /// Calls that were denied, and wait for another context.
    pub(in crate::reactor) denied: Vec<DeniedCall>,
    /// There is work of which the dispatch has not heard.
    pub(in crate::reactor) is_new: bool,
    /// Longest part that is processed in one turn.
    step_bytes: usize,
}

impl GssWork {
    /// Creates the list for a core with this memory.
    pub(in crate::reactor) fn new(step_bytes: usize, pool: &BulkPool) -> Self {
        let blocks = pool.classes().last().map_or(0, |longest| longest.total);
        let bodies_max = (blocks / BLOCKS_SHARE).clamp(1, BODIES_MAX);
        let waiting = VecDeque::with_capacity(bodies_max);
        let sealed = VecDeque::with_capacity(bodies_max);
        let (denied, is_new) = (Vec::new(), false);
        Self { waiting, sealed, bodies_max, last: u32::MAX, denied, is_new, step_bytes }
    }

    pub(in crate::reactor) fn step_bytes(&self) -> usize {
        self.step_bytes
    }

    /// Returns true if a body of this size takes more than one turn.
    pub(in crate::reactor) fn is_long(&self, bytes: usize) -> bool {
        bytes > self.step_bytes
    }

    /// Returns true if the connection may add another body.
    pub(in crate::reactor) fn has_room(&self, conn: ConnId) -> bool {
        let sealed = self.sealed.iter().map(|call| call.conn);
        let own = self.waiting.iter().map(Work::conn).chain(sealed).filter(|other| *other == conn);
        let all = self.waiting.len() + self.sealed.len();
        all < self.bodies_max && own.count() < self.bodies_max.div_ceil(CONN_SHARE)
    }

    pub(in crate::reactor) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.sealed.is_empty()
    }

    /// Returns true if there is a body to seal or open.
    pub(in crate::reactor) fn has_steps(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(in crate::reactor) fn push(&mut self, work: Work) {
        self.waiting.push_back(work);
    }

    /// Processes one part of the body whose turn it is; returns the body if that was the last part.
    pub(in crate::reactor) fn step(&mut self) -> Option<Finished> {
        let index = self.next()?;
        let step_bytes = self.step_bytes;
        let work = self.waiting.get_mut(index)?;
        self.last = work.conn().index();
        let end = work.step(step_bytes)?;
        self.finish(index, end)
    }

    /// Completes the first unfinished reply of a connection at once.
    pub(in crate::reactor) fn finish_reply(&mut self, conn: ConnId) -> Option<Finished> {
        self.finish_first(|work| matches!(work, Work::Reply(reply) if reply.conn == conn))
    }

    /// The same for the first answer to a call.
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
        self.sealed.retain(|call| call.conn != conn);
    }

    /// Forgets a call of a client that has ended before it was sent; true if there was one.
    pub(in crate::reactor) fn forget_unsent(&mut self, conn: ConnId, slot: SlotId) -> bool {
        let is_it = |call: &CallSealing| (call.conn, call.slot) == (conn, slot);
        let before = self.waiting.len() + self.sealed.len();
        self.waiting.retain(|work| !matches!(work, Work::Send(call) if is_it(call)));
        self.sealed.retain(|call| !is_it(call));
        self.waiting.len() + self.sealed.len() < before
    }

    /// Forgets a reply that is being opened, and gives the token of its call, which the application knows by this slot.
    pub(in crate::reactor) fn forget_reply(&mut self, conn: ConnId, slot: SlotId) -> Option<u64> {
        let is_it = |work: &Work| match work {
            Work::Reply(reply) => reply.conn == conn && reply.sent.is_known_as(slot),
            _ => false,
        };
        let index = self.waiting.iter().position(is_it)?;
        match self.waiting.remove(index)? {
            Work::Reply(reply) => Some(reply.token),
            _ => None,
        }
    }

    /// Forgets a call that was denied, and gives its token.
    pub(in crate::reactor) fn forget_denied(&mut self, conn: ConnId, slot: SlotId) -> Option<u64> {
        let is_it = |call: &DeniedCall| (call.conn, call.slot) == (conn, slot);
        let index = self.denied.iter().position(is_it)?;
        Some(self.denied.remove(index).token)
    }

    /// The first body of the connection that follows the connection of the last step.
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
            Work::Send(call) => Finished::Send(call, end.map(drop)),
        })
    }
}

impl Work {
    fn conn(&self) -> ConnId {
        match self {
            Self::Call(call) => call.conn,
            Self::Reply(reply) => reply.conn,
            Self::Seal(reply) => reply.conn,
            Self::Send(call) => call.conn,
        }
    }

    fn step(&mut self, step_bytes: usize) -> Step {
        match self {
            Self::Call(CallOpening { protection, message, at, opening, .. }) => {
                let body = &mut message.bytes_mut()[*at..];
                open_step(&protection.context, opening, body, step_bytes)
            }
            Self::Reply(reply) => reply.step(step_bytes),
            Self::Seal(ReplySealing { protection, reply, sealing, .. }) => {
                let body = &mut reply.message.bytes_mut()[reply.at..];
                // The bug that the canary plants: a reply leaves when its first part is sealed.
                let is_part_enough = cfg!(feature = "gss-canary");
                seal_step(&protection.context, sealing, (body, step_bytes), is_part_enough)
            }
            Self::Send(CallSealing { context, message, at, sealing, .. }) => {
                let body = message.as_mut().map_or(&mut [][..], |message| message.bytes_mut());
                let Some(body) = body.get_mut(*at..) else { return Some(Err(Unprotected::Failed)) };
                seal_step(&context.context, sealing, (body, step_bytes), false)
            }
        }
    }
}

impl ReplyOpening {
    /// Does what is left of it at once.
    pub(crate) fn finish(&mut self) -> Result<Range<usize>, Unprotected> {
        loop {
            if let Some(end) = self.step(usize::MAX) {
                return end;
            }
        }
    }

    /// Copies a part of it, or opens one.
    fn step(&mut self, step_bytes: usize) -> Step {
        if let Some(rest) = &mut self.rest {
            if rest.copy(self.message.bytes_mut(), step_bytes) {
                self.rest = None;
            }
            return None;
        }
        let context = &self.sent.context;
        let body = self.message.bytes_mut().get_mut(self.at..).unwrap_or_default();
        let opening = match &mut self.opening {
            Some(opening) => opening,
            place => {
                let (keys, sequence) = (context.context.receive_keys(), self.sent.sequence);
                match BodyOpening::begin(context.service, keys, body, sequence) {
                    Ok(begun) => place.insert(begun),
                    Err(_) => return Some(Err(Unprotected::Forged)),
                }
            }
        };
        open_step(&context.context, opening, body, step_bytes)
    }
}

fn seal_step(
    context: &Context,
    sealing: &mut BodySealing,
    (body, step_bytes): (&mut [u8], usize),
    is_part_enough: bool,
) -> Step {
    match sealing.step(context.send_keys(), body, step_bytes) {
        Ok(Progress::More) if is_part_enough => Some(Ok(0..0)),
        Ok(Progress::More) => None,
        Ok(Progress::Done) => Some(Ok(0..0)),
        Err(_) => Some(Err(Unprotected::Failed)),
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
