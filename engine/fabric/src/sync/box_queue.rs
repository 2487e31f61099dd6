//! A bounded queue of boxes between threads, made of words that hold pointers: an item moves only
//! an eighth of a cache line to another CPU. Both ends move many items at once, so that a consumer
//! needs one atomic exchange for all available items.
//!
//! Each word carries a pointer and the lap of the ring that it belongs to. A producer advances the tail, which never
//! gets further ahead of the head than there are words, and then stores the item. A consumer finds items of its lap,
//! and advances the head past them; it writes to no word, so that lines of words go one way only. Producers know the
//! head from earlier, and look at it only when that seems full. The calls of handles travel by it.
#![allow(unsafe_code)]

use super::CachePadded;
use super::arch::prefetch_write;
use super::atomic::{AtomicU64, Ordering};
use super::cache_lines::assert_lines;
use super::words::LINE_BYTES;
use std::marker::PhantomData;
use std::sync::Mutex;

/// Something that travels: one of two kinds of boxes, or a number.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<A, B> {
    Main(Box<A>),
    Other(Box<B>),
    Number(u32),
}

/// Bits of a word that hold the pointer: all that user space has, or a number. The others hold the lap.
const POINTER_BITS: u32 = 48;
const POINTER: u64 = (1 << POINTER_BITS) - 1;
/// The low bits of a pointer, which alignment leaves free, tell its type.
const KIND_BITS: u32 = 2;
const KIND: u64 = (1 << KIND_BITS) - 1;
const MAIN: u64 = 1;
const OTHER: u64 = 2;
const NUMBER: u64 = 3;

/// Items that are taken at once, at most.
pub const BATCH: usize = 32;

/// Items behind the one that is taken which are fetched.
const AHEAD: u64 = 3;

pub struct BoxQueue<A, B = u64> {
    tail: CachePadded<AtomicU64>,
    /// The head as producers have last seen it.
    seen: CachePadded<AtomicU64>,
    head: CachePadded<AtomicU64>,
    words: Box<[AtomicU64]>,
    /// Marks ownership of items: the queue is shared by threads if they can be sent.
    owned: PhantomData<Mutex<(Box<A>, Box<B>)>>,
}

// Producers write the tail, and the consumer the head, for each item.
assert_lines!(BoxQueue<u64>: tail, seen, head);

impl<A, B> Item<A, B> {
    /// The word of an item, without its lap. `None`, and the item is kept, for a pointer of more bits than Linux
    /// gives out unasked.
    fn into_bits(self) -> Result<u64, Self> {
        const { assert!(align_of::<A>() > KIND as usize && size_of::<A>() > 0) };
        const { assert!(align_of::<B>() > KIND as usize && size_of::<B>() > 0) };
        let (address, kind) = match self {
            Self::Main(item) => (Box::into_raw(item).expose_provenance() as u64, MAIN),
            Self::Other(item) => (Box::into_raw(item).expose_provenance() as u64, OTHER),
            Self::Number(number) => (u64::from(number) << KIND_BITS, NUMBER),
        };
        match address & !POINTER {
            0 => Ok(address | kind),
            // SAFETY: it is the pointer that was taken apart above.
            _ => Err(unsafe { Self::from_address(address, kind) }),
        }
    }

    /// # Safety
    /// The bits come from [`Item::into_bits`], and are used once.
    unsafe fn from_bits(bits: u64) -> Self {
        // SAFETY: as the caller promises.
        unsafe { Self::from_address(bits & POINTER & !KIND, bits & KIND) }
    }

    /// # Safety
    /// The address is that of a box of this kind that was taken apart, and is used once.
    unsafe fn from_address(address: u64, kind: u64) -> Self {
        match kind {
            MAIN => {
                let pointer = std::ptr::with_exposed_provenance_mut(address as usize);
                // SAFETY: as the caller promises.
                Self::Main(unsafe { Box::from_raw(pointer) })
            }
            OTHER => {
                let pointer = std::ptr::with_exposed_provenance_mut(address as usize);
                // SAFETY: as the caller promises.
                Self::Other(unsafe { Box::from_raw(pointer) })
            }
            _ => Self::Number((address >> KIND_BITS) as u32),
        }
    }
}

impl<A, B> BoxQueue<A, B> {
    /// A queue for at least `items` items.
    pub fn new(items: usize) -> Self {
        let [tail, seen, head] = [(); 3].map(|()| CachePadded::new(AtomicU64::new(0)));
        let words = items.max(1).next_power_of_two();
        // Of the lap before the first one.
        let words = (0..words).map(|_| AtomicU64::new(!POINTER)).collect();
        Self { tail, seen, head, words, owned: PhantomData }
    }

