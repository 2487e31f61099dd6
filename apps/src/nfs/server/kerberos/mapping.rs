//! A mechanism whose peers have the user of their principal in front of their name.

use super::users::Users;
use spinrpc::gss::Instant;
use spinrpc::gss::mechanism::{Acceptance, Initiation, Mechanism, MechanismError};

/// Wraps the mechanism of a server. Maps principals when their contexts are established, on the thread for that.
#[derive(Debug)]
pub struct Mapping<M> {
    mechanism: M,
    users: Users,
}

impl<M> Mapping<M> {
    /// Maps the principals that `mechanism` proves.
    pub fn new(mechanism: M, users: Users) -> Self {
        Self { mechanism, users }
    }
}

impl<M: Mechanism> Mechanism for Mapping<M> {
    type Initiating = M::Initiating;
    type Accepting = M::Accepting;

    fn begin(
        &self,
        target: &str,
        now: Instant,
    ) -> Result<Initiation<Self::Initiating>, MechanismError> {
        self.mechanism.begin(target, now)
    }

    fn go_on(
        &self,
        state: Self::Initiating,
        token: &[u8],
        now: Instant,
    ) -> Result<Initiation<Self::Initiating>, MechanismError> {
        self.mechanism.go_on(state, token, now)
    }

    fn accept(
        &self,
        state: Option<Self::Accepting>,
        token: &[u8],
        now: Instant,
    ) -> Result<Acceptance<Self::Accepting>, MechanismError> {
        let accepted = self.mechanism.accept(state, token, now)?;
        let Acceptance::Complete(mut established, token) = accepted else { return Ok(accepted) };
        established.peer = self.users.label(&established.peer);
        Ok(Acceptance::Complete(established, token))
    }
}
