//! The ring against a queue that is plainly right, and against a peer that writes anything.

use super::super::words::{CheckedSlots, HeapWords, LINE_REST_WORDS, head_of};
use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

const SLOTS: u32 = 16;
const PLACE: RingPlace = RingPlace { control: 0, slots_at: CONTROL_WORDS, slots: SLOTS };
const WORDS: usize = CONTROL_WORDS + SLOTS as usize * SLOT_WORDS;

fn ring() -> (Producer<HeapWords>, Consumer<HeapWords>, HeapWords) {
    let words = HeapWords::new(WORDS);
    let producer = Producer::new(words.clone(), PLACE).unwrap();
    (producer, Consumer::new(words.clone(), PLACE).unwrap(), words)
}

/// The lead word, if there is one, and the bytes.
type Message = (Option<u32>, Vec<u8>);

fn take(consumer: &Consumer<HeapWords>) -> Result<Option<Message>, Corrupt> {
    let Some(arrival) = consumer.arrival()? else { return Ok(None) };
    let mut message = vec![0; arrival.length];
    consumer.take(arrival, &mut message)?;
    Ok(Some((arrival.lead, message)))
}

/// As [`take`], by the slot where that can be.
fn take_by_slot(consumer: &Consumer<HeapWords>) -> Result<Option<Message>, Corrupt> {
    let mut slot = [[0; BLOCK_BYTES]; SLOT_WORDS / 2];
    let Look::Short(length) = consumer.take_slot(&mut slot, true) else { return take(consumer) };
    Ok(Some((None, slot.as_flattened()[SLOT_MESSAGE_AT..][..length].to_vec())))
}

/// As [`Producer::push`], by the slot where that can be.
fn push_by_slot(
    producer: &Producer<HeapWords>,
    lead: Option<u32>,
    message: &[u8],
) -> Result<(), PushError> {
    if lead.is_some() || message.len() > FIRST_PAYLOAD_BYTES {
        return producer.push(lead, message);
    }
    let mut slot = [[0xee; BLOCK_BYTES]; SLOT_WORDS / 2];
    slot.as_flattened_mut()[SLOT_MESSAGE_AT..][..message.len()].copy_from_slice(message);
    producer.push_slot(&head_of::<LINE_REST_WORDS>(&slot), &slot, message.len(), false)
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Push { length: usize, lead: Option<u32>, by_slot: bool },
    Take { by_slot: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![0..80_usize, 230..270_usize, 0..=PLACE.message_bytes_max()];
    prop_oneof![
        (length, any::<Option<u32>>(), any::<bool>())
            .prop_map(|(length, lead, by_slot)| Step::Push { length, lead, by_slot }),
        any::<bool>().prop_map(|by_slot| Step::Take { by_slot }),
        any::<bool>().prop_map(|by_slot| Step::Take { by_slot }),
    ]
}

proptest! {
    #[test]
    fn a_ring_is_a_bounded_queue(steps in proptest::collection::vec(step(), 1..400)) {
        let (producer, consumer, _) = ring();
        let mut oracle = VecDeque::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push { length, lead, by_slot } => {
                    let message = pattern(length, number as u8);
                    let pushed = match by_slot {
                        true => push_by_slot(&producer, lead, &message),
                        false => producer.push(lead, &message),
                    };
                    match pushed {
                        Ok(()) => oracle.push_back((lead, message)),
                        Err(error) => {
                            prop_assert_eq!(error, PushError::Full);
                            prop_assert!(!oracle.is_empty(), "an empty ring takes any message");
                        }
                    }
                }
                Step::Take { by_slot } => {
                    let take = if by_slot { take_by_slot } else { take };
                    prop_assert_eq!(take(&consumer), Ok(oracle.pop_front()));
                }
            }
        }
    }

    #[test]
    fn any_bytes_in_the_ring_are_a_message_or_corrupt_but_never_worse(
        scribbles in proptest::collection::vec((0..WORDS, any::<u64>()), 1..64),
        headers in proptest::collection::vec((0..4_u64, any::<u8>(), 0..5000_usize), 0..4),
    ) {
        let (producer, consumer, words) = ring();
        for (at, value) in scribbles {
            words.store(at, value, Ordering::Relaxed);
        }
        for (slot, flags, length) in headers {
            let header = header(slot, u64::from(flags), length);
            words.store(PLACE.ends().slot(slot), header, Ordering::Relaxed);
        }
        for _ in 0..SLOTS {
            let _ = push_by_slot(&producer, None, &[7; 100]);
            let _ = take_by_slot(&consumer);
            let _ = producer.push(None, &[7; 100]);
            let _ = take(&consumer);
        }
    }
}

