//! Any mechanism behind one type: the state of a context that is being established is a box. Used by both ends of contexts.

use spinrpc_gss::mechanism::{Acceptance, Initiation, Mechanism, MechanismError};
use spinrpc_proto::ids::Instant;
use std::any::Any;

/// State of a mechanism with a context that is being established.
pub(super) type State = Box<dyn Any + Send>;

/// As [`Mechanism`], whatever its states are.
pub(super) trait AnyMechanism: Send + Sync {
    fn begin(&self, target: &str, now: Instant) -> Result<Initiation<State>, MechanismError>;

    fn go_on(
        &self,
        state: State,
        token: &[u8],
        now: Instant,
    ) -> Result<Initiation<State>, MechanismError>;

    fn accept(
        &self,
        state: Option<State>,
        token: &[u8],
        now: Instant,
    ) -> Result<Acceptance<State>, MechanismError>;
}

impl<M: Mechanism + 'static> AnyMechanism for M
where
    M::Initiating: 'static,
    M::Accepting: 'static,
{
    fn begin(&self, target: &str, now: Instant) -> Result<Initiation<State>, MechanismError> {
        Mechanism::begin(self, target, now).map(boxed)
    }

    fn go_on(
        &self,
        state: State,
        token: &[u8],
        now: Instant,
    ) -> Result<Initiation<State>, MechanismError> {
        Mechanism::go_on(self, own(state)?, token, now).map(boxed)
    }

    fn accept(
        &self,
        state: Option<State>,
        token: &[u8],
        now: Instant,
    ) -> Result<Acceptance<State>, MechanismError> {
        Ok(match Mechanism::accept(self, state.map(own).transpose()?, token, now)? {
            Acceptance::Continue(state, token) => Acceptance::Continue(Box::new(state), token),
            Acceptance::Complete(established, token) => Acceptance::Complete(established, token),
        })
    }
}

fn boxed<S: Send + 'static>(initiation: Initiation<S>) -> Initiation<State> {
    match initiation {
        Initiation::Continue(state, token) => Initiation::Continue(Box::new(state), token),
        Initiation::Complete(established) => Initiation::Complete(established),
    }
}

fn own<S: 'static>(state: State) -> Result<S, MechanismError> {
    state.downcast().map(|state| *state).map_err(|_| no_context())
}

pub(super) fn no_context() -> MechanismError {
    /// GSS_S_NO_CONTEXT.
    const NO_CONTEXT: u32 = 8 << 16;
    let reason = "no context of this handle is being established".to_owned();
    MechanismError { major: NO_CONTEXT, minor: 0, reason }
}
