//! The interface that a server implements.

use super::Call;
use crate::fabric::{ConnId, DownCause, Peer};
use crate::reactor::{Negotiated, Progress};
use spinrpc_proto::ids::Procedure;
use spinrpc_proto::rpc::AcceptStatus;

/// A program's procedures, one value per core, made by the factory given to
/// [`Engine::serve`](crate::Engine::serve) on the core's own thread: it needs no locks and need not
/// be `Send`.
pub trait Service {
    /// Answers a call: now with [`Call::reply`], or later, from any thread, with [`Call::defer`].
    /// It must not block: the core serves nothing else meanwhile.
    ///
    /// A panic, here or in any other handler, is caught: a call that has no answer yet is answered with
    /// SYSTEM_ERR, the panic is counted (`handler_panics` of [`Engine::stats`](crate::Engine::stats)), and the
    /// core goes on with the service as the panic left it. `rpc.on_panic = "end"` ends the engine instead, and an
    /// answer that the handler gave before is lost.
    fn call(&mut self, call: Call<'_>);

    /// True if executing a call of this procedure twice does no harm. Called for programs that are
    /// served with [`Engine::serve_once`](crate::Engine::serve_once): the replies of all other
    /// procedures are kept. By default only the NULL procedure is idempotent.
    fn is_idempotent(&self, procedure: Procedure) -> bool {
        procedure == Procedure(0)
    }

    /// True if the replies to calls of this connection are kept. Called for programs that are served with
    /// [`Engine::serve_once`](crate::Engine::serve_once), before a call that is not idempotent gets a place for its
    /// reply. A service that has a list of clients says here who is on it, so that others take none of the places.
    /// Their calls still come to [`Service::call`], which refuses them: they would be executed again if they were
    /// sent again.
    fn keeps_replies_for(&mut self, connection: ConnectionId) -> bool {
        let _ = connection;
        true
    }

    /// Answers a call that was not executed because there is no place for its reply: calls in progress hold a quarter
    /// of the places (`rpc.reply_cache_mib`) for those of its host, or all. Called for programs that are served with
    /// [`Engine::serve_once`](crate::Engine::serve_once). By default the caller gets SYSTEM_ERR, and may try again;
    /// programs whose results can say so say it here.
    fn too_many(&mut self, call: Call<'_>) {
        call.reject(AcceptStatus::SystemErr);
    }

    /// True if [`Service::poll`] is to be called. Called once, when the core has created the
    /// service. A core without polled services pays nothing for this.
    fn polls(&self) -> bool {
        false
    }

    /// Continues background work of the service, such as I/O that it started for deferred calls.
    /// Called once in every turn, after the handlers of arrived messages; an answer that a
    /// [`Deferred`](crate::Deferred) gets here leaves in the same turn. It must not block.
    ///
    /// While it says [`Progress::is_waiting`], the core does not sleep, whatever its idle policy; so
    /// it should say that only of work whose end nothing else announces. Another thread that answers
    /// a [`Deferred`](crate::Deferred) wakes the core anyway.
    ///
    /// ```
    /// use spinrpc::{Call, Deferred, Progress, Service};
    ///
    /// /// Takes the calls of a turn together.
    /// #[derive(Default)]
    /// struct Batches(Vec<Deferred>);
    ///
    /// impl Service for Batches {
    ///     fn call(&mut self, call: Call<'_>) {
    ///         self.0.extend(call.defer());
    ///     }
    ///
    ///     fn polls(&self) -> bool {
    ///         true
    ///     }
    ///
    ///     fn poll(&mut self) -> Progress {
    ///         let events = self.0.len();
    ///         for deferred in self.0.drain(..) {
    ///             deferred.reply(|results| results.u32(events as u32));
    ///         }
    ///         Progress { events, is_waiting: false }
    ///     }
    /// }
    /// ```
    fn poll(&mut self) -> Progress {
        Progress::default()
    }

    /// A connection to this core came up or went down. Of a connection,
    /// [`Up`](ConnectionEvent::Up) comes before its first call, and [`Down`](ConnectionEvent::Down)
    /// after its last one; answers that come still later go nowhere.
    fn on_event(&mut self, event: &ConnectionEvent) {
        let _ = event;
    }
}

/// A closure is a service that needs no events and does not poll.
impl<F: FnMut(Call<'_>)> Service for F {
    fn call(&mut self, call: Call<'_>) {
        self(call);
    }
}

/// Names a connection of one core; never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub(crate) ConnId);

/// A change of a connection's state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// The connection is up: calls may be made. After [`ConnectionEvent::Reconnecting`] it is
    /// another connection of the same client, and the calls that were to be sent again have been
    /// sent.
    Up {
        /// The connection.
        connection: ConnectionId,
        /// Identity of the peer, as the kernel reports it.
        peer: Peer,
        /// Parameters that both ends agreed on. A client that uses the Connection Configuration
        /// Protocol (`rpc.ccp`) is up after it has been answered; at a server that serves the
        /// protocol, these parameters hold before a client asks.
        negotiated: Negotiated,
    },
    /// The connection went down for good; every call in flight has ended with an error before this. A client with several
    /// connections hears it of the last one.
    Down {
        /// The connection.
        connection: ConnectionId,
        /// The first cause.
        cause: DownCause,
        /// Number of calls that were in flight.
        in_flight: usize,
    },
    /// The connection was lost, or an attempt to reconnect has failed, and the client will try
    /// again. Calls that are not sent again have ended before the first of these events.
    Reconnecting {
        /// The lost connection.
        connection: ConnectionId,
        /// Cause of the loss.
        cause: DownCause,
        /// The attempt to come, counted from one.
        attempt: u32,
        /// After which pause it begins.
        after: std::time::Duration,
    },
    /// An attempt to make the first connection has failed, and another one follows ([`Reconnect::retry_first`]).
    ///
    /// [`Reconnect::retry_first`]: crate::Reconnect::retry_first
    Retrying {
        /// Cause of the failure.
        error: super::ConnectError,
        /// The attempt to come, counted from one.
        attempt: u32,
        /// After which pause it begins.
        after: std::time::Duration,
    },
    /// The connection never came up.
    ConnectFailed {
        /// Cause of the failure.
        error: super::ConnectError,
    },
}
