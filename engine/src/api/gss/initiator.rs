//! Establishes the context of a client, with any mechanism.

use crate::fabric::Peer;
use crate::sync::atomic::{AtomicBool, Ordering};
use spinrpc_gss::mechanism::{Mechanism, MechanismError, Negotiation};
use spinrpc_proto::ids::Instant;
use spinrpc_proto::rpc::GssService;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Settings of a client that establishes a context; see [`ConnectOptions::gss`](crate::ConnectOptions::gss).
#[derive(Clone)]
pub struct GssInitiator {
    mechanism: Arc<dyn Mechanism>,
    target: String,
    pub(super) service: GssService,
    fallback: Option<Arc<Exchange>>,
}

/// Sends a call to the host of a peer over another transport, and returns the reply.
type Exchange = dyn Fn(&Peer, &[u8], Awaited<'_>) -> Result<Vec<u8>, String> + Send + Sync;

/// Tells an exchange over another transport ([`GssInitiator::fallback`]) whether its client still waits for it.
#[derive(Clone, Copy, Debug)]
pub struct Awaited<'a>(pub(super) &'a AtomicBool);

impl Awaited<'_> {
    /// Returns false once the client was closed, its connection was lost, its engine was shut down, or the time of the
    /// exchange is over (`Config::gss_mechanism_time`). Any thread may ask.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        // Pairs with nothing: it only ends the exchange.
        self.0.load(Ordering::Relaxed)
    }
}

impl GssInitiator {
    /// With this service of the network, such as `nfs@server`, and [`GssService::Integrity`].
    pub fn new(mechanism: impl Mechanism + 'static, target: &str) -> Self {
        let (target, service) = (target.to_owned(), GssService::Integrity);
        Self { mechanism: Arc::new(mechanism), target, service, fallback: None }
    }

    /// Protection of all calls. [`GssService::Other`] protects nothing and is refused when the client connects.
    #[must_use]
    pub fn service(mut self, service: GssService) -> Self {
        self.service = service;
        self
    }

    /// Establishes contexts over another transport, such as TCP, where the server denies INIT over the connection. `exchange`
    /// is given the peer of the connection, a call without a record mark, and whether the client still waits. It returns the
    /// reply, or the reason why there is none. It has to go to the host of this peer: another one of the same name does not know
    /// the contexts of the first.
    /// Servers of NFS over RDMA offer TCP port 2049 for that (RFC 8166 section 8.2.2.1). Calls go over the connection all the
    /// same.
    ///
    /// It runs on the thread of the mechanism, of which there are four, and may block. A client does not wait longer than
    /// `Config::gss_mechanism_time` for all calls of one context, but the thread is free only when `exchange` returns: it has to ask
    /// [`Awaited::is_awaited`] while it blocks, such as every 100 ms. What it returns is not trusted, but it is in memory already:
    /// `exchange` has to bound its length. After a failure and after a reconnect, the connection is tried first.
    #[must_use]
    pub fn fallback(
        mut self,
        exchange: impl Fn(&Peer, &[u8], Awaited<'_>) -> Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> Self {
        self.fallback = Some(Arc::new(exchange));
        self
    }

    pub(super) fn has_fallback(&self) -> bool {
        self.fallback.is_some()
    }

    pub(super) fn exchange(
        &self,
        peer: &Peer,
        call: &[u8],
        awaited: Awaited<'_>,
    ) -> Result<Vec<u8>, String> {
        let Some(exchange) = &self.fallback else { return Err("there is no other way".into()) };
        let exchanged = catch_unwind(AssertUnwindSafe(|| exchange(peer, call, awaited)));
        exchanged.unwrap_or_else(|_| Err("the application's exchange panicked".into()))
    }

    pub(in crate::api) fn is_valid(&self) -> bool {
        !matches!(self.service, GssService::Other(_))
    }

    pub(super) fn begin(&self, now: Instant) -> Result<Negotiation, MechanismError> {
        self.mechanism.begin(&self.target, now)
    }
}

impl fmt::Debug for GssInitiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("GssInitiator");
        shown.field("target", &self.target).field("service", &self.service).finish_non_exhaustive()
    }
}
