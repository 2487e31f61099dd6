//! Decides whether, and when, a client replaces a lost connection. Pure: the dispatch asks it, and threads connect.

use super::errors::ConnectError;
use super::group::CONNECTIONS_MAX;
#[cfg(feature = "gss")]
use super::gss::GssInitiator;
use super::service::ConnectionEvent;
use crate::config::{Config, Versions};
use crate::fabric::DownCause;
use crate::mem::{SLABS_MAX, Slab};
use crate::reactor::types::peer_id::Instance;
use crate::sys::random::Random;
use std::sync::Arc;
use std::time::Duration;

/// Options of a client's connection; see [`Core::connect_with`](crate::Core::connect_with).
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    pub(super) reconnect: Option<Reconnect>,
    pub(super) takes_reverse: bool,
    pub(super) versions: Option<Versions>,
    pub(super) lent: Vec<Slab>,
    /// Connections of the client; 0: one for each address.
    connections: usize,
    /// Further addresses of the server.
    also: Vec<String>,
    pub(super) watcher: Option<Watcher>,
    #[cfg(feature = "gss")]
    pub(super) initiator: Option<GssInitiator>,
}

impl ConnectOptions {
    /// One connection, and no other when it is lost.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes another connection when this one is lost. Calls go over to it as their
    /// [`CallSpec::resend`](crate::CallSpec::resend) says.
    #[must_use]
    pub fn reconnect(mut self, policy: Reconnect) -> Self {
        self.reconnect = Some(policy);
        self
    }

    /// Makes a client of `connections` connections (at least one), all on its core: each call goes by the one with the
    /// fewest calls in flight. A call does not wait for a connection that is lost, and one that was in flight and may be
    /// sent again ([`CallSpec::resend`](crate::CallSpec::resend)) goes over at once, without a pause. At most 16. The
    /// default is one for each address. The [guide](crate::guide::connections#several-connections) has the details and what
    /// it promises of the order of calls.
    ///
    /// ```
    /// use spinrpc::{ConnectOptions, Reconnect};
    ///
    /// // Two connections by each of two rails.
    /// let options = ConnectOptions::new()
    ///     .connections(4)
    ///     .also("rdma://10.8.1.1")
    ///     .reconnect(Reconnect::default());
    /// # drop(options);
    /// ```
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// Names a further address of the same server, at most 15 in all. The connections are spread over all addresses; each
    /// has one of them as its own. Calls of one that is lost go over to another address, and to its own again when that can
    /// be reached, which is tried as [`ConnectOptions::reconnect`] says. To a server of this crate the client is known by a
    /// secret number then, whatever address it comes from; another server does not recognise a client that comes from
    /// another address, so that calls of [`Resend::AtMostOnce`](crate::Resend::AtMostOnce) end with the connection.
    #[must_use]
    pub fn also(mut self, address: &str) -> Self {
        self.also.push(address.to_owned());
        self
    }

    /// Number of connections.
    pub(super) fn connection_count(&self) -> usize {
        if self.connections == 0 { 1 + self.also.len() } else { self.connections }
    }

    pub(super) fn is_group(&self) -> bool {
        self.connection_count() > 1 || !self.also.is_empty()
    }

    /// All addresses of the server, of which `first` is the first one.
    pub(super) fn addresses(&self, first: &str) -> Box<[String]> {
        std::iter::once(first).chain(self.also.iter().map(String::as_str)).map(Into::into).collect()
    }

    /// Lets the server call in reverse by this connection (RFC 8167): its calls find the services of
    /// this engine ([`Engine::serve`](crate::Engine::serve)), all of them, which hear of the
    /// connection as of one that was accepted. Of another connection it knows nothing before; the
    /// upper layer has to tell the server that it may call, and should keep the
    /// connection as long as it may. Takes as many calls at a time as `rpc.reverse_calls` says,
    /// and leaves up to two credits of each grant for the answers.
    ///
    /// Without this calls in reverse are dropped in version one, and refused in version two, which asks
    /// for an answer.
    #[must_use]
    pub fn take_reverse_calls(mut self) -> Self {
        self.takes_reverse = true;
        self
    }

