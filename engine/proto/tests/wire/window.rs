//! The window of sequence numbers (RFC 2203 section 5.3.3.1), compared with a set of all numbers seen.

use std::collections::HashSet;

use proptest::collection::vec;
use proptest::prelude::*;

use spinrpc_proto::rpc::{Admission, SEQUENCE_MAX, SequenceWindow};

/// 64 numbers: small, so that its edges are met often.
type Small = SequenceWindow<1>;
/// 192 numbers, of which a word does not divide a power of two.
type Odd = SequenceWindow<3>;

/// All numbers seen, and the largest.
#[derive(Default)]
struct Model {
    seen: HashSet<u32>,
    largest: Option<u32>,
}

impl Model {
    fn admit(&mut self, number: u32, kept: u32) -> Admission {
        if number > SEQUENCE_MAX {
            return Admission::TooLarge;
        }
        let is_below = self
            .largest
            .is_some_and(|largest| u64::from(number) + u64::from(kept) <= u64::from(largest));
        if is_below || !self.seen.insert(number) {
            return Admission::Replay;
        }
        self.largest = self.largest.max(Some(number));
        Admission::Fresh
    }
}

#[track_caller]
fn agree<const WORDS: usize>(numbers: &[u32]) {
    let (mut window, mut model) = (SequenceWindow::<WORDS>::new(), Model::default());
    for &number in numbers {
        let expected = model.admit(number, SequenceWindow::<WORDS>::KEPT);
        assert_eq!(window.admit(number), expected, "{number} of {numbers:?}");
    }
}

#[test]
fn a_number_is_fresh_once() {
    let mut window = Small::new();
    assert_eq!(window.admit(5), Admission::Fresh);
    assert_eq!(window.admit(5), Admission::Replay);
    assert_eq!(window.admit(4), Admission::Fresh);
    assert_eq!(window.admit(0), Admission::Fresh);
    assert_eq!(window.admit(0), Admission::Replay);
}

#[test]
fn numbers_below_the_window_are_replays() {
    let mut window = Small::new();
    assert_eq!(window.admit(100), Admission::Fresh);
    assert_eq!(window.admit(100 - 64), Admission::Replay);
    assert_eq!(window.admit(100 - 63), Admission::Fresh);
    assert_eq!(window.admit(101), Admission::Fresh);
    assert_eq!(window.admit(100 - 62), Admission::Fresh);
    assert_eq!(window.admit(100 - 63), Admission::Replay);
}

#[test]
fn the_largest_number_is_0x80000000() {
    let mut window = Small::new();
    assert_eq!(window.admit(u32::MAX), Admission::TooLarge);
    assert_eq!(window.admit(0x8000_0001), Admission::TooLarge);
    assert_eq!(window.admit(1), Admission::Fresh, "nothing has moved");
    assert_eq!(window.admit(0x8000_0000), Admission::Fresh);
    assert_eq!(window.admit(0x8000_0000), Admission::Replay);
    assert_eq!(window.admit(0x7fff_ffff), Admission::Fresh);
}

/// Calls of a requester that keeps to the window it was told of are never refused, also when their
/// order is turned round.
#[test]
fn as_many_calls_as_were_told_of_arrive_in_any_order() {
    let mut window = SequenceWindow::<8>::new();
    let told = SequenceWindow::<8>::TOLD;
    assert_eq!((told, SequenceWindow::<8>::KEPT), (256, 512));
    for round in 0..20 {
        for number in (round * told..(round + 1) * told).rev() {
            assert_eq!(window.admit(number), Admission::Fresh);
        }
    }
}

#[test]
fn a_window_begins_empty() {
    assert_eq!(Odd::new(), Odd::default());
    for number in [0, 1, 63, 64, 191, 192, SEQUENCE_MAX] {
        assert_eq!(Odd::new().admit(number), Admission::Fresh);
    }
}

proptest! {
    #[test]
    fn a_window_agrees_with_a_set(numbers in vec(0_u32..300, 0..300)) {
        agree::<1>(&numbers);
        agree::<3>(&numbers);
    }

    /// Mostly upwards, with jumps of every length, and back by about a window.
    #[test]
    fn a_window_that_moves_agrees_with_a_set(
        start in prop_oneof![0_u32..200, SEQUENCE_MAX - 2000..=SEQUENCE_MAX],
        moves in vec(prop_oneof![
            4 => -3_i64..5, 1 => -70_i64..70, 1 => -200_i64..200, 1 => 0_i64..700,
        ], 0..300),
    ) {
        let mut at = i64::from(start);
        let numbers: Vec<u32> = moves
            .into_iter()
            .map(|step| {
                at = (at + step).clamp(0, i64::from(u32::MAX));
                at as u32
            })
            .collect();
        agree::<1>(&numbers);
        agree::<3>(&numbers);
        agree::<8>(&numbers);
    }
}
