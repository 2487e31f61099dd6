//! The receiving half of a stream: bytes in, events out, in the order of the stream.

use super::ddp::{Header, Target};
use super::fpdu::{self, Fpdu};
use super::rdmap::{
    Opcode, READ_QUEUE, READ_REQUEST_BYTES, SEND_QUEUE, TERMINATE_QUEUE, Terminate,
};
use super::{Agreed, Fault, Parsed, ReadRequest, Readable, Rtr, TerminateCode};
use std::ops::Range;

/// One FPDU, checked as far as the stream knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its meaning.
    pub event: Event,
    /// Bytes to free in the ring once the driver has acted on the event.
    pub bytes: usize,
}

/// Meaning of one FPDU. Payloads are ranges of the [`Readable`] bytes that [`Receiver::next`] was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The FPDU by which the connecting side lets this end send. It is not a message.
    Rtr,
    /// A part of an RDMA Write. The driver checks the key's right to be written and its bounds, except where the payload is
    /// empty: then "the STag ... is not validated" (RFC 5040 section 5.1). The end of the offsets does not overflow.
    Write {
        /// Key of this end.
        stag: u32,
        /// Offset of the payload.
        offset: u64,
        /// The bytes to place.
        payload: Range<usize>,
        /// The last segment of the Write.
        last: bool,
    },
    /// A part of the oldest outstanding Read's response, within it and in sequence. The driver checks that the sink is still
    /// there, if that can end.
    ReadResponse {
        /// The Read.
        sink: ReadSink,
        /// Offset of the payload, from the start of the Read.
        offset: u32,
        /// The bytes to place.
        payload: Range<usize>,
        /// The Read is complete, and no longer outstanding.
        last: bool,
    },
    /// A part of a Send, for the first posted receive; it fits.
    Send {
        /// Number of the Send.
        msn: u32,
        /// Offset of the payload in the receive.
        offset: u32,
        /// The bytes to place.
        payload: Range<usize>,
        /// The message is complete: the receive is used up.
        last: bool,
        /// The key of this end that dies when the message is complete.
        invalidate: Option<u32>,
        /// The peer asks for an event (Send with SE).
        solicited: bool,
    },
    /// The peer reads memory of this end. The driver checks right and bounds, except for a request of no bytes, and answers
    /// in the order of requests.
    ReadRequest(ReadRequest),
    /// The peer ends the stream. Nothing that follows means anything.
    Terminate(TerminateCode),
}

/// Memory of this end that a Read fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadSink {
    /// Key that the Read Request names.
    pub stag: u32,
    /// Offset that it names.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// As many Reads are outstanding as ORD allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("as many RDMA Reads are outstanding as the peer takes")]
pub struct OrdReached;

/// A Send whose last segment has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PartialSend {
    opcode: Opcode,
    ulp_word: u32,
    bytes: u32,
}

/// The receiving half of a stream.
#[derive(Debug)]
pub struct Receiver {
    uses_crc: bool,
    awaits_rtr_send: bool,
    has_received: bool,
    send_msn: u32,
    send: Option<PartialSend>,
    read_msn: u32,
    requests: u16,
    ird: u16,
    reads: Reads,
}

impl Receiver {
    /// The half of a stream with these terms. `accepted`: this is the side that was connected to.
    pub fn new(agreed: &Agreed, accepted: bool) -> Self {
        Self {
            uses_crc: agreed.crc,
            awaits_rtr_send: accepted && agreed.rtr == Some(Rtr::Send),
            has_received: false,
            send_msn: 1,
            send: None,
            read_msn: 1,
            requests: 0,
            ird: agreed.ird,
            reads: Reads::new(agreed.ord),
        }
    }

    /// True once the peer has sent an FPDU: "the responder MUST NOT send ... until it has received a valid FPDU" (RFC 5044
    /// section 7.1.2).
    pub const fn has_received(&self) -> bool {
        self.has_received
    }

    /// Notes that a Read Request is about to leave. Responses are taken for such Reads only, in this order.
    pub fn expect_read(&mut self, sink: ReadSink) -> Result<(), OrdReached> {
        self.reads.push(sink)
    }

