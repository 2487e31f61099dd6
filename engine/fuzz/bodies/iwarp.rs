//! The stream of an iWARP peer that sends what it likes: start frames, FPDUs with right CRCs and any bytes, cut and wrapped
//! anywhere. What the receiving half takes is within the bytes, in sequence and within what was posted or asked for; an
//! error changes nothing and makes a Terminate message that the other end can read.

use std::collections::VecDeque;
use std::ops::Range;

use spinrpc::fabric::iwarp::wire::{
    Agreed, Answer, Arrival, Crc, Event, FPDU_BYTES_MAX, FRAME_BYTES_MAX, Fault, Frame, FrameKind,
    HEADER_BYTES_MAX, Local, Parsed, ReadSink, Readable, Receiver, Rtr, Sender, Terminate, Trailer,
};

use crate::script::Script;

/// A start frame, or a script of a stream.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    match script.byte() % 8 {
        0 => frame(FrameKind::Request, script.bytes(usize::MAX)),
        1 => frame(FrameKind::Reply, script.bytes(usize::MAX)),
        _ => Stream::new(&mut script).run(&mut script),
    }
}

fn frame(kind: FrameKind, bytes: &[u8]) {
    let (frame, length) = match Frame::parse(kind, bytes) {
        Ok(Parsed::Need(needed)) => return assert!(needed > bytes.len()),
        Ok(Parsed::Done(parsed)) => parsed,
        Err(_) => return,
    };
    assert!(length <= bytes.len());
    let mut emitted = [0; FRAME_BYTES_MAX];
    if let Some(again) = frame.emit(&mut emitted) {
        assert_eq!(Frame::parse(kind, &emitted[..again]), Ok(Parsed::Done((frame, again))));
    }
    let local = Local { revision: 2, crc: false, ird: 16, ord: 8, peer_to_peer: true };
    if kind == FrameKind::Reply {
        if let Ok(agreed) = local.conclude(&frame) {
            assert!(agreed.ird <= local.ird && agreed.ord <= local.ord);
        }
        return;
    }
    match local.answer(&frame, b"own") {
        Answer::Refuse(reply) => assert!(reply.reject && frame.markers),
        Answer::Accept(reply, agreed) => {
            assert!(!reply.reject && agreed.ird <= local.ird && agreed.ord <= local.ord);
            // An end that asked the same is content with the answer.
            let asked = frame.enhanced.unwrap_or_default();
            let peer = Local {
                revision: if frame.enhanced.is_some() { 2 } else { 1 },
                crc: frame.crc,
                ird: asked.ird,
                ord: asked.ord,
                peer_to_peer: false,
            };
            let concluded = peer.conclude(&reply).unwrap();
            assert_eq!(concluded.crc, agreed.crc);
            assert!(frame.enhanced.is_none() || concluded.ord <= agreed.ird);
        }
    }
}

struct Stream {
    agreed: Agreed,
    receiver: Receiver,
    /// The same, which gets its bytes in one piece.
    twin: Receiver,
    ring: VecDeque<u8>,
    room: Option<usize>,
    send_msn: u32,
    send_bytes: u32,
    reads: VecDeque<ReadSink>,
    read_bytes: u32,
    requests: u16,
}

impl Stream {
    fn new(script: &mut Script<'_>) -> Self {
        let rtr = [None, Some(Rtr::Send), Some(Rtr::Write), Some(Rtr::Read)][script.below(4)];
        let (crc, ird, ord) = (script.flag(), script.below(4) as u16, script.below(4) as u16);
        let agreed = Agreed { crc, ird, ord, rtr };
        let accepted = script.flag();
        Self {
            agreed,
            receiver: Receiver::new(&agreed, accepted),
            twin: Receiver::new(&agreed, accepted),
            ring: VecDeque::new(),
            room: Some(64),
            send_msn: 1,
            send_bytes: 0,
            reads: VecDeque::new(),
            read_bytes: 0,
            requests: 0,
        }
    }

    fn run(&mut self, script: &mut Script<'_>) {
        while !script.is_over() {
            match script.byte() % 8 {
                0..=3 => self.ring.extend(fpdu(script)),
                4 => {
                    let length = script.below(40);
                    self.ring.extend(script.bytes(length));
                }
                5 => self.expect(script),
                6 => self.room = script.flag().then(|| script.below(100)),
                _ if self.requests > 0 => {
                    self.requests -= 1;
                    self.receiver.request_answered();
                    self.twin.request_answered();
                }
                _ => {}
            }
            while self.ring.len() < FPDU_BYTES_MAX {
                match self.take() {
                    Some(true) => {}
                    Some(false) => break,
                    None => return,
                }
            }
        }
    }

    fn expect(&mut self, script: &mut Script<'_>) {
        let sink = ReadSink {
            stag: script.below(4) as u32,
            offset: script.below(4) as u64,
            length: script.below(40) as u32,
        };
        let result = self.receiver.expect_read(sink);
        assert_eq!(self.twin.expect_read(sink), result);
        assert_eq!(result.is_ok(), self.reads.len() < usize::from(self.agreed.ord));
        if result.is_ok() {
            self.reads.push_back(sink);
        }
    }

