//! Signs of life of a peer that says nothing: a Write of no bytes, which its device acknowledges without the peer's doing.
//!
//! A peer that is cut off is noticed by what it does not acknowledge. One that owes replies may be cut off when all that it was
//! sent has been acknowledged; its own end notices, and can say so to nobody. So each connection is looked at four times a second. After
//! the first look without a message, either way, the peer is asked for a sign of life, and then ever more rarely.
//!
//! Without an answer the device gives up by itself, but the kernel makes a timeout that was configured longer, up to what the device says of
//! its own delays (`cm_ack_timeout`): 134 ms for each try over rxe, 268 ms over mlx5. So the time that was configured is kept here.

use std::time::Duration;

/// The control thread has the cores look this often, or twice within the time after which a peer is given up.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Shorter times would wake cores for nothing else.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(50);

/// Most looks between two questions: half a minute.
const LOOKS_MAX: u32 = 128;

#[derive(Debug, Default)]
pub(super) struct Silence {
    /// The peer has spoken: before that, an end that accepts may not send anything over iWARP (RFC 5044 section 7.1.2).
    has_heard: bool,
    /// It has since the last look.
    is_broken: bool,
    looks: u32,
    /// Requests that had been posted, without the questions, and the number of these.
    posted: u64,
    asked: u64,
    /// Requests that were done at the last look.
    done: u64,
    /// Looks since the last sign of life, while a question has no answer.
    unanswered: u32,
}

/// Time between looks, if a peer is given up after this.
pub(super) fn look_every(given_up_after: Option<Duration>) -> Duration {
    given_up_after.map_or(LOOK_EVERY, |after| (after / 2).clamp(LOOK_EVERY_MIN, LOOK_EVERY))
}

/// Looks without a sign of life, after a question, behind which a peer is given up. A pause of this host's threads is one look,
/// however long it was, and alone proves nothing.
pub(super) fn looks_before_end(given_up_after: Duration) -> u32 {
    let looks = given_up_after.as_nanos().div_ceil(look_every(Some(given_up_after)).as_nanos());
    u32::try_from(looks).unwrap_or(u32::MAX).max(2)
}

impl Silence {
    /// The first look finds a change.
    pub(super) fn new() -> Self {
        Self { posted: u64::MAX, ..Self::default() }
    }

    #[inline]
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// A message has arrived.
    pub(super) fn end(&mut self) {
        (self.has_heard, self.is_broken) = (true, true);
    }

    /// The peer has spoken at any time.
    pub(super) fn has_heard(&self) -> bool {
        self.has_heard
    }

    /// A look at a connection on which this end may send, with the number of requests posted in all. Returns true if the peer is to
    /// be asked.
    pub(super) fn look(&mut self, posted: u64) -> bool {
        let posted = posted.wrapping_sub(self.asked);
        let was_posted = std::mem::replace(&mut self.posted, posted) != posted;
        let is_quiet = !std::mem::take(&mut self.is_broken) && !was_posted;
        self.looks = if is_quiet { self.looks + 1 } else { 0 };
        if self.looks > 2 * LOOKS_MAX {
            self.looks = LOOKS_MAX + 1;
        }
        self.looks.is_power_of_two()
    }

    pub(super) fn asked(&mut self) {
        self.asked += 1;
    }

    /// Behind [`Silence::look`], with the number of requests that are done: for how many looks a question has had no answer. Any
    /// other request that is done, or message, is a sign of life as well: a question waits behind what was to be sent before it.
    pub(super) fn unanswered(&mut self, was_asking: bool, done: u64) -> u32 {
        let is_quiet = std::mem::replace(&mut self.done, done) == done && self.looks > 0;
        self.unanswered =
            if was_asking && is_quiet { self.unanswered.saturating_add(1) } else { 0 };
        self.unanswered
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Looks at which the peer is asked, each of which is one more request.
    fn asked_at(silence: &mut Silence, posted: &mut u64, looks: u32) -> Vec<u32> {
        let is_asked = |_: &u32| {
            let asks = silence.look(*posted);
            if asks {
                silence.asked();
                *posted += 1;
            }
            asks
        };
        (1..=looks).filter(is_asked).collect()
    }

    #[test]
    fn a_peer_that_says_nothing_is_asked_ever_more_rarely_and_then_every_half_minute() {
        let mut silence = Silence::new();
        assert!(!silence.look(0), "it is new");
        let asked = asked_at(&mut silence, &mut 0, 400);
        assert_eq!(asked, [1, 2, 4, 8, 16, 32, 64, 128, 256, 384]);
    }

    #[test]
    fn a_message_in_either_direction_begins_the_silence_again() {
        let (mut silence, mut posted) = (Silence::default(), 0);
        silence.end();
        assert!(!silence.look(posted));
        asked_at(&mut silence, &mut posted, 100);
        silence.end();
        assert!(!silence.look(posted));
        assert_eq!(asked_at(&mut silence, &mut posted, 3), [1, 2]);
        posted += 1;
        assert!(!silence.look(posted));
        assert_eq!(asked_at(&mut silence, &mut posted, 3), [1, 2]);
    }

    #[test]
    fn looks_at_a_question_without_any_sign_of_life_are_counted() {
        let (mut silence, ms) = (Silence::new(), Duration::from_millis);
        let mut look = |was_asking, done, posted| {
            silence.look(posted);
            silence.unanswered(was_asking, done)
        };
        assert_eq!(look(true, 0, 0), 0, "it is new");
        assert_eq!([(); 2].map(|()| look(true, 0, 0)), [1, 2]);
        assert_eq!([(); 2].map(|()| look(true, 1, 0)), [0, 1], "one is done");
        assert_eq!([(); 2].map(|()| look(true, 1, 1)), [0, 1], "one is posted");
        assert_eq!([(); 2].map(|()| look(false, 1, 1)), [0, 0], "it is answered");
        let every = [0, 120, 9000].map(|after| look_every(Some(ms(after))));
        assert_eq!((look_every(None), every), (LOOK_EVERY, [50, 60, 250].map(ms)));
        assert_eq!([0, 120, 9000].map(|after| looks_before_end(ms(after))), [2, 2, 36]);
    }

    /// An end that accepts over iWARP answers a first message however long ago that was.
    #[test]
    fn a_peer_that_has_spoken_has_spoken_for_good() {
        let mut silence = Silence::default();
        assert!(!silence.has_heard());
        silence.end();
        asked_at(&mut silence, &mut 0, 3);
        assert!(silence.has_heard() && !silence.is_broken());
    }
}
