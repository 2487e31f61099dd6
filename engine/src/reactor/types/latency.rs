//! Latency histogram of one procedure, and the times of a call by stage.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sys::clock::Ticks;
use std::array::from_fn;
use std::num::NonZeroU32;
use std::ops::AddAssign;

/// Number of buckets of a latency histogram. The first counts durations of up to 128 ns, each of the others durations of
/// up to twice the bound of the one before it. The last has no bound: it counts all that are longer than 2^33 ns, 8.6 s.
pub const BUCKETS: usize = 28;
/// Bound of the first bucket in nanoseconds, inclusive as all bounds are.
const FIRST_BOUND_NS: u64 = 1 << FIRST_BITS;
const FIRST_BITS: u32 = 7;

/// Bounds of the buckets of a latency histogram in nanoseconds, inclusive; the last bucket has none.
pub fn bounds_ns() -> impl ExactSizeIterator<Item = u64> {
    (0..BUCKETS - 1).map(|bucket| FIRST_BOUND_NS << bucket)
}

/// The bucket of a duration.
fn bucket_of(ns: u64) -> usize {
    // Bounds are inclusive, as those of Prometheus: 2^n belongs to the bucket that ends there.
    let bits = u64::BITS - (ns.saturating_sub(1) | (FIRST_BOUND_NS - 1)).leading_zeros();
    ((bits - FIRST_BITS) as usize).min(BUCKETS - 1)
}

/// Durations of calls. Written by one thread at a time, for example that of a core, and read by any.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// A copy of a [`Histogram`]. Each number is consistent by itself; the sum may be that of a call more or less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// Number of calls in each bucket.
    pub buckets: [u64; BUCKETS],
    /// Sum of the durations in nanoseconds.
    pub sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: from_fn(|_| AtomicU64::new(0)), sum_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts one call. Wait-free, without a locked instruction: of two threads that do so at a time, one counts in vain.
    #[inline]
    pub fn record(&self, ns: u64) {
        let add = |to: &AtomicU64, count: u64| {
            // Relaxed: readers pair with nothing, each number stands for itself.
            to.store(to.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
        };
        add(&self.buckets[bucket_of(ns)], 1);
        add(&self.sum_ns, ns);
    }

    /// The counts of now.
    pub fn read(&self) -> Durations {
        // Relaxed: as above.
        let read = |from: &AtomicU64| from.load(Ordering::Relaxed);
        Durations { buckets: from_fn(|at| read(&self.buckets[at])), sum_ns: read(&self.sum_ns) }
    }
}

impl Durations {
    /// Number of calls.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }
}

impl AddAssign for Durations {
    fn add_assign(&mut self, more: Self) {
        self.buckets.iter_mut().zip(more.buckets).for_each(|(sum, count)| *sum += count);
        self.sum_ns = self.sum_ns.wrapping_add(more.sum_ns);
    }
}

/// Stages of a call, in the order in which it passes them. The head of [`control`](crate::control) defines each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Credit,
    Wire,
    Queue,
    Fetch,
    Crypto,
    Handler,
    Deferred,
    Disk,
    Answer,
}

/// Names of the stages in documents, in their order.
pub const STAGES: [&str; 9] = [
    Stage::Credit.name(),
    Stage::Wire.name(),
    Stage::Queue.name(),
    Stage::Fetch.name(),
    Stage::Crypto.name(),
    Stage::Handler.name(),
    Stage::Deferred.name(),
    Stage::Disk.name(),
    Stage::Answer.name(),
];

impl Stage {
    const fn name(self) -> &'static str {
        match self {
            Self::Credit => "credit",
            Self::Wire => "wire",
            Self::Queue => "queue",
            Self::Fetch => "fetch",
            Self::Crypto => "crypto",
            Self::Handler => "handler",
            Self::Deferred => "deferred",
            Self::Disk => "disk",
            Self::Answer => "answer",
        }
    }
}

/// Ticks spent in each stage.
pub(crate) type Spent = [u64; STAGES.len()];

/// The times of a call that is being served: the ticks of the stages that it has left, and the one that it is in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTimes {
    stage: Stage,
    since: Ticks,
    began: Ticks,
    /// Its handler began then, and which histogram of its core counts it from then on.
    counted: Option<(Row, Ticks)>,
    spent: Spent,
}

impl CallTimes {
    #[inline]
    pub(in crate::reactor) fn new(stage: Stage, began: Ticks) -> Self {
        Self { stage, since: began, began, counted: None, spent: [0; STAGES.len()] }
    }

