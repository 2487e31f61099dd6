//! The send queue of a queue pair as a list: what waits to be posted, what the device has, and when
//! it is known to be done with that.
//!
//! A device completes the requests of a queue in order, and says so only for those it is asked to
//! (they are signalled) or that fail. A request is released, so that its memory is free, when it or a
//! later one has completed. RDMA Reads answer for themselves: siw reports a Send while a Read before it
//! is still on its way. Nothing here touches a device.

use super::work_id::POSITIONS_MAX;

/// Requests of type `T` in the order of posting; see the module. Numbers wrap.
#[derive(Debug)]
pub(super) struct SendQueue<T> {
    /// A power of two of places; a request is at its number modulo that.
    places: Box<[Option<T>]>,
    depth: u32,
    /// The oldest that is not released ...
    head: u32,
    /// ... the first that no report says is done ...
    done: u32,
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
        Self { places, depth, head: 0, done: 0, posted: 0, tail: 0, signal_every, unsignalled: 0 }
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

    /// Takes back the request that was queued last, if it is `is_meant` and the device does not have
    /// it: it was not signalled, or the next one will be.
    pub(super) fn take_last(&mut self, is_meant: impl FnOnce(&T) -> bool) -> Option<T> {
        let number = self.tail.wrapping_sub(1);
        let place = self.place(number);
        if self.waiting() == 0 || !self.places[place].as_ref().is_some_and(is_meant) {
            return None;
        }
        self.tail = number;
        self.unsignalled = self.unsignalled.checked_sub(1).unwrap_or(self.signal_every - 1);
        self.places[place].take()
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

    /// The device reported the request at `position`, the low bits of a number: it is done, and those
    /// before it are. `None` for one that it does not have.
    #[inline]
    pub(super) fn report(&mut self, position: u32) -> Option<&mut T> {
        let ahead = position.wrapping_sub(self.head) % POSITIONS_MAX;
        if ahead >= self.outstanding() {
            return None;
        }
        let known = self.done.wrapping_sub(self.head).max(ahead + 1);
        self.done = self.head.wrapping_add(known);
        let place = self.place(self.head.wrapping_add(ahead));
        self.places[place].as_mut()
    }

    /// Releases the oldest request, if it is done by the reports and not `is_out`: one that answers for
    /// itself and has not.
    #[inline]
    pub(super) fn release_done(&mut self, is_out: impl FnOnce(&T) -> bool) -> Option<T> {
        let oldest = self.places[self.place(self.head)].as_ref();
        if self.done == self.head || oldest.is_some_and(is_out) {
            return None;
        }
        self.release()
    }

    /// Releases the oldest request that the device has, or had.
    #[inline]
    pub(super) fn release(&mut self) -> Option<T> {
        if self.outstanding() == 0 {
            return None;
        }
        let place = self.place(self.head);
        let behind = self.head.wrapping_add(1);
        if self.done == self.head {
            self.done = behind;
        }
        self.head = behind;
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

#[cfg(all(test, not(loom)))]
#[allow(clippy::expect_used, reason = "tests")]
mod tests {
    use super::super::recv_queue::RecvQueue;
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// What happens next.
    #[derive(Clone, Debug)]
    enum Step {
        Queue {
            signal: bool,
        },
        /// As an RDMA Read: it answers for itself, and may do so late.
        QueueRead,
        Post {
            most: u32,
        },
        /// The device gets on with so many of its requests, and one of them may fail.
        Work {
            most: usize,
            fails: bool,
        },
        /// A Read that the device has got on with is done: any of them.
        Answer {
            which: usize,
        },
        /// What the device reported is looked at, so much of it.
        Poll {
            most: usize,
        },
        /// This side gives up what it has not posted, or the last of it.
        TakeWaiting,
        TakeLast,
        QueueRecv,
        PostRecvs {
            most: usize,
        },
        /// The device is done with a receive: any of them.
        Receive {
            which: usize,
        },
        PollRecvs {
            most: usize,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => any::<bool>().prop_map(|signal| Step::Queue { signal }),
            1 => Just(Step::QueueRead),
            2 => any::<usize>().prop_map(|which| Step::Answer { which }),
            3 => (0_u32..6).prop_map(|most| Step::Post { most }),
            3 => (0_usize..6, prop::bool::weighted(0.03))
                .prop_map(|(most, fails)| Step::Work { most, fails }),
            3 => (0_usize..4).prop_map(|most| Step::Poll { most }),
            1 => Just(Step::TakeWaiting),
            1 => Just(Step::TakeLast),
            3 => Just(Step::QueueRecv),
            2 => (0_usize..4).prop_map(|most| Step::PostRecvs { most }),
            2 => any::<usize>().prop_map(|which| Step::Receive { which }),
            2 => (0_usize..4).prop_map(|most| Step::PollRecvs { most }),
        ]
    }

    /// A request: its number, whether it answers for itself, and whether it has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Request {
        number: u32,
        is_read: bool,
        is_answered: bool,
    }

    impl Request {
        fn is_out(&self) -> bool {
            self.is_read && !self.is_answered
        }
    }

    /// A device, and what is expected of the lists.
    struct Model {
        sends: SendQueue<Request>,
        recvs: RecvQueue<u32>,
        /// Requests by age, with what they are reported by: waiting, then on the device.
        waiting: VecDeque<(Request, Queued)>,
        on_device: VecDeque<(Request, Queued)>,
        /// What the device has got on with, in order, and is not released.
        passed: VecDeque<Request>,
        /// Of that, Reads that are not done.
        reading: Vec<(u32, Queued)>,
        reported: VecDeque<u32>,
        is_in_error: bool,
        recvs_on_device: Vec<(u32, u32)>,
        recvs_waiting: VecDeque<(u32, u32)>,
        recvs_reported: VecDeque<(u32, u32)>,
        next: u32,
    }

    impl Model {
        fn new(depth: u32, signal_every: u32) -> Self {
            Self {
                sends: SendQueue::new(depth, signal_every),
                recvs: RecvQueue::new(depth),
                waiting: VecDeque::new(),
                on_device: VecDeque::new(),
                passed: VecDeque::new(),
                reading: Vec::new(),
                reported: VecDeque::new(),
                is_in_error: false,
                recvs_on_device: Vec::new(),
                recvs_waiting: VecDeque::new(),
                recvs_reported: VecDeque::new(),
                next: 0,
            }
        }

        fn take_step(&mut self, step: &Step) {
            match *step {
                Step::Queue { signal } => self.queue(signal, false),
                Step::QueueRead => self.queue(true, true),
                Step::Answer { which } => self.answer(which),
                Step::Post { most } => self.post(most),
                Step::Work { most, fails } => self.work(most, fails),
                Step::Poll { most } => self.poll(most),
                Step::TakeWaiting => self.take_waiting(),
                Step::TakeLast => self.take_last(),
                Step::QueueRecv => self.queue_recv(),
                Step::PostRecvs { most } => self.post_recvs(most),
                Step::Receive { which } => self.receive(which),
                Step::PollRecvs { most } => self.poll_recvs(most),
            }
            assert_eq!(self.sends.waiting() as usize, self.waiting.len());
            assert_eq!(self.sends.outstanding() as usize, self.on_device.len() + self.passed.len());
            let posted = self.recvs_on_device.len() + self.recvs_reported.len();
            assert_eq!(self.recvs.outstanding(), posted);
        }

        fn queue(&mut self, signal: bool, is_read: bool) {
            let has_room = self.sends.room() > 0;
            let request = Request { number: self.next, is_read, is_answered: false };
            match self.sends.push(request, signal) {
                Ok(queued) => {
                    assert!(has_room && (queued.is_signalled || !signal));
                    self.waiting.push_back((request, queued));
                    self.next += 1;
                }
                Err(back) => assert!(!has_room && back == request),
            }
        }

        fn post(&mut self, most: u32) {
            let count = most.min(self.sends.waiting());
            for ahead in 0..count {
                let (request, queued) = self.waiting.pop_front().expect("as many wait");
                let found = self.sends.waiting_at(ahead).map(|(place, request)| (place, *request));
                assert_eq!(found, Some((queued.place, request)));
                self.on_device.push_back((request, queued));
            }
            self.sends.post(count);
        }

        /// In order; reported if signalled, failed or flushed. Reads are done later.
        fn work(&mut self, most: usize, fails: bool) {
            for at in 0..most {
                let Some((request, queued)) = self.on_device.pop_front() else { return };
                self.is_in_error |= fails && at + 1 == most;
                self.passed.push_back(request);
                if request.is_read {
                    self.reading.push((request.number, queued));
                } else if queued.is_signalled || self.is_in_error {
                    self.reported.push_back(queued.number % POSITIONS_MAX);
                }
            }
        }

        fn answer(&mut self, which: usize) {
            if !self.reading.is_empty() {
                let (number, queued) = self.reading.remove(which % self.reading.len());
                let mut passed = self.passed.iter_mut();
                let read = passed.find(|request| request.number == number);
                read.expect("a Read is not released before its answer").is_answered = true;
                self.reported.push_back(queued.number % POSITIONS_MAX);
            }
        }

        fn poll(&mut self, most: usize) {
            for _ in 0..most {
                let Some(position) = self.reported.pop_front() else { return };
                self.sends.report(position).expect("it was on the device").is_answered = true;
                while let Some(mut released) = self.sends.release_done(Request::is_out) {
                    let mut oldest = self.passed.pop_front().expect("the device has got to it");
                    assert!(!oldest.is_out(), "released while it was on its way");
                    (released.is_answered, oldest.is_answered) = (true, true);
                    assert_eq!(released, oldest);
                }
            }
        }

        fn take_waiting(&mut self) {
            let taken: Vec<_> = self.sends.take_waiting().collect();
            let expected: Vec<_> = self.waiting.drain(..).map(|(request, _)| request).collect();
            assert_eq!(taken, expected);
        }

        fn take_last(&mut self) {
            let expected = self.waiting.back().map(|(request, _)| *request);
            assert_eq!(self.sends.take_last(|request| Some(*request) != expected), None);
            assert_eq!(self.sends.take_last(|_| true), expected);
            self.waiting.pop_back();
        }

        fn queue_recv(&mut self) {
            let is_full = self.recvs.is_full();
            match self.recvs.push(self.next) {
                Ok(place) => {
                    assert!(!is_full);
                    self.recvs_waiting.push_back((place, self.next));
                    self.next += 1;
                }
                Err(back) => assert!(is_full && back == self.next),
            }
        }

        fn post_recvs(&mut self, most: usize) {
            let count = most.min(self.recvs_waiting.len());
            let posted: Vec<_> = self.recvs_waiting.drain(..count).collect();
            assert!(posted.iter().map(|(place, _)| place).eq(&self.recvs.waiting()[..count]));
            self.recvs.post(count);
            self.recvs_on_device.extend(posted);
        }

        fn receive(&mut self, which: usize) {
            if !self.recvs_on_device.is_empty() {
                let at = which % self.recvs_on_device.len();
                self.recvs_reported.push_back(self.recvs_on_device.remove(at));
            }
        }

        fn poll_recvs(&mut self, most: usize) {
            for _ in 0..most {
                let Some((place, buffer)) = self.recvs_reported.pop_front() else { return };
                assert_eq!(self.recvs.take(place), Some(buffer));
                assert_eq!(self.recvs.take(place), None, "reported twice");
            }
        }

        /// The queue pair is destroyed: everything that is left comes back, once.
        fn destroy(mut self) {
            self.take_waiting();
            let left: Vec<_> = std::iter::from_fn(|| self.sends.release()).collect();
            let on_device = self.on_device.iter().map(|(request, _)| *request);
            let expected = self.passed.iter().copied().chain(on_device);
            assert!(left.iter().map(|one| one.number).eq(expected.map(|one| one.number)));
            let mut recvs: Vec<_> = self.recvs.take_all().collect();
            let lists = self.recvs_waiting.into_iter().chain(self.recvs_on_device);
            let expected = lists.chain(self.recvs_reported).map(|(_, buffer)| buffer);
            let mut expected: Vec<_> = expected.collect();
            recvs.sort_unstable();
            expected.sort_unstable();
            assert_eq!(recvs, expected);
            assert_eq!((self.recvs.outstanding(), self.sends.outstanding()), (0, 0));
        }
    }

    proptest! {
        /// Whatever a device does that it may, each buffer comes back once, and not before the device
        /// is done with it.
        #[test]
        fn every_buffer_comes_back_once_and_not_before_the_device_is_done(
            depth in 1_u32..40,
            signal_every in 1_u32..20,
            steps in prop::collection::vec(step(), 0..400),
        ) {
            let mut model = Model::new(depth, signal_every);
            steps.iter().for_each(|step| model.take_step(step));
            model.destroy();
        }

        /// A queue that is full, all of it done, has something that was reported.
        #[test]
        fn a_full_queue_does_not_stay_full(depth in 1_u32..200, signal_every in 1_u32..300) {
            let mut model = Model::new(depth, signal_every);
            for _ in 0..5 {
                while model.sends.room() > 0 {
                    model.queue(false, false);
                }
                model.post(u32::MAX);
                model.work(usize::MAX, false);
                prop_assert!(!model.reported.is_empty());
                model.poll(usize::MAX);
                prop_assert!(model.sends.room() > depth / 2 || depth == 1);
            }
        }
    }

    /// What siw does: the Send behind a Read is reported first.
    #[test]
    fn a_read_that_is_out_holds_back_what_is_behind_it() {
        let mut queue = SendQueue::new(4, 1);
        for request in ["write", "read", "send"] {
            assert!(queue.push(request, true).is_ok());
        }
        queue.post(3);
        assert!(queue.report(2).is_some());
        assert_eq!(queue.release_done(|request| *request == "read"), Some("write"));
        assert_eq!(queue.release_done(|request| *request == "read"), None);
        assert!(queue.report(1).is_some());
        assert_eq!(queue.release_done(|_| false), Some("read"));
        assert_eq!(queue.release_done(|_| false), Some("send"));
        assert_eq!(queue.release_done(|_| false), None);
    }

    #[test]
    fn numbers_wrap() {
        let mut queue = SendQueue::new(3, 1);
        (queue.head, queue.done, queue.posted, queue.tail) =
            (u32::MAX, u32::MAX, u32::MAX, u32::MAX);
        for request in 0..3 {
            assert!(queue.push(request, true).is_ok());
        }
        queue.post(3);
        assert_eq!(queue.report(1), Some(&mut 2));
        let released: Vec<_> = std::iter::from_fn(|| queue.release_done(|_| false)).collect();
        assert_eq!((released, queue.report(1)), (vec![0, 1, 2], None));
    }
}
