//! Memory of responders that have turned out not to speak version two, and its effect on clients
//! (version two section 5.2). Shared by all cores of an engine. It is read when a connection
//! begins, and changed when the version is settled or the connection goes; no message touches it.
//! The dispatch calls this.

use super::client_state::ClientEntry;
use super::errors::CallError;
use crate::config::Config;
use crate::fabric::{ConnId, DownCause};
use crate::sync::lock;
use spinrpc_proto::version::{Negotiation, Stage, TransportVersion, Verdict, Versions};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Responders without version two that are remembered at a time. With one more the one that was
/// heard of first is forgotten, and is made the offer again.
const RESPONDERS_MAX: usize = 1024;

/// Longest wait for the answer to an offer, less where `rpc.timeout_ms` is less: a client that waits
/// five seconds for a connection still gets one in version one.
const OFFER_TIMEOUT: Duration = Duration::from_secs(2);

/// Responders remembered, by the address that was connected to.
#[derive(Debug)]
pub(super) struct Responders {
    speaks: Versions,
    memory: Duration,
    offer_timeout: Duration,
    /// Responders without version two, with the time until which that holds; the oldest first.
    without_two: Mutex<VecDeque<(String, Duration)>>,
}

impl Responders {
    pub(super) fn new(config: &Config) -> Arc<Self> {
        let timeout = config.timeout().map_or(OFFER_TIMEOUT, |most| most.min(OFFER_TIMEOUT));
        Arc::new(Self {
            speaks: config.versions(),
            memory: config.version_memory(),
            offer_timeout: timeout,
            without_two: Mutex::default(),
        })
    }

    /// Start of the negotiation for a new connection that may be of these versions, at time `now`
    /// of a core.
    fn negotiation(&self, versions: Versions, address: &str, now: Duration) -> Negotiation {
        match versions == Versions::Both && self.lacks_two(address, now) {
            true => Negotiation::settled(TransportVersion::One),
            false => Negotiation::new(versions),
        }
    }

    fn lacks_two(&self, address: &str, now: Duration) -> bool {
        let known = lock(&self.without_two);
        known.iter().any(|(other, until)| other == address && now < *until)
    }

