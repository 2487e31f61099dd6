//! One connection's ends of its two rings, shared by its queue pair and by the code that sends and takes its short
//! messages: all that a short message needs, in as few cache lines as possible. With many connections they are
//! what a call costs.
//!
//! Touches the rings, and the list of connections that sent something. The queue pair sets what they may do
//! ([`ShmShortEndpoint::allow`], [`ShmShortEndpoint::note_receive`]).

use super::super::{Head, QpId, Short, ShortEndpointOps, SingleConnPoll};
use super::endpoint::Link;
use super::layout::Layout;
use super::window::Window;
use crate::sync::atomic::{Ordering, fence};
use crate::sync::ring::{Consumer, Corrupt, Look, Producer, PushError};
use std::cell::Cell;
use std::rc::Rc;

#[derive(Debug)]
pub(super) struct PendingConns {
    /// Those that sent something since the last flush, or whose rings broke meanwhile.
    pub(super) sent: PlaceList,
    /// Hot ones whose next message is not short.
    pub(super) long: PlaceList,
    /// Something waits for a poll, such as one of these: turns look at this only. A poll makes it true again.
    pub(super) news: Cell<bool>,
    /// A send queue may have something that the flush goes on with.
    pub(super) waits: Cell<bool>,
    /// Looks without a message after which a hot connection goes cold.
    pub(super) idle_polls: Cell<u32>,
}

/// Looks of one turn at the hot connections while they are silent, if they are few.
pub(super) const QUICK_LOOKS: u32 = 8;

impl PendingConns {
    pub(super) fn new(conns: usize) -> Rc<Self> {
        let (sent, long) = (PlaceList::new(conns), PlaceList::new(conns));
        let (news, waits, idle_polls) = (Cell::new(true), Cell::new(false), Cell::new(0));
        Rc::new(Self { sent, long, news, waits, idle_polls })
    }
}

#[derive(Debug)]
pub(super) struct PlaceList {
    count: Cell<usize>,
    places: Box<[Cell<u32>]>,
}

impl PlaceList {
    /// With room for all connections of a core, each of which is on it once, and for those whose place they have
    /// taken since the last look.
    fn new(conns: usize) -> Self {
        let places = (0..2 * conns).map(|_| Cell::new(0)).collect();
        Self { count: Cell::new(0), places }
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    #[inline(always)]
    pub(super) fn only(&self) -> Option<u32> {
        if self.count.get() != 1 {
            return None;
        }
        self.places.first().map(Cell::get)
    }

    #[inline(always)]
    pub(super) fn pop(&self) -> Option<u32> {
        let last = self.count.get().checked_sub(1)?;
        self.count.set(last);
        self.places.get(last).map(Cell::get)
    }

    #[inline(always)]
    fn push(&self, place: u32) {
        let count = self.count.get();
        if let Some(to) = self.places.get(count) {
            to.set(place);
            self.count.set(count + 1);
        }
    }
}

pub(super) enum Found {
    Short {
        goes_on: bool,
    },
    Nothing,
    /// Something waits that is received another way.
    Other,
}

/// See the module.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ShmShortEndpoint {
    pub(super) id: QpId,
    /// In a row.
    pub(super) empty_looks: Cell<u32>,
    receives: Cell<u32>,
    has_long: Cell<bool>,
    /// The last message taken here was short, and its receive, which is posted all the while, can be had.
    lends_receive: Cell<bool>,
    /// Messages of the last turn that looked, as far as it matters: none, one, or more.
    burst: Cell<u8>,
    /// No other connection of the core is hot.
    pub(super) alone: Cell<bool>,
    room: Cell<usize>,
    /// Nothing waits in the send queue, and the connection is up.
    pub(super) sends_at_once: Cell<bool>,
    sent: Cell<bool>,
    /// `sends_at_once`, and a message has been sent by value since the last turn ended.
    sends_on: Cell<bool>,
    is_broken: Cell<bool>,
    listed: Rc<PendingConns>,
    pub(super) rx: Consumer<Window>,
    pub(super) tx: Producer<Window>,
    /// Violation by the peer, until the driver looks.
    broken: Cell<Option<Corrupt>>,
}

