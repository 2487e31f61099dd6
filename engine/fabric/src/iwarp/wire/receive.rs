//! The receiving half of a stream: bytes in, events out, in the order of the stream.

use super::ddp::{Header, Target};
use super::fpdu;
use super::rdmap::{
    Opcode, READ_QUEUE, READ_REQUEST_BYTES, SEND_QUEUE, TERMINATE_QUEUE, Terminate,
};
use super::{Agreed, Busy, Fault, Parsed, ReadRequest, Readable, Rtr, TerminateCode};
use std::collections::VecDeque;
use std::ops::Range;

/// One FPDU, checked as far as the stream knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
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
    /// empty: then no key is looked at (RFC 5040 section 5.1). The end of the offsets does not overflow.
    Write { stag: u32, offset: u64, payload: Range<usize>, last: bool },
    /// A part of the oldest outstanding Read's response, within it and in sequence. The driver checks that the sink is still
    /// there, if that can end.
    ReadResponse {
        sink: ReadSink,
        /// Offset of the payload, from the start of the Read.
        offset: u32,
        payload: Range<usize>,
        /// The Read is complete, and no longer outstanding.
        last: bool,
    },
    /// A part of a Send, for the first posted receive; it fits.
    Send {
        msn: u32,
        /// Offset of the payload in the receive.
        offset: u32,
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

/// Memory of this end that a Read fills, as its request names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadSink {
    pub stag: u32,
    pub offset: u64,
    pub length: u32,
}