    /// Restricts the versions of RPC-over-RDMA that this client calls in, of those that the engine
    /// speaks (`rpc.version`); the default is all of them. With [`Versions::Both`] the client finds
    /// out which of them the server speaks; with a single version it cannot fall back.
    #[must_use]
    pub fn version(mut self, versions: Versions) -> Self {
        self.versions = Some(versions);
        self
    }

    /// Lets calls by this connection use blocks of `slab` in place, where the fabric can; see
    /// [`Slab`] for the copies that this saves. **Over shared memory the server can read all of the
    /// slab**; it can write none of it. It has a descriptor, and can keep it: from then on, for as
    /// long as the memory exists, the server can read the slab, even after the connection has
    /// ended. Create a new slab after lending to a server that must not see later data.
    ///
    /// At most 4 slabs, all of which a connection in the place of a lost one is lent, too. In each connection they count
    /// in full toward the server's limits (`limits.peer_slab_mib`, `limits.peer_mib`), beyond
    /// which it refuses the connection. With `mem.bulk = "copy"` nothing is lent.
    #[must_use]
    pub fn lend(mut self, slab: &Slab) -> Self {
        self.lent.push(slab.clone());
        self
    }

    /// Has the connection events of a [`ClientHandle`](crate::ClientHandle) passed to this function, on the thread of the
    /// core, which it must not block. The end of the core itself is not one of them:
    /// [`ClientHandle::wait_up`](crate::ClientHandle::wait_up) tells. Clients of a core hear of events by
    /// [`ReplyHandler::on_event`](crate::ReplyHandler::on_event) instead.
    #[must_use]
    pub fn on_event(mut self, watch: impl Fn(&ConnectionEvent) + Send + Sync + 'static) -> Self {
        self.watcher = Some(Watcher(Arc::new(watch)));
        self
    }

    /// Protects all calls with RPCSEC_GSS. The client is up when its context is there; it is
    /// established in-band, after a NULL call without a credential. See [`gss`](crate::gss) for the
    /// limits of this protection.
    #[cfg(feature = "gss")]
    #[must_use]
    pub fn gss(mut self, initiator: GssInitiator) -> Self {
        self.initiator = Some(initiator);
        self
    }

    /// Checks whether an engine can connect with these options.
    pub(super) fn check(&self, config: &Config) -> Result<(), ConnectError> {
        if self.lent.len() > SLABS_MAX {
            return Err(ConnectError::TooManySlabs);
        }
        if self.connection_count().max(1 + self.also.len()) > CONNECTIONS_MAX {
            return Err(ConnectError::TooManyConnections);
        }
        #[cfg(feature = "gss")]
        if self.initiator.as_ref().is_some_and(|initiator| !initiator.is_valid()) {
            return Err(ConnectError::Security("RPCSEC_GSS does not have this service".into()));
        }
        if self.takes_reverse && config.reverse_calls() == 0 {
            return Err(ConnectError::NoReverseCalls);
        }
        match self.versions.is_some_and(|versions| !config.versions().include(versions)) {
            true => Err(ConnectError::VersionNotConfigured),
            false => Ok(()),
        }
    }
}

/// A function of the application that is told of connection events.
#[derive(Clone)]
pub(super) struct Watcher(Arc<dyn Fn(&ConnectionEvent) + Send + Sync>);

impl Watcher {
    pub(super) fn tell(&self, event: &ConnectionEvent) {
        (self.0)(event);
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

/// Reconnect policy. A client reconnects after a pause that doubles with each failed attempt. The
/// pause is shortened at random, so that the clients of a server that went away do not all come
/// back at once. A connection that came up resets the pause to the first one.
///
/// ```
/// use spinrpc::{ConnectOptions, Reconnect};
/// use std::time::Duration;
///
/// let policy = Reconnect::default()
///     .first_delay(Duration::from_millis(1))
///     .max_delay(Duration::from_secs(1))
///     .jitter_percent(30)
///     .give_up_after(Duration::from_secs(60))
///     .resends_max(3)
///     .retry_first();
/// let options = ConnectOptions::new().reconnect(policy);
/// # drop(options);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconnect {
    first_delay: Duration,
    max_delay: Duration,
    jitter_percent: u8,
    give_up_after: Duration,
    pub(super) resends_max: u8,
    pub(super) retries_first: bool,
}

impl Default for Reconnect {
    /// Pauses from 10 ms to 5 s, half of it at random; for a minute; a call is sent again three
    /// times. The first connection is tried once.
    fn default() -> Self {
        Self {
            first_delay: Duration::from_millis(10),
            max_delay: Duration::from_secs(5),
            jitter_percent: 50,
            give_up_after: Duration::from_secs(60),
            resends_max: 3,
            retries_first: false,
        }
    }
}

impl Reconnect {
    /// The longest pause before the first attempt; 10 ms by default.
    #[must_use]
    pub fn first_delay(mut self, delay: Duration) -> Self {
        self.first_delay = delay;
        self
    }

