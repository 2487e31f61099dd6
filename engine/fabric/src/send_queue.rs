//! The send queue of a queue pair as a list: requests that wait to be posted, requests on the
//! device, and the time at which the device is known to be done with them.
//!
//! A device completes the requests of a queue in order, and says so only for those it is asked to
//! (they are signalled) or that fail. A request is released, so that its memory is free, when it or a
//! later one has completed. RDMA Reads answer for themselves: siw reports a Send while a Read before it
//! is still on its way. Nothing here touches a device.
//!
//! That a completion releases earlier requests is the contract of verbs (InfiniBand specification, volume
//! 1, "Unsignaled Completions"), and real adapters keep it. siw does not for an unsignalled request of a page or
//! more: it hands the pages themselves to TCP, which reads them when it transmits, and again when it
//! retransmits, while later requests complete. A signalled request it copies first (Linux 6.12,
//! `siw_qp_prepare_tx`: `use_sendpage`). Such requests are therefore signalled on siw
//! (`DeviceCaps::signal_from_bytes`). The simulation has
//! such a device, and this list for it.

use std::ops::Range;

/// Work requests of one queue that can be told apart.
pub(super) const POSITIONS_MAX: u32 = 1 << 20;

/// Requests in the order of posting; see the module. The device has the low bits of their numbers.
#[derive(Debug)]
pub(super) struct SendQueue<T> {
    /// A power of two of places; a request is at its number modulo that.
    places: Box<[Option<T>]>,
    depth: u32,
    /// The oldest that is not released ...
    head: u64,
    /// ... the first that no report says is done ...
    done: u64,
    /// ... the first that the device does not have ...
    posted: u64,
    /// ... and the number of the next one.
    tail: u64,
    signal_every: u32,
    /// A request with a source of this many bytes or more is signalled.
    signal_from_bytes: u32,
    unsignalled: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queued {
    pub(super) place: usize,
    pub(super) number: u32,
    pub(super) is_signalled: bool,
}

#[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "the simulation needs a part"))]
impl<T> SendQueue<T> {
    /// At least each `signal_every`th is signalled: more often where the queue would fill up with requests that are
    /// never released. Those whose source is `signal_from_bytes` long or longer are signalled, too.
    pub(super) fn new(depth: u32, signal_every: u32, signal_from_bytes: u32) -> Self {
        let depth = depth.clamp(1, POSITIONS_MAX / 2);
        let places = (0..depth.next_power_of_two()).map(|_| None).collect();
        let signal_every = signal_every.clamp(1, (depth / 4).max(1));
        Self {
            places,
            depth,
            head: 0,
            done: 0,
            posted: 0,
            tail: 0,
            signal_every,
            signal_from_bytes,
            unsignalled: 0,
        }
    }

    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    #[inline]
    pub(super) fn room(&self) -> u32 {
        self.depth - (self.tail - self.head) as u32
    }

    /// Requests so far.
    pub(super) fn pushed(&self) -> u64 {
        self.tail
    }

    /// Number of all requests that are done.
    pub(super) fn released(&self) -> u64 {
        self.head
    }

    #[inline]
    pub(super) fn waiting(&self) -> u32 {
        (self.tail - self.posted) as u32
    }

    /// Requests that the device has, as far as is known.
    #[inline]
    pub(super) fn outstanding(&self) -> u32 {
        (self.posted - self.head) as u32
    }

    #[inline]
    fn place(&self, number: u64) -> usize {
        number as usize & (self.places.len() - 1)
    }

    /// `source_bytes` of memory are read by the device after posting. Without [`SendQueue::room`] the request comes back.
    #[inline]
    pub(super) fn push(
        &mut self,
        request: T,
        signal: bool,
        source_bytes: u32,
    ) -> Result<Queued, T> {
        if self.room() == 0 {
            return Err(request);
        }
        let number = self.tail;
        let place = self.place(number);
        self.tail = number + 1;
        self.places[place] = Some(request);
        let is_signalled = signal
            || source_bytes >= self.signal_from_bytes
            || self.unsignalled + 1 >= self.signal_every;
        self.unsignalled = if is_signalled { 0 } else { self.unsignalled + 1 };
        Ok(Queued { place, number: number as u32, is_signalled })
    }

    /// If it is `is_meant` and the device does not have it: it was not signalled, or the next one will be.
    pub(super) fn take_last(&mut self, is_meant: impl FnOnce(&T) -> bool) -> Option<T> {
        let last = self.posted + u64::from(self.waiting().checked_sub(1)?);
        let place = self.place(last);
        if !self.places[place].as_ref().is_some_and(is_meant) {
            return None;
        }
        self.tail = last;
        self.unsignalled = self.unsignalled.checked_sub(1).unwrap_or(self.signal_every - 1);
        self.places[place].take()
    }

    #[inline]
    pub(super) fn waiting_at(&mut self, ahead: u32) -> Option<(usize, &mut T)> {
        if ahead >= self.waiting() {
            return None;
        }
        let place = self.place(self.posted + u64::from(ahead));
        Some((place, self.places[place].as_mut()?))
    }

    #[inline]
    pub(super) fn advance(&mut self, count: u32) {
        debug_assert!(count <= self.waiting(), "only what waits can be posted");
        self.posted += u64::from(count.min(self.waiting()));
    }

