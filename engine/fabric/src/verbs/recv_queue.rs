//! The receive queue of a queue pair as a table: which buffer is posted under which number, and which
//! wait to be. Nothing here touches a device.

#[derive(Debug)]
pub(super) struct RecvQueue<T> {
    places: Box<[Option<T>]>,
    free: Vec<u32>,
    /// Places that wait to be posted, in order.
    waiting: Vec<u32>,
}

impl<T> RecvQueue<T> {
    pub(super) fn new(depth: u32) -> Self {
        Self {
            places: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            waiting: Vec::with_capacity(depth as usize),
        }
    }

    #[inline]
    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    #[inline]
    pub(super) fn push(&mut self, buffer: T) -> Result<u32, T> {
        let Some(place) = self.free.pop() else { return Err(buffer) };
        self.places[place as usize] = Some(buffer);
        self.waiting.push(place);
        Ok(place)
    }

    #[inline]
    pub(super) fn waiting(&self) -> &[u32] {
        &self.waiting
    }

    #[inline]
    pub(super) fn advance(&mut self, count: usize) {
        if count >= self.waiting.len() {
            self.waiting.clear();
        } else {
            self.waiting.drain(..count);
        }
    }

    #[inline]
    pub(super) fn take(&mut self, place: u32) -> Option<T> {
        let buffer = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(buffer)
    }

    pub(super) fn outstanding(&self) -> usize {
        self.places.len() - self.free.len() - self.waiting.len()
    }

    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = T> + '_ {
        let Self { places, free, waiting } = self;
        waiting.drain(..).filter_map(|place| {
            free.push(place);
            places[place as usize].take()
        })
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + '_ {
        self.waiting.clear();
        let Self { places, free, .. } = self;
        places.iter_mut().zip(0..).filter_map(|(buffer, place)| {
            let buffer = buffer.take()?;
            free.push(place);
            Some(buffer)
        })
    }
}

/// Tests of both queues of a queue pair.
#[cfg(all(test, not(loom)))]
#[allow(clippy::expect_used, reason = "tests")]
mod tests {
    use super::super::super::send_queue::{POSITIONS_MAX, Queued, SendQueue};
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// The next step.
    #[derive(Clone, Debug)]
    enum Step {
        Queue {
            signal: bool,
            source_bytes: u32,
        },
        /// As an RDMA Read: it answers for itself, and may do so late.
        QueueRead,
        Post {
            most: u32,
        },
        /// The device works on this many of its requests, and one of them may fail.
        Work {
            most: usize,
            fails: bool,
        },
        /// TCP transmits a source that the device left where it is: any of them.
        ReadSource {
            which: usize,
        },
        /// A Read that the device has got on with is done: any of them.
        Answer {
            which: usize,
        },
        /// This many of the device's reports are taken.
        Poll {
            most: usize,
        },
        /// This side gives up the requests it has not posted, or the last of them.
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
            4 => (any::<bool>(), prop::sample::select(&[0, 4095, 4096, 1 << 20][..]))
                .prop_map(|(signal, source_bytes)| Step::Queue { signal, source_bytes }),
            1 => any::<usize>().prop_map(|which| Step::ReadSource { which }),
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
        source_bytes: u32,
        is_read: bool,
        is_answered: bool,
    }

    impl Request {
        fn is_out(&self) -> bool {
            self.is_read && !self.is_answered
        }
    }

    /// A device, and the expected state of the lists.
    struct Model {
        sends: SendQueue<Request>,
        recvs: RecvQueue<u32>,
        /// Requests by age, with the request that reports them: waiting, then on the device.
        waiting: VecDeque<(Request, Queued)>,
        on_device: VecDeque<(Request, Queued)>,
        /// Requests that the device has passed, in order, and that are not released.
        passed: VecDeque<Request>,
        /// Reads among them that are not done.
        reading: Vec<(u32, Queued)>,
        reported: VecDeque<u32>,
        /// Sources of this many bytes or more the device reads late, unless it is to report them ...
        late_from_bytes: u32,
        /// ... and these requests it has passed without having read theirs.
        unread: Vec<u32>,
        is_in_error: bool,
        recvs_on_device: Vec<(u32, u32)>,
        recvs_waiting: VecDeque<(u32, u32)>,
        recvs_reported: VecDeque<(u32, u32)>,
        next: u32,
    }