#[test]
fn sequences_go_on_over_the_32_bit_wrap() {
    let (producer, consumer, words) = ring();
    let start = (1 << 32) - 3;
    producer.next.set(start);
    producer.limit.set(start + u64::from(SLOTS));
    consumer.next.set(start);
    consumer.publish_at.set(start + consumer.quarter);
    words.store(CONSUMED, start, Ordering::Relaxed);
    for number in 0..64_u8 {
        producer.push(None, &[number; 300]).unwrap();
        assert_eq!(take(&consumer), Ok(Some((None, vec![number; 300]))));
    }
}

#[test]
fn a_consumer_that_claims_more_than_was_sent_is_corrupt() {
    let (producer, _, words) = ring();
    words.store(CONSUMED, 17, Ordering::Relaxed);
    for _ in 0..SLOTS {
        producer.push(None, &[]).unwrap();
    }
    assert!(matches!(producer.push(None, &[]), Err(PushError::Corrupt(_))));
}

#[test]
fn a_message_whose_continuation_is_of_another_lap_is_corrupt() {
    let (producer, consumer, words) = ring();
    producer.push(None, &[1; 600]).unwrap();
    let stale = header(1, FLAG_CONTINUED, SLOT_PAYLOAD_BYTES) ^ 1 << 32;
    words.store(PLACE.ends().slot(1), stale, Ordering::Relaxed);
    assert!(take(&consumer).is_err());
}

#[test]
fn a_ring_that_does_not_fit_its_words_is_refused() {
    for place in [
        RingPlace { slots: 15, ..PLACE },
        RingPlace { slots: 8, ..PLACE },
        RingPlace { slots: 32, ..PLACE },
        RingPlace { control: WORDS, ..PLACE },
        RingPlace { slots_at: usize::MAX, ..PLACE },
    ] {
        assert!(Producer::new(HeapWords::new(WORDS), place).is_none(), "{place:?}");
        assert!(Consumer::new(HeapWords::new(WORDS), place).is_none(), "{place:?}");
    }
}

#[test]
fn an_idle_consumer_is_rung_and_one_with_a_message_does_not_go_idle() {
    let (producer, consumer, _) = ring();
    assert!(!producer.wants_bell());
    assert!(consumer.go_idle());
    assert!(producer.wants_bell());
    producer.push(None, &[1]).unwrap();
    assert!(!consumer.go_idle());
    assert!(!producer.wants_bell());
}

#[test]
fn what_was_sent_before_the_close_is_still_there_after_it() {
    let (producer, consumer, _) = ring();
    producer.push(None, b"last words").unwrap();
    producer.close(3);
    assert_eq!(consumer.closed(), 3);
    assert_eq!(take(&consumer), Ok(Some((None, b"last words".to_vec()))));
}

/// "Half of the ring: less than a quarter is read but not yet published, so such a message always finds
/// room in the end."
/// Look for the progress of the consumer while most of the ring is held back. Expect no more room by that.
#[test]
fn slots_that_are_held_back_stay_so_until_they_are_released() {
    let (producer, consumer, _) = ring();
    producer.hold_back(2);
    producer.push(None, b"one").unwrap();
    assert_eq!(take(&consumer), Ok(Some((None, b"one".to_vec()))));
    consumer.publish_progress();
    assert_eq!(producer.consumed(), Ok(1));
    producer.push(None, b"two").unwrap();
    assert_eq!(producer.push(None, b"three"), Err(PushError::Full));
    producer.release();
    for _ in 2..=SLOTS {
        producer.push(None, b"more").unwrap();
    }
    assert_eq!(producer.push(None, b"too many"), Err(PushError::Full));
}