/// A Send whose last segment has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PartialSend {
    invalidate: Option<u32>,
    solicited: bool,
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
    /// Reads outstanding, at most `ord`, the oldest first.
    reads: VecDeque<ReadSink>,
    ord: u16,
    /// Bytes of the oldest that have arrived.
    read_bytes: u32,
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
            reads: VecDeque::with_capacity(agreed.ord.into()),
            ord: agreed.ord,
            read_bytes: 0,
        }
    }

    /// True once the peer has sent an FPDU: before that, the side that was connected to must not send (RFC 5044 section
    /// 7.1.2).
    pub const fn has_received(&self) -> bool {
        self.has_received
    }

    /// Notes that a Read Request is about to leave. Responses are taken for such Reads only, in this order.
    pub fn expect_read(&mut self, sink: ReadSink) -> Result<(), Busy> {
        if !self.has_read_room() {
            return Err(Busy);
        }
        self.reads.push_back(sink);
        Ok(())
    }

    /// True if another Read may be sent.
    pub fn has_read_room(&self) -> bool {
        self.reads.len() < usize::from(self.ord)
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
        let ulpdu = match fpdu::parse(readable, self.uses_crc)? {
            Parsed::Need(bytes) => return Ok(Parsed::Need(bytes)),
            Parsed::Done(ulpdu) => ulpdu,
        };
        let bytes = fpdu::fpdu_bytes(ulpdu.len());
        let event = self.on_segment(readable, ulpdu, receive_bytes)?;
        self.has_received = true;
        self.awaits_rtr_send = false;
        Ok(Parsed::Done(Arrival { event, bytes }))
    }

    fn on_segment(
        &mut self,
        readable: Readable<'_>,
        ulpdu: Range<usize>,
        receive_bytes: Option<usize>,
    ) -> Result<Event, Fault> {
        // An FPDU of no bytes, and one with a Send of no bytes: both are taken for the RTR of flag B.
        if self.awaits_rtr_send && ulpdu.is_empty() {
            return Ok(Event::Rtr);
        }
        let header = Header::parse(readable.range(ulpdu.clone()))?;
        let opcode = Opcode::from_control(header.ulp)?;
        let payload = ulpdu.start + header.bytes()..ulpdu.end;
        match (opcode, header.target) {
            (Opcode::Write, Target::Tagged { stag, offset }) => {
                let length = payload.len() as u64;
                offset.checked_add(length).ok_or(Fault::TaggedWrap)?;
                Ok(Event::Write { stag, offset, payload, last: header.last })
            }
            (Opcode::ReadResponse, Target::Tagged { stag, offset }) => {
                self.on_read_response(stag, offset, payload, header.last)
            }
            (Opcode::Send { invalidates, solicited }, Target::Untagged(target)) => {
                target.check(SEND_QUEUE, self.send_msn, self.send.map_or(0, |send| send.bytes))?;
                let invalidate = invalidates.then_some(target.ulp_word);
                let send = PartialSend { invalidate, solicited, bytes: target.offset };
                self.on_send(send, payload, header.last, receive_bytes)
            }
            (Opcode::ReadRequest, Target::Untagged(target)) => {
                target.check(READ_QUEUE, self.read_msn, 0)?;
                self.on_read_request(readable, payload, header.last)
            }
            (Opcode::Terminate, Target::Untagged(target)) => {
                target.check(TERMINATE_QUEUE, 1, 0)?;
                Terminate::parse(readable.range(payload)).map(Event::Terminate)
            }
            _ => Err(Fault::Opcode),
        }
    }

    /// `send` is the segment's part of a Send, its bytes those before it.
    fn on_send(
        &mut self,
        send: PartialSend,
        payload: Range<usize>,
        last: bool,
        receive_bytes: Option<usize>,
    ) -> Result<Event, Fault> {
        let PartialSend { invalidate, solicited, bytes: offset } = send;
        // Each segment has the opcode and the key of the first.
        match self.send {
            Some(before) if before.solicited != solicited => return Err(Fault::Opcode),
            Some(before) if before.invalidate != invalidate => {
                let is_opcode = before.invalidate.is_some() != invalidate.is_some();
                return Err(if is_opcode { Fault::Opcode } else { Fault::Malformed });
            }
            _ => {}
        }
        let msn = self.send_msn;
        let is_rtr = self.awaits_rtr_send && last && payload.is_empty() && invalidate.is_none();
        if !is_rtr {
            let room = receive_bytes.ok_or(Fault::NoBuffer)?;
            let end = end_of(offset, &payload).filter(|end| *end as usize <= room);
            let bytes = end.ok_or(Fault::MessageTooLong)?;
            self.send = (!last).then_some(PartialSend { bytes, ..send });
        }
        self.send_msn = msn.wrapping_add(last.into());
        if is_rtr {
            return Ok(Event::Rtr);
        }
        Ok(Event::Send { msn, offset, payload, last, invalidate, solicited })
    }

    fn on_read_request(
        &mut self,
        readable: Readable<'_>,
        payload: Range<usize>,
        last: bool,
    ) -> Result<Event, Fault> {
        if self.requests >= self.ird {
            return Err(Fault::ReadsExceeded);
        }
        // The buffers of this queue are as long as a request (RFC 5040 section 5.2.1).
        if payload.len() > READ_REQUEST_BYTES || !last {
            return Err(Fault::MessageTooLong);
        }
        let body = readable.range(payload).array(0).ok_or(Fault::Malformed)?;
        let request = ReadRequest::parse(self.read_msn, body)?;
        self.requests += 1;
        self.read_msn = self.read_msn.wrapping_add(1);
        Ok(Event::ReadRequest(request))
    }

    /// Responses come in the order of requests (RFC 5040 section 5.5), each in sequence and as long as its request.
    fn on_read_response(
        &mut self,
        stag: u32,
        target: u64,
        payload: Range<usize>,
        last: bool,
    ) -> Result<Event, Fault> {
        let sink = *self.reads.front().ok_or(Fault::Opcode)?;
        let offset = self.read_bytes;
        if stag != sink.stag {
            return Err(Fault::TaggedStag);
        }
        let end = end_of(offset, &payload).filter(|end| *end <= sink.length);
        let end = end.ok_or(Fault::TaggedBounds)?;
        let is_in_sequence = target == sink.offset.wrapping_add(offset.into());
        if !is_in_sequence || last != (end == sink.length) {
            return Err(Fault::TaggedBounds);
        }
        self.read_bytes = if last { 0 } else { end };
        if last {
            self.reads.pop_front();
        }
        Ok(Event::ReadResponse { sink, offset, payload, last })
    }
}

/// Offset behind the payload in its message.
fn end_of(offset: u32, payload: &Range<usize>) -> Option<u32> {
    u32::try_from(payload.len()).ok().and_then(|length| offset.checked_add(length))
}
