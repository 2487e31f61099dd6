//! The way of requests from the queues of a queue pair to its device, in a flush. The commonest has its own: one short
//! message, and nothing else to send.

use super::super::super::DownCause;
use super::super::control::Event;
use super::super::link::Side;
use super::super::post::{Operation, Piece};
use super::super::work_id::{Queue, WorkId};
use super::{QueuePair, Sent};
use crate::mem::Buf;

impl QueuePair {
    /// Posts waiting requests: receives first, then sends, one doorbell for each. If the only receive is the late one
    /// (`give_back` of the short endpoint), the sends do not wait for it. An error is the end of the connection. True when something
    /// is left that a later flush may post.
    #[inline]
    pub(in super::super) fn flush(&mut self) -> Result<bool, DownCause> {
        if !self.is_live() {
            return Ok(false);
        }
        let mut is_left = !self.recvs.waiting().is_empty() && self.flush_all_recvs()?;
        if !self.is_accepted {
            self.is_accepted = true;
            self.link.tell(Event::ReceivesPosted);
        }
        is_left |= match self.only_short() {
            Some(message) => self.flush_short(message)?,
            None => self.flush_queued()?,
        };
        if let Some(receive) = self.short_endpoint.take_late() {
            is_left |= self.flush_late(receive)?;
        }
        Ok(is_left)
    }

    #[inline]
    fn only_short(&self) -> Option<Piece> {
        let is_alone = self.short_endpoint.is_open() && self.sends.waiting() == 0;
        if is_alone { self.short_endpoint.take_only_written() } else { None }
    }

    fn flush_queued(&mut self) -> Result<bool, DownCause> {
        self.queue_shorts();
        let may_send = self.sends.waiting() > 0 && (self.short_endpoint.is_open() || self.open());
        if may_send { self.flush_sends() } else { Ok(false) }
    }

    /// True if messages may be sent. The first one of the peer stands for a confirmation that was lost. Over iWARP the side that connected sends the first one (RFC
    /// 6581 section 6).
    #[cold]
    pub(super) fn open(&mut self) -> bool {
        let is_first = self.link.side == Side::Connecting || !self.link.limits.is_iwarp;
        let has_heard = self.silence.has_heard();
        let is_accepted = self.link.side == Side::Accepting && has_heard;
        let is_established = self.link.state.is_established() || is_accepted;
        let is_open = is_established && (is_first || has_heard);
        if is_open {
            self.short_endpoint.open();
        }
        is_open
    }

    /// True if the device has no room, and the message waits in the send queue.
    #[inline]
    fn flush_short(&mut self, message: Piece) -> Result<bool, DownCause> {
        let signal = std::mem::take(&mut self.has_written);
        let queued = self.sends.push(Sent::Short, signal, 0);
        debug_assert!(queued.is_ok(), "the send queue holds all that is counted");
        let Ok(queued) = queued else { return Ok(false) };
        let id = WorkId::new(self.id, Queue::Send, queued.number);
        let request = (id.0, queued.is_signalled, message);
        // SAFETY: the queue pair is alive, as it is live, and the message is in a slot of the short endpoint, which is not free
        // before the device has copied it.
        let result = unsafe { self.send_chain.post_short(self.link.qp, queued.place, request) };
        if let Err(refused) = result {
            self.settle_posted(refused.posted);
            self.sends.advance(refused.posted);
            return refused.still_alive(self.sends.outstanding() > 0);
        }
        self.short_endpoint.free_slot();
        self.sends.advance(1);
        Ok(false)
    }

    /// Queues the messages in the short endpoint, which come before everything posted from now on.
    #[inline]
    pub(super) fn queue_shorts(&mut self) {
        while let Some(message) = self.short_endpoint.take_written() {
            let operation = Operation::Send { message, inline: true, invalidate: None };
            let signal = std::mem::take(&mut self.has_written);
            self.queue(Sent::Short, &operation, signal);
        }
    }

