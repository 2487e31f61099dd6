//! The send queue of a queue pair as a list: what waits to be posted, what the device has, and when
//! it is known to be done with that.
//!
//! A device completes the requests of a queue in order, and says so only for those it is asked to
//! (they are signalled) or that fail. A request is released, so that its memory is free, when it or a
//! later one has completed. Nothing here touches a device.

use super::work_id::POSITIONS_MAX;

/// Requests of type `T` in the order of posting; see the module. Numbers wrap.
#[derive(Debug)]
pub(super) struct SendQueue<T> {
    /// A power of two of places; a request is at its number modulo that.
    places: Box<[Option<T>]>,
    depth: u32,
    /// The oldest that is not released ...
    head: u32,
    /// ... the first that the device does not have ...
    posted: u32,
    /// ... and the number of the next one.
    tail: u32,
    signal_every: u32,
    /// Requests since the last that is signalled.
    unsignalled: u32,
}

/// Where a request was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queued {
    /// Its place, below [`SendQueue::places`].
    pub(super) place: usize,
    pub(super) number: u32,
    /// The device is to report it.
    pub(super) is_signalled: bool,
}

impl<T> SendQueue<T> {
    /// A queue of at most `depth` requests, of which at least each `signal_every`th is signalled. It
    /// is signalled more often where the queue would fill up with requests that are never released.
    pub(super) fn new(depth: u32, signal_every: u32) -> Self {
        let depth = depth.clamp(1, POSITIONS_MAX / 2);
        let places = (0..depth.next_power_of_two()).map(|_| None).collect();
        let signal_every = signal_every.clamp(1, (depth / 4).max(1));
        Self { places, depth, head: 0, posted: 0, tail: 0, signal_every, unsignalled: 0 }
    }

    /// Places: at least as many as the queue is deep.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// How many more it takes.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        self.depth - self.tail.wrapping_sub(self.head)
    }

    /// Requests that the device does not have.
    #[inline]
    pub(super) fn waiting(&self) -> u32 {
        self.tail.wrapping_sub(self.posted)
    }

    /// Requests that the device has, as far as is known.
    #[inline]
    pub(super) fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.head)
    }

    #[inline]
    fn place(&self, number: u32) -> usize {
        number as usize & (self.places.len() - 1)
    }

    /// Appends a request, `signal` saying that it must be signalled. The caller has seen that there
    /// is [`SendQueue::room`]: without it, the request comes back.
    #[inline]
    pub(super) fn push(&mut self, request: T, signal: bool) -> Result<Queued, T> {
        if self.room() == 0 {
            return Err(request);
        }
        let number = self.tail;
        let place = self.place(number);
        self.tail = number.wrapping_add(1);
        self.places[place] = Some(request);
        let is_signalled = signal || self.unsignalled + 1 >= self.signal_every;
        self.unsignalled = if is_signalled { 0 } else { self.unsignalled + 1 };
        Ok(Queued { place, number, is_signalled })
    }

    /// The place of the request that is `ahead` of the next one to post, and the request.
    #[inline]
    pub(super) fn waiting_at(&mut self, ahead: u32) -> Option<(usize, &mut T)> {
        if ahead >= self.waiting() {
            return None;
        }
        let place = self.place(self.posted.wrapping_add(ahead));
        Some((place, self.places[place].as_mut()?))
    }

    /// The device has got the next `count` requests.
    #[inline]
    pub(super) fn post(&mut self, count: u32) {
        debug_assert!(count <= self.waiting(), "only what waits can be posted");
        self.posted = self.posted.wrapping_add(count.min(self.waiting()));
    }

    /// The device reported the request at `position`, the low bits of a number: how many requests
    /// are thereby done, those before it included. `None` for one that it does not have.
    #[inline]
    pub(super) fn reported(&self, position: u32) -> Option<u32> {
        let ahead = position.wrapping_sub(self.head) % POSITIONS_MAX;
        (ahead < self.outstanding()).then_some(ahead + 1)
    }

    /// Releases the oldest request that the device has, or had.
    #[inline]
    pub(super) fn release(&mut self) -> Option<T> {
        if self.outstanding() == 0 {
            return None;
        }
        let place = self.place(self.head);
        self.head = self.head.wrapping_add(1);
        self.places[place].take()
    }

    /// Takes back, in their order, the requests that the device does not have. What is queued from
    /// then on has to be signalled, as what was to report those before may be among them.
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = T> + '_ {
        let (from, count) = (self.posted, self.waiting());
        self.tail = from;
        (0..count).filter_map(move |ahead| {
            let place = self.place(from.wrapping_add(ahead));
            self.places[place].take()
        })
    }
}
