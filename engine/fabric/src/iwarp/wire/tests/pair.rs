//! Two ends of a stream whose bytes are cut anywhere: messages of any kind, in both directions at once.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;

const MEMORY_BYTES: usize = 3000;
const WRITABLE: u32 = 0x700;
const READABLE: u32 = 0x800;
const SINK: u32 = 0x900;
const BASE: u64 = 1 << 40;

#[derive(Clone, Debug)]
enum Work {
    Send { payload: Vec<u8>, invalidate: Option<u32>, solicited: bool },
    Write { at: usize, payload: Vec<u8> },
    Read { at: usize, length: usize },
}

#[derive(Debug)]
struct End {
    crc: bool,
    sender: Sender,
    receiver: Receiver,
    work: VecDeque<Work>,
    payload: Vec<u8>,
    owed: VecDeque<ReadRequest>,
    response: Vec<u8>,
    /// Bytes that have arrived. It wraps as a receive ring does.
    ring: VecDeque<u8>,
    writable: Vec<u8>,
    readable: Vec<u8>,
    message: Vec<u8>,
    received: Vec<(Vec<u8>, Option<u32>, bool)>,
    read: Vec<Vec<u8>>,
    partial_read: Vec<u8>,
    reads: u32,
}

impl End {
    fn new(agreed: &Agreed, segment_bytes: usize, work: &[Work], seed: usize) -> Self {
        Self {
            crc: agreed.crc,
            sender: Sender::new(segment_bytes),
            receiver: Receiver::new(agreed, false),
            work: work.iter().cloned().collect(),
            payload: Vec::new(),
            owed: VecDeque::new(),
            response: Vec::new(),
            ring: VecDeque::with_capacity(FPDU_BYTES_MAX),
            writable: vec![0; MEMORY_BYTES],
            readable: (0..MEMORY_BYTES).map(|at| (at * 7 + seed) as u8).collect(),
            message: Vec::new(),
            received: Vec::new(),
            read: Vec::new(),
            partial_read: Vec::new(),
            reads: 0,
        }
    }

    fn start(&mut self) {
        if !self.sender.is_free() {
            return;
        }
        let message = match self.work.front() {
            None => return,
            Some(Work::Read { .. }) if !self.receiver.has_read_room() => return,
            Some(Work::Send { payload, invalidate, solicited }) => {
                self.payload = payload.clone();
                let (invalidate, solicited) = (*invalidate, *solicited);
                Message::Send { length: payload.len() as u32, invalidate, solicited }
            }
            Some(Work::Write { at, payload }) => {
                self.payload = payload.clone();
                let (offset, length) = (BASE + *at as u64, payload.len() as u32);
                Message::Write { stag: WRITABLE, offset, length }
            }
            Some(&Work::Read { at, length }) => {
                let (stag, offset, length) = (SINK + self.reads, 5, length as u32);
                self.reads += 1;
                self.receiver.expect_read(ReadSink { stag, offset, length }).unwrap();
                Message::Read(ReadRequest {
                    msn: 0,
                    sink_stag: stag,
                    sink_offset: offset,
                    length,
                    source_stag: READABLE,
                    source_offset: BASE + at as u64,
                })
            }
        };
        self.work.pop_front();
        self.sender.start(message).unwrap();
    }

    fn respond(&mut self) {
        if self.sender.is_free_to_respond()
            && let Some(request) = self.owed.pop_front()
        {
            assert_eq!(request.source_stag, READABLE);
            let at = (request.source_offset - BASE) as usize;
            self.response = self.readable[at..at + request.length as usize].to_vec();
            self.sender.respond(ReadResponse::from(&request)).unwrap();
        }
    }

    /// The next FPDU, or nothing.
    fn emit(&mut self) -> Vec<u8> {
        self.start();
        self.respond();
        let Some((segment, header)) = next(&mut self.sender) else {
            return Vec::new();
        };
        let of = match segment.source {
            Source::Message => &self.payload,
            Source::ReadResponse => &self.response,
            Source::Terminate => panic!("nothing terminates"),
        };
        let payload = &of[segment.offset as usize..][..segment.length as usize];
        let mut crc = Crc::new();
        crc.update(&header);
        crc.update(payload);
        let trailer = segment.trailer(self.crc.then_some(crc));
        let fpdu = [&header, payload, trailer.bytes()].concat();
        assert_eq!(fpdu.len(), segment.fpdu_bytes());
        if segment.source == Source::ReadResponse && segment.last {
            self.receiver.request_answered();
        }
        fpdu
    }