#[test]
fn the_longest_message_fills_half_of_the_ring() {
    let (producer, ..) = ring();
    let longest = SLOTS as usize / 2 * 31 * 8 - 4;
    assert_eq!(PLACE.message_bytes_max(), longest);
    assert_eq!(producer.push(None, &vec![0; longest + 1]), Err(PushError::TooLong));
    assert_eq!(producer.push(None, &vec![0; longest]), Ok(()));
    assert_eq!(producer.push(Some(1), &vec![0; longest]), Ok(()));
    assert_eq!(producer.push(None, &[]), Err(PushError::Full));
}

#[test]
fn a_consumer_says_how_far_it_has_read_every_quarter_of_the_ring() {
    let (producer, consumer, words) = ring();
    for taken in 1..=40 {
        producer.push(None, &[1]).unwrap();
        take(&consumer).unwrap();
        assert_eq!(words.load(CONSUMED, Ordering::Relaxed), taken / 4 * 4);
    }
}

#[test]
fn an_order_stays_among_the_messages_until_it_is_carried_out_and_the_producer_knows() {
    let (producer, consumer, _) = ring();
    producer.push(None, b"before").unwrap();
    let order = std::array::from_fn(|at| at as u8);
    let until = producer.push_order(&order).unwrap();
    producer.push(Some(3), b"behind").unwrap();
    assert_eq!(take(&consumer), Ok(Some((None, b"before".to_vec()))));
    for _ in 0..3 {
        assert_eq!(consumer.take_slot(&mut [[0; BLOCK_BYTES]; SLOT_WORDS / 2], false), Look::Other);
        assert!(consumer.has_arrival() && !consumer.go_idle());
        let arrival = consumer.arrival().unwrap().unwrap();
        assert!(arrival.is_order && arrival.lead.is_none());
        assert_eq!(consumer.order(), order);
        assert!(producer.consumed().unwrap() < until);
    }
    consumer.finish_order();
    assert_eq!(producer.consumed(), Ok(until));
    assert_eq!(take(&consumer), Ok(Some((Some(3), b"behind".to_vec()))));
    assert_eq!(take(&consumer), Ok(None));
}

/// A continuation, and an order of another length or with a lead.
#[test]
fn a_first_header_that_cannot_be_is_corrupt() {
    let orders = [(FLAG_ORDER, 31), (FLAG_ORDER, 33), (FLAG_ORDER | FLAG_LEAD, 32)];
    for (flags, length) in [(FLAG_CONTINUED, 8)].into_iter().chain(orders) {
        let (_, consumer, words) = ring();
        words.store(PLACE.slots_at, header(0, flags, length), Ordering::Relaxed);
        assert!(consumer.arrival().is_err(), "{flags} {length}");
    }
}

/// Accesses to words, hints included, other than loads and stores of single ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touch {
    FetchToWrite(usize),
    Fetch(usize),
    Write(usize, usize),
}

#[derive(Clone)]
struct Watched {
    words: HeapWords,
    touches: Rc<RefCell<Vec<Touch>>>,
}

impl Watched {
    fn ring() -> (Producer<Self>, Consumer<Self>, Self) {
        let words = Self { words: HeapWords::new(WORDS), touches: Rc::default() };
        let producer = Producer::new(words.clone(), PLACE).unwrap();
        (producer, Consumer::new(words.clone(), PLACE).unwrap(), words)
    }

    fn took(&self) -> Vec<Touch> {
        self.touches.take()
    }
}

impl Words for Watched {
    type Slots = CheckedSlots<Self>;

    fn slots(&self, at: usize, count: u32) -> Option<Self::Slots> {
        CheckedSlots::new(self.clone(), at, count)
    }

    fn count(&self) -> usize {
        self.words.count()
    }

    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.words.load(at, order)
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.words.store(at, value, order);
    }

    fn swap(&self, at: usize, value: u64, order: Ordering) -> u64 {
        self.words.swap(at, value, order)
    }

    fn fetch_or(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.words.fetch_or(at, bits, order)
    }

    fn fetch_and(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.words.fetch_and(at, bits, order)
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.touches.borrow_mut().push(Touch::Write(at, bytes.len()));
        self.words.write(at, bytes);
    }

    fn prefetch_write(&self, at: usize) {
        self.touches.borrow_mut().push(Touch::FetchToWrite(at));
    }

    fn prefetch(&self, at: usize) {
        self.touches.borrow_mut().push(Touch::Fetch(at));
    }
}

