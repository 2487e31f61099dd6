//! The calls of a connection that go under RPCSEC_GSS: the context of those to come, and what each call that was sent
//! is answered under.

use crate::reactor::words::protection::ClientContext;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::requester::index_of;
use std::sync::Arc;

/// See the module.
pub(crate) struct GssCalls {
    /// None before the first, and while another one is being established.
    pub(in crate::reactor) context: Option<Arc<ClientContext>>,
    /// By the index of the slot.
    sent: Box<[Option<SentCall>]>,
}

/// A call on its way.
pub(crate) struct SentCall {
    xid: Xid,
    pub(crate) context: Arc<ClientContext>,
    pub(crate) sequence: u32,
}

impl GssCalls {
    pub(in crate::reactor) fn new(slots: usize) -> Self {
        Self { context: None, sent: (0..slots).map(|_| None).collect() }
    }

    pub(in crate::reactor) fn note(
        &mut self,
        xid: Xid,
        context: Arc<ClientContext>,
        sequence: u32,
    ) {
        if let Some(place) = self.sent.get_mut(usize::from(index_of(xid))) {
            *place = Some(SentCall { xid, context, sequence });
        }
    }

    /// What the reply to this call has to be under.
    pub(in crate::reactor) fn take(&mut self, xid: Xid) -> Option<SentCall> {
        let place = self.sent.get_mut(usize::from(index_of(xid)))?;
        place.take_if(|sent| sent.xid == xid)
    }
}