    /// The longest pause before any attempt; 5 s by default.
    #[must_use]
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.max_delay = delay;
        self
    }

    /// Sets the percentage by which a pause may be shortened at random, from 0 to 100 (larger
    /// counts as 100); 50 by default.
    #[must_use]
    pub fn jitter_percent(mut self, percent: u8) -> Self {
        self.jitter_percent = percent.min(100);
        self
    }

    /// No attempt begins later than this after the loss, or the first failure; a minute by default. A server that needs
    /// the memory (`rpc.reply_cache_mib`) drops the oldest replies, and would execute their calls
    /// again: with [`Resend::AtMostOnce`](crate::Resend::AtMostOnce) do not stay away for long.
    #[must_use]
    pub fn give_up_after(mut self, time: Duration) -> Self {
        self.give_up_after = time;
        self
    }

    /// Number of times that one call may be sent again; 3 by default. A call that brings the
    /// connection down each time must end (RFC 8166 section 4.5.3).
    #[must_use]
    pub fn resends_max(mut self, resends: u8) -> Self {
        self.resends_max = resends;
        self
    }

    /// Also retries the first connection, so that a client may be made before its server listens. Until it is up, calls of
    /// handles wait, and others get [`Backpressure::Connecting`](crate::Backpressure::Connecting). Also retries a security
    /// context that is not established (RPCSEC_GSS), for whatever reason. A server that answers, but does not serve the
    /// program or speaks no version in common, is not asked again, nor is an address of wrong syntax. The handler hears of
    /// each attempt ([`ConnectionEvent::Retrying`](crate::ConnectionEvent::Retrying)), and
    /// [`Client::failure`](crate::Client::failure) is the last one's error. By default the first failure is final.
    #[must_use]
    pub fn retry_first(mut self) -> Self {
        self.retries_first = true;
        self
    }
}

#[derive(Debug)]
pub(super) struct ReconnectState {
    /// Identity by which the server knows the client.
    pub(super) instance: Instance,
    pub(super) cause: DownCause,
    pub(super) policy: Reconnect,
    /// Since it was up, and the time of the first failure since then.
    attempts: u32,
    lost_at: Option<Duration>,
    /// The next attempt begins at once, if the one before that did is [`Reconnect::first_delay`] ago: a server that accepts
    /// connections and closes them is not asked without a pause.
    pub(super) begins_at_once: bool,
    at_once_from: Duration,
    /// Attempts do not end.
    pub(super) is_endless: bool,
}

impl ReconnectState {
    pub(super) fn new(policy: Reconnect, random: &mut Random) -> Self {
        Self {
            instance: Instance::Lasting(random.next_u64().max(1)),
            cause: DownCause::Local,
            policy,
            attempts: 0,
            lost_at: None,
            begins_at_once: false,
            at_once_from: Duration::ZERO,
            is_endless: false,
        }
    }

    pub(super) fn succeed(&mut self) {
        (self.attempts, self.lost_at) = (0, None);
    }

    /// Returns true, and notes it, if an attempt may begin at `now` without a pause.
    pub(super) fn may_begin_at_once(&mut self, now: Duration) -> bool {
        let may = now >= self.at_once_from;
        if may {
            self.at_once_from = now.saturating_add(self.policy.first_delay);
        }
        may
    }

