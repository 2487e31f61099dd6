//! Messages of this side: requests and answers, cut into FPDUs as far as the socket takes them.

use super::super::{RemoteSlice, SendWr};
use super::ending::Stop;
use super::exposure::Denied;
use super::queue_pair::QueuePair;
use super::send_stream::{Memory, Payload};
use super::wire::{
    Fault, HEADER_BYTES_MAX, Message, ReadRequest, ReadResponse, Segment, Source, Terminate,
};

impl QueuePair {
    /// Frames what there is room for, and sends it with one system call.
    pub(super) fn flush(&mut self) {
        if self.input.has_failed_to_send() {
            // The stream has a gap: nothing may follow.
            return;
        }
        if self.is_live()
            && let Err(stop) = self.frame()
        {
            self.stop(stop);
        }
        self.transmit();
    }

    /// Sends what is framed.
    pub(super) fn transmit(&mut self) {
        let Self { link, stream, exposures, revoked, .. } = self;
        let sent = stream.send(&link.socket, exposures, |handle| revoked.push_back(handle));
        if let Err(error) = sent {
            stream.clear(exposures, |handle| revoked.push_back(handle));
            self.input.on_send_error(error);
            self.is_ready = true;
        }
    }

    /// True if there is a message that can be framed now.
    pub(super) fn has_messages(&self) -> bool {
        !self.sender.is_free()
            || !self.sender.is_free_to_respond()
            || !self.owed.is_empty()
            || self.next_request().is_some()
    }

    fn frame(&mut self) -> Result<(), Stop> {
        let mut header = [0; HEADER_BYTES_MAX];
        while self.stream.has_room() {
            self.start_request();
            self.start_response();
            let Some(segment) = self.sender.next(&mut header) else { break };
            let payload = match segment.source {
                Source::Message => self.current,
                Source::ReadResponse => self.answer(&segment)?,
                Source::Terminate => Payload::None,
            };
            let header = &header[..segment.header_bytes];
            self.stream.push(header, &segment, payload, &mut self.exposures);
        }
        Ok(())
    }

    /// Frames a Terminate message, if there is room: a peer that reads nothing needs none.
    pub(super) fn frame_terminate(&mut self, terminate: Terminate) {
        let mut header = [0; HEADER_BYTES_MAX];
        self.sender.terminate(terminate);
        if self.stream.has_room()
            && let Some(segment) = self.sender.next(&mut header)
        {
            let header = &header[..segment.header_bytes];
            self.stream.push(header, &segment, Payload::None, &mut self.exposures);
        }
    }

    /// The next request, unless it has to wait: for the peer's first FPDU on the accepting side (RFC 5044 section 7.1.2), or
    /// for the response to an earlier Read.
    fn next_request(&self) -> Option<&SendWr> {
        let may_send = self.link.is_connecting || self.receiver.has_received();
        let next = self.waiting.front().filter(|_| may_send)?;
        let is_read = matches!(next, SendWr::Read { .. });
        (!is_read || self.receiver.has_read_room()).then_some(next)
    }

    fn start_request(&mut self) {
        if !self.sender.is_free() || self.next_request().is_none() {
            return;
        }
        let number = self.posted - self.waiting.len() as u64;
        let Some(request) = self.waiting.pop_front() else { return };
        let (message, payload) = match request {
            SendWr::Send { message, invalidate } => {
                let length = message.len() as u32;
                self.stream.hold(number, Memory::Message(message));
                (Message::Send { length, invalidate, solicited: false }, Payload::Request)
            }
            SendWr::Write { from, to } => {
                debug_assert_eq!(from.len(), to.length as usize);
                let length = from.len() as u32;
                self.stream.hold(number, Memory::Written(from));
                let message = Message::Write { stag: to.handle, offset: to.offset, length };
                (message, Payload::Request)
            }
            SendWr::Read { id, from, into } => {
                debug_assert_eq!(into.len(), from.length as usize);
                let from = RemoteSlice { length: into.len() as u32, ..from };
                // There is room, as `next_request` has seen.
                let request = self.expect_read(Some((id, into, number)), from);
                let Some(request) = request else { return };
                (Message::Read(request), Payload::None)
            }
        };
        self.current = payload;
        // It was free.
        let _ = self.sender.start(message);
    }

    fn start_response(&mut self) {
        if self.sender.is_free_to_respond()
            && let Some(request) = self.owed.front()
        {
            let _ = self.sender.respond(ReadResponse::from(request));
        }
    }

    /// The payload of a segment of the oldest answer that is owed. Its key is looked at for each segment.
    fn answer(&mut self, segment: &Segment) -> Result<Payload, Stop> {
        let Some(request) = self.owed.front().copied() else { return Ok(Payload::None) };
        if segment.last {
            self.owed.pop_front();
            self.receiver.request_answered();
        }
        if segment.length == 0 {
            return Ok(Payload::None);
        }
        let source = RemoteSlice {
            handle: request.source_stag,
            offset: request.source_offset + u64::from(segment.offset),
            length: segment.length,
        };
        let found = self.exposures.readable(source);
        let (place, at) = found.map_err(|denied| refusal(denied, request))?;
        Ok(Payload::Exposure(place, at))
    }

    /// Repeats a Write of no bytes behind the first message.
    pub(super) fn remind(&mut self) {
        if self.sender.is_free() {
            self.current = Payload::None;
            let _ = self.sender.start(Message::Write { stag: 0, offset: 0, length: 0 });
        }
    }
}

fn refusal(denied: Denied, request: ReadRequest) -> Stop {
    let fault = match denied {
        Denied::Key => Fault::ReadStag,
        Denied::Bounds => Fault::ReadBounds,
    };
    Stop::Request(fault, request)
}