    #[inline]
    pub(super) fn queue(&mut self, sent: Sent, operation: &Operation, signal: bool) {
        let queued = self.sends.push(sent, signal, operation.source_bytes());
        debug_assert!(queued.is_ok(), "the send queue holds all that is counted");
        if let Ok(queued) = queued {
            let id = WorkId::new(self.id, Queue::Send, queued.number);
            self.send_chain.set(queued.place, id.0, queued.is_signalled, operation);
        }
    }

    fn flush_all_recvs(&mut self) -> Result<bool, DownCause> {
        match self.short_endpoint.take_late() {
            Some(receive) => self.flush_late(receive),
            None => self.flush_recvs(),
        }
    }

    #[inline]
    fn flush_late(&mut self, receive: Buf) -> Result<bool, DownCause> {
        let queued = self.queue_recv(receive);
        debug_assert!(queued.is_ok(), "receives never exceed those of the budget");
        if let Ok(Err(cause)) = queued {
            return Err(self.failed.insert(cause).clone());
        }
        self.flush_recvs()
    }

    #[inline]
    fn flush_recvs(&mut self) -> Result<bool, DownCause> {
        // SAFETY: the queue pair is alive, as it is live. The buffers are in `recvs` until the
        // device reports them or it is destroyed, without other accesses to them, and their
        // registrations live longer: in the link.
        let result = unsafe { self.recv_chain.post(self.link.qp, self.recvs.waiting()) };
        match result {
            Ok(()) => self.recvs.advance(self.recvs.waiting().len()),
            Err(refused) => {
                self.recvs.advance(refused.posted as usize);
                return refused.still_alive(self.recvs.outstanding() > 0);
            }
        }
        Ok(false)
    }

    #[inline]
    pub(super) fn flush_sends(&mut self) -> Result<bool, DownCause> {
        let (count, reads) = self.next_run();
        let Some((first, _)) = self.sends.waiting_at(0).filter(|_| count > 0) else {
            // Reads wait for others; their completions go on with it.
            return Ok(false);
        };
        // SAFETY: as for receives; messages and leases are in `sends`, and short messages in slots of the short endpoint, which
        // are not free before `settle_posted`. The bytes copied into the request are a whole message that its buffer or
        // slot has.
        let result = unsafe { self.send_chain.post(self.link.qp, first, count) };
        let posted = result.as_ref().map_or_else(|refused| refused.posted, |()| count);
        self.reads += if posted == count { reads } else { self.reads_among(posted) };
        self.settle_posted(posted);
        self.sends.advance(posted);
        let is_outstanding = self.sends.outstanding() > 0;
        result.map_or_else(|refused| refused.still_alive(is_outstanding), |()| Ok(false))
    }

    /// No more Reads than both sides agreed on, and nothing overtakes one that has to wait.
    #[inline]
    fn next_run(&mut self) -> (u32, u16) {
        let room = self.link.limits.reads_out.saturating_sub(self.reads);
        let (mut count, mut reads) = (0, 0);
        while let Some((_, sent)) = self.sends.waiting_at(count) {
            if matches!(sent, Sent::Read { .. }) {
                if reads == room {
                    break;
                }
                reads += 1;
            }
            count += 1;
        }
        (count, reads)
    }

    #[cold]
    fn reads_among(&mut self, posted: u32) -> u16 {
        let is_read =
            |ahead: &u32| matches!(self.sends.waiting_at(*ahead), Some((_, Sent::Read { .. })));
        (0..posted).filter(is_read).count() as u16
    }

    /// Buffers of messages that were copied go back at once, and windows have their keys.
    #[inline]
    fn settle_posted(&mut self, posted: u32) {
        for ahead in 0..posted {
            match self.sends.waiting_at(ahead) {
                Some((_, Sent::Inline(message))) => *message = None,
                Some((_, Sent::Short)) => self.short_endpoint.free_slot(),
                Some((_, Sent::Bind { window, key })) => {
                    self.link.memory.set_window_key(*window, *key);
                }
                _ => {}
            }
        }
    }
}