    /// At `position`, the low bits of a number. Those before it are done as well. `None` if the device does not have it.
    #[inline]
    pub(super) fn report(&mut self, position: u32) -> Option<&mut T> {
        let ahead = position.wrapping_sub(self.head as u32) % POSITIONS_MAX;
        if ahead >= self.outstanding() {
            return None;
        }
        let reported = self.head + u64::from(ahead);
        self.done = self.done.max(reported + 1);
        let place = self.place(reported);
        self.places[place].as_mut()
    }

    /// Numbers of the requests for which a report is to come: up to the last one that is signalled, or to a Read that
    /// answers for itself. Requests behind the last signalled one may stay for as long as nothing else is sent.
    pub(super) fn awaited(&self) -> Option<Range<u64>> {
        let unsignalled_from = self.tail.saturating_sub(self.unsignalled.into());
        let end = unsignalled_from.max(self.done);
        (end > self.head).then_some(self.head..end)
    }

    /// If it is done by the reports and not `is_out`: one that answers for itself and has not.
    #[inline]
    pub(super) fn release_done(&mut self, is_out: impl FnOnce(&T) -> bool) -> Option<T> {
        let oldest = self.places[self.place(self.head)].as_ref();
        if self.done == self.head || oldest.is_some_and(is_out) {
            return None;
        }
        self.release()
    }

    /// The oldest that the device has, or had.
    #[inline]
    pub(super) fn release(&mut self) -> Option<T> {
        if self.outstanding() == 0 {
            return None;
        }
        let place = self.place(self.head);
        let behind = self.head + 1;
        if self.done == self.head {
            self.done = behind;
        }
        self.head = behind;
        self.places[place].take()
    }

    /// Of all that the device does not have, in order. The next request must be signalled, because the one that was to
    /// report earlier requests may be among them.
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = T> + '_ {
        let (from, count) = (self.posted, self.waiting());
        self.tail = from;
        (0..count).filter_map(move |ahead| {
            let place = self.place(from + u64::from(ahead));
            self.places[place].take()
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The behaviour of siw: the Send behind a Read is reported first.
    #[test]
    fn a_read_that_is_out_holds_back_what_is_behind_it() {
        let mut queue = SendQueue::new(4, 1, u32::MAX);
        for request in ["write", "read", "send"] {
            assert!(queue.push(request, true, 0).is_ok());
        }
        queue.advance(3);
        assert!(queue.report(2).is_some());
        assert_eq!(queue.release_done(|request| *request == "read"), Some("write"));
        assert_eq!(queue.release_done(|request| *request == "read"), None);
        assert!(queue.report(1).is_some());
        assert_eq!(queue.release_done(|_| false), Some("read"));
        assert_eq!(queue.release_done(|_| false), Some("send"));
        assert_eq!(queue.release_done(|_| false), None);
    }

    #[test]
    fn a_report_is_awaited_for_signalled_requests_and_for_reads_only() {
        let mut queue = SendQueue::new(16, 4, u32::MAX);
        assert_eq!(queue.awaited(), None);
        assert!(queue.push("send", false, 0).is_ok());
        assert_eq!(queue.awaited(), None, "it may stay as it is for ever");
        assert!(queue.push("read", true, 0).is_ok() && queue.push("send", true, 0).is_ok());
        assert_eq!(queue.awaited(), Some(0..3), "also before it is posted");
        queue.advance(3);
        assert!(queue.report(2).is_some());
        while queue.release_done(|request| *request == "read").is_some() {}
        assert_eq!(queue.awaited(), Some(1..3), "the Read is out");
        while queue.release_done(|_| false).is_some() {}
        assert!(queue.push("send", false, 0).is_ok());
        assert_eq!(queue.awaited(), None);
        let mut queue = SendQueue::new(16, 4, u32::MAX);
        assert!(queue.push("send", false, 0).is_ok() && queue.take_waiting().count() == 1);
        assert_eq!(queue.awaited(), None, "it was taken back");
    }

    #[test]
    fn long_sources_are_signalled_where_the_device_reads_them_late() {
        let mut queue = SendQueue::new(64, 16, 4096);
        let mut is_signalled =
            |bytes| queue.push((), false, bytes).map(|queued| queued.is_signalled);
        assert_eq!(
            [0, 4095, 4096, u32::MAX, 4095].map(&mut is_signalled),
            [Ok(false), Ok(false), Ok(true), Ok(true), Ok(false)]
        );
        let mut queue = SendQueue::new(64, 16, u32::MAX);
        assert!(queue.push((), false, 1 << 30).is_ok_and(|queued| !queued.is_signalled));
    }

    #[test]
    fn the_low_bits_of_numbers_wrap() {
        let mut queue = SendQueue::new(3, 1, u32::MAX);
        (queue.head, queue.done, queue.posted, queue.tail) =
            (u32::MAX.into(), u32::MAX.into(), u32::MAX.into(), u32::MAX.into());
        for request in 0..3 {
            assert!(queue.push(request, true, 0).is_ok());
        }
        queue.advance(3);
        assert_eq!(queue.report(1), Some(&mut 2));
        let released: Vec<_> = std::iter::from_fn(|| queue.release_done(|_| false)).collect();
        assert_eq!((released, queue.report(1)), (vec![0, 1, 2], None));
    }
}