/// The first two lines of a slot.
fn lines_of(slot: u64, touch: fn(usize) -> Touch) -> [Touch; 2] {
    [touch(PLACE.ends().slot(slot)), touch(PLACE.ends().slot(slot) + LINE_WORDS)]
}

#[test]
fn a_message_alone_fetches_the_next_slot_and_one_under_load_those_to_come() {
    let (producer, _, words) = Watched::ring();
    let under_load = |next| lines_of(next + 3, Touch::FetchToWrite);
    for run in 0..3 {
        let next = run * 3 + 1;
        producer.push(None, &[]).unwrap();
        assert_eq!(words.took(), [Touch::FetchToWrite(PLACE.ends().slot(next))]);
        producer.push(None, &[]).unwrap();
        assert_eq!(words.took(), under_load(next + 1));
        producer.push(None, &[]).unwrap();
        assert_eq!(words.took(), under_load(next + 2));
        producer.end_run();
    }
}

#[test]
fn a_consumer_fetches_the_lines_behind_the_header_until_it_is_there() {
    let (producer, consumer, words) = Watched::ring();
    for next in 0..3 {
        assert!(!consumer.has_arrival());
        let at = PLACE.ends().slot(next);
        let behind = [Touch::Fetch(at + LINE_WORDS), Touch::Fetch(at + 2 * LINE_WORDS)];
        assert_eq!(words.took(), behind);
        producer.push(None, &[]).unwrap();
        words.took();
        assert!(consumer.has_arrival());
        assert_eq!(words.took(), []);
        consumer.fetch_ahead();
        assert_eq!(words.took(), lines_of(next + 2, Touch::Fetch));
        let arrival = consumer.arrival().unwrap().unwrap();
        consumer.take(arrival, &mut []).unwrap();
    }
}

/// "The lines behind it are filled first, and that line last and at once."
#[test]
fn the_head_of_the_header_is_filled_last() {
    // The line has the header, the lead with four bytes, and six words more.
    for (length, expected) in [
        (4, &[(2, 0)][..]),
        (4 + 47, &[(2, 47)]),
        (4 + 48, &[(LINE_WORDS, 0), (2, 48)]),
        (244, &[(LINE_WORDS, 192), (2, 48)]),
    ] {
        let (producer, _, words) = Watched::ring();
        producer.push(None, &vec![1; length]).unwrap();
        let is_write = |touch: &Touch| matches!(touch, Touch::Write(..));
        let writes: Vec<Touch> = words.took().into_iter().filter(is_write).collect();
        let at = PLACE.ends().slot(0);
        let expected = expected.iter().map(|(word, bytes)| Touch::Write(at + word, *bytes));
        assert_eq!(writes, expected.collect::<Vec<_>>(), "{length}");
    }
}

/// Each side writes separate words, apart from the other's and from all slots.
#[test]
fn the_control_block_has_a_line_for_each_writer_and_none_of_a_slot() {
    assert_eq!([CONSUMED, NEED_BELL, CLOSED].map(|at| at / PADDED_WORDS), [0, 1, 2]);
    let (producer, consumer, _) = ring();
    for lap in 0..2 {
        for slot in 0..SLOTS as u8 {
            producer.push(Some(7), &pattern(FIRST_PAYLOAD_BYTES, slot)).unwrap();
        }
        consumer.go_busy();
        if lap == 1 {
            producer.close(u64::MAX);
        }
        assert_eq!(consumer.closed(), lap * u64::MAX);
        for slot in 0..SLOTS as u8 {
            let message = (Some(7), pattern(FIRST_PAYLOAD_BYTES, slot));
            assert_eq!(take(&consumer), Ok(Some(message)));
        }
        assert!(consumer.go_idle() && producer.wants_bell());
        assert_eq!(consumer.closed(), lap * u64::MAX);
    }
}
