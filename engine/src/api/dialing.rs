//! Connects for the cores, so that none of them waits for a peer. `runtime` is the caller; it calls the
//! driver's connector, and answers by the cores' mailboxes.
//!
//! Each address has a separate thread while connections to it are being established. A listener
//! that does not answer delays only connections to its own address. Threads go on with the next
//! request, so that thousands of connections do not take thousands of threads.

use super::errors::EngineError;
use crate::config::{BulkView, Config};
use crate::fabric::{ConnectRequest, Connector, FabricError};
use crate::mem::Slab;
use crate::reactor::Negotiated;
use crate::reactor::in_flight::mailbox::{Inbox, Mail, Requested};
use crate::reactor::types::peer_id::Instance;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::lock;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle, Scope};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Addresses that are connected to at a time; requests for further ones wait.
const ADDRESSES_MAX: usize = 16;

pub(super) enum Job {
    Connect(Request),
    /// The engine is gone. Cores that outlive it keep their end of the queue, so that the end of
    /// the queue cannot be the signal.
    Stop,
}

#[derive(Clone)]
pub(super) struct Request {
    pub(super) core: usize,
    pub(super) wanted: Requested,
    pub(super) address: String,
    pub(super) instance: Instance,
    /// Slabs that the server may read.
    pub(super) lent: Arc<[Slab]>,
}

/// Establishes connections, with the private data of the client that asks.
pub(super) struct Dialer {
    pub(super) connector: Arc<dyn Connector>,
    pub(super) config: Config,
}

impl Dialer {
    pub(super) fn connect(&self, request: &Request) -> Mail {
        let &Request { core, wanted, ref address, instance, ref lent } = request;
        let invalidate = self.connector.remote_invalidate();
        let private_data = Negotiated::private_data(&self.config, invalidate, instance);
        let lent = match self.config.bulk_view() {
            BulkView::Lent => &lent[..],
            BulkView::Copy => &[],
        };
        let private_data = &private_data;
        let timeout = CONNECT_TIMEOUT;
        let asked = ConnectRequest { address, core, private_data, timeout, lent };
        let result: Result<_, FabricError> = self.connector.connect(&asked);
        Mail::Connected { request: wanted, result: result.map(Box::new) }
    }
}

/// The answer to a request whose connector panicked: without one its address would be dialed for ever.
fn panicked(request: &Request) -> Mail {
    let reason = "a panic on the thread that connects; this is a bug of spinrpc".to_owned();
    let op = format!("connect {}", request.address);
    let result = Err(FabricError { op, reason, source: None });
    Mail::Connected { request: request.wanted, result }
}

/// Requests that wait, and what is being done. Between two changes no request waits that could be begun.
#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    dialed: Vec<String>,
}

impl Waiting {
    /// Takes a new request, and gives it back if a thread is to begin it.
    fn add(&mut self, request: Request) -> Option<Request> {
        if self.can_begin(&request) {
            return Some(self.begin(request));
        }
        self.requests.push_back(request);
        None
    }

    /// The oldest request that can be begun after one for `address` was answered.
    fn after(&mut self, address: &str) -> Option<Request> {
        self.dialed.retain(|other| other != address);
        let index = self.requests.iter().position(|request| self.can_begin(request))?;
        let request = self.requests.remove(index)?;
        Some(self.begin(request))
    }

    fn can_begin(&self, request: &Request) -> bool {
        self.dialed.len() < ADDRESSES_MAX && !self.dialed.contains(&request.address)
    }

    fn begin(&mut self, request: Request) -> Request {
        self.dialed.push(request.address.clone());
        request
    }
}

/// The control thread, which lets others wait for peers.
pub(super) struct Dialing {
    dialer: Dialer,
    inboxes: Vec<Arc<Inbox>>,
    /// The engine is shut down: its cores take no more connections.
    is_over: Arc<AtomicBool>,
    waiting: Mutex<Waiting>,
}

impl Dialing {
    /// `is_over` is set when the engine is shut down.
    pub(super) fn new(dialer: Dialer, inboxes: Vec<Arc<Inbox>>, is_over: Arc<AtomicBool>) -> Self {
        Self { dialer, inboxes, is_over, waiting: Mutex::default() }
    }

