//! A mechanism whose peers have the user of their principal in front of their name.

use super::host::LookupError;
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
        // The client tries again. The rights of the anonymous user would last as long as the context.
        let label = self.users.label(&established.peer);
        established.peer = label.map_err(|error| failed(&error))?;
        Ok(Acceptance::Complete(established, token))
    }
}

fn failed(error: &LookupError) -> MechanismError {
    /// GSS_S_FAILURE.
    const FAILURE: u32 = 13 << 16;
    MechanismError { major: FAILURE, minor: 0, reason: error.to_string() }
}
