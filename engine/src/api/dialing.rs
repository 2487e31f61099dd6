//! Connects for the cores, so that none of them waits for a peer. `runtime` is the caller; it calls the
//! driver's connector, and answers by the cores' mailboxes.
//!
//! Each address has a separate thread while a connection to it is being established. A listener
//! that does not answer delays only connections to its own address.

use super::errors::EngineError;
use crate::config::{BulkView, Config};
use crate::fabric::{AnyConnector, ConnectRequest, Connector, FabricError};
use crate::mem::Slab;
use crate::reactor::Negotiated;
use crate::reactor::pending::mailbox::{Inbox, Mail};
use crate::reactor::words::instance::Instance;
use crate::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread::{Builder, JoinHandle, Scope};
use std::time::Duration;

/// Addresses that are connected to at a time; requests for further ones wait.
const ADDRESSES_MAX: usize = 16;

/// A request to the control thread.
pub(super) enum Job {
    Connect(Request),
    /// A request for this address is answered.
    Answered(String),
    /// The engine is gone. Cores that outlive it keep their end of the queue, so that the end of
    /// the queue cannot be the signal.
    Stop,
}

/// A connection that a core wants.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) core: usize,
    pub(super) number: u64,
    pub(super) address: String,
    pub(super) timeout: Duration,
    pub(super) instance: Instance,
    /// Slabs that the server may read.
    pub(super) lent: Arc<[Slab]>,
}

/// Establishes connections, with the private data of the client that asks.
pub(super) struct Dialer {
    pub(super) connector: Arc<AnyConnector>,
    pub(super) config: Config,
}

impl Dialer {
    pub(super) fn connect(&self, request: &Request) -> Mail {
        let Request { core, number, address, timeout, instance, lent } = request;
        let invalidate = self.connector.remote_invalidate();
        let private_data = Negotiated::private_data(&self.config, invalidate, *instance);
        let lent = match self.config.bulk_view() {
            BulkView::Lent => &lent[..],
            BulkView::Copy => &[],
        };
        let asked = ConnectRequest::new(address, *timeout).core(*core);
        let result: Result<_, FabricError> =
            self.connector.connect(&asked.private_data(&private_data).lend(lent));
        Mail::Connected { request: *number, result }
    }
}

/// The control thread, which lets others wait for peers.
pub(super) struct Dialing {
    pub(super) dialer: Dialer,
    pub(super) inboxes: Vec<Arc<Inbox>>,
    /// Its own queue.
    pub(super) jobs: Sender<Job>,
    /// The engine is shut down: its cores take no more connections.
    pub(super) is_over: Arc<AtomicBool>,
}

impl Dialing {
    pub(super) fn spawn(self, jobs: Receiver<Job>) -> Result<JoinHandle<()>, EngineError> {
        let thread = Builder::new().name("spinrpc-control".into());
        let spawned = thread.spawn(move || std::thread::scope(|scope| self.run(scope, &jobs)));
        spawned.map_err(|error| EngineError::host("no control thread", error))
    }

    fn run<'a>(&'a self, scope: &'a Scope<'a, '_>, jobs: &Receiver<Job>) {
        let (mut waiting, mut dialed) = (VecDeque::new(), Vec::new());
        for job in jobs {
            match job {
                Job::Connect(request) => waiting.push_back(request),
                Job::Answered(address) => dialed.retain(|other| *other != address),
                Job::Stop => return,
            }
            while let Some(request) = self.next(&mut waiting, &dialed) {
                dialed.push(request.address.clone());
                self.dial_apart(scope, request);
            }
        }
    }

    /// The first request whose address no thread connects to.
    fn next(&self, waiting: &mut VecDeque<Request>, dialed: &[String]) -> Option<Request> {
        if dialed.len() == ADDRESSES_MAX || self.is_over() {
            return None;
        }
        let index = waiting.iter().position(|request| !dialed.contains(&request.address))?;
        waiting.remove(index)
    }

    fn dial_apart<'a>(&'a self, scope: &'a Scope<'a, '_>, request: Request) {
        let thread = Builder::new().name("spinrpc-connect".into());
        let own = request.clone();
        if thread.spawn_scoped(scope, move || self.dial(&own)).is_err() {
            // One thread too many: others wait after all.
            self.dial(&request);
        }
    }

    fn dial(&self, request: &Request) {
        let mut mail = self.dialer.connect(request);
        // A mailbox that is full is being read, unless the engine ends.
        while let Err(back) = self.inboxes[request.core].post(mail) {
            if self.is_over() {
                break;
            }
            mail = back;
            std::thread::yield_now();
        }
        // It has ended if it does not take that.
        let _ = self.jobs.send(Job::Answered(request.address.clone()));
    }

    fn is_over(&self) -> bool {
        // Relaxed: a caller can always ask too early.
        self.is_over.load(Ordering::Relaxed)
    }
}
