//! Models of the ring, the idle handshake, the bell, the free list, the handoff and the queue of boxes, run through every
//! interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p spinrpc-fabric --release --lib loom`
//!
//! Loom does not let a load see a store that comes later, so the Release with which a consumer says
//! how far it has read is argued for in its comment only; every other ordering, when weakened, fails
//! a model.
#![allow(unsafe_code)]

use super::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use super::box_queue::{BoxQueue, Item};
use super::doorbell::Doorbell;
use super::free_boxes::FreeBoxes;
use super::free_list::FreeList;
use super::handoff::Handoff;
use super::ring::{
    CONTROL_WORDS, Consumer, Look, ORDER_BYTES, Producer, PushError, RingPlace, SLOT_MESSAGE_AT,
    SLOT_WORDS, SlotImage,
};
use super::wake_request::WakeRequest;
use super::words::{
    CheckedSlots, HeapWords, LINE_REST_WORDS, LINE_WORDS, PADDED_WORDS, Words, head_of,
};
use loom::sync::Arc;
use loom::thread;

const SLOTS: u32 = 16;
const PLACE: RingPlace = RingPlace { control: 0, slots_at: CONTROL_WORDS, slots: SLOTS };

/// The words of a ring, or of a bell, that a model looks at. A real slot has many more, on which the
/// algorithm does nothing else than on these; loom pays for each.
#[derive(Clone, Debug)]
struct ModelWords(HeapWords);

/// The header and the first word of the payload.
const KEPT: usize = 2;
const CONTROL_KEPT: usize = CONTROL_WORDS / PADDED_WORDS;

impl ModelWords {
    /// Index at which a word is kept, if it is.
    fn kept(at: usize) -> Option<usize> {
        let Some(at) = at.checked_sub(CONTROL_WORDS) else { return Some(at / PADDED_WORDS) };
        let (slot, word) = (at / SLOT_WORDS, at % SLOT_WORDS);
        (word < KEPT).then_some(CONTROL_KEPT + slot * KEPT + word)
    }
}

impl Words for ModelWords {
    type Slots = CheckedSlots<Self>;

    fn slots(&self, at: usize, count: u32) -> Option<Self::Slots> {
        CheckedSlots::new(self.clone(), at, count)
    }

    fn count(&self) -> usize {
        CONTROL_WORDS + SLOTS as usize * SLOT_WORDS
    }

    fn load(&self, at: usize, order: Ordering) -> u64 {
        Self::kept(at).map_or(0, |at| self.0.load(at, order))
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        if let Some(at) = Self::kept(at) {
            self.0.store(at, value, order);
        }
    }

    fn swap(&self, at: usize, value: u64, order: Ordering) -> u64 {
        Self::kept(at).map_or(0, |at| self.0.swap(at, value, order))
    }

    fn fetch_or(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        Self::kept(at).map_or(0, |at| self.0.fetch_or(at, bits, order))
    }

    fn fetch_and(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        Self::kept(at).map_or(0, |at| self.0.fetch_and(at, bits, order))
    }
}

/// A bell for connections 0 to 63.
fn bell() -> Arc<Doorbell<ModelWords>> {
    Arc::new(Doorbell::new(ModelWords(HeapWords::new(3))).unwrap())
}

fn ring() -> (Producer<ModelWords>, Consumer<ModelWords>) {
    let words = ModelWords(HeapWords::new(CONTROL_KEPT + SLOTS as usize * KEPT));
    let producer = Producer::new(words.clone(), PLACE).unwrap();
    (producer, Consumer::new(words, PLACE).unwrap())
}

/// A message of `length` bytes that names itself in the word that models keep.
fn message(number: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    bytes[..8].copy_from_slice(&number.to_ne_bytes());
    bytes
}

fn take(consumer: &Consumer<ModelWords>) -> Option<u64> {
    let arrival = consumer.arrival().unwrap()?;
    let mut bytes = vec![0; arrival.length];
    consumer.take(arrival, &mut bytes).unwrap();
    Some(u64::from_ne_bytes(bytes[..8].try_into().unwrap()))
}