    /// Reads whose responses have not arrived whole, the oldest first.
    pub fn outstanding_reads(&self) -> impl Iterator<Item = ReadSink> + '_ {
        (0..self.reads.count).map(|index| self.reads.get(index))
    }

    /// True if another Read may be sent.
    pub const fn has_read_room(&self) -> bool {
        self.reads.count < self.reads.sinks.len()
    }

    /// Notes that the last segment of a Read Response has been sent: the peer may send another request.
    pub const fn request_answered(&mut self) {
        self.requests = self.requests.saturating_sub(1);
    }

    /// The FPDU that the readable bytes begin with. `receive_bytes` is the length of the receive that the next Send goes to
    /// (the same until its last segment has arrived); `None` if none is posted. After an error, the state is as before.
    pub fn next(
        &mut self,
        readable: Readable<'_>,
        receive_bytes: Option<usize>,
    ) -> Result<Parsed<Arrival>, Fault> {
        let fpdu = match fpdu::parse(readable, self.uses_crc)? {
            Parsed::Need(bytes) => return Ok(Parsed::Need(bytes)),
            Parsed::Done(fpdu) => fpdu,
        };
        let event = self.on_segment(readable, &fpdu, receive_bytes)?;
        self.has_received = true;
        self.awaits_rtr_send = false;
        Ok(Parsed::Done(Arrival { event, bytes: fpdu.bytes }))
    }

    fn on_segment(
        &mut self,
        readable: Readable<'_>,
        fpdu: &Fpdu,
        receive_bytes: Option<usize>,
    ) -> Result<Event, Fault> {
        // RFC 6581 section 5 calls this RTR a zero-length FPDU; some peers send an FPDU with a Send of no bytes.
        if self.awaits_rtr_send && fpdu.ulpdu.is_empty() {
            return Ok(Event::Rtr);
        }
        let header = Header::parse(readable.range(fpdu.ulpdu.clone()))?;
        let opcode = Opcode::from_control(header.ulp)?;
        let payload = fpdu.ulpdu.start + header.bytes()..fpdu.ulpdu.end;
        match (opcode, header.target) {
            (Opcode::Write, Target::Tagged { stag, offset }) => {
                let length = payload.len() as u64;
                offset.checked_add(length).ok_or(Fault::TaggedWrap)?;
                Ok(Event::Write { stag, offset, payload, last: header.last })
            }
            (Opcode::ReadResponse, Target::Tagged { stag, offset }) => {
                self.reads.on_response(stag, offset, payload, header.last)
            }
            (Opcode::Send { .. }, Target::Untagged { queue, .. }) => {
                check_queue(queue, SEND_QUEUE)?;
                self.on_send(opcode, &header, payload, receive_bytes)
            }
            (Opcode::ReadRequest, Target::Untagged { queue, .. }) => {
                check_queue(queue, READ_QUEUE)?;
                self.on_read_request(&header, readable, payload)
            }
            (Opcode::Terminate, Target::Untagged { queue, msn, offset, .. }) => {
                check_queue(queue, TERMINATE_QUEUE)?;
                check_start(msn, 1, offset)?;
                Terminate::parse(readable.range(payload)).map(Event::Terminate)
            }
            _ => Err(Fault::Opcode),
        }
    }

    fn on_send(
        &mut self,
        opcode: Opcode,
        header: &Header,
        payload: Range<usize>,
        receive_bytes: Option<usize>,
    ) -> Result<Event, Fault> {
        let Target::Untagged { ulp_word, msn, offset, .. } = header.target else {
            return Err(Fault::Opcode);
        };
        let bytes = self.send.map_or(0, |send| send.bytes);
        if msn != self.send_msn {
            return Err(Fault::MsnRange);
        }
        if offset != bytes {
            return Err(Fault::MessageOffset);
        }
        let Opcode::Send { invalidates, solicited } = opcode else {
            return Err(Fault::Opcode);
        };
        // "The Data Source MUST set the same Invalidate STag in each segment" (RFC 5040 section 4.3).
        match self.send {
            Some(send) if send.opcode != opcode => return Err(Fault::Opcode),
            Some(send) if invalidates && send.ulp_word != ulp_word => return Err(Fault::Malformed),
            _ => {}
        }
        let is_empty = self.send.is_none() && header.last && payload.is_empty();
        if self.awaits_rtr_send && is_empty && !invalidates {
            self.send_msn = msn.wrapping_add(1);
            return Ok(Event::Rtr);
        }
        let room = receive_bytes.ok_or(Fault::NoBuffer)?;
        let end = u32::try_from(payload.len()).ok().and_then(|length| bytes.checked_add(length));
        let end = end.filter(|end| *end as usize <= room).ok_or(Fault::MessageTooLong)?;
        if header.last {
            self.send = None;
            self.send_msn = msn.wrapping_add(1);
        } else {
            self.send = Some(PartialSend { opcode, ulp_word, bytes: end });
        }
        let invalidate = invalidates.then_some(ulp_word);
        Ok(Event::Send { msn, offset, payload, last: header.last, invalidate, solicited })
    }

    fn on_read_request(
        &mut self,
        header: &Header,
        readable: Readable<'_>,
        payload: Range<usize>,
    ) -> Result<Event, Fault> {
        let Target::Untagged { msn, offset, .. } = header.target else {
            return Err(Fault::Opcode);
        };
        check_start(msn, self.read_msn, offset)?;
        if self.requests >= self.ird {
            return Err(Fault::NoBuffer);
        }
        // The buffers of this queue are as long as a request (RFC 5040 section 5.2.1).
        if payload.len() > READ_REQUEST_BYTES || !header.last {
            return Err(Fault::MessageTooLong);
        }
        if payload.len() < READ_REQUEST_BYTES {
            return Err(Fault::Malformed);
        }
        let body = readable.array(payload.start).ok_or(Fault::Malformed)?;
        let request = ReadRequest::parse(msn, body)?;
        self.requests += 1;
        self.read_msn = msn.wrapping_add(1);
        Ok(Event::ReadRequest(request))
    }
}

