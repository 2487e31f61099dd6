//! The calls of a connection that go under RPCSEC_GSS: the context of future calls, and the protection of the reply
//! to each call in flight.

use crate::reactor::types::protection::ClientContext;
use crate::reactor::types::resend_source::Kept;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::requester::index_of;
use std::collections::VecDeque;
use std::sync::Arc;

/// See the module.
pub(crate) struct GssCalls {
    /// None before the first, and while another one is being established.
    context: Option<Arc<ClientContext>>,
    /// A call was denied, and waits in its slot.
    has_denied: bool,
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
    /// The slot that the application knows the call by.
    pub(crate) slot: SlotId,
    pub(crate) context: Arc<ClientContext>,
    pub(crate) sequence: u32,
    /// The source that it is sent again from, if that is not in its slot: for a call that is an inline stream only.
    pub(crate) kept: Option<Kept>,
}

/// Calls under a context are in flight.
pub(crate) struct InUse;

impl GssCalls {
    pub(in crate::reactor) fn new(slots: usize) -> Self {
        let sent = (0..slots).map(|_| None).collect();
        Self {
            context: None,
            has_denied: false,
            lowest: 0,
            sent,
            earlier: VecDeque::with_capacity(slots),
        }
    }

    /// None before the first, and while another one is being established.
    pub(in crate::reactor) fn context(&self) -> Option<&Arc<ClientContext>> {
        self.context.as_ref()
    }

    getters! {
        has_denied: bool,
    }

    /// Returns true if a call waited before.
    pub(in crate::reactor) fn set_denied(&mut self, has_denied: bool) -> bool {
        std::mem::replace(&mut self.has_denied, has_denied)
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

    pub(in crate::reactor) fn note(
        &mut self,
        (slot, sequence): (SlotId, u32),
        context: Arc<ClientContext>,
        kept: Option<Kept>,
    ) {
        let slots = self.sent.len();
        let Some(place) = self.sent.get_mut(usize::from(slot.index)) else { return };
        // What is in its place is moved, as long as it is, only if it has to be.
        if let Some(before) = place.take_if(|before| before.slot.xid() != slot.xid()) {
            if self.earlier.len() == slots {
                self.earlier.pop_front();
            }
            self.earlier.push_back(before);
        }
        *place = Some(SentCall { slot, context, sequence, kept });
    }

    /// This call is not sent again.
    pub(in crate::reactor) fn keep_no_more(&mut self, xid: Xid) {
        let place = self.sent.get_mut(usize::from(index_of(xid))).and_then(Option::as_mut);
        let mut all = place.into_iter().chain(&mut self.earlier);
        if let Some(sent) = all.find(|sent| sent.slot.xid() == xid) {
            sent.kept = None;
        }
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
        all.any(|sent| sent.slot.xid() == xid && sent.context.service.protects_body())
    }

    /// Takes the protection of the reply to this call.
    #[inline]
    pub(in crate::reactor) fn take(&mut self, xid: Xid) -> Option<SentCall> {
        let place = self.sent.get_mut(usize::from(index_of(xid)))?;
        if let Some(sent) = place.take_if(|sent| sent.slot.xid() == xid) {
            return Some(sent);
        }
        let index = self.earlier.iter().position(|sent| sent.slot.xid() == xid)?;
        self.earlier.remove(index)
    }
}
