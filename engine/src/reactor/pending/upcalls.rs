//! Upcalls: events that a core reports to the api.

use crate::fabric::{ConnId, DownCause, FabricError, Peer};
use crate::mem::Buf;
use crate::reactor::pending::serving::Serving;
use crate::reactor::pending::sinks::Sinks;
use crate::reactor::words::calls::{Admitted, CallEnd, CallKey, CallOutcome, Progress, ReplyFrame};
use crate::reactor::words::negotiate::Negotiated;
use spinrpc_proto::output::SlotId;
use spinrpc_proto::plain::PlainCall;
use spinrpc_proto::version::Verdict;

/// A call on its way to its handler; everything in it comes back to the reactor.
pub(crate) struct CallFrame {
    pub(crate) conn: ConnId,
    pub(crate) slot: SlotId,
    pub(crate) message: Buf,
    pub(crate) admitted: Admitted,
    /// `None` for a plain call, and for a call under RPCSEC_GSS whose chunks found no memory.
    pub(crate) sinks: Option<Box<Sinks>>,
}

/// Events that the reactor reports to the api; the api runs the application's handlers. The reactor is not borrowed
/// meanwhile, so that handlers may call its operations.
pub(crate) trait Upcalls {
    /// Returns true if [`Upcalls::poll`] has work in any turn.
    fn polls(&self) -> bool;
    /// Lets services continue with their own work, and executes orders of other threads.
    fn poll(&mut self) -> Progress;
    /// Other threads will order calls: from now on the api polls for them.
    fn on_orders(&mut self);
    /// A thread has advanced a security context, or there are bodies to seal.
    #[cfg(feature = "gss")]
    fn on_context(&mut self);
    /// The latencies of calls are to be measured from now on, or no longer.
    fn on_measure(&mut self, is_on: bool);
    /// From now on no call is executed, and arriving calls are not answered: `leave_call` leaves them.
    fn on_leave(&mut self);
    /// A call with chunks or padding arrived.
    fn on_call(&mut self, frame: &mut CallFrame) -> CallOutcome;
    /// A plain call arrived: its arguments.
    fn on_plain_call(
        &mut self,
        serving: &Serving<'_>,
        call: &PlainCall,
        arguments: &[u8],
    ) -> CallOutcome;
    /// A call without chunks arrived: its RPC message.
    fn on_short_call(&mut self, serving: &Serving<'_>, stream: &[u8]) -> CallOutcome;
    /// A plain reply arrived: its results. Returns `false`, and does nothing, if the reply has to go through
    /// [`Upcalls::on_reply`].
    fn on_plain_reply(&mut self, conn: ConnId, token: u64, results: &[u8]) -> bool;
    /// A reply arrived.
    fn on_reply(&mut self, frame: ReplyFrame<'_>);
    /// A call ended without a reply.
    fn on_call_failed(&mut self, conn: ConnId, call: CallKey, end: CallEnd);
    /// A connection request was answered.
    fn on_connected(&mut self, request: u64, result: Result<ConnId, FabricError>);
    /// A connection was accepted, or a requested one is ready.
    fn on_up(&mut self, conn: ConnId, peer: Peer, negotiated: Negotiated);
    /// A connection is closing that has revealed versions of its responder.
    fn on_verdict(&mut self, conn: ConnId, verdict: Verdict);
    /// A connection went down; its calls have ended before.
    fn on_down(&mut self, conn: ConnId, cause: &DownCause);
    /// Returns true if the client of this connection, which goes down, wants another one in its place.
    fn wants_another(&mut self, conn: ConnId) -> bool;
    /// The connection of such a client went down; calls that are not held have ended before.
    fn on_lost(&mut self, conn: ConnId, cause: &DownCause);
    /// It is time to try another connection in the place of `lost`.
    fn on_retry(&mut self, lost: ConnId);
    /// Every held call was sent again.
    fn on_resent(&mut self, conn: ConnId);
    /// There will be no connection in the place of `lost`; its calls have ended before.
    fn on_gone(&mut self, lost: ConnId, cause: &DownCause);
}
