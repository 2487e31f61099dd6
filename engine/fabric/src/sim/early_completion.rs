//! A device that completes a request before it has read the request's memory, as siw does; see
//! `send_queue`. The driver that it has decides by the same list as that of verbs which requests
//! it has reported, and when their memory is free.

use super::super::send_queue::{POSITIONS_MAX, SendQueue};
use super::config::EarlyCompletion;
use super::endpoint::{Flying, Source};

#[derive(Debug)]
pub(super) struct Early {
    device: EarlyCompletion,
    sends: SendQueue<Request>,
    /// Numbers of Reads that are not back, in order.
    reads: Vec<u32>,
    /// A Write was posted, and no Send since.
    has_written: bool,
}

#[derive(Debug)]
struct Request {
    /// Ticket of the message in flight, while the device has not read its source.
    unread: Option<u64>,
    is_out: bool,
}

impl Early {
    pub(super) fn new(device: EarlyCompletion, depth: u16) -> Self {
        let EarlyCompletion { signal_every, signal_from_bytes, .. } = device;
        let sends = SendQueue::new(depth.into(), signal_every.into(), signal_from_bytes);
        Self { device, sends, reads: Vec::new(), has_written: false }
    }

    pub(super) fn copies(&self, bytes: usize) -> bool {
        bytes < self.device.late_from_bytes as usize
    }

    /// Returns the request's number if the device reports it as soon as it is launched.
    pub(super) fn take(&mut self, ticket: u64, flying: &mut Flying) -> Option<u32> {
        // As the driver of verbs does: the Send behind a Write brings the memory of both back.
        let signal = match flying {
            Flying::Send { .. } => std::mem::take(&mut self.has_written),
            Flying::Write { .. } => {
                self.has_written = true;
                false
            }
            Flying::Read { .. } => true,
            Flying::Back { .. } | Flying::End { .. } => return None,
        };
        let (bytes, is_out) = (flying.len(), matches!(flying, Flying::Read { .. }));
        let request = Request { unread: None, is_out };
        let queued = self.sends.push(request, signal, bytes as u32).ok()?;
        let is_late = !queued.is_signalled && !self.copies(bytes);
        if let (true, Some((_, request))) = (is_late, self.sends.waiting_at(0)) {
            request.unread = Some(ticket);
        } else {
            flying.copy_source();
        }
        self.sends.advance(1);
        if is_out {
            self.reads.push(queued.number);
        }
        (queued.is_signalled && !is_out).then_some(queued.number)
    }

    pub(super) fn read_back(&mut self) -> Option<u32> {
        (!self.reads.is_empty()).then(|| self.reads.remove(0))
    }

    /// Returns how many are released. `unread` gets the tickets of those whose memory the device has still to read.
    pub(super) fn report(&mut self, number: u32, unread: &mut Vec<u64>) -> u64 {
        if let Some(request) = self.sends.report(number % POSITIONS_MAX) {
            request.is_out = false;
        }
        let released = std::iter::from_fn(|| self.sends.release_done(|request| request.is_out));
        released.inspect(|request| unread.extend(request.unread)).count() as u64
    }
}

impl Flying {
    /// The device reads the source of a Write; that of a Send it has.
    fn copy_source(&mut self) {
        if let Self::Write { from, .. } = self {
            let taken = std::mem::replace(from, Source::Copied(Vec::new()));
            *from = Source::Copied(taken.take());
        }
    }

    /// The memory of the source was used again before the device read it.
    pub(super) fn spoil(&mut self) {
        const OTHER: u8 = 0xee;
        match self {
            Self::Send { message, .. } => *message = vec![OTHER; message.len()].into(),
            Self::Write { from, .. } => *from = Source::Copied(vec![OTHER; from.len()]),
            Self::Read { .. } | Self::Back { .. } | Self::End { .. } => {}
        }
    }
}
