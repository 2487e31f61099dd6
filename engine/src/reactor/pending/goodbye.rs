//! The end of a core in good order, as far as it has got: on one connection, and for those who wait.

use spinrpc_proto::version::TransportVersion;
use std::sync::mpsc::Sender;

/// Who waits for a core that ends.
pub(crate) struct Farewell {
    /// Which core it is.
    pub(crate) core: usize,
    /// Gets core and calls that it still has to finish, when they change; is dropped when there are
    /// none, and the connections of clients are down, or when the core is shut down.
    pub(crate) report: Sender<(usize, usize)>,
}

/// The message of [`goodbye`] on one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::reactor) struct Goodbye {
    /// The server said it: the calls in flight were not executed on this connection.
    pub(in crate::reactor) is_heard: bool,
    /// A message was dropped that may have been the answer to one of those calls.
    pub(in crate::reactor) is_doubtful: bool,
    pub(in crate::reactor) is_sent: bool,
    /// A call was executed, and its answer not sent: the message would not be true.
    pub(in crate::reactor) is_false: bool,
    /// The version of the last call that was left.
    pub(in crate::reactor) version: Option<TransportVersion>,
}

impl Goodbye {
    /// The calls in flight were not executed.
    pub(in crate::reactor) fn is_believed(&self) -> bool {
        self.is_heard && !self.is_doubtful
    }
}

/// A core that ends in good order.
pub(in crate::reactor) struct Leaving {
    pub(in crate::reactor) farewell: Option<Farewell>,
    told: Option<usize>,
}

impl Leaving {
    pub(in crate::reactor) fn new(farewell: Farewell) -> Self {
        Self { farewell: Some(farewell), told: None }
    }

    pub(in crate::reactor) fn tell(&mut self, unfinished: usize) {
        if let Some(Farewell { core, report }) = &self.farewell
            && self.told.replace(unfinished) != Some(unfinished)
        {
            // An error says that nobody waits any longer.
            let _ = report.send((*core, unfinished));
        }
    }
}