impl ShmShortEndpoint {
    /// `None` when its rings do not fit the window.
    pub(super) fn new(
        id: QpId,
        link: &Link,
        layout: Layout,
        listed: Rc<PendingConns>,
    ) -> Option<Self> {
        let tx = Producer::new(link.window.clone(), layout.ring(link.side))?;
        let rx = Consumer::new(link.window.clone(), layout.ring(link.side.peer()))?;
        Some(Self {
            id,
            empty_looks: Cell::new(0),
            receives: Cell::new(0),
            has_long: Cell::new(false),
            lends_receive: Cell::new(false),
            burst: Cell::new(0),
            alone: Cell::new(false),
            room: Cell::new(0),
            sends_at_once: Cell::new(true),
            sent: Cell::new(false),
            sends_on: Cell::new(false),
            broken: Cell::new(None),
            is_broken: Cell::new(false),
            listed,
            rx,
            tx,
        })
    }

    pub(super) fn allow(&self, room: usize, sends_at_once: bool) {
        self.room.set(room);
        self.sends_at_once.set(sends_at_once && !self.is_broken.get());
    }

    #[inline(always)]
    pub(super) fn note_receive(&self) {
        self.receives.set(self.receives.get() + 1);
    }

    /// One is not posted any more; perhaps of a connection that receives nothing more.
    #[inline(always)]
    pub(super) fn note_receive_taken(&self) {
        self.receives.set(self.receives.get().saturating_sub(1));
    }

    pub(super) fn end_receiving(&self) {
        self.receives.set(0);
    }

    /// As [`ShortMessages::next_short`](super::super::ShortMessages::next_short), if this is the only hot connection of the core.
    #[inline(always)]
    #[doc(hidden)]
    pub fn take_alone(&self, message: &mut Short) -> SingleConnPoll {
        if !self.alone.get() {
            return SingleConnPoll::Unknown;
        }
        match self.look(message) {
            Found::Short { goes_on } => {
                self.empty_looks.set(0);
                SingleConnPoll::Taken { goes_on }
            }
            Found::Nothing => self.wait_alone(message),
            Found::Other => SingleConnPoll::Unknown,
        }
    }

    /// Looks a few more times, as a scan does. The driver has to look when the connection has been silent for long.
    #[inline(never)]
    fn wait_alone(&self, message: &mut Short) -> SingleConnPoll {
        self.set_burst(false);
        let looks = self.empty_looks.get() + 1;
        if looks > self.listed.idle_polls.get() {
            return SingleConnPoll::Unknown;
        }
        if !(0..QUICK_LOOKS).any(|_| self.rx.has_arrival()) {
            self.empty_looks.set(looks);
            return SingleConnPoll::Silent;
        }
        let Found::Short { goes_on } = self.look(message) else { return SingleConnPoll::Unknown };
        self.empty_looks.set(0);
        SingleConnPoll::Taken { goes_on }
    }

    /// Ends a turn whose messages came by [`ShmShortEndpoint::take_alone`], if the driver has nothing to do in it but to see
    /// that no bell has to be rung. `false`, and nothing has happened, if it has.
    #[inline(always)]
    #[doc(hidden)]
    pub fn end_turn_alone(&self) -> bool {
        let PendingConns { sent, news, waits, .. } = &*self.listed;
        if news.get() | waits.get() {
            return false;
        }
        // On the list, and all that is on it.
        if sent.count.get() != 1 || !self.sent.get() {
            return sent.is_empty();
        }
        // It stays on the list, so that the next message need not be noted.
        if !self.tx.is_in_run() {
            return !self.is_broken.get();
        }
        // Pairs with the fence of the peer's `go_idle`.
        fence(Ordering::SeqCst);
        let is_quiet = self.needs_no_ring();
        if is_quiet {
            self.end_run();
        }
        is_quiet
    }

    /// Leaves the list if nothing was sent since the last turn ended, nor found to be broken. Returns true if so.
    #[inline(always)]
    pub(super) fn forget_unless_sent(&self) -> bool {
        let has_sent_nothing = !self.tx.is_in_run() && !self.is_broken.get();
        if has_sent_nothing {
            self.sent.set(false);
        }
        has_sent_nothing
    }

    #[inline(always)]
    fn needs_no_ring(&self) -> bool {
        !self.is_broken.get() && !self.tx.wants_bell()
    }

