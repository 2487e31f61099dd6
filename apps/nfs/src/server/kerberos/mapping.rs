//! A mechanism whose peers have the user of their principal in front of their name.

use super::host::LookupError;
use super::users::Users;
use spinrpc::gss::Instant;
use spinrpc::gss::mechanism::{Mechanism, MechanismError, Negotiation};
use std::sync::Arc;

/// Wraps the mechanism of a server. Maps principals when their contexts are established, on the thread for that.
#[derive(Debug)]
pub struct Mapping<M> {
    mechanism: M,
    users: Arc<Users>,
}

impl<M> Mapping<M> {
    /// Maps the principals that `mechanism` proves.
    pub fn new(mechanism: M, users: Users) -> Self {
        Self { mechanism, users: Arc::new(users) }
    }
}

impl<M: Mechanism> Mechanism for Mapping<M> {
    fn begin(&self, target: &str, now: Instant) -> Result<Negotiation, MechanismError> {
        self.mechanism.begin(target, now)
    }

    fn accept(&self, token: &[u8], now: Instant) -> Result<Negotiation, MechanismError> {
        mapped(self.mechanism.accept(token, now)?, &self.users)
    }
}

fn mapped(accepted: Negotiation, users: &Arc<Users>) -> Result<Negotiation, MechanismError> {
    match accepted {
        Negotiation::Continue(go_on, answer) => {
            let users = Arc::clone(users);
            let go_on = move |token: &[u8], now| mapped(go_on(token, now)?, &users);
            Ok(Negotiation::Continue(Box::new(go_on), answer))
        }
        Negotiation::Complete(mut established, answer) => {
            // The client tries again. The rights of the anonymous user would last as long as the context.
            let label = users.label(&established.peer);
            established.peer = label.map_err(|error| failed(&error))?;
            Ok(Negotiation::Complete(established, answer))
        }
    }
}

fn failed(error: &LookupError) -> MechanismError {
    /// GSS_S_FAILURE.
    const FAILURE: u32 = 13 << 16;
    MechanismError { major: FAILURE, minor: 0, reason: error.to_string() }
}
