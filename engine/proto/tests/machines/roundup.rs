//! XDR roundup and Read chunks (RFC 5666 section 3.7): left out, included, or in a separate chunk;
//! and how a receiver skips it where it was not transferred.

use crate::prelude::*;

/// Treatment of an item's roundup by a sender.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Roundup {
    LeftOut,
    Included,
    OwnChunk,
}

const ALL: [Roundup; 3] = [Roundup::LeftOut, Roundup::Included, Roundup::OwnChunk];

impl Roundup {
    /// A Read list with an item of `length` bytes at `position`.
    fn add(self, lists: Chunks, position: u32, length: u32) -> Chunks {
        let rest = roundup4(length as usize) as u32 - length;
        match self {
            Self::LeftOut => lists.read(position, 1, length),
            Self::Included => lists.read(position, 1, length + rest),
            Self::OwnChunk if rest > 0 => {
                lists.read(position, 1, length).read(position + length, 2, rest)
            }
            Self::OwnChunk => lists.read(position, 1, length),
        }
    }

    fn chunk_bytes(self, length: u32) -> u32 {
        match self {
            Self::LeftOut => length,
            Self::Included | Self::OwnChunk => length.next_multiple_of(4),
        }
    }
}

/// The Read chunks of a call as its responder plans them; `None` if it answers with ERR_CHUNK.
fn planned(profile: Profile, lists: &Chunks, body: &[u8]) -> Option<Vec<(u32, u32)>> {
    let xid = Xid(7);
    let mut server = Server::under(profile, 2, 0);
    match server.receive(&lists.msg(xid, 8, &[rpc_call(xid), body.to_vec()].concat()))[..] {
        [Event::Pull(slot)] => {
            let chunks = server.responder.pull_plan(slot).unwrap().chunks();
            Some(chunks.iter().map(|chunk| (chunk.position, chunk.length)).collect())
        }
        [Event::Error(of, 1, RdmaError::Chunk)] if of == xid => None,
        ref events => panic!("{events:?}"),
    }
}

#[test]
fn every_roundup_of_every_length_is_passed_between_items_and_at_the_end() {
    // R5666-21, D5666-10: items of every length mod 4 next to each other, each followed by nothing
    // but the next one's count word, and the last by nothing at all.
    for profile in READ_PROFILES {
        for lengths in (0..64).map(|n| [n & 3, n >> 2 & 3, n >> 4].map(|rest| 4 + rest as u32)) {
            for roundup in ALL {
                let counts = wire(&lengths);
                let (mut lists, mut position) = (Chunks::none(), 40);
                for length in lengths {
                    lists = roundup.add(lists, position + 4, length);
                    position += 4 + length.next_multiple_of(4);
                }
                let chunks = planned(profile, &lists, &counts).unwrap();
                let mut reader = StreamReader::new(&counts, 40, Beside::Reads(&chunks));
                for (index, length) in lengths.into_iter().enumerate() {
                    assert_eq!(chunks[index].1, roundup.chunk_bytes(length));
                    let length = length as usize;
                    assert_eq!(reader.item(64), Ok(Found::Chunk { index, length }), "{roundup:?}");
                }
                assert_eq!(reader.finish(), Ok(()));
            }
        }
    }
}

#[test]
fn items_of_fixed_length_follow_each_other_without_a_word_between() {
    // R5666-21: the next position does not match, "no data remains to be decoded from the inline
    // portion", so "the receiver MUST conclude that roundup is present".
    for lengths in (0..64).map(|n| [n & 3, n >> 2 & 3, n >> 4].map(|rest| 5 + rest as u32)) {
        for roundup in ALL {
            let (mut lists, mut position) = (Chunks::none(), 40);
            for length in lengths {
                lists = roundup.add(lists, position, length);
                position += length.next_multiple_of(4);
            }
            let chunks = planned(Profile::Rfc5666, &lists, &[]).unwrap();
            let mut reader = StreamReader::new(&[], 40, Beside::Reads(&chunks));
            for (index, length) in lengths.into_iter().enumerate() {
                let length = length as usize;
                assert_eq!(reader.fixed(length), Ok(Found::Chunk { index, length }));
            }
            assert_eq!(reader.finish(), Ok(()));
        }
    }
}