fn take_waiting(consumer: &Consumer<ModelWords>) -> u64 {
    loop {
        if let Some(number) = take(consumer) {
            return number;
        }
        thread::yield_now();
    }
}

fn push_waiting(producer: &Producer<ModelWords>, message: &[u8]) {
    while let Err(error) = producer.push(None, message) {
        assert_eq!(error, PushError::Full);
        thread::yield_now();
    }
}

fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn loom_messages_arrive_whole_and_in_order_also_those_of_several_slots() {
    bounded(|| {
        let (producer, consumer) = ring();
        let sender = thread::spawn(move || {
            producer.push(None, &message(1, 8)).unwrap();
            producer.push(None, &message(2, 300)).unwrap();
        });
        assert_eq!(take_waiting(&consumer), 1);
        assert_eq!(take_waiting(&consumer), 2);
        sender.join().unwrap();
    });
}

/// A message that fills the first line of its slot, as the shortest RPC message does.
const LINE_MESSAGE_BYTES: usize = 8 * LINE_WORDS - SLOT_MESSAGE_AT;

#[test]
fn loom_messages_that_go_by_the_slot_arrive_whole_and_in_order() {
    bounded(|| {
        let (producer, consumer) = ring();
        let sender = thread::spawn(move || {
            for number in 1..=2_u32 {
                let mut slot = SlotImage::default();
                slot.as_flattened_mut()[SLOT_MESSAGE_AT..][..4]
                    .copy_from_slice(&number.to_ne_bytes());
                producer
                    .push_slot(&head_of::<LINE_REST_WORDS>(&slot), &slot, LINE_MESSAGE_BYTES, false)
                    .unwrap();
            }
        });
        for number in 1..=2 {
            let mut slot = SlotImage::default();
            let found = loop {
                match consumer.take_slot(&mut slot, false) {
                    Look::Empty => thread::yield_now(),
                    found => break found,
                }
            };
            assert_eq!(found, Look::Short(LINE_MESSAGE_BYTES));
            assert_eq!(slot.as_flattened()[SLOT_MESSAGE_AT..][..4], u32::to_ne_bytes(number));
        }
        sender.join().unwrap();
    });
}

#[test]
fn loom_a_full_ring_goes_on_when_the_consumer_says_how_far_it_is() {
    bounded(|| {
        let (producer, consumer) = ring();
        // Three messages of five slots fill the ring; the fourth waits and goes around its end.
        for number in 1..=3 {
            producer.push(None, &message(number, 5 * 248 - 4)).unwrap();
        }
        let sender = thread::spawn(move || push_waiting(&producer, &message(4, 5 * 248 - 4)));
        for number in 1..=4 {
            assert_eq!(take_waiting(&consumer), number);
        }
        sender.join().unwrap();
    });
}

/// Memory that an order names; loom checks that one thread at a time has it.
struct Named(loom::cell::UnsafeCell<u32>);

// SAFETY: as the model under test sees to it, and loom checks.
unsafe impl Sync for Named {}
// SAFETY: as above.
unsafe impl Send for Named {}

/// The producer writes again to the memory that an order names, as soon as it learns that the order
/// has been carried out.
#[test]
fn loom_what_an_order_names_is_read_before_the_producer_writes_it_again() {
    bounded(|| {
        let (producer, consumer) = ring();
        let named = Arc::new(Named(loom::cell::UnsafeCell::new(1)));
        let read = Arc::clone(&named);
        let sender = thread::spawn(move || {
            let until = producer.push_order(&[0; ORDER_BYTES]).unwrap();
            while producer.consumed().unwrap() < until {
                thread::yield_now();
            }
            // SAFETY: loom checks that no other thread accesses it.
            named.0.with_mut(|value| unsafe { *value = 2 });
        });
        while !consumer.has_arrival() {
            thread::yield_now();
        }
        // SAFETY: as above.
        assert_eq!(read.0.with(|value| unsafe { *value }), 1);
        consumer.finish_order();
        sender.join().unwrap();
    });
}

