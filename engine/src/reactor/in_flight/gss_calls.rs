//! The calls of a connection that go under RPCSEC_GSS: the context of future calls, and the protection of the reply
//! to each call in flight.

use crate::fabric::ConnId;
use crate::mem::Bulk;
use crate::reactor::types::calls::{ReplyBuffers, Resend, SlotToken};
use crate::reactor::types::kept::Kept;
use crate::reactor::types::protection::ClientContext;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::requester::index_of;
use std::collections::VecDeque;
use std::sync::Arc;

/// See the module.
pub(crate) struct GssCalls {
    /// None before the first, and while another one is being established.
    context: Option<Arc<ClientContext>>,
    /// No call in flight under this context has a lower number.
    lowest: u32,
    /// By the index of the slot.
    sent: Box<[Option<SentCall>]>,
    /// Calls whose slots were reused, the oldest first: their replies may have arrived, and wait until keys are dead.
    /// At most as many as there are slots.
    earlier: VecDeque<SentCall>,
}

/// A call in flight.
pub(crate) struct SentCall {
    slot: SlotId,
    pub(crate) context: Arc<ClientContext>,
    pub(crate) sequence: u32,
    /// The slot in which it was denied before, under another context: the application knows it by that.
    denied_as: Option<SlotId>,
    /// What it is sent again from, if that is not in its slot: for a call that is an inline stream only.
    pub(crate) kept: Option<Kept>,
}

/// Calls under a context are in flight.
pub(crate) struct InUse;

/// A call that the server has not executed because it has lost the context, and that is sent again under another
/// context.
pub(crate) struct DeniedCall {
    pub(in crate::reactor) conn: ConnId,
    /// Its token, and the slot that it had.
    pub(crate) key: SlotToken,
    pub(crate) kept: Kept,
    pub(in crate::reactor) arguments: [Option<Bulk>; ITEMS_MAX],
    pub(in crate::reactor) results: [Option<Bulk>; ITEMS_MAX],
}

impl DeniedCall {
    pub(in crate::reactor) fn deadline(&self) -> Instant {
        self.kept.terms.deadline
    }
}

impl SentCall {
    /// Returns the call if it is to be sent again: "once", so that a server that denies every call is not asked
    /// forever. A call with at-most-once semantics that another connection may have executed is not sent again: it
    /// would get another XID.
    pub(crate) fn deny(
        &mut self,
        (conn, token): (ConnId, u64),
        buffers: Option<&mut ReplyBuffers<'_>>,
    ) -> Option<DeniedCall> {
        let may_repeat =
            |kept: &mut Kept| !kept.is_unknown() || kept.terms.resend != Resend::AtMostOnce;
        if self.denied_as.is_some() {
            return None;
        }
        let (key, mut own) = (SlotToken { slot: self.slot, token }, self.kept.take());
        let (mut arguments, mut results) = Default::default();
        let Some(buffers) = buffers else {
            return Some(DeniedCall { conn, key, kept: own?, arguments, results });
        };
        let kept = own.take().or_else(|| buffers.kept.take_if(may_repeat))?;
        (arguments, results) = (take_all(buffers.arguments), take_all(buffers.results));
        for (result, bytes) in results.iter_mut().zip(kept.result_bytes()) {
            if let (Some(result), Some(bytes)) = (result, bytes) {
                result.set_len(*bytes);
            }
        }
        Some(DeniedCall { conn, key, kept, arguments, results })
    }

    /// The slot that the application knows the call by.
    pub(in crate::reactor) fn known_as(&self) -> SlotId {
        self.denied_as.unwrap_or(self.slot)
    }

    fn xid(&self) -> Xid {
        self.slot.xid()
    }
}

/// Takes the buffers of a call.
pub(crate) fn take_all(buffers: &mut [Option<Bulk>]) -> [Option<Bulk>; ITEMS_MAX] {
    let mut all = [const { None }; ITEMS_MAX];
    for (place, buffer) in all.iter_mut().zip(buffers) {
        *place = buffer.take();
    }
    all
}

impl GssCalls {
    pub(in crate::reactor) fn new(slots: usize) -> Self {
        let sent = (0..slots).map(|_| None).collect();
        Self { context: None, lowest: 0, sent, earlier: VecDeque::with_capacity(slots) }
    }

