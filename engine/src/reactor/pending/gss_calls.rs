//! The calls of a connection that go under RPCSEC_GSS: the context of those to come, and what each call that was sent
//! is answered under.

use crate::mem::Bulk;
use crate::reactor::pending::lasting::Kept;
use crate::reactor::words::calls::{ReplyBuffers, Resend};
use crate::reactor::words::protection::ClientContext;
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::limits::ITEMS_MAX;
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
    deadline: Instant,
    /// It was denied before, under another context.
    was_denied: bool,
    /// What it needs to be sent again. Of a call that outlives its connection it is there once its reply is.
    pub(in crate::reactor) kept: Option<Kept>,
}

/// Calls under a context are in flight.
pub(crate) struct InUse;

/// A call that the server has not executed because it has forgotten the context, and that is sent again under another one.
pub(crate) struct DeniedCall {
    pub(crate) token: u64,
    pub(in crate::reactor) kept: Kept,
    pub(in crate::reactor) deadline: Instant,
    pub(in crate::reactor) arguments: [Option<Bulk>; ITEMS_MAX],
    pub(in crate::reactor) results: [Option<Bulk>; ITEMS_MAX],
}

impl DeniedCall {
    /// A connection before has been lost on which it may have been executed.
    pub(crate) fn is_unclear(&self) -> bool {
        self.kept.is_unknown
    }
}

impl SentCall {
    /// The call, if it is to be sent again: "once", so that a server that denies all it gets is not asked for ever. A call
    /// that another connection may have executed is not, if that may happen once at most: it would get another XID.
    pub(crate) fn deny(
        &mut self,
        token: u64,
        buffers: Option<&mut ReplyBuffers<'_>>,
    ) -> Option<DeniedCall> {
        let is_unclear = |kept: &Kept| kept.is_unknown && kept.resend == Resend::AtMostOnce;
        let was_denied = self.was_denied;
        let kept = self.kept.take_if(|kept| !was_denied && !is_unclear(kept))?;
        let (mut arguments, mut results) = Default::default();
        if let Some(buffers) = buffers {
            arguments = take_all(buffers.arguments);
            results = take_all(buffers.results);
        }
        for (result, bytes) in results.iter_mut().zip(kept.result_bytes) {
            if let Some(result) = result {
                result.set_len(bytes);
            }
        }
        Some(DeniedCall { token, kept, deadline: self.deadline, arguments, results })
    }

    /// A connection before has been lost on which it may have been executed.
    pub(crate) fn is_unclear(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.is_unknown)
    }

    /// Nothing of the call is needed any more but what its reply is under.
    pub(crate) fn let_go(&mut self) {
        self.kept = None;
    }
}

/// The buffers of a call, out of their places.
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
        (xid, sequence): (Xid, u32),
        context: Arc<ClientContext>,
        deadline: Instant,
        kept: Option<Kept>,
    ) {
        let Some(place) = self.sent.get_mut(usize::from(index_of(xid))) else { return };
        let was_denied = false;
        let sent = SentCall { xid, context, sequence, deadline, was_denied, kept };
        let before = place.replace(sent);
        if let Some(before) = before.filter(|before| before.xid != xid) {
            if self.earlier.len() == self.sent.len() {
                self.earlier.pop_front();
            }
            self.earlier.push_back(before);
        }
    }

    /// This call is not sent again.
    pub(in crate::reactor) fn keep_no_more(&mut self, xid: Xid) {
        let place = self.sent.get_mut(usize::from(index_of(xid))).and_then(Option::as_mut);
        let mut all = place.into_iter().chain(&mut self.earlier);
        if let Some(sent) = all.find(|sent| sent.xid == xid) {
            sent.let_go();
        }
    }

    /// This call was denied before.
    pub(in crate::reactor) fn note_denied(&mut self, xid: Xid) {
        let place = self.sent.get_mut(usize::from(index_of(xid))).and_then(Option::as_mut);
        if let Some(sent) = place.filter(|sent| sent.xid == xid) {
            sent.was_denied = true;
        }
    }

    /// Calls under this context are in flight.
    pub(in crate::reactor) fn is_used(&self, context: &Arc<ClientContext>) -> bool {
        let all = self.sent.iter().flatten().chain(&self.earlier);
        all.into_iter().any(|sent| Arc::ptr_eq(&sent.context, context))
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
