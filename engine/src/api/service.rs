//! What a server implements.

use super::Call;
use crate::fabric::{ConnId, DownCause};
use crate::reactor::Negotiated;

/// A program's procedures, one value per core, made by the factory given to
/// [`Engine::serve`](crate::Engine::serve) on the core's own thread: it needs no locks and need not
/// be `Send`.
pub trait Service {
    /// Answers a call: now with [`Call::reply`], or later, from any thread, with [`Call::defer`].
    /// It must not block: the core serves nothing else meanwhile.
    fn call(&mut self, call: Call<'_>);

    /// A connection to this core came up or went down.
    fn on_event(&mut self, event: &ConnectionEvent) {
        let _ = event;
    }
}

/// A closure is a service that needs no events.
impl<F: FnMut(Call<'_>)> Service for F {
    fn call(&mut self, call: Call<'_>) {
        self(call);
    }
}

/// Names a connection of one core; never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub(crate) ConnId);

/// What happened to a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// It is up: calls may be made.
    Up {
        /// Which connection.
        connection: ConnectionId,
        /// Who is at the other end.
        peer: String,
        /// What both ends agreed on. A client that asks by the Connection Configuration Protocol
        /// (`rpc.ccp`) is up when it has been answered; at a server that serves it, this is what
        /// holds before a client asks.
        negotiated: Negotiated,
    },
    /// It went down; every call in flight has ended with an error before this.
    Down {
        /// Which connection.
        connection: ConnectionId,
        /// The first cause.
        cause: DownCause,
        /// How many calls were in flight.
        in_flight: usize,
    },
    /// It never came up.
    ConnectFailed {
        /// Why.
        error: super::ConnectError,
    },
}
