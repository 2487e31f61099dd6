//! Bounds the calls of clients that the mechanism works for at a time: it asks name services, which may block for long.

use spinrpc::fabric::LimitScope;
use spinrpc::sync::lock;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

pub(super) const TURNS_MAX: usize = 8;
/// Maximum number of them from one host, or one /64 of IPv6.
pub(super) const TURNS_OF_HOST_MAX: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<Vec<LimitScope>>,
    freed: Condvar,
}

#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    origin: LimitScope,
}

impl Turns {
    pub(super) fn take(&self, origin: LimitScope, at_most: Duration) -> Option<Turn<'_>> {
        let is_full = |taken: &mut Vec<LimitScope>| {
            let own = taken.iter().filter(|other| **other == origin).count();
            taken.len() >= TURNS_MAX || own >= TURNS_OF_HOST_MAX
        };
        let waited = self.freed.wait_timeout_while(lock(&self.taken), at_most, is_full);
        let (mut taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        taken.push(origin);
        Some(Turn { turns: self, origin })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut taken = lock(&self.turns.taken);
        if let Some(at) = taken.iter().position(|origin| *origin == self.origin) {
            taken.swap_remove(at);
        }
        drop(taken);
        // Each may wait for another reason.
        self.turns.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::thread;

    fn origin(host: u8) -> LimitScope {
        LimitScope::of(Ipv4Addr::new(192, 0, 2, host).into())
    }

    #[test]
    fn calls_have_a_bound_and_one_host_does_not_take_all() {
        let turns = Turns::default();
        let now = |host| turns.take(origin(host), Duration::ZERO);
        let mut first: Vec<_> = (0..TURNS_OF_HOST_MAX).map(|_| now(1).unwrap()).collect();
        assert!(now(1).is_none());
        let second: Vec<_> = (TURNS_OF_HOST_MAX..TURNS_MAX).map(|_| now(2).unwrap()).collect();
        assert!(now(3).is_none());
        first.pop();
        assert!(now(2).is_none());
        assert!(now(3).is_some());
        drop((first, second));
        assert!(lock(&turns.taken).is_empty());
    }

    #[test]
    fn a_call_that_waits_has_its_turn_when_another_ends() {
        let turns = Turns::default();
        let take = || turns.take(origin(1), Duration::MAX).unwrap();
        let all: Vec<_> = (0..TURNS_OF_HOST_MAX).map(|_| take()).collect();
        thread::scope(|scope| {
            scope.spawn(|| drop(take()));
            drop(all);
        });
        assert!(lock(&turns.taken).is_empty());
    }
}
