//! Upcalls: events that a core reports to the api.

use crate::fabric::{ConnId, DownCause, FabricError, Peer};
use crate::mem::Buf;
#[cfg(feature = "gss")]
use crate::reactor::in_flight::gss_bodies::Finished;
use crate::reactor::in_flight::read_buffers::ReadBuffers;
use crate::reactor::in_flight::serving::Serving;
use crate::reactor::types::calls::{
    Admitted, CallEnd, CallOutcome, Progress, ReplyFrame, SlotToken,
};
use crate::reactor::types::negotiate::Negotiated;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::plain::PlainCall;
use spinrpc_proto::version::Verdict;

/// A call on its way to its handler; everything in it comes back to the reactor.
pub(crate) struct CallFrame {
    pub(crate) conn: ConnId,
    pub(crate) slot: SlotId,
    pub(crate) message: Buf,
    pub(crate) admitted: Admitted,
    /// `None` for a call without chunks, and for a call under RPCSEC_GSS whose chunks found no memory.
    pub(crate) sinks: Option<Box<ReadBuffers>>,
}

/// An event of a core or a connection that no message brings, or that ends a call without one.
pub(crate) enum CoreEvent<'a> {
    /// Other threads will order calls: from now on the api polls for them.
    Orders,
    /// A thread has advanced a security context.
    #[cfg(feature = "gss")]
    Context,
    /// A thread has unsealed the body of a call or a reply.
    #[cfg(feature = "gss")]
    Unsealed(&'a mut Option<Finished>),
    /// The latencies of calls are to be measured from now on, or no longer.
    Measure(bool),
    /// The next call of a service is to be timed, and the next of a handle.
    Sample,
    /// The next call has waited, and has its times ([`CoreCell::is_resumed`]).
    Resume,
    /// From now on no call is executed, and arriving calls are not answered: `abandon_call` leaves them.
    Leave,
    /// A call ended without a reply.
    CallFailed(ConnId, SlotToken, CallEnd),
    /// The connection request with this number was answered.
    Connected(u64, Result<ConnId, FabricError>),
    /// A connection was accepted, or a requested one is ready.
    Up(ConnId, Peer, Negotiated),
    /// A connection goes down; the verdict says what it has revealed about versions of its responder.
    Ending {
        conn: ConnId,
        verdict: Verdict,
        /// Set if its client wants another one in its place.
        wants_another: &'a mut bool,
    },
    /// A connection went down; its calls have ended before.
    Down(ConnId, &'a DownCause),
    /// The same of a connection whose client wants another one; calls that are not held have ended before.
    Lost(ConnId, &'a DownCause),
    /// The time has come that was asked for by `set_alarm`.
    Alarm,
    /// Every held call was sent again.
    Resent(ConnId),
    /// There will be no connection in the place of this lost one; its calls have ended before.
    Gone(ConnId, &'a DownCause),
}

/// Calls, replies and events that the reactor reports to the api; the api runs the application's handlers. The reactor is
/// not borrowed meanwhile, so that handlers may call its operations.
pub(crate) trait Upcalls {
    /// Returns true if [`Upcalls::poll`] has work in any turn.
    fn polls(&self) -> bool;
    /// Lets services continue with their own work, and executes orders of other threads.
    fn poll(&mut self) -> Progress;
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
    fn on_inline_call(&mut self, serving: &Serving<'_>, stream: &[u8]) -> CallOutcome;
    /// A plain reply arrived: its results. Returns `false`, and does nothing, if the reply has to go through
    /// [`Upcalls::on_reply`].
    fn on_plain_reply(&mut self, conn: ConnId, token: u64, results: &[u8]) -> bool;
    /// A reply arrived.
    fn on_reply(&mut self, frame: ReplyFrame<'_>);
    /// Anything else happened.
    fn on_event(&mut self, event: CoreEvent<'_>);
}