/// A lender ends the connection and writes the memory it has lent; a reader of that write sees the
/// end.
#[test]
fn loom_who_reads_what_was_written_after_the_end_sees_the_end() {
    bounded(|| {
        let (producer, consumer) = ring();
        let lent = Arc::new(AtomicBool::new(false));
        let read = Arc::clone(&lent);
        let lender = thread::spawn(move || {
            producer.close(1);
            fence(Ordering::Release);
            lent.store(true, Ordering::Relaxed);
        });
        let is_new = read.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        assert!(!is_new || consumer.closed() != 0, "bytes of later, and no end");
        lender.join().unwrap();
    });
}

#[test]
fn loom_an_idle_consumer_is_rung_or_sees_the_message_itself() {
    bounded(|| {
        let (producer, consumer) = ring();
        let sender = thread::spawn(move || {
            producer.push(None, &message(1, 8)).unwrap();
            fence(Ordering::SeqCst);
            producer.wants_bell()
        });
        let idle = consumer.go_idle();
        let rung = sender.join().unwrap();
        assert!(!idle || rung, "an idle consumer must be rung");
    });
}

#[test]
fn loom_whoever_takes_a_bit_sees_what_it_announces() {
    bounded(|| {
        let bell = bell();
        let (news, ringing) = (HeapWords::new(2), Arc::clone(&bell));
        let told = news.clone();
        let ringer = thread::spawn(move || {
            told.store(0, 7, Ordering::Relaxed);
            let _ = ringing.ring(0);
            told.store(1, 8, Ordering::Relaxed);
            let _ = ringing.ring(1);
        });
        let mut heard = 0;
        while heard != 0b11 {
            if let Some((0, bits)) = bell.take() {
                heard |= bits;
                assert!(bits & 1 == 0 || news.load(0, Ordering::Relaxed) == 7);
                assert!(bits & 2 == 0 || news.load(1, Ordering::Relaxed) == 8);
            }
            thread::yield_now();
        }
        ringer.join().unwrap();
    });
}

#[test]
fn loom_a_core_that_parks_is_woken_or_does_not_sleep() {
    bounded(|| {
        let bell = bell();
        let (producer, consumer) = ring();
        let ringing = Arc::clone(&bell);
        let sender = thread::spawn(move || {
            producer.push(None, &message(1, 8)).unwrap();
            fence(Ordering::SeqCst);
            producer.wants_bell() && ringing.ring(5)
        });
        let sleeps = consumer.go_idle() && bell.park();
        let woken = sender.join().unwrap();
        assert!(!sleeps || woken, "the sleeper is not woken");
    });
}

#[test]
fn loom_a_wake_request_is_seen_or_ends_the_sleep() {
    bounded(|| {
        // The sleeper waits for the word of the first bell to change, which peers can write. The
        // waking thread goes by the second one, which they cannot write.
        let shared = bell();
        let private = bell();
        let request = Arc::new(WakeRequest::default());
        let waker = {
            let (shared, private, request) = (shared.clone(), private.clone(), request.clone());
            thread::spawn(move || {
                request.make();
                private.unpark() && shared.unpark()
            })
        };
        let sleeps = shared.park() && private.park() && !request.is_made();
        let changed = waker.join().unwrap();
        assert!(!sleeps || changed, "the sleeper is not woken");
    });
}

/// A thread that finds a request of another one writes none: its work is seen all the same, in the turn that takes that request
/// or in a later one, before the core sleeps.
#[test]
fn loom_work_of_a_thread_that_finds_a_request_is_seen_or_ends_the_sleep() {
    bounded(|| {
        let bell = bell();
        let request = Arc::new(WakeRequest::default());
        request.make();
        let work = Arc::new(AtomicBool::new(false));
        let worker = {
            let (bell, request, work) = (bell.clone(), request.clone(), work.clone());
            thread::spawn(move || {
                work.store(true, Ordering::Relaxed);
                request.make();
                bell.unpark()
            })
        };
        request.take();
        let is_seen = work.load(Ordering::Relaxed);
        let sleeps = bell.park() && !request.is_made();
        let changed = worker.join().unwrap();
        assert!(is_seen || !sleeps || changed, "the sleeper is not woken");
    });
}

