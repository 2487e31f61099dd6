//! Connects for the cores, so that none of them waits for a peer: calls the driver's connector, and answers by the cores'
//! mailboxes.
//!
//! One connection of an address is established at a time, on a thread of its own. A listener
//! that does not answer delays only connections to its own address, and thousands of connections
//! do not take thousands of threads.

use super::blocking_threads::{Entry, Kind, Workers};
use crate::config::{BulkView, Config};
use crate::fabric::{ConnectRequest, Connector, FabricError};
use crate::mem::Slab;
use crate::reactor::Negotiated;
use crate::reactor::in_flight::mailbox::{Inbox, Mail, Requested};
use crate::reactor::types::peer_id::Instance;
use crate::sync::atomic::{AtomicBool, Ordering};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Addresses that are connected to at a time; requests for further ones wait.
const ADDRESSES_MAX: usize = 16;

pub(super) struct Request {
    pub(super) core: usize,
    pub(super) wanted: Requested,
    pub(super) address: String,
    pub(super) instance: Instance,
    /// Slabs that the server may read.
    pub(super) lent: Arc<[Slab]>,
}

/// An answer to a request that no connector gives: without one the client would wait for ever.
fn failed(request: &Request, reason: &str) -> Mail {
    let (op, reason) = (format!("connect {}", request.address), reason.to_owned());
    let result = Err(FabricError { op, reason, source: None });
    Mail::Connected { request: request.wanted, result }
}

/// Lets threads of its own wait for peers.
pub(super) struct Dialing {
    pub(super) connector: Arc<dyn Connector>,
    pub(super) config: Config,
    pub(super) inboxes: Vec<Arc<Inbox>>,
    /// The engine is shut down: its cores take no more connections.
    pub(super) is_over: Arc<AtomicBool>,
    pub(super) workers: Workers,
}

impl Dialing {
    pub(super) fn workers() -> Workers {
        let may_begin = |dialed, own| own == 0 && dialed < ADDRESSES_MAX;
        Workers::new("spinrpc-connect", |job| job(), may_begin)
    }

    /// Establishes a connection, with the private data of the client that asks.
    fn connect(&self, request: &Request) -> Mail {
        let &Request { core, wanted, ref address, instance, ref lent } = request;
        let invalidate = self.connector.remote_invalidate();
        let private_data = &Negotiated::private_data(&self.config, invalidate, instance);
        let lent = match self.config.bulk_view() {
            BulkView::Lent => &lent[..],
            BulkView::Copy => &[],
        };
        let timeout = CONNECT_TIMEOUT;
        let asked = ConnectRequest { address, core, private_data, timeout, lent };
        let result: Result<_, FabricError> = self.connector.connect(&asked);
        Mail::Connected { request: wanted, result: result.map(Box::new) }
    }

    /// Has a thread answer a request. Does not block.
    pub(super) fn begin(self: &Arc<Self>, request: Request) {
        let mut address = DefaultHasher::new();
        request.address.hash(&mut address);
        let (kind, due) = (Kind::Of(address.finish()), Instant::now());
        let (core, refused) = (request.core, failed(&request, "there is no thread for it"));
        let own = Arc::clone(self);
        let job = Box::new(move || own.dial(&request));
        if !self.workers.shared().add([Entry { kind, due, wanted: None, job }], |_| true) {
            // A core whose mailbox is full is not waited for here: this is its thread.
            drop(self.inboxes[core].post(refused));
        }
    }

    /// Answers a request.
    pub(super) fn dial(&self, request: &Request) {
        if self.is_over() {
            return;
        }
        let dialed = catch_unwind(AssertUnwindSafe(|| self.connect(request)));
        let panicked =
            |_| failed(request, "a panic on the thread that connects; this is a bug of spinrpc");
        let mut mail = dialed.unwrap_or_else(panicked);
        // A mailbox that is full is being read, unless the engine ends.
        while let Err(back) = self.inboxes[request.core].post(mail) {
            if self.is_over() {
                break;
            }
            mail = back;
            std::thread::yield_now();
        }
    }

    /// Waits for the requests that are being answered.
    pub(super) fn end(&self) {
        self.workers.join();
    }

    fn is_over(&self) -> bool {
        // Relaxed: a caller can always ask too early.
        self.is_over.load(Ordering::Relaxed)
    }
}