    /// A connection has told something.
    fn note(&self, address: &str, verdict: Verdict, now: Duration) {
        if verdict == Verdict::Unknown {
            return;
        }
        let mut known = lock(&self.without_two);
        known.retain(|(other, until)| other != address && now < *until);
        if verdict == Verdict::NoVersionTwo {
            if known.len() == RESPONDERS_MAX {
                known.pop_front();
            }
            known.push_back((address.to_owned(), now.saturating_add(self.memory)));
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Offer {
    responders: Option<Arc<Responders>>,
    versions: Versions,
    /// Time to wait for an answer, as long as version two is offered and version one would do.
    pub(super) patience: Option<Duration>,
    pub(super) is_open: bool,
    /// The last connection was lost over the offer: the next one goes without.
    is_refused: bool,
    /// Version two is spoken, and was not offered: the server is taken for one without.
    went_without: bool,
    /// The server has said that this was wrong, and has not been reached since.
    has_learnt: bool,
}

impl Offer {
    /// Offer of these versions, or of all that are spoken.
    pub(super) fn new(responders: &Arc<Responders>, versions: Option<Versions>) -> Self {
        let versions = versions.unwrap_or(responders.speaks);
        Self { responders: Some(Arc::clone(responders)), versions, ..Self::default() }
    }
}

impl ClientEntry {
    /// Begins to find the version of a new connection.
    pub(super) fn offer_version(&mut self, conn: ConnId) {
        let Some(responders) = &self.offer.responders else { return };
        let (versions, has_learnt) = (self.offer.versions, self.offer.has_learnt);
        let negotiation = match std::mem::take(&mut self.offer.is_refused) {
            true => Negotiation::settled(TransportVersion::One),
            // Whatever others have found out: the server itself said so.
            false if has_learnt => Negotiation::new(versions),
            false => responders.negotiation(versions, &self.address, self.link.ops.time()),
        };
        let has_other = self.offer.versions == Versions::Both;
        let is_offer = negotiation.stage() == Stage::Offered && has_other;
        self.offer.is_open = negotiation.stage() == Stage::Offered;
        self.offer.went_without = has_other && !is_offer;
        self.offer.patience = is_offer.then_some(responders.offer_timeout);
        self.link.ops.negotiate(conn, negotiation);
    }

    /// The first call was answered, and with that the version is settled.
    pub(super) fn settle_version(&mut self, conn: ConnId) {
        (self.offer.patience, self.offer.is_open, self.offer.has_learnt) = (None, false, false);
        let Some(settled) = self.link.ops.settle(conn) else { return };
        if let Some((_, negotiated)) = &mut self.up {
            *negotiated = settled.negotiated;
        }
        self.note_verdict(settled.verdict);
    }

    /// Records a connection's verdict on its server. A lost offer tells nothing about a server that
    /// has refused version one.
    pub(super) fn note_verdict(&self, verdict: Verdict) {
        let is_known = self.offer.has_learnt && verdict == Verdict::NoVersionTwo;
        if let Some(responders) = self.offer.responders.as_ref().filter(|_| !is_known) {
            responders.note(&self.address, verdict, self.link.ops.time());
        }
    }

    /// True if the server, which was taken for one without version two, refuses version one and
    /// reports version two; an offer may be lost for other reasons. The next connection offers it
    /// again. This happens once: a server that keeps changing its answer would make it loop
    /// forever.
    pub(super) fn learns_better(&mut self, low: u32, high: u32) -> bool {
        let speaks_two = (low..=high).contains(&TransportVersion::Two.to_wire());
        let was_wrong = self.offer.went_without && speaks_two;
        if was_wrong {
            self.note_verdict(Verdict::SpeaksTwo);
        }
        was_wrong && !std::mem::replace(&mut self.offer.has_learnt, true)
    }

    /// True if the first call failed because of the version that it offered: there was no answer,
    /// or the connection was gone. The next connection is then opened without the offer, even if
    /// other clients have been successful with it since. False if the server itself has refused
    /// version one.
    pub(super) fn falls_back(&mut self, error: &CallError) -> bool {
        let is_lost = match error {
            CallError::TimedOut => true,
            CallError::Disconnected(cause) => *cause != DownCause::Local,
            _ => false,
        };
        let may_be_old = self.offer.patience.is_some() && !self.offer.has_learnt;
        self.offer.is_refused = is_lost && may_be_old;
        self.offer.is_refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn both() -> Responders {
        Responders {
            speaks: Versions::Both,
            memory: 10 * S,
            offer_timeout: S,
            without_two: Mutex::default(),
        }
    }

    fn offers_two(responders: &Responders, address: &str, at: u32) -> bool {
        responders.negotiation(responders.speaks, address, at * S).stage() == Stage::Offered
    }

    /// Version two section 5.2: "a requester can avoid a possible version negotiation loop [...] by
    /// assuming that particular responder does not support RPC-over-RDMA Version Two".
    #[test]
    fn a_responder_without_version_two_is_remembered_for_a_while() {
        let responders = both();
        assert!(offers_two(&responders, "old", 0));
        responders.note("old", Verdict::NoVersionTwo, S);
        assert!(!offers_two(&responders, "old", 10));
        assert!(offers_two(&responders, "new", 10));
        assert!(offers_two(&responders, "old", 11), "expired");
    }

    #[test]
    fn one_that_answers_in_version_two_is_forgotten() {
        let responders = both();
        responders.note("old", Verdict::NoVersionTwo, S);
        responders.note("old", Verdict::Unknown, S);
        assert!(!offers_two(&responders, "old", 2));
        responders.note("old", Verdict::SpeaksTwo, 2 * S);
        assert!(offers_two(&responders, "old", 2));
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let responders = both();
        for number in 0..=RESPONDERS_MAX {
            responders.note(&number.to_string(), Verdict::NoVersionTwo, S);
        }
        assert_eq!(lock(&responders.without_two).len(), RESPONDERS_MAX);
        assert!(offers_two(&responders, "0", 2), "the first one had to go");
        assert!(!offers_two(&responders, "1", 2));
    }

    #[test]
    fn version_two_alone_is_offered_whatever_is_remembered() {
        let responders = Responders { speaks: Versions::Two, ..both() };
        responders.note("old", Verdict::NoVersionTwo, S);
        assert!(offers_two(&responders, "old", 2));
    }
}