    pub(super) fn spawn(self, jobs: Receiver<Job>) -> Result<JoinHandle<()>, EngineError> {
        let thread = Builder::new().name("spinrpc-control".into());
        let spawned = thread.spawn(move || std::thread::scope(|scope| self.run(scope, &jobs)));
        spawned.map_err(|error| EngineError::host("no control thread", error))
    }

    fn run<'a>(&'a self, scope: &'a Scope<'a, '_>, jobs: &Receiver<Job>) {
        for job in jobs {
            let Job::Connect(request) = job else { return };
            let begun = lock(&self.waiting).add(request);
            if let Some(request) = begun {
                self.dial_apart(scope, request);
            }
        }
    }

    fn dial_apart<'a>(&'a self, scope: &'a Scope<'a, '_>, request: Request) {
        let mut next = Some(request);
        while let Some(request) = next.filter(|_| !self.is_over()) {
            let thread = Builder::new().name("spinrpc-connect".into());
            let own = request.clone();
            if thread.spawn_scoped(scope, move || self.dial_on(own)).is_ok() {
                return;
            }
            // One thread too many: others wait after all, but for this request only.
            next = self.dial(&request);
        }
    }

    /// Answers this request, and those that can be begun after it.
    fn dial_on(&self, request: Request) {
        let mut next = Some(request);
        while let Some(request) = next.filter(|_| !self.is_over()) {
            next = self.dial(&request);
        }
    }

    /// Answers a request. Returns one that can be begun after it.
    fn dial(&self, request: &Request) -> Option<Request> {
        let dialed = catch_unwind(AssertUnwindSafe(|| self.dialer.connect(request)));
        self.answer(request.core, dialed.unwrap_or_else(|_| panicked(request)));
        lock(&self.waiting).after(&request.address)
    }

    fn answer(&self, core: usize, mut mail: Mail) {
        // A mailbox that is full is being read, unless the engine ends.
        while let Err(back) = self.inboxes[core].post(mail) {
            if self.is_over() {
                break;
            }
            mail = back;
            std::thread::yield_now();
        }
    }

    fn is_over(&self) -> bool {
        // Relaxed: a caller can always ask too early.
        self.is_over.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: u64, address: &str) -> Request {
        Request {
            core: 0,
            wanted: Requested { number, takes_reverse: false, lost: None },
            address: address.to_owned(),
            instance: Instance::Passing,
            lent: Arc::new([]),
        }
    }

    #[test]
    fn an_address_has_one_thread_which_goes_on_with_the_oldest_request_that_can_be_begun() {
        let mut waiting = Waiting::default();
        let number = |request: Option<Request>| request.map(|request| request.wanted.number);
        assert_eq!(number(waiting.add(request(0, "a"))), Some(0));
        assert_eq!(number(waiting.add(request(1, "a"))), None);
        assert_eq!(number(waiting.add(request(2, "b"))), Some(2));
        assert_eq!(number(waiting.add(request(3, "b"))), None);
        assert_eq!(
            number(waiting.after("b")),
            Some(3),
            "an older one is for an address with a thread"
        );
        assert_eq!(number(waiting.after("a")), Some(1));
        assert_eq!([waiting.after("a"), waiting.after("b")].map(number), [None, None]);
        assert!(waiting.dialed.is_empty(), "{:?}", waiting.dialed);
    }

    #[test]
    fn addresses_beyond_the_limit_wait_for_any_thread_and_come_before_later_requests() {
        let mut waiting = Waiting::default();
        for number in 0..ADDRESSES_MAX {
            assert!(waiting.add(request(number as u64, &format!("{number}"))).is_some());
        }
        assert!(waiting.add(request(90, "further")).is_none());
        assert!(waiting.add(request(91, "7")).is_none());
        assert_eq!(waiting.after("7").map(|request| request.wanted.number), Some(90));
        assert_eq!(waiting.after("3").map(|request| request.wanted.number), Some(91));
        assert_eq!(waiting.dialed.len(), ADDRESSES_MAX);
    }
}