    /// The call leaves its stage for another one. The counters of two CPUs may differ by some ticks: the thread of a
    /// core may move, where it is not pinned.
    #[inline]
    pub(in crate::reactor) fn enter(&mut self, stage: Stage, now: Ticks) {
        self.spent[self.stage as usize] += now.0.saturating_sub(self.since.0);
        (self.stage, self.since) = (stage, now);
    }

    /// A handler begins; this histogram, if any, counts the call.
    pub(in crate::reactor) fn enter_handler(&mut self, now: Ticks, row: Option<Row>) {
        self.enter(Stage::Handler, now);
        self.counted = row.map(|row| (row, now));
    }

    /// So much of the time that was spent waiting for an answer was spent in this stage.
    pub(in crate::reactor) fn assign(&mut self, stage: Stage, ticks: u64) {
        let from = &mut self.spent[Stage::Deferred as usize];
        let ticks = ticks.min(*from);
        *from -= ticks;
        self.spent[stage as usize] += ticks;
    }

    /// The stage that it is in ends before `now` at the latest.
    pub(in crate::reactor) fn not_after(&self, now: Ticks, at: Ticks) -> Ticks {
        Ticks(at.0.clamp(self.since.0, now.0.max(self.since.0)))
    }

    /// The histogram that counts it, and the ticks from the start of its handler.
    pub(in crate::reactor) fn counted(&self, now: Ticks) -> Option<(Row, u64)> {
        self.counted.map(|(row, from)| (row, now.0.saturating_sub(from.0)))
    }

    #[inline]
    pub(in crate::reactor) fn total(&self, now: Ticks) -> u64 {
        now.0.saturating_sub(self.began.0)
    }

    pub(in crate::reactor) fn spent(&self) -> &Spent {
        &self.spent
    }
}

/// Index of a histogram in its core, counted from one, so that an optional timer needs no extra space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row(NonZeroU32);

impl Row {
    pub(crate) fn new(index: usize) -> Self {
        let number = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
        Self(NonZeroU32::new(number).unwrap_or(NonZeroU32::MAX))
    }

    pub(in crate::reactor) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_bucket_whose_bounds_it_lies_between() {
        let bounds: Vec<u64> = bounds_ns().collect();
        assert_eq!((bounds[0], bounds[BUCKETS - 2]), (128, 1 << 33));
        for (ns, bucket) in [
            (0, 0),
            (1, 0),
            (127, 0),
            (128, 0),
            (129, 1),
            (256, 1),
            (257, 2),
            ((1 << 33) - 1, 26),
            (1 << 33, 26),
            ((1 << 33) + 1, 27),
            (u64::MAX, 27),
        ] {
            assert_eq!(bucket_of(ns), bucket, "{ns}");
            assert!(bounds.get(bucket).is_none_or(|bound| ns <= *bound), "{ns}");
            assert!(bucket == 0 || ns > bounds[bucket - 1], "{ns}");
        }
    }

    #[test]
    fn every_duration_counts_once_and_is_in_the_sum() {
        let histogram = Histogram::default();
        [0, 128, 129, 1 << 40].iter().for_each(|ns| histogram.record(*ns));
        let read = histogram.read();
        let mut expected = [0; BUCKETS];
        (expected[0], expected[1], expected[BUCKETS - 1]) = (2, 1, 1);
        assert_eq!(read, Durations { buckets: expected, sum_ns: 257 + (1 << 40) });
        assert_eq!(read.count(), 4);
    }

    #[test]
    fn times_that_may_be_absent_take_no_more_room() {
        assert_eq!(size_of::<Option<CallTimes>>(), size_of::<CallTimes>());
        assert_eq!(Row::new(7).index(), 7);
    }

    #[test]
    fn each_tick_of_a_call_is_of_one_stage() {
        let mut times = CallTimes::new(Stage::Queue, Ticks(10));
        times.enter_handler(Ticks(15), Some(Row::new(0)));
        times.enter(Stage::Deferred, Ticks(35));
        times.enter(Stage::Answer, times.not_after(Ticks(100), Ticks(85)));
        times.enter(Stage::Answer, Ticks(100));
        // A part cannot be longer than the whole.
        times.assign(Stage::Disk, 40);
        times.assign(Stage::Crypto, 40);
        assert_eq!(*times.spent(), [0, 0, 5, 0, 10, 20, 0, 40, 15]);
        assert_eq!((times.total(Ticks(100)), times.spent().iter().sum::<u64>()), (90, 90));
        assert_eq!(times.counted(Ticks(100)), Some((Row::new(0), 85)));
        // Of another CPU, whose counter is behind or ahead.
        assert_eq!(times.not_after(Ticks(120), Ticks(99)), Ticks(100));
        assert_eq!(times.not_after(Ticks(120), Ticks(121)), Ticks(120));
    }
}
