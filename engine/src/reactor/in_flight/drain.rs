//! Progress of a graceful shutdown of a core, for the waiting thread.

use std::sync::mpsc::Sender;

/// A thread that waits for a core to end.
pub(crate) struct DrainRequest {
    /// Index of the core.
    pub(crate) core: usize,
    /// Gets the core and its number of unfinished calls, when that changes. It is dropped when no calls are left and
    /// the connections of clients are down, or when the core is shut down.
    pub(crate) report: Sender<(usize, usize)>,
}

/// A core that shuts down gracefully.
pub(in crate::reactor) struct Leaving {
    request: Option<DrainRequest>,
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

    /// No call is unfinished, and no connection of a client is left.
    pub(in crate::reactor) fn end(&mut self) {
        self.request = None;
    }
}
