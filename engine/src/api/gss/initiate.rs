//! Establishes the context of a client, with any mechanism.

use spinrpc_gss::context::Established;
use spinrpc_gss::mechanism::{Initiation, Mechanism, MechanismError};
use spinrpc_proto::ids::Instant;
use spinrpc_proto::rpc::GssService;
use std::fmt;
use std::sync::Arc;

/// Settings of a client that establishes a context; see [`ConnectOptions::gss`](crate::ConnectOptions::gss).
#[derive(Clone)]
pub struct GssInitiator {
    begins: Arc<dyn Begins>,
    target: String,
    pub(super) service: GssService,
}

impl GssInitiator {
    /// With this service of the network, such as `nfs@server`, and [`GssService::Integrity`].
    pub fn new<M>(mechanism: M, target: &str) -> Self
    where
        M: Mechanism + 'static,
        M::Initiating: 'static,
    {
        let begins = Arc::new(Shared(Arc::new(mechanism)));
        Self { begins, target: target.to_owned(), service: GssService::Integrity }
    }

    /// Protection of all calls. [`GssService::Other`] protects nothing and is refused when the client connects.
    #[must_use]
    pub fn service(mut self, service: GssService) -> Self {
        self.service = service;
        self
    }

    /// Its service is one that there is.
    pub(in crate::api) fn is_valid(&self) -> bool {
        !matches!(self.service, GssService::Other(_))
    }

    pub(super) fn begin(&self, now: Instant) -> Result<Step, MechanismError> {
        self.begins.begin(&self.target, now)
    }
}

impl fmt::Debug for GssInitiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("GssInitiator");
        shown.field("target", &self.target).field("service", &self.service).finish_non_exhaustive()
    }
}

/// A context that is being established.
pub(super) trait Negotiation: Send {
    fn go_on(self: Box<Self>, token: &[u8], now: Instant) -> Result<Step, MechanismError>;
}

/// Next step of its establishment.
pub(super) enum Step {
    /// Send this token.
    Send(Box<dyn Negotiation>, Vec<u8>),
    /// Nothing: it is there.
    Complete(Established),
}

trait Begins: Send + Sync {
    fn begin(&self, target: &str, now: Instant) -> Result<Step, MechanismError>;
}

struct Shared<M>(Arc<M>);

struct Negotiating<M: Mechanism> {
    /// Dropped first: it may refer to what the mechanism holds.
    state: M::Initiating,
    mechanism: Arc<M>,
}

impl<M> Begins for Shared<M>
where
    M: Mechanism + 'static,
    M::Initiating: 'static,
{
    fn begin(&self, target: &str, now: Instant) -> Result<Step, MechanismError> {
        let initiation = self.0.begin(target, now)?;
        Ok(step(Arc::clone(&self.0), initiation))
    }
}

impl<M> Negotiation for Negotiating<M>
where
    M: Mechanism + 'static,
    M::Initiating: 'static,
{
    fn go_on(self: Box<Self>, token: &[u8], now: Instant) -> Result<Step, MechanismError> {
        let Self { state, mechanism } = *self;
        let initiation = mechanism.go_on(state, token, now)?;
        Ok(step(mechanism, initiation))
    }
}

fn step<M>(mechanism: Arc<M>, initiation: Initiation<M::Initiating>) -> Step
where
    M: Mechanism + 'static,
    M::Initiating: 'static,
{
    match initiation {
        Initiation::Continue(state, token) => {
            Step::Send(Box::new(Negotiating { state, mechanism }), token)
        }
        Initiation::Complete(established) => Step::Complete(established),
    }
}
