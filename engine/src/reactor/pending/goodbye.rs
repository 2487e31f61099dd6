//! Progress of a graceful shutdown of a core, on one connection and for the waiting thread; and of connections that leave it.

use crate::fabric::ConnId;
use spinrpc_proto::version::TransportVersion;
use std::sync::mpsc::Sender;

/// A thread that waits for a core to end.
pub(crate) struct DrainRequest {
    /// Index of the core.
    pub(crate) core: usize,
    /// Gets the core and its number of unfinished calls, when that changes. It is dropped when no calls are left and
    /// the connections of clients are down, or when the core is shut down.
    pub(crate) report: Sender<(usize, usize)>,
}

/// The message of [`goodbye`] on one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::reactor) struct Goodbye {
    /// The server sent it: the calls in flight were not executed on this connection.
    pub(in crate::reactor) is_heard: bool,
    /// A message was dropped that may have been the answer to one of those calls.
    pub(in crate::reactor) is_doubtful: bool,
    pub(in crate::reactor) is_sent: bool,
    /// It leaves this core, and calls that arrive are left for the next connection.
    pub(in crate::reactor) is_moving: bool,
    /// A call was executed, and its answer not sent: the message would not be true.
    pub(in crate::reactor) is_false: bool,
    /// The version of the last call that was left.
    pub(in crate::reactor) version: Option<TransportVersion>,
}

impl Goodbye {
    /// Returns true if the calls in flight were certainly not executed.
    pub(in crate::reactor) fn is_believed(&self) -> bool {
        self.is_heard && !self.is_doubtful
    }
}

/// Connections that leave a core for another one.
#[derive(Debug, Default)]
pub(in crate::reactor) struct Moving {
    /// Number of those whose clients have been told, and that are not down yet.
    pub(in crate::reactor) left: usize,
    /// Of these, the ones whose message may wait for the device or the client.
    pub(in crate::reactor) unsent: Vec<ConnId>,
    /// Place in the table of connections at which the next search starts.
    pub(in crate::reactor) next_place: usize,
}

/// A core that shuts down gracefully.
pub(in crate::reactor) struct Leaving {
    pub(in crate::reactor) request: Option<DrainRequest>,
    told: Option<usize>,
}

impl Leaving {
    pub(in crate::reactor) fn new(request: DrainRequest) -> Self {
        Self { request: Some(request), told: None }
    }

    pub(in crate::reactor) fn tell(&mut self, unfinished: usize) {
        if let Some(DrainRequest { core, report }) = &self.request
            && self.told.replace(unfinished) != Some(unfinished)
        {
            // An error means that no thread waits any longer.
            let _ = report.send((*core, unfinished));
        }
    }
}
