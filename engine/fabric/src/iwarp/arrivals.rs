//! Messages of the peer: received to the ring, taken apart by `wire`, placed, and completed.

use super::super::{CompletionKind, Completions, DownCause, RemoteSlice};
use super::budget::Budget;
use super::ending::Stop;
use super::exposure::Killed;
use super::queue_pair::QueuePair;
use super::socket::{Moved, cause_of};
use super::wire::{Event, Fault, Parsed, ReadRequest, Readable};
use crate::mem::Buf;
use rustix::io::Errno;
use std::ops::Range;
use std::time::Instant;

/// State of the receiving half beyond that of the protocol.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// Bytes without which nothing can be said of the next FPDU.
    needed: usize,
    /// A message waits for a receive, and everything behind it.
    pub(super) stalled_since: Option<Instant>,
    /// The next FPDU may be whole.
    pub(super) has_more: bool,
    /// The peer sends no more, for this reason.
    pub(super) ended: Option<DownCause>,
    /// The socket took nothing any more. What the peer sent before that is read first.
    pub(super) send_error: Option<Errno>,
}

impl QueuePair {
    /// Receives once, and acts on every FPDU that is whole, as far as `out` has room and `budget` something left.
    pub(super) fn take_arrivals(&mut self, out: &mut Completions, budget: &mut Budget) {
        if self.is_ready && self.input.ended.is_none() {
            self.receive();
        }
        match self.act_on_all(out, budget) {
            Err(stop) => self.stop(stop),
            Ok(()) if self.input.has_more => {}
            Ok(()) => self.notice_end(),
        }
    }

    fn receive(&mut self) {
        if self.ring.room().is_empty() {
            return;
        }
        match (self.fill(), self.input.send_error) {
            (Moved::Bytes(_), _) => {}
            (Moved::Failed(error), _) | (Moved::End | Moved::NotNow, Some(error)) => {
                self.input.ended = Some(cause_of(error));
            }
            (Moved::End, None) => self.input.ended = Some(DownCause::Remote),
            (Moved::NotNow, None) => {}
        }
    }

    /// Receives once, up to the end of the ring. The kernel tells of what comes later.
    pub(super) fn fill(&mut self) -> Moved {
        let room = self.ring.room().len();
        if room == 0 {
            return Moved::NotNow;
        }
        let moved = self.ring.fill(&self.link.socket);
        self.is_ready = match moved {
            Moved::Bytes(count) => count == room || self.has_hung_up,
            _ => false,
        };
        moved
    }

    /// Begins the end if the peer has sent its last byte and all messages are taken.
    fn notice_end(&mut self) {
        let Some(cause) = self.input.ended.clone() else { return };
        match cause {
            DownCause::Remote if self.input.stalled_since.is_some() => {}
            // Within an FPDU.
            DownCause::Remote if self.ring.len() > 0 => self.begin_end(DownCause::PeerDied, true),
            cause => self.begin_end(cause, true),
        }
    }

    fn act_on_all(&mut self, out: &mut Completions, budget: &mut Budget) -> Result<(), Stop> {
        self.input.has_more = false;
        while self.ring.len() > 0
            && self.ring.len() >= self.input.needed
            && self.input.stalled_since.is_none()
        {
            if out.room() == 0 || budget.is_spent() {
                self.input.has_more = true;
                break;
            }
            let room = self.receives.front().map(Buf::capacity);
            match self.receiver.next(self.ring.readable(), room) {
                Ok(Parsed::Need(bytes)) => self.input.needed = bytes,
                Ok(Parsed::Done(arrival)) => {
                    budget.spend(1, arrival.bytes);
                    self.act(arrival.event, out)?;
                    self.ring.free(arrival.bytes);
                    self.input.needed = 0;
                    self.reminder = None;
                }
                Err(Fault::NoBuffer) if room.is_none() => {
                    self.input.stalled_since = Some(Instant::now());
                }
                Err(fault) => return Err(Stop::Fault(fault)),
            }
        }
        Ok(())
    }

    fn act(&mut self, event: Event, out: &mut Completions) -> Result<(), Stop> {
        match event {
            Event::Rtr => Ok(()),
            Event::Write { stag, offset, payload, .. } => self.write(stag, offset, payload),
            Event::ReadResponse { offset, payload, last, .. } => {
                self.take_response(offset as usize, payload, last, out);
                Ok(())
            }
            Event::Send { offset, payload, last, invalidate, .. } => {
                self.take_message(offset as usize, payload, last.then_some(invalidate), out)
            }
            Event::ReadRequest(request) => self.owe(request),
            Event::Terminate(code) => Err(Stop::Terminated(code)),
        }
    }

    fn write(&mut self, stag: u32, offset: u64, payload: Range<usize>) -> Result<(), Stop> {
        if payload.is_empty() {
            return Ok(());
        }
        let bytes = self.ring.readable().range(payload);
        let written = self.exposures.write(stag, offset, bytes);
        written.map_err(|denied| Stop::Fault(denied.fault_of_write()))
    }

    /// The protocol has checked that the bytes are the next of the oldest Read.
    fn take_response(
        &mut self,
        offset: usize,
        payload: Range<usize>,
        last: bool,
        out: &mut Completions,
    ) {
        let Readable { first, second } = self.ring.readable().range(payload);
        if let Some(into) = self.reads.front_mut().and_then(|read| read.into.as_mut()) {
            into.write_at(offset, first);
            into.write_at(offset + first.len(), second);
        }
        let done = if last { self.reads.pop_front() } else { None };
        // The memory is free before its owner hears of it.
        if let Some(id) = done.and_then(|read| read.id) {
            out.push(self.id, CompletionKind::Read { id, result: Ok(()) });
        }
    }

    /// `ends`: it is the last part, with the key that dies.
    fn take_message(
        &mut self,
        offset: usize,
        payload: Range<usize>,
        ends: Option<Option<u32>>,
        out: &mut Completions,
    ) -> Result<(), Stop> {
        let length = offset + payload.len();
        let Readable { first, second } = self.ring.readable().range(payload);
        let Some(receive) = self.receives.front_mut() else { return Ok(()) };
        receive.write_at(offset, first);
        receive.write_at(offset + first.len(), second);
        let Some(invalidate) = ends else { return Ok(()) };
        let invalidated = match invalidate.map(|handle| (handle, self.exposures.kill(handle))) {
            Some((handle, Killed::Now)) => Some(handle),
            // It reads the memory that it says it is done with.
            Some((_, Killed::Later)) => return Err(Stop::Fault(Fault::CannotInvalidate)),
            Some((_, Killed::Unknown)) | None => None,
        };
        if let Some(mut message) = self.receives.pop_front()
            && message.set_received(length)
        {
            out.push_received(self.id, message, invalidated);
        }
        Ok(())
    }

    fn owe(&mut self, request: ReadRequest) -> Result<(), Stop> {
        if request.length > 0 {
            let readable = self.exposures.readable(source_of(&request));
            readable.map_err(|denied| Stop::Fault(denied.fault_of_read()))?;
        }
        self.owed.push_back(request);
        Ok(())
    }
}

/// The memory of this side that the peer asks for.
pub(super) fn source_of(request: &ReadRequest) -> RemoteSlice {
    RemoteSlice {
        handle: request.source_stag,
        offset: request.source_offset,
        length: request.length,
    }
}