const fn check_queue(queue: u32, expected: u32) -> Result<(), Fault> {
    if queue == expected { Ok(()) } else { Err(Fault::QueueNumber) }
}

/// The segment starts the message with this number.
const fn check_start(msn: u32, expected: u32, offset: u32) -> Result<(), Fault> {
    match (msn == expected, offset) {
        (false, _) => Err(Fault::MsnRange),
        (_, 0) => Ok(()),
        _ => Err(Fault::MessageOffset),
    }
}

/// Reads outstanding, in a ring with as many places as ORD.
#[derive(Debug)]
struct Reads {
    sinks: Box<[ReadSink]>,
    oldest: usize,
    count: usize,
    /// Bytes of the oldest that have arrived.
    bytes: u32,
}

impl Reads {
    fn new(ord: u16) -> Self {
        let sinks = (0..ord).map(|_| ReadSink::default()).collect();
        Self { sinks, oldest: 0, count: 0, bytes: 0 }
    }

    fn get(&self, index: usize) -> ReadSink {
        let place = (self.oldest + index).checked_rem(self.sinks.len());
        place.and_then(|place| self.sinks.get(place)).copied().unwrap_or_default()
    }

    fn push(&mut self, sink: ReadSink) -> Result<(), OrdReached> {
        if self.count == self.sinks.len() {
            return Err(OrdReached);
        }
        let place = (self.oldest + self.count) % self.sinks.len();
        self.sinks[place] = sink;
        self.count += 1;
        Ok(())
    }

    /// Responses come in the order of requests (RFC 5040 section 5.5), each in sequence and as long as its request.
    fn on_response(
        &mut self,
        stag: u32,
        offset: u64,
        payload: Range<usize>,
        last: bool,
    ) -> Result<Event, Fault> {
        if self.count == 0 {
            return Err(Fault::Opcode);
        }
        let (sink, start) = (self.get(0), self.bytes);
        if stag != sink.stag {
            return Err(Fault::TaggedStag);
        }
        let length = u32::try_from(payload.len()).ok();
        let end = length.and_then(|length| start.checked_add(length));
        let end = end.filter(|end| *end <= sink.length).ok_or(Fault::TaggedBounds)?;
        let is_in_sequence = offset == sink.offset.wrapping_add(start.into());
        if !is_in_sequence || last != (end == sink.length) {
            return Err(Fault::TaggedBounds);
        }
        self.bytes = if last { 0 } else { end };
        if last {
            self.oldest = (self.oldest + 1) % self.sinks.len();
            self.count -= 1;
        }
        Ok(Event::ReadResponse { sink, offset: start, payload, last })
    }
}