#[test]
fn inline_data_behind_an_item_starts_with_a_word() {
    for length in 1..=8_u32 {
        let stream = wire(&[length, 77, 4, 0x6162_6364]);
        let chunks = [(44, length)];
        let mut reader = StreamReader::new(&stream, 40, Beside::Reads(&chunks));
        let length = length as usize;
        assert_eq!(reader.item(64), Ok(Found::Chunk { index: 0, length }));
        assert_eq!(reader.xdr().u32(), Ok(77));
        assert_eq!(reader.item(64), Ok(Found::Inline(b"abcd")));
        assert_eq!(reader.finish(), Ok(()));
    }
}

#[test]
fn roundup_of_a_read_chunk_may_stand_inline_behind_its_count() {
    // R5666-21: "the receiver decoding will fall back to inspecting the remaining inline portion". A
    // WRITE ends with its data; other arguments have words behind them.
    for behind in [&[][..], &[77], &[77, 78]] {
        for length in 1..=8_u32 {
            let roundup = vec![0; roundup4(length as usize) - length as usize];
            let stream = [wire(&[9, length]), roundup, wire(behind)].concat();
            let chunks = [(48, length)];
            let mut reader = StreamReader::new(&stream, 40, Beside::Reads(&chunks));
            assert_eq!(reader.xdr().u32(), Ok(9));
            let length = length as usize;
            assert_eq!(reader.item(64), Ok(Found::Chunk { index: 0, length }));
            for word in behind {
                assert_eq!(reader.xdr().u32(), Ok(*word), "{length} {behind:?}");
            }
            assert_eq!(reader.finish(), Ok(()), "{length} {behind:?}");
        }
    }
}

#[test]
fn roundups_of_several_read_chunks_stand_inline_or_none_does() {
    for (first, second) in
        (5..9_u32).flat_map(|first| (5..9_u32).map(move |second| (first, second)))
    {
        let roundups = [first, second].map(|length| (length as usize).wrapping_neg() & 3);
        let chunks = [(44, first), (44 + first.next_multiple_of(4) + 4, second)];
        for inline in [true, false] {
            // Where they make whole words, they cannot be told from data.
            if inline && (roundups[0] + roundups[1]).is_multiple_of(4) {
                continue;
            }
            let zeros = |nth: usize| vec![0; if inline { roundups[nth] } else { 0 }];
            let stream =
                [wire(&[first]), zeros(0), wire(&[second]), zeros(1), wire(&[77])].concat();
            let mut reader = StreamReader::new(&stream, 40, Beside::Reads(&chunks));
            for (index, length) in [first as usize, second as usize].into_iter().enumerate() {
                assert_eq!(reader.item(64), Ok(Found::Chunk { index, length }), "{inline}");
            }
            assert_eq!(reader.xdr().u32(), Ok(77), "{first} {second} {inline}");
            assert_eq!(reader.finish(), Ok(()));
        }
    }
}

#[test]
fn other_bytes_behind_a_read_chunk_are_no_roundup() {
    for (length, behind) in [(8, 1), (8, 3), (5, 1), (5, 2), (6, 3), (7, 2)] {
        let stream = [wire(&[length]), vec![0; behind]].concat();
        let chunks = [(44, length)];
        let mut reader = StreamReader::new(&stream, 40, Beside::Reads(&chunks));
        assert!(reader.item(64).is_ok());
        assert!(reader.finish().is_err(), "{behind} bytes behind {length}");
    }
}

