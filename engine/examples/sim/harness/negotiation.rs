//! Progress of both ends of connections in finding their version (version two section 5), read from
//! the wire.

use super::words::{ERROR, word};
use spinrpc::fabric::sim::{SideId, What};

/// In the order of section 5: each message of it on its way, and taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Step {
    /// The client has said nothing.
    #[default]
    Connected,
    /// Its first call is on its way, in version two.
    Offered,
    OfferTaken,
    /// An answer other than an error is on its way.
    Answered,
    /// ERR_VERS is on its way.
    Refused,
    RefusalTaken,
    /// The call is on its way again, in version one.
    FellBack,
    FallbackTaken,
    FallbackAnswered,
    /// For the rest of the connection.
    Settled,
}

impl Step {
    /// All in which a version is to be found.
    pub(crate) const OPEN: [Self; 9] = [
        Self::Connected,
        Self::Offered,
        Self::OfferTaken,
        Self::Answered,
        Self::Refused,
        Self::RefusalTaken,
        Self::FellBack,
        Self::FallbackTaken,
        Self::FallbackAnswered,
    ];

    /// Next step after `what` is seen at `side`: until the version is known there is one message at
    /// a time.
    pub(crate) fn after(self, side: SideId, what: &What) -> Self {
        match what {
            What::Sent { message, .. } if side.is_connector() => self.after_call(message),
            What::Sent { message, .. } => self.after_answer(message),
            What::Received { .. } => self.after_taking(side),
            _ => self,
        }
    }

    fn after_call(self, message: &[u8]) -> Self {
        match self {
            Self::Connected if word(message, 1) == 2 => Self::Offered,
            // It knows the responder, or speaks nothing else.
            Self::Connected => Self::Settled,
            Self::RefusalTaken => Self::FellBack,
            other => other,
        }
    }

    fn after_answer(self, message: &[u8]) -> Self {
        match (self, word(message, 3) == ERROR) {
            (Self::OfferTaken, true) => Self::Refused,
            (Self::OfferTaken, false) => Self::Answered,
            (Self::FallbackTaken, false) => Self::FallbackAnswered,
            (other, _) => other,
        }
    }

    fn after_taking(self, side: SideId) -> Self {
        match (self, side.is_connector()) {
            (Self::Offered, false) => Self::OfferTaken,
            (Self::FellBack, false) => Self::FallbackTaken,
            (Self::Refused, true) => Self::RefusalTaken,
            (Self::Answered | Self::FallbackAnswered, true) => Self::Settled,
            (other, _) => other,
        }
    }
}

/// Number of connections lost in each step, by the progress known to both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cuts([u64; Step::OPEN.len()]);

impl Cuts {
    pub(crate) fn count(&mut self, step: Step) {
        if let Some(count) = self.0.get_mut(step as usize) {
            *count += 1;
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    /// Each step with how often a connection was lost in it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Step, u64)> {
        Step::OPEN.into_iter().zip(self.0)
    }
}