    fn word(&self, position: u64) -> &AtomicU64 {
        // A power of two: the mask keeps it inside.
        &self.words[position as usize & (self.words.len() - 1)]
    }

    /// The bits of the lap that a position is in. They come round after 65,536 laps, but each word
    /// is written in each lap: its content is of this lap or of the one before.
    fn lap(&self, position: u64) -> u64 {
        position >> self.words.len().trailing_zeros() << POINTER_BITS
    }

    /// The first position, and how many. `None` if the queue is full.
    #[inline]
    fn claim(&self, most: usize) -> Option<(u64, usize)> {
        // Acquire pairs with the Release of the exchange: a thread that sees a tail sees a head, too, behind which it had room. With an
        // older one the queue would look full.
        let mut tail = self.tail.load(Ordering::Acquire);
        loop {
            let mut free = self.free(tail, self.seen.load(Ordering::Acquire));
            if free == 0 {
                // Acquire pairs with the Release of `pop`: words that it has read may be written
                // over. Release hands that on.
                let head = self.head.load(Ordering::Acquire);
                self.seen.store(head, Ordering::Release);
                free = self.free(tail, head);
            }
            if free == 0 {
                let now = self.tail.load(Ordering::Acquire);
                if now == tail {
                    return None;
                }
                tail = now;
                continue;
            }
            let count = most.min(free as usize);
            let (old, new) = (tail, tail + count as u64);
            match self.tail.compare_exchange(old, new, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return Some((tail, count)),
                Err(changed) => tail = changed,
            }
        }
    }

    /// Words behind `tail` that are free, as far as the head is known. One that is old tells of fewer, and a tail that
    /// is older than the head is refused by the exchange.
    fn free(&self, tail: u64, head: u64) -> u64 {
        (self.words.len() as u64).saturating_sub(tail.saturating_sub(head))
    }

    /// Puts an item in; it comes back if the queue is full.
    pub fn push(&self, item: Item<A, B>) -> Result<(), Item<A, B>> {
        let bits = item.into_bits()?;
        match self.claim(1) {
            Some((position, _)) => {
                // Release: a thread that sees the item sees the memory it points to.
                self.word(position).store(self.lap(position) | bits, Ordering::Release);
                Ok(())
            }
            // SAFETY: it was taken apart above, and has gone nowhere.
            None => Err(unsafe { Item::from_bits(bits) }),
        }
    }

    /// Puts items in that there is room for; the others stay in the iterator.
    pub fn push_all(&self, items: &mut impl ExactSizeIterator<Item = Box<A>>) {
        while items.len() > 0 {
            let Some((first, count)) = self.claim(items.len()) else { return };
            for position in first..first + count as u64 {
                // Release, as in `push`. A word that has no item stays as if its producer had stopped; no
                // pointer of this system is that long, and no iterator that short.
                if let Some(Ok(bits)) =
                    items.next().map(|item| Item::<A, B>::Main(item).into_bits())
                {
                    self.word(position).store(self.lap(position) | bits, Ordering::Release);
                }
            }
        }
    }

    /// Takes up to `most` items, [`BATCH`] at most, and hands them to `each` in order; returns how many.
    #[inline]
    pub fn pop(&self, most: usize, mut each: impl FnMut(Item<A, B>)) -> usize {
        let mut taken = [0; BATCH];
        let mut head = self.head.load(Ordering::Relaxed);
        let count = loop {
            let mut count = 0;
            for (position, place) in (head..).zip(taken.iter_mut().take(most)) {
                // Acquire pairs with the Release of `push`.
                let word = self.word(position).load(Ordering::Acquire);
                if word & !POINTER != self.lap(position) {
                    break;
                }
                (*place, count) = (word, count + 1);
            }
            if count == 0 {
                let now = self.head.load(Ordering::Relaxed);
                if now == head {
                    return 0;
                }
                head = now;
                continue;
            }
            // Release pairs with the Acquire of `claim`: the words have been read.
            let (old, new) = (head, head + count as u64);
            match self.head.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break count,
                Err(changed) => head = changed,
            }
        };
        for bits in &taken[..count] {
            // SAFETY: the head was advanced past it by this thread alone, so no other one takes the item; it was not
            // written over before, because no producer goes beyond the head.
            each(unsafe { Item::from_bits(*bits) });
        }
        count
    }

    /// Takes the next item, and has those behind it fetched, for the next calls of this.
    #[inline]
    pub fn pop_one(&self) -> Option<Item<A, B>> {
        let mut taken = None;
        self.pop(1, |item| taken = Some(item));
        if taken.is_some() {
            let head = self.head.load(Ordering::Relaxed);
            for position in head..head + AHEAD {
                let word = self.word(position).load(Ordering::Relaxed);
                if word & !POINTER == self.lap(position) {
                    prefetch_write::<0>((word & POINTER & !KIND) as usize);
                }
            }
        }
        taken
    }

    /// The number of items that have been taken.
    pub fn taken(&self) -> u64 {
        // Acquire, as in `claim`, of what the caller hands on to a producer.
        self.head.load(Ordering::Acquire)
    }

    pub fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        self.word(head).load(Ordering::Acquire) & !POINTER != self.lap(head)
    }
}