#[test]
fn a_reply_mixes_write_chunks_read_chunks_and_inline_items() {
    // R5666-13, R5666-16: an unused Write chunk, and its item in a Read chunk or inline.
    let stream = wire(&[5, 6, 2, 0x6162_0000, 7]);
    let (reads, writes) = ([(40, 6)], [5, 0, 0, 8]);
    let beside = Beside::Both { reads: &reads, writes: &writes };
    let mut reader = StreamReader::new(&stream, 24, beside);
    assert_eq!(reader.item(64), Ok(Found::Chunk { index: 0, length: 5 }));
    assert_eq!(reader.item(64), Ok(Found::Pulled { index: 0, length: 6 }));
    assert_eq!(reader.item(64), Ok(Found::Inline(b"ab")));
    assert_eq!(reader.item(64), Ok(Found::Chunk { index: 3, length: 7 }), "roundup counted");
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn roundup_in_a_chunk_of_its_own_lands_behind_its_item() {
    // R5666-22 lets senders do so, and nothing says that a Read list is in order.
    let in_order = Chunks::none().read(44, 1, 2).read(44, 2, 3).read(49, 3, 3);
    lands_behind(&in_order);
    lands_behind(&Chunks::none().read(49, 3, 3).read(44, 1, 2).read(44, 2, 3));
    lands_behind(&Chunks::none().read(44, 1, 2).read(49, 3, 3).read(44, 2, 3));
}

/// The Reads of an item of five bytes in two segments, 1 and 2, and of its roundup, 3.
fn lands_behind(lists: &Chunks) {
    let xid = Xid(7);
    let mut server = Server::under(Profile::Rfc5666, 2, 0);
    let message = lists.msg(xid, 8, &[rpc_call(xid), wire(&[5])].concat());
    let slot = to_pull(&server.receive(&message));
    let Server { responder, out } = &mut server;
    responder.pull(slot, &view(&message), 9, |read| out.read(read));
    let read = |at, handle, length| {
        Event::Read(ReadRequest { slot, chunk: 0, at, from: segment(handle, length) })
    };
    assert_eq!(out.take(), [read(0, 1, 2), read(2, 2, 3), read(5, 3, 3)], "{lists:?}");
}

#[test]
fn a_chunk_within_a_word_that_is_no_roundup_is_err_chunk() {
    let body = wire(&[5, 0, 0, 0]);
    for lists in [
        Chunks::none().read(49, 1, 3),
        Chunks::none().read(44, 1, 5).read(50, 2, 2),
        Chunks::none().read(44, 1, 9).read(49, 2, 3),
        Chunks::none().read(44, 1, 5).read(49, 2, 3).read(49, 3, 3),
    ] {
        assert_eq!(planned(Profile::Rfc5666, &lists, &body), None, "{lists:?}");
    }
    // RFC 8166 section 3.4.5: every position is a multiple of 4.
    let roundup = Chunks::none().read(44, 1, 5).read(49, 2, 3);
    assert_eq!(planned(Profile::Rfc8166, &roundup, &body), None);
    assert_eq!(planned(Profile::Rfc5666, &roundup, &body), Some(vec![(44, 8)]));
}

#[test]
fn a_chunk_behind_another_is_not_its_roundup() {
    // Positions within a word belong to the chunk before; those of the next words do if it is a part
    // of the same item, which RFC 5666 does not have.
    for next in [44, 48, 100, 400] {
        let lists = Chunks::none().read(40, 1, 4).read(next, 2, 8);
        let body = vec![0; 400];
        for profile in READ_PROFILES {
            let planned = planned(profile, &lists, &body);
            let is_part = next == 44 && profile.has_split_items();
            let expected = if is_part { vec![(40, 12)] } else { vec![(40, 4), (next, 8)] };
            assert_eq!(planned, Some(expected), "{profile:?} {next}");
        }
    }
}

#[test]
fn a_long_message_may_have_its_roundup_in_a_chunk_of_its_own() {
    for profile in READ_PROFILES {
        let mut server = Server::under(profile, 2, 0);
        let message = Chunks::none().read(0, 1, 78).read(78, 2, 2).nomsg(Xid(7), 8);
        let slot = to_pull(&server.receive(&message));
        let Server { responder, out } = &mut server;
        assert_eq!(responder.pull(slot, &view(&message), 9, |read| out.read(read)), 2);
        let read = |at, handle, length| {
            let from = segment(handle, length);
            Event::Read(ReadRequest { slot, chunk: 0, at, from })
        };
        assert_eq!(out.take(), [read(0, 1, 78), read(78, 2, 2)]);
    }
}