    #[inline(always)]
    pub(super) fn is_burst(&self) -> bool {
        self.burst.get() != 0
    }

    pub(super) fn set_burst(&self, is_burst: bool) {
        self.burst.set(is_burst.into());
    }

    /// Takes the next message if it is a short one. After silence it does not look for a second one, as in
    /// [`QueuePair::receive`](super::queue_pair::QueuePair::receive); nor if it was looked for in the last turn that
    /// had one message, and none was there.
    #[inline(always)]
    pub(super) fn look(&self, message: &mut Short) -> Found {
        self.look_once(message, self.is_burst())
    }

    /// `goes_on`: another one is looked for behind it.
    #[inline(always)]
    fn look_once(&self, message: &mut Short, goes_on: bool) -> Found {
        if self.receives.get() == 0 {
            return self.look_without_receive();
        }
        match self.rx.take_slot(message.slot_mut(), goes_on) {
            Look::Short(length) => {
                message.set_taken(length);
                self.burst.set(1);
                self.lends_receive.set(true);
                Found::Short { goes_on }
            }
            Look::Empty => Found::Nothing,
            Look::Other => Found::Other,
        }
    }

    #[cold]
    fn look_without_receive(&self) -> Found {
        if self.rx.has_arrival() { Found::Other } else { Found::Nothing }
    }

    #[cold]
    fn leave(&self) -> Option<bool> {
        self.note_long();
        None
    }

    #[cold]
    pub(super) fn note_long(&self) {
        if !self.has_long.replace(true) {
            self.listed.long.push(self.id.index());
            self.listed.news.set(true);
        }
    }

    /// That poll has come; `true` once.
    pub(super) fn take_long(&self) -> bool {
        self.has_long.replace(false)
    }

    /// Returns, once, whether the receive of the last short message is available.
    pub(super) fn lend_receive(&self) -> bool {
        self.lends_receive.replace(false)
    }

    #[cold]
    fn refuse(&self, why: PushError) -> bool {
        let PushError::Corrupt(corrupt) = why else { return false };
        self.sends_at_once.set(false);
        self.is_broken.set(true);
        self.broken.set(Some(corrupt));
        self.note_sent();
        true
    }

    #[inline(always)]
    pub(super) fn note_sent(&self) {
        if !self.sent.replace(true) {
            self.listed.sent.push(self.id.index());
        }
    }

    /// The flush has its look, behind its fence. `false` if the peer has to be rung, or has broken a ring
    /// ([`ShmShortEndpoint::take_broken`]).
    #[inline(always)]
    pub(super) fn take_sent(&self) -> bool {
        self.sent.set(false);
        // Nothing that was not sent is rung for, or a peer that sleeps on a full ring would cost a system call each turn.
        let has_sent = self.tx.is_in_run();
        self.end_run();
        !self.is_broken.get() && (!has_sent || self.needs_no_ring())
    }

    #[inline(always)]
    fn end_run(&self) {
        self.sends_on.set(false);
        self.tx.end_run();
    }

    pub(super) fn take_broken(&self) -> Option<Corrupt> {
        self.broken.take()
    }
}

impl ShortEndpointOps for ShmShortEndpoint {
    #[inline(always)]
    fn take(&self, message: &mut Short) -> Option<bool> {
        // The one before it was taken in a burst.
        match self.look_once(message, true) {
            Found::Short { .. } => {
                self.burst.set(2);
                Some(true)
            }
            Found::Nothing => {
                self.burst.set(self.burst.get() & 2);
                None
            }
            Found::Other => self.leave(),
        }
    }

    /// The next flush finds a violation by the peer.
    #[inline(always)]
    fn send<const HEAD: usize>(
        &self,
        head: impl Into<Head<HEAD>>,
        message: &Short,
        bytes: usize,
    ) -> bool {
        if !self.sends_at_once.get() {
            return false;
        }
        let follows = self.sends_on.get();
        match self.tx.push_slot(head.into().words(), message.slot(), bytes, follows) {
            Ok(()) => {
                if !follows {
                    self.sends_on.set(true);
                    self.note_sent();
                }
                true
            }
            Err(why) => self.refuse(why),
        }
    }

    #[inline(always)]
    fn room(&self) -> usize {
        self.room.get()
    }
}