    /// None before the first, and while another one is being established.
    pub(in crate::reactor) fn context(&self) -> Option<&Arc<ClientContext>> {
        self.context.as_ref()
    }

    /// Calls go under this context from now on.
    pub(in crate::reactor) fn change(&mut self, context: Option<Arc<ClientContext>>) {
        (self.context, self.lowest) = (context, 0);
    }

    /// Returns true if a call may use this number: a server may take a number for a replay that is a whole window
    /// behind others in flight (RFC 2203 section 5.3.3.1).
    pub(in crate::reactor) fn has_room(&mut self, context: &ClientContext, number: u32) -> bool {
        let window = context.window.max(1);
        if number - self.lowest.min(number) >= window {
            let same = |sent: &&SentCall| std::ptr::eq(&*sent.context, context);
            let in_flight = self.sent.iter().flatten().filter(same).map(|sent| sent.sequence);
            self.lowest = in_flight.min().unwrap_or(number);
        }
        number - self.lowest.min(number) < window
    }

    /// The call ended without a reply to be checked.
    pub(in crate::reactor) fn forget(&mut self, xid: Xid) {
        drop(self.take(xid));
    }

    pub(in crate::reactor) fn note(
        &mut self,
        (slot, sequence): (SlotId, u32),
        context: Arc<ClientContext>,
        kept: Option<Kept>,
    ) {
        let slots = self.sent.len();
        let Some(place) = self.sent.get_mut(usize::from(slot.index)) else { return };
        // What is in its place is moved, as long as it is, only if it has to be.
        if let Some(before) = place.take_if(|before| before.xid() != slot.xid()) {
            if self.earlier.len() == slots {
                self.earlier.pop_front();
            }
            self.earlier.push_back(before);
        }
        *place = Some(SentCall { slot, context, sequence, denied_as: None, kept });
    }

    /// This call is not sent again.
    pub(in crate::reactor) fn keep_no_more(&mut self, xid: Xid) {
        let place = self.sent.get_mut(usize::from(index_of(xid))).and_then(Option::as_mut);
        let mut all = place.into_iter().chain(&mut self.earlier);
        if let Some(sent) = all.find(|sent| sent.xid() == xid) {
            sent.kept = None;
        }
    }

    /// This call was denied before, in another slot.
    pub(in crate::reactor) fn note_denied(&mut self, slot: SlotId, denied_as: SlotId) {
        let place = self.sent.get_mut(usize::from(slot.index)).and_then(Option::as_mut);
        if let Some(sent) = place.filter(|sent| sent.slot == slot) {
            sent.denied_as = Some(denied_as);
        }
    }

    /// The slot that a call has which was denied in this one.
    pub(in crate::reactor) fn sent_again(&self, denied_as: SlotId) -> Option<SlotId> {
        let mut sent = self.sent.iter().flatten();
        sent.find(|sent| sent.denied_as == Some(denied_as)).map(|sent| sent.slot)
    }

    /// Returns true if calls under this context are in flight.
    pub(in crate::reactor) fn is_used(&self, context: &Arc<ClientContext>) -> bool {
        let all = self.sent.iter().flatten().chain(&self.earlier);
        all.into_iter().any(|sent| Arc::ptr_eq(&sent.context, context))
    }

    /// Returns true if the reply to this call has a protected body.
    pub(in crate::reactor) fn protects_body(&self, xid: Xid) -> bool {
        let place = self.sent.get(usize::from(index_of(xid))).and_then(Option::as_ref);
        let mut all = place.into_iter().chain(&self.earlier);
        all.any(|sent| sent.xid() == xid && sent.context.service.protects_body())
    }

    /// Takes the protection of the reply to this call.
    #[inline]
    pub(in crate::reactor) fn take(&mut self, xid: Xid) -> Option<SentCall> {
        let place = self.sent.get_mut(usize::from(index_of(xid)))?;
        if let Some(sent) = place.take_if(|sent| sent.xid() == xid) {
            return Some(sent);
        }
        let index = self.earlier.iter().position(|sent| sent.xid() == xid)?;
        self.earlier.remove(index)
    }
}