    impl Model {
        /// A device that reads sources late if they are `late_from_bytes` long, and a queue that knows.
        fn new(depth: u32, signal_every: u32, late_from_bytes: u32) -> Self {
            Self {
                sends: SendQueue::new(depth, signal_every, late_from_bytes),
                recvs: RecvQueue::new(depth),
                waiting: VecDeque::new(),
                on_device: VecDeque::new(),
                passed: VecDeque::new(),
                reading: Vec::new(),
                reported: VecDeque::new(),
                late_from_bytes,
                unread: Vec::new(),
                is_in_error: false,
                recvs_on_device: Vec::new(),
                recvs_waiting: VecDeque::new(),
                recvs_reported: VecDeque::new(),
                next: 0,
            }
        }

        fn take_step(&mut self, step: &Step) {
            match *step {
                Step::Queue { signal, source_bytes } => self.queue(signal, false, source_bytes),
                Step::QueueRead => self.queue(true, true, 0),
                Step::ReadSource { which } => self.read_source(which),
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

        fn queue(&mut self, signal: bool, is_read: bool, source_bytes: u32) {
            let has_room = self.sends.room() > 0;
            let number = self.next;
            let request = Request { number, source_bytes, is_read, is_answered: false };
            match self.sends.push(request, signal, source_bytes) {
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
            self.sends.advance(count);
        }

        /// The device works in order; requests are reported if signalled, failed or flushed. Reads
        /// are done later.
        fn work(&mut self, most: usize, fails: bool) {
            for at in 0..most {
                let Some((request, queued)) = self.on_device.pop_front() else { return };
                self.is_in_error |= fails && at + 1 == most;
                self.passed.push_back(request);
                if request.is_read {
                    self.reading.push((request.number, queued));
                } else if queued.is_signalled || self.is_in_error {
                    self.reported.push_back(queued.number % POSITIONS_MAX);
                } else if request.source_bytes >= self.late_from_bytes {
                    self.unread.push(request.number);
                }
            }
        }

        fn read_source(&mut self, which: usize) {
            if !self.unread.is_empty() {
                self.unread.swap_remove(which % self.unread.len());
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
                    assert!(!self.unread.contains(&oldest.number), "released before it was read");
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
            let is_full = self.recvs.room() == 0;
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
            self.recvs.advance(count);
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
        /// For all allowed behaviour of a device, each buffer comes back once, and not before the
        /// device is done with it.
        #[test]
        fn every_buffer_comes_back_once_and_not_before_the_device_is_done(
            depth in 1_u32..40,
            signal_every in 1_u32..20,
            late_from_bytes in prop::sample::select(&[4096, u32::MAX][..]),
            steps in prop::collection::vec(step(), 0..400),
        ) {
            let mut model = Model::new(depth, signal_every, late_from_bytes);
            steps.iter().for_each(|step| model.take_step(step));
            model.destroy();
        }

        /// A queue that is full, all of it done, has something that was reported.
        #[test]
        fn a_full_queue_does_not_stay_full(depth in 1_u32..200, signal_every in 1_u32..300) {
            let mut model = Model::new(depth, signal_every, u32::MAX);
            for _ in 0..5 {
                while model.sends.room() > 0 {
                    model.queue(false, false, 4096);
                }
                model.post(u32::MAX);
                model.work(usize::MAX, false);
                prop_assert!(!model.reported.is_empty());
                model.poll(usize::MAX);
                prop_assert!(model.sends.room() > depth / 2 || depth == 1);
            }
        }
    }

    /// The behaviour of siw with a Write of a page or more that is not signalled, applied to each.
    #[test]
    #[should_panic(expected = "released before it was read")]
    fn a_queue_that_does_not_know_of_late_reads_releases_too_early() {
        let mut model = Model::new(16, 4, 4096);
        model.sends = SendQueue::new(16, 4, u32::MAX);
        model.queue(false, false, 4096);
        model.queue(true, false, 100);
        model.post(2);
        model.work(2, false);
        model.poll(1);
    }
}
