//! The calls of a connection that go under RPCSEC_GSS: the context of those to come, and what each call that was sent
//! is answered under.

use crate::reactor::words::protection::ClientContext;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::requester::index_of;
use std::collections::VecDeque;
use std::sync::Arc;

/// See the module.
pub(crate) struct GssCalls {
    /// None before the first, and while another one is being established.
    pub(in crate::reactor) context: Option<Arc<ClientContext>>,
    /// No call in flight under this context has a lower number.
    lowest: u32,
    /// By the index of the slot.
    sent: Box<[Option<SentCall>]>,
    /// Calls whose slots others have since, the oldest first: their replies may be here, and wait until keys are dead. As many
    /// as there are slots at most.
    earlier: VecDeque<SentCall>,
}

/// A call on its way.
pub(crate) struct SentCall {
    xid: Xid,
    pub(crate) context: Arc<ClientContext>,
    pub(crate) sequence: u32,
}

impl GssCalls {
    pub(in crate::reactor) fn new(slots: usize) -> Self {
        let sent = (0..slots).map(|_| None).collect();
        Self { context: None, lowest: 0, sent, earlier: VecDeque::with_capacity(slots) }
    }

    /// Calls go under this context from now on.
    pub(in crate::reactor) fn change(&mut self, context: Option<Arc<ClientContext>>) {
        (self.context, self.lowest) = (context, 0);
    }

    /// A call may have that number: a server may take one that is as far behind others in flight as its window for a
    /// replay (RFC 2203 section 5.3.3.1).
    pub(in crate::reactor) fn has_room(&mut self, context: &ClientContext, number: u32) -> bool {
        let window = context.window.max(1);
        if number - self.lowest.min(number) >= window {
            let same = |sent: &&SentCall| std::ptr::eq(&*sent.context, context);
            let in_flight = self.sent.iter().flatten().filter(same).map(|sent| sent.sequence);
            self.lowest = in_flight.min().unwrap_or(number);
        }
        number - self.lowest.min(number) < window
    }

    /// The call ended without a reply that anybody checks.
    pub(in crate::reactor) fn forget(&mut self, xid: Xid) {
        drop(self.take(xid));
    }

    pub(in crate::reactor) fn note(
        &mut self,
        xid: Xid,
        context: Arc<ClientContext>,
        sequence: u32,
    ) {
        let Some(place) = self.sent.get_mut(usize::from(index_of(xid))) else { return };
        let before = place.replace(SentCall { xid, context, sequence });
        if let Some(before) = before.filter(|before| before.xid != xid) {
            if self.earlier.len() == self.sent.len() {
                self.earlier.pop_front();
            }
            self.earlier.push_back(before);
        }
    }

    /// What the reply to this call has to be under.
    pub(in crate::reactor) fn take(&mut self, xid: Xid) -> Option<SentCall> {
        let place = self.sent.get_mut(usize::from(index_of(xid)))?;
        if let Some(sent) = place.take_if(|sent| sent.xid == xid) {
            return Some(sent);
        }
        let index = self.earlier.iter().position(|sent| sent.xid == xid)?;
        self.earlier.remove(index)
    }
}
