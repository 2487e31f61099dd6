//! The seam to whatever establishes contexts: Kerberos, by the system's library, and a test
//! mechanism whose ends are given the same key.
//!
//! A mechanism may block for long (a key distribution centre that does not answer takes half a minute),
//! so it runs on a few threads of its own, never on a core; several of them may use one mechanism at the
//! same time. It may allocate.

use spinrpc_proto::ids::Instant;

use crate::context::Established;

/// Establishes contexts. Tokens go to the other end in INIT and CONTINUE_INIT and their results.
pub trait Mechanism: Send + Sync {
    /// State of a context of an initiator that is not complete yet.
    type Initiating: Send;
    /// State of a context of an acceptor that is not complete yet.
    type Accepting: Send;

    /// Begins a context with `target`, a service such as `nfs@server`.
    ///
    /// # Errors
    /// [`MechanismError`].
    fn begin(
        &self,
        target: &str,
        now: Instant,
    ) -> Result<Initiation<Self::Initiating>, MechanismError>;

    /// Takes the acceptor's token.
    ///
    /// # Errors
    /// [`MechanismError`].
    fn go_on(
        &self,
        state: Self::Initiating,
        token: &[u8],
        now: Instant,
    ) -> Result<Initiation<Self::Initiating>, MechanismError>;

    /// Takes a token of an initiator: the first of a new context, or a further one with the state
    /// that the one before it left.
    ///
    /// # Errors
    /// [`MechanismError`].
    fn accept(
        &self,
        state: Option<Self::Accepting>,
        token: &[u8],
        now: Instant,
    ) -> Result<Acceptance<Self::Accepting>, MechanismError>;
}

/// State of an initiator after a step.
#[derive(Debug)]
pub enum Initiation<S> {
    /// The token is to be sent, and its answer given to [`Mechanism::go_on`].
    Continue(S, Vec<u8>),
    /// The context is there, nothing more is to be sent.
    Complete(Established),
}

/// State of an acceptor after a step; the token is to be sent in both cases.
#[derive(Debug)]
pub enum Acceptance<S> {
    /// The initiator has to send a further token.
    Continue(S, Vec<u8>),
    /// The context is there.
    Complete(Established, Vec<u8>),
}

/// A context could not be established.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct MechanismError {
    /// Status of GSS-API for the wire (`gss_major`); never COMPLETE or CONTINUE_NEEDED.
    pub major: u32,
    /// Status of the mechanism for the wire (`gss_minor`).
    pub minor: u32,
    /// The reason, for the user of this end.
    pub reason: String,
}

impl MechanismError {
    /// GSS_S_DEFECTIVE_TOKEN.
    pub const DEFECTIVE_TOKEN: u32 = 9 << 16;

    /// GSS_S_NO_CRED.
    pub const NO_CRED: u32 = 7 << 16;
}

#[cfg(feature = "test-mechanism")]
pub use given::GivenKeys;

/// Compiled for tests only.
#[cfg(feature = "test-mechanism")]
mod given {
    use super::{Acceptance, Established, Initiation, Instant, Mechanism, MechanismError};
    use crate::enctype::{Enctype, SessionKey};
    use std::sync::atomic::{AtomicU64, Ordering};

    const MAGIC: &[u8; 4] = b"test";
    /// Numbers of contexts, which make their keys differ.
    static CONTEXTS: AtomicU64 = AtomicU64::new(1);

    /// A mechanism whose ends are given the same key, from which those of each context are made. It proves nothing: for
    /// tests only.
    #[derive(Clone)]
    pub struct GivenKeys {
        /// Encryption type of all contexts.
        pub enctype: Enctype,
        /// The key, as long as the encryption type says.
        pub key: Vec<u8>,
        /// Name of this end.
        pub name: String,
        /// Tokens of the initiator that a context takes, at least one.
        pub tokens: u8,
        /// Nanoseconds until a context expires.
        pub lifetime: u64,
    }

    impl GivenKeys {
        fn established(
            &self,
            number: u64,
            peer: &str,
            now: Instant,
        ) -> Result<Established, MechanismError> {
            let mut key = self.key.clone();
            key.iter_mut().zip(number.to_be_bytes()).for_each(|(byte, other)| *byte ^= other);
            let key = SessionKey::new(self.enctype, &key);
            let error = |cause: crate::enctype::WrongKeyLength| {
                refused(MechanismError::NO_CRED, &cause.to_string())
            };
            Ok(Established {
                key: key.map_err(error)?,
                acceptor_subkey: true,
                expires: Instant(now.0.saturating_add(self.lifetime)),
                peer: peer.to_owned(),
            })
        }

        fn token(&self, left: u8, number: u64) -> Vec<u8> {
            [&MAGIC[..], &[left], &number.to_be_bytes(), self.name.as_bytes()].concat()
        }
    }

    /// Tokens left, the number of the context, and the name of who sent the token.
    fn parse(token: &[u8]) -> Result<(u8, u64, &str), MechanismError> {
        let defective = || refused(MechanismError::DEFECTIVE_TOKEN, "not a token of the tests");
        let [left, rest @ ..] = token.strip_prefix(MAGIC).ok_or_else(defective)? else {
            return Err(defective());
        };
        let (number, name) = rest.split_first_chunk().ok_or_else(defective)?;
        let name = core::str::from_utf8(name).map_err(|_| defective())?;
        Ok((*left, u64::from_be_bytes(*number), name))
    }

    fn refused(major: u32, reason: &str) -> MechanismError {
        MechanismError { major, minor: 0, reason: reason.to_owned() }
    }

    impl Mechanism for GivenKeys {
        /// Tokens that remain to be sent, and the number of the context.
        type Initiating = (u8, u64);
        /// Tokens that remain to be received.
        type Accepting = u8;

        fn begin(
            &self,
            _target: &str,
            _now: Instant,
        ) -> Result<Initiation<(u8, u64)>, MechanismError> {
            let left = self.tokens.saturating_sub(1);
            let number = CONTEXTS.fetch_add(1, Ordering::Relaxed);
            Ok(Initiation::Continue((left, number), self.token(left, number)))
        }

        fn go_on(
            &self,
            (left, number): (u8, u64),
            token: &[u8],
            now: Instant,
        ) -> Result<Initiation<(u8, u64)>, MechanismError> {
            let (theirs, _, peer) = parse(token)?;
            match left.checked_sub(1) {
                _ if theirs != left => {
                    Err(refused(MechanismError::DEFECTIVE_TOKEN, "token out of turn"))
                }
                Some(left) => Ok(Initiation::Continue((left, number), self.token(left, number))),
                None => Ok(Initiation::Complete(self.established(number, peer, now)?)),
            }
        }

        fn accept(
            &self,
            state: Option<u8>,
            token: &[u8],
            now: Instant,
        ) -> Result<Acceptance<u8>, MechanismError> {
            let (left, number, peer) = parse(token)?;
            if state.is_some_and(|expected| expected != left) {
                return Err(refused(MechanismError::DEFECTIVE_TOKEN, "token out of turn"));
            }
            match left.checked_sub(1) {
                Some(next) => Ok(Acceptance::Continue(next, self.token(left, number))),
                None => {
                    let token = self.token(0, number);
                    Ok(Acceptance::Complete(self.established(number, peer, now)?, token))
                }
            }
        }
    }
}