    /// Takes every FPDU that is there.
    fn take(&mut self) {
        loop {
            let (first, second) = self.ring.as_slices();
            let readable = Readable::new(first, second);
            let arrival = match self.receiver.next(readable, Some(MEMORY_BYTES)).unwrap() {
                Parsed::Need(bytes) => {
                    assert!(bytes > self.ring.len());
                    return;
                }
                Parsed::Done(arrival) => arrival,
            };
            let bytes_of = |payload: std::ops::Range<usize>| {
                let mut bytes = vec![0; payload.len()];
                assert_eq!(readable.range(payload).copy_to(&mut bytes), bytes.len());
                bytes
            };
            match arrival.event {
                Event::Send { offset, payload, last, invalidate, solicited, .. } => {
                    assert_eq!(offset as usize, self.message.len());
                    self.message.extend(bytes_of(payload));
                    if last {
                        let message = std::mem::take(&mut self.message);
                        self.received.push((message, invalidate, solicited));
                    }
                }
                Event::Write { stag, offset, payload, .. } => {
                    assert_eq!(stag, WRITABLE);
                    let (at, bytes) = ((offset - BASE) as usize, bytes_of(payload));
                    self.writable[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                Event::ReadResponse { sink, offset, payload, last } => {
                    assert_eq!(sink.stag, SINK + self.read.len() as u32);
                    assert_eq!(offset as usize, self.partial_read.len());
                    self.partial_read.extend(bytes_of(payload));
                    if last {
                        self.read.push(std::mem::take(&mut self.partial_read));
                    }
                }
                Event::ReadRequest(request) => self.owed.push_back(request),
                event => panic!("{event:?}"),
            }
            self.ring.drain(..arrival.bytes);
        }
    }
}

fn work() -> impl Strategy<Value = Vec<Work>> {
    let payload = || vec(any::<u8>(), 0..MEMORY_BYTES / 2);
    let send = (payload(), any::<Option<u32>>(), any::<bool>())
        .prop_map(|(payload, invalidate, solicited)| Work::Send { payload, invalidate, solicited });
    let write =
        (0..MEMORY_BYTES / 2, payload()).prop_map(|(at, payload)| Work::Write { at, payload });
    let read = (0..MEMORY_BYTES / 2, 0..MEMORY_BYTES / 2)
        .prop_map(|(at, length)| Work::Read { at, length });
    vec(prop_oneof![send, write, read], 0..12)
}

/// Content that an end has got if its peer did this work.
fn check(end: &End, peer: &End, done: &[Work], peers_work: &[Work]) {
    let mut writable = vec![0; MEMORY_BYTES];
    let mut received = Vec::new();
    for work in peers_work {
        match work {
            Work::Send { payload, invalidate, solicited } => {
                received.push((payload.clone(), *invalidate, *solicited));
            }
            Work::Write { at, payload } => {
                writable[*at..at + payload.len()].copy_from_slice(payload);
            }
            Work::Read { .. } => {}
        }
    }
    assert_eq!(end.received, received);
    assert_eq!(end.writable, writable);
    let reads = done.iter().filter_map(|work| match *work {
        Work::Read { at, length } => Some(&peer.readable[at..at + length]),
        _ => None,
    });
    assert!(end.read.iter().map(Vec::as_slice).eq(reads));
}

proptest! {
    /// Whatever the pieces that TCP makes of the stream, each message arrives once, whole and in order.
    #[test]
    fn messages_arrive_as_sent_however_the_stream_is_cut(
        works in (work(), work()),
        terms in (any::<bool>(), 1..4_u16, 128..700_usize, 128..700_usize),
        cuts in vec(1..200_usize, 1..20),
    ) {
        let (crc, reads, left_bytes, right_bytes) = terms;
        let agreed = Agreed { crc, ird: reads, ord: reads, rtr: None };
        let mut ends = [
            End::new(&agreed, left_bytes, &works.0, 1),
            End::new(&agreed, right_bytes, &works.1, 2),
        ];
        let mut on_the_way = [VecDeque::new(), VecDeque::new()];
        let mut cuts = cuts.iter().cycle();
        loop {
            for side in [0, 1] {
                let fpdu = ends[side].emit();
                on_the_way[1 - side].extend(fpdu);
            }
            if on_the_way.iter().all(VecDeque::is_empty) {
                break;
            }
            for side in [0, 1] {
                let piece = cuts.next().map_or(1, |cut| *cut).min(on_the_way[side].len());
                ends[side].ring.extend(on_the_way[side].drain(..piece));
                ends[side].take();
            }
        }
        let [left, right] = &ends;
        prop_assert!(left.work.is_empty() && right.work.is_empty());
        prop_assert!(left.ring.is_empty() && right.ring.is_empty());
        check(left, right, &works.0, &works.1);
        check(right, left, &works.1, &works.0);
    }

    #[test]
    fn a_range_of_readable_bytes_is_that_of_the_whole(
        bytes in vec(any::<u8>(), 0..40), wrap in 0..40_usize, range in (0..50_usize, 0..50_usize),
    ) {
        let (first, second) = bytes.split_at(wrap.min(bytes.len()));
        let readable = Readable::new(first, second);
        let part = readable.range(range.0..range.1);
        let mut copy = [0; 64];
        let copied = part.copy_to(&mut copy);
        let end = range.1.min(bytes.len());
        let expected = bytes.get(range.0..end).unwrap_or_default();
        prop_assert_eq!(&copy[..copied], expected);
        prop_assert_eq!(part.len(), expected.len());
    }
}
