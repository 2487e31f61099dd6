//! Messages of this side: requests and answers, cut into FPDUs as far as the socket takes them.

use super::super::{RemoteSlice, SendWr};
use super::budget::Budget;
use super::ending::Stop;
use super::queue_pair::{EMPTY_WRITE, QueuePair};
use super::send_stream::{Memory, Payload};
use super::wire::{HEADER_BYTES_MAX, Message, ReadResponse, Segment, Source, Terminate};

impl QueuePair {
    /// Frames what there is room for, and sends it with one system call.
    pub(super) fn flush(&mut self, budget: &mut Budget) {
        if self.is_live()
            && self.may_send()
            && let Err(stop) = self.frame(budget)
        {
            self.stop(stop);
        }
        self.transmit();
    }

    /// True unless the socket is full, as far as is known, or the stream has a gap: nothing may follow that.
    pub(super) fn may_send(&self) -> bool {
        !self.is_blocked && self.input.send_error.is_none()
    }

    /// Sends what is framed.
    pub(super) fn transmit(&mut self) {
        if !self.may_send() {
            return;
        }
        let Self { link, stream, exposures, .. } = self;
        if let Err(error) = stream.send(&link.socket, exposures) {
            stream.clear(exposures);
            self.input.send_error = Some(error);
            self.is_ready = true;
        }
        // The kernel tells when the socket takes more.
        self.is_blocked = !self.stream.is_empty();
    }

    /// True if there is a message that can be framed now.
    pub(super) fn has_messages(&self) -> bool {
        !self.sender.is_free()
            || !self.sender.is_free_to_respond()
            || !self.owed.is_empty()
            || self.next_request().is_some()
    }

    fn frame(&mut self, budget: &mut Budget) -> Result<(), Stop> {
        let mut header = [0; HEADER_BYTES_MAX];
        while self.stream.has_room() && !budget.is_spent() {
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
            budget.spend(1, segment.fpdu_bytes());
        }
        Ok(())
    }

    /// Frames a Terminate message, if there is room: a peer that reads nothing needs none.
    pub(super) fn frame_terminate(&mut self, terminate: Terminate) {
        let mut header = [0; HEADER_BYTES_MAX];
        self.sender.terminate(terminate);
        if self.input.send_error.is_none()
            && self.stream.has_room()
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
                self.stream.held.push_back((number, Memory::Message(message)));
                (Message::Send { length, invalidate, solicited: false }, Payload::Request)
            }
            SendWr::Write { from, to } => {
                debug_assert_eq!(from.len(), to.length as usize);
                let length = from.len() as u32;
                self.stream.held.push_back((number, Memory::Written(from)));
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
        let at = found.map_err(|denied| Stop::Request(denied.fault_of_read(), request))?;
        Ok(Payload::Exposure(source.handle, at))
    }

    /// Repeats a Write of no bytes behind the first message.
    pub(super) fn remind(&mut self) {
        if self.sender.is_free() {
            self.current = Payload::None;
            let _ = self.sender.start(EMPTY_WRITE);
        }
    }
}