    /// Takes one FPDU: false if bytes are missing, `None` after an error.
    fn take(&mut self) -> Option<bool> {
        let contiguous: Vec<u8> = self.ring.iter().copied().collect();
        let (first, second) = self.ring.as_slices();
        let readable = Readable::new(first, second);
        let result = self.receiver.next(readable, self.room);
        assert_eq!(self.twin.next(Readable::new(&contiguous, &[]), self.room), result);
        let arrival = match result {
            Ok(Parsed::Need(bytes)) => {
                assert!(bytes > contiguous.len() && bytes <= FPDU_BYTES_MAX);
                return Some(false);
            }
            Ok(Parsed::Done(arrival)) => arrival,
            Err(fault) => {
                assert_eq!(self.receiver.next(readable, self.room), Err(fault));
                check_terminate(fault, readable);
                return None;
            }
        };
        assert!(arrival.bytes.is_multiple_of(4) && arrival.bytes <= contiguous.len());
        assert!(self.receiver.has_received());
        if let Event::Write { .. } = arrival.event {
            check_terminate(Fault::TaggedBounds, readable);
        }
        self.check(arrival.event, arrival.bytes)?;
        self.ring.drain(..arrival.bytes);
        Some(true)
    }

    fn check(&mut self, event: Event, bytes: usize) -> Option<()> {
        let length = |payload: Range<usize>| {
            assert!(payload.start <= payload.end && payload.end <= bytes - 4);
            payload.len() as u32
        };
        match event {
            Event::Rtr => {
                assert_eq!(self.agreed.rtr, Some(Rtr::Send));
                // One of the two forms counts as a Send.
                self.send_msn += u32::from(bytes > 8);
            }
            Event::Write { offset, payload, .. } => {
                assert!(offset.checked_add(length(payload).into()).is_some());
            }
            Event::Send { msn, offset, payload, last, .. } => {
                assert_eq!((msn, offset), (self.send_msn, self.send_bytes));
                let end = offset + length(payload);
                assert!(end as usize <= self.room.unwrap());
                self.send_msn += u32::from(last);
                self.send_bytes = if last { 0 } else { end };
            }
            Event::ReadResponse { sink, offset, payload, last } => {
                assert_eq!((self.reads.front(), offset), (Some(&sink), self.read_bytes));
                let end = offset + length(payload);
                assert!(end <= sink.length && last == (end == sink.length));
                self.read_bytes = if last { 0 } else { end };
                if last {
                    self.reads.pop_front();
                }
            }
            Event::ReadRequest(request) => {
                self.requests += 1;
                assert!(self.requests <= self.agreed.ird);
                assert!(request.source_offset.checked_add(request.length.into()).is_some());
                check_terminate_of(Terminate::about_request(Fault::ReadBounds, &request));
            }
            Event::Terminate(_) => return None,
        }
        Some(())
    }
}

fn check_terminate(fault: Fault, readable: Readable<'_>) {
    check_terminate_of(Terminate::about(fault, readable));
}

/// The other end reads the bytes that are sent.
fn check_terminate_of(terminate: Terminate) {
    let mut sender = Sender::new(0);
    sender.terminate(terminate);
    let mut header = [0; HEADER_BYTES_MAX];
    let segment = sender.next(&mut header).unwrap();
    let header = &header[..segment.header_bytes];
    let mut crc = Crc::new();
    crc.update(header);
    let fpdu = [header, segment.trailer(Some(crc)).bytes()].concat();
    let agreed = Agreed { crc: true, ird: 0, ord: 0, rtr: None };
    let result = Receiver::new(&agreed, false).next(Readable::new(&fpdu, &[]), None);
    let expected = Arrival { event: Event::Terminate(terminate.code), bytes: fpdu.len() };
    assert_eq!(result, Ok(Parsed::Done(expected)));
}

/// An FPDU that is plausible but for a field or two.
fn fpdu(script: &mut Script<'_>) -> Vec<u8> {
    let opcode = script.byte() % 9;
    let flags = script.byte();
    let is_tagged = matches!(opcode, 0 | 2) ^ (flags & 0x30 == 0x30);
    let version = if flags & 0xc0 == 0xc0 { flags & 3 } else { 1 };
    let ddp = u8::from(is_tagged) << 7 | (flags & 1) << 6 | version;
    let mut ulpdu = vec![ddp, 0x40 | opcode];
    let mut words = |count: usize, script: &mut Script<'_>| {
        for _ in 0..count {
            let word = script.byte();
            let word = if word == 0xff { u32::MAX } else { u32::from(word % 64) };
            ulpdu.extend(word.to_be_bytes());
        }
    };
    match (is_tagged, flags & 0x0c) {
        (true, _) => words(3, script),
        // The queue is right.
        (false, 0..=8) => {
            words(1, script);
            let queue = [0, 1, 0, 0, 0, 0, 0, 2, 0][usize::from(opcode)];
            ulpdu.extend(u32::to_be_bytes(queue));
            ulpdu.extend([0, 0, 0, script.byte() % 8, 0, 0, 0, script.byte() % 64]);
        }
        (false, _) => words(4, script),
    }
    let is_request = opcode == 1 && flags & 2 == 0;
    let length = if is_request { 28 } else { script.below(48) };
    let payload = script.bytes(length);
    ulpdu.extend(payload);
    ulpdu.resize(ulpdu.len() + length - payload.len(), 0);
    if flags & 0xf0 == 0x80 {
        ulpdu.truncate(usize::from(flags & 0x0f)); // within the header
    }
    let mut fpdu = (ulpdu.len() as u16).to_be_bytes().to_vec();
    fpdu.extend(ulpdu);
    let mut crc = Crc::new();
    crc.update(&fpdu);
    let pad = fpdu.len().wrapping_neg() & 3;
    fpdu.extend(Trailer::new(pad, Some(crc)).bytes());
    fpdu
}