/// Two threads take and give; a third list state with the same top must not fool either.
#[test]
fn loom_a_place_is_held_by_one_thread_at_a_time() {
    loom::model(|| {
        let list = Arc::new(FreeList::full(0, 2));
        let held = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let use_one = |list: &FreeList, held: &[AtomicBool; 2]| {
            let Some(place) = list.take() else { return };
            // Relaxed: the list alone has to order the two holders of a place.
            assert!(!held[place as usize].load(Ordering::Relaxed), "held twice");
            held[place as usize].store(true, Ordering::Relaxed);
            held[place as usize].store(false, Ordering::Relaxed);
            list.give(place);
        };
        let other = {
            let (list, held) = (Arc::clone(&list), Arc::clone(&held));
            thread::spawn(move || {
                use_one(&list, &held);
                use_one(&list, &held);
            })
        };
        use_one(&list, &held);
        other.join().unwrap();
        assert_eq!(
            [list.take(), list.take(), list.take()].map(|it| it.is_some()),
            [true, true, false]
        );
    });
}

/// A box that its holder writes to, and counts when it is dropped.
struct Lent(AtomicBool, Arc<AtomicUsize>);

impl Drop for Lent {
    fn drop(&mut self) {
        assert!(self.0.load(Ordering::Relaxed), "dropped before it was written");
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

/// One box is free, and one is given back, while a thread closes the list: each is dropped once, as its last holder left it.
#[test]
fn loom_boxes_are_closed_while_one_is_given_expect_each_dropped_once() {
    loom::model(|| {
        let drops = Arc::new(AtomicUsize::new(0));
        let lent = |is_written| Box::new(Lent(AtomicBool::new(is_written), Arc::clone(&drops)));
        let boxes = Arc::new(FreeBoxes::new([false, true].map(lent).into_iter()));
        let (one, giver) = (boxes.take().unwrap(), Arc::clone(&boxes));
        let giver = thread::spawn(move || {
            one.0.store(true, Ordering::Relaxed);
            drop(giver.give(0, one));
        });
        boxes.close();
        giver.join().unwrap();
        assert_eq!(drops.load(Ordering::Relaxed), 2);
        assert!(boxes.take().is_none());
    });
}

/// Exactly one of giver and receiver has the value in the end, whenever the receiver loses
/// interest.
#[test]
fn loom_handoff_is_abandoned_expect_the_value_in_one_hand() {
    loom::model(|| {
        let handoff = Arc::new(Handoff::default());
        let giver = Arc::clone(&handoff);
        let giver = thread::spawn(move || giver.give(written(0)).is_err());
        let taken = handoff.take().or_else(|| handoff.abandon());
        assert!(taken.as_deref().is_none_or(Written::is_seen), "taken before it was written");
        let is_back = giver.join().unwrap();
        assert_ne!(taken.is_some(), is_back);
    });
}

/// The place is used again as soon as the value is in one hand: no value of the next round is lost to the last.
#[test]
fn loom_handoff_is_used_again_expect_each_value_at_its_receiver() {
    loom::model(|| {
        let handoff = Arc::new(Handoff::default());
        let giver = Arc::clone(&handoff);
        let giver = thread::spawn(move || {
            if let Err(value) = giver.give(Box::new(1)) {
                giver.reset();
                assert_eq!(giver.give(value), Ok(()));
                assert_eq!(giver.take(), Some(Box::new(1)));
            }
        });
        let first = handoff.abandon();
        giver.join().unwrap();
        assert!(first.is_none_or(|value| *value == 1));
    });
}

type Flags = [AtomicBool; 2];

/// Takes one item of a queue of flags, if there is one, and says which; marks it, and sees it written.
fn take_flag(queue: &BoxQueue<Written>, flags: &Flags) -> usize {
    queue.pop(2, |item| {
        let Item::Main(written) = item else { return };
        assert!(written.is_seen(), "taken before it was written");
        assert!(!flags[written.1].swap(true, Ordering::Relaxed), "taken twice");
    })
}

/// An item, and whether its producer has written it.
struct Written(AtomicBool, usize);

impl Written {
    /// Relaxed: what hands the item on has to order its memory.
    fn is_seen(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn written(number: usize) -> Box<Written> {
    let written = Box::new(Written(AtomicBool::new(false), number));
    written.0.store(true, Ordering::Relaxed);
    written
}

fn put_flag(queue: &BoxQueue<Written>, number: usize) {
    let mut item = Item::Main(written(number));
    while let Err(back) = queue.push(item) {
        item = back;
        thread::yield_now();
    }
}

/// A queue with one place: it is full, and in a later lap, at once.
#[test]
fn loom_boxes_arrive_once_and_whole_through_a_full_queue() {
    bounded(|| {
        let queue = Arc::new(BoxQueue::<Written>::new(1));
        let flags = Flags::default();
        let producer = Arc::clone(&queue);
        let producer = thread::spawn(move || [0, 1].map(|number| put_flag(&producer, number)));
        for _ in 0..2 {
            while take_flag(&queue, &flags) == 0 {
                thread::yield_now();
            }
        }
        producer.join().unwrap();
        assert!(queue.is_empty());
    });
}

/// Two threads put in, where there is room for both, while another one takes.
#[test]
fn loom_two_producers_expect_the_boxes_of_both() {
    bounded(|| {
        let queue = Arc::new(BoxQueue::<Written>::new(2));
        let flags = Flags::default();
        let producers = [0, 1].map(|number| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || put_flag(&queue, number))
        });
        let early = take_flag(&queue, &flags);
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        assert_eq!(early + take_flag(&queue, &flags), 2);
        assert!(queue.is_empty());
    });
}

/// As at the end of a core: several threads take, in batches, while another one puts in.
#[test]
fn loom_two_consumers_expect_each_box_at_one_of_them() {
    bounded(|| {
        let queue = Arc::new(BoxQueue::<Written>::new(2));
        let flags = Arc::new(Flags::default());
        let producer = Arc::clone(&queue);
        let producer = thread::spawn(move || {
            let boxes = [0, 1].map(|number| Box::new(Written(AtomicBool::new(true), number)));
            let mut boxes = boxes.into_iter();
            producer.push_all(&mut boxes);
            assert_eq!(boxes.len(), 0, "there was room");
        });
        let other = {
            let (queue, flags) = (Arc::clone(&queue), Arc::clone(&flags));
            thread::spawn(move || take_flag(&queue, &flags))
        };
        let here = take_flag(&queue, &flags);
        producer.join().unwrap();
        let there = other.join().unwrap();
        let rest = take_flag(&queue, &flags);
        assert_eq!(here + there + rest, 2);
        assert!(flags.iter().all(|flag| flag.load(Ordering::Relaxed)));
    });
}

/// Two places for two items at a time, of which one comes after another was taken. Expect room for it, and for that of the
/// other thread: who sees the tail of the one sees also that it had room.
#[test]
fn loom_a_queue_with_room_never_looks_full() {
    bounded(|| {
        let queue = Arc::new(BoxQueue::<Written>::new(2));
        let other = Arc::clone(&queue);
        let other = thread::spawn(move || {
            let is_put = other.push(Item::Main(written(0))).is_ok();
            is_put && (other.pop(1, drop) == 0 || other.push(Item::Main(written(1))).is_ok())
        });
        assert!(queue.push(Item::Main(written(2))).is_ok());
        assert!(other.join().unwrap());
    });
}
