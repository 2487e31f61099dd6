//! The origins of a core's peers, and what each of them holds.

use crate::fabric::{LimitScope, Peer};
use crate::mem::Share;
use crate::reactor::in_flight::deferred::Caller;
use crate::sys::clock::Ticks;
use std::sync::Arc;

/// Place of an origin in [`Origins`], as long as it has a connection or a deferred call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reactor) struct OriginIndex(usize);

impl OriginIndex {
    /// Of a connection whose peer is not counted.
    pub(in crate::reactor) const NONE: Self = Self(usize::MAX);
}

#[derive(Default)]
pub(in crate::reactor) struct Origins {
    held: Vec<Held>,
    /// Connections that have gone with deferred calls, which hold their places until they are answered.
    orphans: Vec<(OriginIndex, Arc<Caller>)>,
    counted_at: Option<Ticks>,
}

/// What an origin holds.
struct Held {
    origin: LimitScope,
    share: Share,
    /// Deferred calls, at the last count.
    deferred: usize,
}

impl Origins {
    /// The origin of a new connection, and the share of the connection (slow path: allocates).
    pub(in crate::reactor) fn admit(&mut self, peer: &Peer) -> (OriginIndex, Share) {
        let origin = LimitScope::of_peer(peer);
        let known = self.held.iter().position(|held| held.origin == origin);
        let place = known.unwrap_or_else(|| self.new_place(origin));
        (OriginIndex(place), Share::of_connection(&self.held[place].share))
    }

    fn new_place(&mut self, origin: LimitScope) -> usize {
        let held = Held { origin, share: Share::default(), deferred: 0 };
        let unused = self.held.iter().position(|held| held.share.is_unused());
        match unused {
            Some(place) => self.held[place] = held,
            None => self.held.push(held),
        }
        unused.unwrap_or(self.held.len() - 1)
    }

    /// A connection has gone.
    pub(in crate::reactor) fn leave(&mut self, origin: OriginIndex, caller: Option<Arc<Caller>>) {
        self.orphans.retain(|(_, caller)| Caller::deferred(caller) > 0);
        let caller = caller.filter(|caller| Caller::deferred(caller) > 0);
        self.orphans.extend(caller.map(|caller| (origin, caller)));
    }

    /// Counts deferred calls anew: those of its connections, given here, and those of the others. Not within `ticks` of the
    /// last count, because there may be thousands.
    pub(in crate::reactor) fn count(
        &mut self,
        now: Ticks,
        ticks: u64,
        conns: impl Iterator<Item = (OriginIndex, usize)>,
    ) {
        if self.counted_at.is_some_and(|before| now.0.saturating_sub(before.0) < ticks) {
            return;
        }
        self.counted_at = Some(now);
        self.held.iter_mut().for_each(|held| held.deferred = 0);
        let orphans =
            self.orphans.iter().map(|(origin, caller)| (*origin, Caller::deferred(caller)));
        for (origin, calls) in conns.chain(orphans) {
            if let Some(held) = self.held.get_mut(origin.0) {
                held.deferred += calls;
            }
        }
    }

    /// Deferred calls of an origin, which may be one more by and by.
    pub(in crate::reactor) fn deferred(&mut self, origin: OriginIndex) -> Option<&mut usize> {
        self.held.get_mut(origin.0).map(|held| &mut held.deferred)
    }
}