impl<A, B> Drop for BoxQueue<A, B> {
    fn drop(&mut self) {
        while self.pop(BATCH, drop) > 0 {}
    }
}

/// Fetches the cache line `line` lines behind the start of a value, to be written to.
#[inline(always)]
pub fn prefetch_line<T>(value: &T, line: usize) {
    prefetch_write::<0>(std::ptr::from_ref(value).addr() + LINE_BYTES * line);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    fn all(queue: &BoxQueue<u64, u32>, most: usize) -> Vec<Item<u64, u32>> {
        let mut items = Vec::new();
        let count = queue.pop(most, |item| items.push(item));
        assert_eq!(count, items.len());
        items
    }

    #[test]
    fn items_of_each_kind_come_out_in_order_and_a_full_queue_gives_them_back() {
        let queue = BoxQueue::<u64, u32>::new(4);
        for lap in 0..3 {
            assert!(queue.is_empty(), "lap {lap}");
            assert_eq!(queue.push(Item::Main(Box::new(lap))), Ok(()));
            assert_eq!(queue.push(Item::Number(u32::MAX)), Ok(()));
            assert_eq!(queue.push(Item::Other(Box::new(2))), Ok(()));
            assert_eq!(queue.push(Item::Number(3)), Ok(()));
            assert_eq!(queue.push(Item::Main(Box::new(9))), Err(Item::Main(Box::new(9))));
            assert!(!queue.is_empty());
            assert_eq!(all(&queue, 1), [Item::Main(Box::new(lap))]);
            let rest = [Item::Number(u32::MAX), Item::Other(Box::new(2)), Item::Number(3)];
            assert_eq!(all(&queue, 9), rest);
            assert_eq!(all(&queue, 9), []);
        }
    }

    #[test]
    fn many_at_once_expect_those_without_room_left() {
        let queue = BoxQueue::<u64, u32>::new(4);
        assert_eq!(queue.push(Item::Number(7)), Ok(()));
        let mut items = (0..5).map(Box::new).collect::<Vec<_>>().into_iter();
        queue.push_all(&mut items);
        assert_eq!(items.map(|item| *item).collect::<Vec<_>>(), [3, 4]);
        let taken = all(&queue, 4);
        assert_eq!(taken[0], Item::Number(7));
        assert_eq!(taken[3], Item::Main(Box::new(2)));
    }

    #[test]
    fn a_queue_is_dropped_with_items_expect_them_dropped() {
        let kept = Arc::new(0_u64);
        let queue = BoxQueue::<Arc<u64>>::new(4);
        assert!(queue.push(Item::Main(Box::new(Arc::clone(&kept)))).is_ok());
        drop(queue);
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn threads_push_and_pop_expect_each_item_once() {
        const EACH: u64 = 5_000;
        let queue = BoxQueue::<u64>::new(8);
        let (sum, count) = (AtomicU64::new(0), AtomicUsize::new(0));
        let push = |from: u64| {
            for number in from..from + EACH {
                while queue.push(Item::Main(Box::new(number))).is_err() {
                    std::thread::yield_now();
                }
            }
        };
        let pop = || {
            while count.load(Ordering::Relaxed) < 2 * EACH as usize {
                let taken = queue.pop(3, |item| {
                    if let Item::Main(number) = item {
                        sum.fetch_add(*number, Ordering::Relaxed);
                    }
                });
                count.fetch_add(taken, Ordering::Relaxed);
                if taken == 0 {
                    std::thread::yield_now();
                }
            }
        };
        std::thread::scope(|scope| {
            let threads = [
                scope.spawn(|| push(0)),
                scope.spawn(|| push(EACH)),
                scope.spawn(pop),
                scope.spawn(pop),
            ];
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(sum.into_inner(), (0..2 * EACH).sum());
    }
}
