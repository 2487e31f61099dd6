//! The window of sequence numbers (RFC 2203 section 5.3.3.1). `gss_windows_hold_for_any_moves` (../fuzz.rs) compares it with
//! all numbers seen.

use spinrpc_proto::rpc::{Admission, SEQUENCE_MAX, SequenceWindow};

/// 64 numbers: small, so that its edges are met often.
type Small = SequenceWindow<1>;
/// 192 numbers, of which a word does not divide a power of two.
type Odd = SequenceWindow<3>;

#[test]
fn numbers_are_admitted_by_the_window() {
    use Admission::{Fresh, Replay, TooLarge};
    let cases: [(&str, &[(u32, Admission)]); 3] = [
        ("a number is fresh once", &[(5, Fresh), (5, Replay), (4, Fresh), (0, Fresh), (0, Replay)]),
        (
            "numbers below the window are replays",
            &[(100, Fresh), (36, Replay), (37, Fresh), (101, Fresh), (38, Fresh), (37, Replay)],
        ),
        (
            "the largest number is 0x80000000, and a larger one moves nothing",
            &[
                (u32::MAX, TooLarge),
                (0x8000_0001, TooLarge),
                (1, Fresh),
                (0x8000_0000, Fresh),
                (0x8000_0000, Replay),
                (0x7fff_ffff, Fresh),
            ],
        ),
    ];
    for (what, numbers) in cases {
        let mut window = Small::new();
        for (number, expected) in numbers {
            assert_eq!(window.admit(*number), *expected, "{what}: {number}");
        }
    }
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
