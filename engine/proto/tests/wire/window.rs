//! The window of sequence numbers (RFC 2203 section 5.3.3.1). `gss_windows_hold_for_any_moves` (../fuzz.rs) compares it with
//! all numbers seen.

use spinrpc_proto::rpc::{Admission, SEQUENCE_MAX, SequenceWindow};

/// 64 numbers: small, so that its edges are met often.
type Small = SequenceWindow<1>;
/// 192 numbers, of which a word does not divide a power of two.
type Odd = SequenceWindow<3>;

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