    /// The next attempt, at time `now` of the core; `None` when it is too late for another one.
    pub(super) fn next_attempt(&mut self, now: Duration, random: &mut Random) -> Option<Attempt> {
        let at_once = std::mem::take(&mut self.begins_at_once) && self.may_begin_at_once(now);
        let policy = &self.policy;
        if self.is_endless {
            self.lost_at = None;
        }
        let lost_at = *self.lost_at.get_or_insert(now);
        let doubled = 1_u32.checked_shl(self.attempts).unwrap_or(u32::MAX);
        let longest = policy.first_delay.saturating_mul(doubled).min(policy.max_delay);
        let spread = longest.mul_f64(f64::from(policy.jitter_percent) / 100.0);
        let spread_ns = u64::try_from(spread.as_nanos()).unwrap_or(u64::MAX);
        let pause = longest.saturating_sub(Duration::from_nanos(random.at_most(spread_ns)));
        let after = if at_once { Duration::ZERO } else { pause };
        let begins_at = now.saturating_sub(lost_at).saturating_add(after);
        self.attempts = self.attempts.saturating_add(1);
        (self.is_endless || begins_at <= policy.give_up_after)
            .then_some(Attempt { number: self.attempts, after })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    /// Counted from one.
    pub(super) number: u32,
    pub(super) after: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLICY: Reconnect = Reconnect {
        first_delay: Duration::from_millis(10),
        max_delay: Duration::from_millis(100),
        jitter_percent: 50,
        give_up_after: Duration::from_secs(2),
        resends_max: 3,
        retries_first: false,
    };

    /// The pauses of a client whose every attempt fails at once.
    fn pauses(policy: Reconnect, seed: u64) -> Vec<Duration> {
        let mut random = Random::seeded(seed);
        let mut reconnect_state = ReconnectState::new(policy, &mut random);
        let mut now = Duration::from_secs(9);
        std::iter::from_fn(|| {
            let attempt = reconnect_state.next_attempt(now, &mut random)?;
            now += attempt.after;
            Some(attempt.after)
        })
        .take(10_000)
        .collect()
    }

    #[test]
    fn without_jitter_pauses_double_up_to_the_longest() {
        let pauses = pauses(POLICY.jitter_percent(0), 1);
        let ms: Vec<u128> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(ms[..6], [10, 20, 40, 80, 100, 100]);
    }

    #[test]
    fn a_seed_gives_the_same_pauses_and_another_seed_others() {
        assert_eq!(pauses(POLICY, 7), pauses(POLICY, 7));
        assert_ne!(pauses(POLICY, 7), pauses(POLICY, 8));
    }

    #[test]
    fn success_makes_the_first_pause_the_first_again() {
        let mut random = Random::seeded(1);
        let policy = POLICY.jitter_percent(0);
        let mut reconnect_state = ReconnectState::new(policy, &mut random);
        let mut next = |reconnect_state: &mut ReconnectState, at_ms| {
            reconnect_state.next_attempt(Duration::from_millis(at_ms), &mut random)
        };
        assert_eq!(next(&mut reconnect_state, 0).map(|attempt| attempt.number), Some(1));
        assert_eq!(next(&mut reconnect_state, 10).map(|attempt| attempt.number), Some(2));
        assert_eq!(next(&mut reconnect_state, 2_000), None, "too late");
        reconnect_state.succeed();
        let first = Attempt { number: 1, after: Duration::from_millis(10) };
        assert_eq!(next(&mut reconnect_state, 50_000), Some(first));
    }

    proptest! {
        #[test]
        fn pauses_keep_within_the_jitter_and_end_in_time(
            seed: u64, first_ms in 1..500_u64, max_ms in 1..500_u64, percent in 0..=100_u8,
        ) {
            let policy = POLICY
                .first_delay(Duration::from_millis(first_ms))
                .max_delay(Duration::from_millis(max_ms))
                .jitter_percent(percent);
            let mut longest = Duration::from_millis(first_ms.min(max_ms));
            let all = pauses(policy, seed);
            for pause in &all {
                let shortest = longest.mul_f64(f64::from(100 - percent) / 100.0);
                let slack = Duration::from_nanos(1);
                prop_assert!(*pause <= longest && *pause + slack >= shortest, "{pause:?}");
                longest = (longest * 2).min(Duration::from_millis(max_ms));
            }
            if percent < 100 {
                prop_assert!(all.iter().sum::<Duration>() <= Duration::from_secs(2));
            }
        }
    }
}
