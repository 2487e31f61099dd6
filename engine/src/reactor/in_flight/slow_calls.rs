//! The slowest calls of a core in the last minutes. The core keeps them, and copies them for the control socket's thread,
//! which brings the memory.

use crate::fabric::Peer;
use crate::reactor::types::latency::Spent;
use crate::sys::clock::{Clock, Ticks};
use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
use std::time::Duration;

/// Time that a core keeps its slowest calls for, in minutes.
pub const SLOW_MINUTES: usize = 5;
/// Number of calls that it keeps of each minute.
pub const SLOW_CALLS_KEPT: usize = 32;
/// The current minute, and those before it that may have a call of the last [`SLOW_MINUTES`].
const MINUTES_HELD: usize = SLOW_MINUTES + 1;
/// Most of a core at a time.
pub const SLOW_CALLS_MAX: usize = MINUTES_HELD * SLOW_CALLS_KEPT;

const MINUTE: Duration = Duration::from_secs(60);

/// The program and procedure that were called; none if only memory that is gone said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallName {
    pub(crate) xid: Xid,
    pub(crate) called: Option<(Program, Version, Procedure)>,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowCall {
    pub(crate) name: CallName,
    /// This side was the client.
    pub(crate) is_ours: bool,
    pub(crate) peer: Option<Peer>,
    /// Time of its end. In a copy: nanoseconds since then.
    pub(crate) ended: u64,
    /// In ticks; nanoseconds in a copy.
    pub(crate) total: u64,
    pub(crate) spent: Spent,
}

/// See the module.
pub(in crate::reactor) struct SlowCalls {
    /// All have their memory from the start.
    minutes: [Vec<SlowCall>; MINUTES_HELD],
    current: usize,
    ends: Ticks,
    minute_ticks: u64,
    /// A call of the current minute that took less is not kept.
    least: u64,
    /// Of the current minute, if that is full.
    fastest: usize,
}

impl SlowCalls {
    pub(in crate::reactor) fn new(clock: &Clock) -> Self {
        let minutes = std::array::from_fn(|_| Vec::with_capacity(SLOW_CALLS_KEPT));
        let minute_ticks = clock.from_duration(MINUTE);
        Self { minutes, current: 0, ends: Ticks(0), minute_ticks, least: 0, fastest: 0 }
    }

    /// Returns true if a call that ends now and took so many ticks is to be kept.
    #[inline]
    pub(in crate::reactor) fn takes(&self, total: u64, now: Ticks) -> bool {
        total >= self.least || now >= self.ends
    }

    /// Keeps a call; of a minute that is full, the fastest one goes.
    #[cold]
    pub(in crate::reactor) fn keep(&mut self, call: SlowCall) {
        if call.ended >= self.ends.0 {
            self.current = (self.current + 1) % MINUTES_HELD;
            self.minutes[self.current].clear();
            self.ends = Ticks(call.ended.saturating_add(self.minute_ticks));
        }
        let calls = &mut self.minutes[self.current];
        if calls.len() < SLOW_CALLS_KEPT {
            calls.push(call);
        } else if call.total >= self.least {
            calls[self.fastest] = call;
        }
        self.least = 0;
        if calls.len() == SLOW_CALLS_KEPT {
            let totals = calls.iter().map(|call| call.total).enumerate();
            let fastest = totals.min_by_key(|(_, total)| *total);
            let (fastest, total) = fastest.unwrap_or_default();
            (self.fastest, self.least) = (fastest, total + 1);
        }
    }

    /// Copies those that ended in the last minutes, with times in nanoseconds.
    pub(in crate::reactor) fn copy_to(&self, to: &mut Vec<SlowCall>, now: Ticks, clock: &Clock) {
        to.clear();
        let age = |call: &SlowCall| now.0.saturating_sub(call.ended);
        let age_max = self.minute_ticks.saturating_mul(SLOW_MINUTES as u64);
        let recent = self.minutes.iter().flatten().filter(|call| age(call) < age_max);
        to.extend(recent.take(SLOW_CALLS_MAX).map(|call| SlowCall {
            ended: clock.to_ns(age(call)),
            total: clock.to_ns(call.total),
            spent: call.spent.map(|ticks| clock.to_ns(ticks)),
            ..*call
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(ended: u64, total: u64) -> SlowCall {
        let name = CallName { xid: Xid(0), called: None };
        SlowCall { name, is_ours: false, peer: None, ended, total, spent: Spent::default() }
    }

    /// The totals that are kept at this time.
    fn kept(calls: &SlowCalls, now: u64) -> Vec<u64> {
        let mut copies = Vec::with_capacity(SLOW_CALLS_MAX);
        calls.copy_to(&mut copies, Ticks(now), &Clock::monotonic());
        let mut totals: Vec<_> = copies.iter().map(|call| call.total).collect();
        totals.sort_unstable();
        totals
    }

    #[test]
    fn the_slowest_calls_of_each_minute_are_kept_for_some_minutes() {
        let mut calls = SlowCalls::new(&Clock::monotonic());
        let (minute, many) = (MINUTE.as_nanos() as u64, SLOW_CALLS_KEPT as u64);
        for total in 1..=2 * many {
            assert!(calls.takes(total, Ticks(0)));
            calls.keep(call(0, total));
        }
        let slowest: Vec<_> = (many + 1..=2 * many).collect();
        assert_eq!(kept(&calls, minute), slowest);
        assert!(!calls.takes(many + 1, Ticks(minute - 1)) && calls.takes(1, Ticks(minute)));
        calls.keep(call(minute, 1));
        assert_eq!(kept(&calls, minute), [&[1][..], &slowest].concat());
        let all = minute * SLOW_MINUTES as u64;
        assert_eq!((kept(&calls, all), kept(&calls, all + minute)), (vec![1], vec![]));
        let memory = calls.minutes.iter().map(Vec::capacity).sum::<usize>();
        for round in 1..9 {
            calls.keep(call(minute * round, round));
            calls.keep(call(minute * (round + 1) - 1, round));
        }
        calls.keep(call(minute * 9, 9));
        // Also when the current minute has just begun.
        assert_eq!(kept(&calls, minute * 9), [4, 5, 5, 6, 6, 7, 7, 8, 8, 9]);
        assert_eq!(calls.minutes.iter().map(Vec::capacity).sum::<usize>(), memory);
    }
}
