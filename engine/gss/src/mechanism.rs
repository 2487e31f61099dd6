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
    /// Begins a context of an initiator with `target`, a service such as `nfs@server`.
    ///
    /// # Errors
    /// [`MechanismError`].
    fn begin(&self, target: &str, now: Instant) -> Result<Negotiation, MechanismError>;

    /// Begins a context of an acceptor with the first token of an initiator.
    ///
    /// # Errors
    /// [`MechanismError`].
    fn accept(&self, token: &[u8], now: Instant) -> Result<Negotiation, MechanismError>;
}

/// Goes on with a context when the next token of the other end has come. Owns all that it needs of the mechanism.
pub type GoOn = Box<dyn FnOnce(&[u8], Instant) -> Result<Negotiation, MechanismError> + Send>;

/// State of a context after a step.
pub enum Negotiation {
    /// The token is to be sent, and the next one of the other end is awaited.
    Continue(GoOn, Vec<u8>),
    /// The context is there. The token of an acceptor is to be sent; that of an initiator is empty.
    Complete(Established, Vec<u8>),
}

impl core::fmt::Debug for Negotiation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Continue(..) => "Continue",
            Self::Complete(..) => "Complete",
        })
    }
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
    use super::{Established, Instant, Mechanism, MechanismError, Negotiation};
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

    impl GivenKeys {
        /// Sends a token of an initiator that has this number of further ones.
        fn with_token(self, left: u8, number: u64) -> Negotiation {
            let token = self.token(left, number);
            let go_on = move |answer: &[u8], now: Instant| {
                let (theirs, _, peer) = parse(answer)?;
                match left.checked_sub(1) {
                    _ if theirs != left => Err(out_of_turn()),
                    Some(left) => Ok(self.with_token(left, number)),
                    None => {
                        let established = self.established(number, peer, now)?;
                        Ok(Negotiation::Complete(established, Vec::new()))
                    }
                }
            };
            Negotiation::Continue(Box::new(go_on), token)
        }

        /// Takes a token of an initiator that has `expected` further ones, if that is known.
        fn take(
            self,
            expected: Option<u8>,
            token: &[u8],
            now: Instant,
        ) -> Result<Negotiation, MechanismError> {
            let (left, number, peer) = parse(token)?;
            if expected.is_some_and(|expected| expected != left) {
                return Err(out_of_turn());
            }
            let answer = self.token(left, number);
            let Some(next) = left.checked_sub(1) else {
                return Ok(Negotiation::Complete(self.established(number, peer, now)?, answer));
            };
            let go_on = move |token: &[u8], now: Instant| self.take(Some(next), token, now);
            Ok(Negotiation::Continue(Box::new(go_on), answer))
        }
    }

    fn out_of_turn() -> MechanismError {
        refused(MechanismError::DEFECTIVE_TOKEN, "token out of turn")
    }

    impl Mechanism for GivenKeys {
        fn begin(&self, _target: &str, _now: Instant) -> Result<Negotiation, MechanismError> {
            let number = CONTEXTS.fetch_add(1, Ordering::Relaxed);
            Ok(self.clone().with_token(self.tokens.saturating_sub(1), number))
        }

        fn accept(&self, token: &[u8], now: Instant) -> Result<Negotiation, MechanismError> {
            self.clone().take(None, token, now)
        }
    }
}
