//! A connection as its packets show it: cuts messages and transfers into packets and numbers them.

use super::super::{QpId, RemoteSlice, SendWr, WrError};
use super::record::{Family, Kind, NOWHERE, PATH_MTU_BYTES, Record};
use super::session::Tape;
use crate::connector_common::{PRIVATE_DATA_BYTES, PrivateData};
use crate::mem::{Buf, Lease};
use std::collections::VecDeque;

/// Private data of both ends while connecting, this side's first.
pub(super) type BothPrivateData = [PrivateData; 2];

const SEQUENCE_MASK: u32 = (1 << 24) - 1;

/// First sequence number of a side. Wireshark keeps the requests of both sides in one table by
/// their number, so they start half of the numbers apart.
pub(super) const FIRST_SENT: u32 = 0;
pub(super) const FIRST_RECEIVED: u32 = 1 << 23;

const NOTHING: &[u8] = &[];

pub(super) struct Wire {
    pub(super) qp: QpId,
    number: u32,
    /// The first record, until the ring has taken it: no other record of a connection precedes it.
    opening: Option<(Kind, BothPrivateData)>,
    next_sent: u32,
    next_received: u32,
    /// In the order of posting, which is that of completion.
    reads: VecDeque<Read>,
}

struct Read {
    sequence: u32,
    from: RemoteSlice,
    /// A witness of the one posted.
    into: Lease,
}

pub(super) trait Payload {
    fn len(&self) -> usize;
    fn copy_to(&self, from: usize, out: &mut [u8]);
}

impl Payload for [u8] {
    fn len(&self) -> usize {
        self.len()
    }

    fn copy_to(&self, from: usize, out: &mut [u8]) {
        out.copy_from_slice(&self[from..from + out.len()]);
    }
}

impl Payload for Lease {
    fn len(&self) -> usize {
        self.len()
    }

    fn copy_to(&self, from: usize, out: &mut [u8]) {
        self.read_at(from, out);
    }
}

impl Wire {
    pub(super) fn new(
        (qp, number): (QpId, u32),
        opening: (Kind, BothPrivateData),
        reads_max: usize,
    ) -> Self {
        Self {
            qp,
            number,
            opening: Some(opening),
            next_sent: FIRST_SENT,
            next_received: FIRST_RECEIVED,
            reads: VecDeque::with_capacity(reads_max),
        }
    }

    #[inline]
    pub(super) fn open(&mut self, tape: &mut Tape) {
        if self.opening.is_some() {
            self.try_open(tape);
        }
    }

    #[cold]
    fn try_open(&mut self, tape: &mut Tape) {
        let Some((kind, private)) = self.opening else { return };
        let record = Record { kind, ..self.record(0) };
        if tape.put(record, private.as_flattened(), 0..2 * PRIVATE_DATA_BYTES) {
            self.opening = None;
        }
    }

    pub(super) fn note(&mut self, tape: &mut Tape, wr: &SendWr) {
        match wr {
            SendWr::Send { message, invalidate } => self.sent(tape, message, *invalidate),
            SendWr::Read { from, into, .. } => self.read_posted(tape, *from, into.witness()),
            SendWr::Write { from, to } => self.written(tape, from, *to),
        }
    }

    fn sent(&mut self, tape: &mut Tape, message: &Buf, invalidate: Option<u32>) {
        let first = Record { outbound: true, ..self.record(self.next_sent) };
        let packets = message_packets(tape, first, message, invalidate);
        self.next_sent = after(self.next_sent, packets);
    }

    pub(super) fn received(&mut self, tape: &mut Tape, message: &Buf, invalidated: Option<u32>) {
        let first = self.record(self.next_received);
        let packets = message_packets(tape, first, message, invalidated);
        self.next_received = after(self.next_received, packets);
    }

    fn written(&mut self, tape: &mut Tape, from: &Lease, to: RemoteSlice) {
        let first = Record { outbound: true, remote: to, ..self.record(self.next_sent) };
        let packets = packets(tape, (Family::WRITE, first), from, tape.snap_bytes());
        self.next_sent = after(self.next_sent, packets);
    }

    /// The response has the sequence numbers that follow that of its request.
    fn read_posted(&mut self, tape: &mut Tape, from: RemoteSlice, into: Lease) {
        let sequence = self.next_sent;
        let kind = Kind::READ_REQUEST;
        let record = Record { kind, outbound: true, remote: from, ..self.record(sequence) };
        tape.put(record, NOTHING, 0..0);
        self.next_sent = after(sequence, packet_count(into.len()));
        self.reads.push_back(Read { sequence, from, into });
    }

    /// Releases the memory of the Read.
    pub(super) fn read_completed(&mut self, tape: &mut Tape, result: Result<(), WrError>) {
        let Some(Read { sequence, from, into }) = self.reads.pop_front() else { return };
        if result.is_ok() {
            let first = Record { remote: from, ..self.record(sequence) };
            packets(tape, (Family::READ_RESPONSE, first), &into, tape.snap_bytes());
        }
    }

    pub(super) fn closed(&mut self, tape: &mut Tape) {
        let record = Record { kind: Kind::CLOSED, outbound: true, ..self.record(0) };
        tape.put(record, NOTHING, 0..0);
    }

    fn record(&self, sequence: u32) -> Record {
        Record {
            ticks: 0,
            connection: self.number,
            sequence,
            dropped: 0,
            kind: Kind::CLOSED,
            outbound: false,
            remote: NOWHERE,
        }
    }
}

/// All of it: the protocol's headers cannot be read from a part.
fn message_packets(tape: &mut Tape, first: Record, message: &Buf, invalidated: Option<u32>) -> u32 {
    let Some(handle) = invalidated else {
        return packets(tape, (Family::SEND, first), message.bytes(), usize::MAX);
    };
    let first = Record { remote: RemoteSlice { handle, ..NOWHERE }, ..first };
    packets(tape, (Family::SEND_INVALIDATE, first), message.bytes(), usize::MAX)
}

/// As far as they lie within the first `limit` bytes; returns the number of all. Those left out show as missing
/// sequence numbers; a packet that was cut short would be taken for a broken one.
fn packets<P: Payload + ?Sized>(
    tape: &mut Tape,
    (family, first): (Family, Record),
    payload: &P,
    limit: usize,
) -> u32 {
    let count = packet_count(payload.len());
    let kept = payload.len().min(limit);
    for index in 0..count.min(packet_count(kept)) {
        let start = index as usize * PATH_MTU_BYTES;
        let kind = family.packet(index as usize, count as usize);
        let sequence = after(first.sequence, index);
        let end = kept.min(start + PATH_MTU_BYTES);
        tape.put(Record { kind, sequence, ..first }, payload, start..end);
    }
    count
}

/// A message of nothing has one packet, too.
fn packet_count(bytes: usize) -> u32 {
    bytes.div_ceil(PATH_MTU_BYTES).max(1) as u32
}

fn after(sequence: u32, packets: u32) -> u32 {
    sequence.wrapping_add(packets) & SEQUENCE_MASK
}
