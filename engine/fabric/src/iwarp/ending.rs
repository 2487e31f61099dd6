//! The end of a connection: the last bytes leave, the peer is told, and everything that was posted is given back.

use super::super::{CompletionKind, Completions, DownCause, SendWr, WrError};
use super::budget::Budget;
use super::queue_pair::QueuePair;
use super::socket::Moved;
use super::wire::{Event, Fault, Parsed, ReadRequest, Terminate, TerminateCode};
use std::net::Shutdown;
use std::time::{Duration, Instant};

/// Longest wait for a peer to take the last bytes and to close its end.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum Phase {
    Live,
    Draining(Draining),
}

/// A connection that ends. Its own end is closed for sending behind the last bytes; what comes is dropped until the peer has
/// closed, as a socket that is closed with unread bytes would have the kernel drop bytes that the peer has not read.
#[derive(Debug)]
pub(super) struct Draining {
    pub(super) until: Instant,
    cause: DownCause,
    /// This side has said that it sends no more.
    pub(super) is_shut: bool,
    /// The peer has.
    pub(super) is_silent: bool,
    /// A Terminate message of the peer may still tell a better cause.
    listens: bool,
    /// Result of the oldest Read; the others are flushed.
    first_read: WrError,
}

impl Draining {
    pub(super) fn is_over(&self, now: Instant) -> bool {
        (self.is_shut && self.is_silent) || now >= self.until
    }
}

/// Reason to end a connection, in terms of the protocol.
#[derive(Debug)]
pub(super) enum Stop {
    /// The next FPDU in the ring breaks the rules, or has waited too long for a receive.
    Fault(Fault),
    /// A Read Request that was taken cannot be answered.
    Request(Fault, ReadRequest),
    /// The peer has ended the stream.
    Terminated(TerminateCode),
}

impl QueuePair {
    /// Ends the connection, and tells the peer why unless it is its own word.
    #[cold]
    pub(super) fn stop(&mut self, stop: Stop) {
        let (terminate, fault) = match stop {
            Stop::Fault(fault) => (Terminate::about(fault, self.ring.readable()), fault),
            Stop::Request(fault, request) => (Terminate::about_request(fault, &request), fault),
            Stop::Terminated(code) => {
                self.give_up_output();
                return self.begin_end(cause_of_code(code), false);
            }
        };
        self.frame_terminate(terminate);
        self.begin_end(cause_of_fault(fault), false);
    }

    pub(super) fn close(&mut self) {
        if self.is_live() {
            self.begin_end(DownCause::Local, self.input.ended.is_some());
        }
    }

    /// Nothing is placed, framed or exposed from now on. `is_silent`: the peer sends no more, and so takes no more.
    #[cold]
    pub(super) fn begin_end(&mut self, cause: DownCause, is_silent: bool) {
        if is_silent {
            self.give_up_output();
        }
        self.exposures.kill_all();
        self.owed.clear();
        // The others are flushed without a word.
        self.waiting.retain(|request| matches!(request, SendWr::Read { .. }));
        let first_read = match cause {
            DownCause::WorkRequest(WrError::RemoteAccess) => WrError::RemoteAccess,
            _ => WrError::Flushed,
        };
        let (until, listens) = (Instant::now() + DRAIN_TIMEOUT, cause == DownCause::Local);
        // What is in the ring, and behind it, is looked at.
        self.is_ready = true;
        self.phase = Phase::Draining(Draining {
            until,
            cause,
            is_shut: false,
            is_silent,
            listens,
            first_read,
        });
    }

    fn give_up_output(&mut self) {
        self.stream.clear(&mut self.exposures);
    }

    pub(super) fn has_to_give_back(&self) -> bool {
        !(self.reads.is_empty() && self.waiting.is_empty() && self.receives.is_empty())
    }

    /// Goes on with the end. True when the last completion is out.
    #[cold]
    pub(super) fn advance_end(&mut self, out: &mut Completions, budget: &mut Budget) -> bool {
        self.transmit();
        let is_sent = self.stream.is_empty();
        self.drop_arrivals(budget);
        self.give_back(out);
        let Phase::Draining(draining) = &mut self.phase else { return false };
        if is_sent && !std::mem::replace(&mut draining.is_shut, is_sent) {
            // A socket that is broken already says so when it is read.
            let _ = self.link.socket.shutdown(Shutdown::Write);
        }
        let now = Instant::now();
        // A peer that never stops sending does not keep the connection either.
        let is_over = now >= draining.until || (draining.is_over(now) && !self.input.has_more);
        let cause = draining.cause.clone();
        if !is_over || out.room() == 0 || self.has_to_give_back() {
            return false;
        }
        self.give_up_output();
        out.push(self.id, CompletionKind::Down { cause });
        true
    }

    fn drop_arrivals(&mut self, budget: &mut Budget) {
        let moved = if self.is_ready { self.fill() } else { Moved::NotNow };
        if let Phase::Draining(draining) = &mut self.phase {
            draining.is_silent |= matches!(moved, Moved::End | Moved::Failed(_));
        }
        self.look_for_terminate(budget);
    }

    /// Frees the ring; of what is in it, a Terminate message counts if this side has only closed.
    fn look_for_terminate(&mut self, budget: &mut Budget) {
        let Phase::Draining(draining) = &mut self.phase else { return };
        self.input.has_more = false;
        while draining.listens {
            if budget.is_spent() {
                self.input.has_more = true;
                return;
            }
            match self.receiver.next(self.ring.readable(), Some(usize::MAX)) {
                Ok(Parsed::Need(_)) => return,
                Ok(Parsed::Done(arrival)) => {
                    if let Event::Terminate(code) = arrival.event {
                        draining.cause = cause_of_code(code);
                        draining.listens = false;
                    }
                    budget.spend(1, arrival.bytes);
                    self.ring.free(arrival.bytes);
                }
                Err(_) => draining.listens = false,
            }
        }
        budget.spend(0, self.ring.len());
        self.ring.free(self.ring.len());
    }

    fn give_back(&mut self, out: &mut Completions) {
        let Phase::Draining(draining) = &mut self.phase else { return };
        while out.room() > 0 {
            let read = self.reads.pop_front().map(|read| read.id);
            let read = read.or_else(|| match self.waiting.pop_front()? {
                SendWr::Read { id, .. } => Some(Some(id)),
                SendWr::Send { .. } | SendWr::Write { .. } => Some(None),
            });
            let kind = match read {
                Some(None) => continue,
                Some(Some(id)) => {
                    let error = std::mem::replace(&mut draining.first_read, WrError::Flushed);
                    CompletionKind::Read { id, result: Err(error) }
                }
                None => match self.receives.pop_front() {
                    Some(buf) => CompletionKind::RecvFlushed { buf },
                    None => return,
                },
            };
            out.push(self.id, kind);
        }
    }

    pub(super) fn report_revoked(&mut self, out: &mut Completions) {
        while out.room() > 0 {
            let Some(handle) = self.exposures.revoked.pop_front() else { return };
            out.push(self.id, CompletionKind::Revoked { handle });
        }
    }

    /// The time of something has come, perhaps.
    pub(super) fn on_timer(&mut self, now: Instant) {
        let is_late = |since: Instant| now >= since + self.patience;
        if self.input.stalled_since.is_some_and(is_late) {
            return self.stop(Stop::Fault(Fault::NoBuffer));
        }
        if self.reminder.as_mut().is_some_and(|reminder| reminder.take_due(now)) {
            self.remind();
            self.reminder = self.reminder.take().filter(|reminder| !reminder.is_over());
        }
    }
}

/// Cause of an end for an error of the peer, or for a message of its that this side cannot take.
fn cause_of_fault(fault: Fault) -> DownCause {
    match fault {
        Fault::NoBuffer => DownCause::ReceiverNotReady,
        Fault::MessageTooLong => DownCause::WorkRequest(WrError::Length),
        Fault::TaggedStag | Fault::TaggedBounds | Fault::TaggedWrap => {
            DownCause::PeerMisbehaved("it wrote to memory that it must not reach")
        }
        Fault::ReadStag | Fault::ReadBounds | Fault::ReadWrap => {
            DownCause::PeerMisbehaved("it read memory that it must not reach")
        }
        Fault::CannotInvalidate => {
            DownCause::PeerMisbehaved("it invalidated a key while it read by it")
        }
        Fault::Crc => DownCause::PeerMisbehaved("an FPDU had a wrong CRC"),
        _ => DownCause::PeerMisbehaved("it broke the rules of MPA, DDP or RDMAP"),
    }
}

/// Cause of an end that the peer explains.
fn cause_of_code(code: TerminateCode) -> DownCause {
    match () {
        () if code.is_access_error() => DownCause::WorkRequest(WrError::RemoteAccess),
        () if code == Fault::MessageTooLong.code() => DownCause::WorkRequest(WrError::Length),
        () if code == Fault::NoBuffer.code() => DownCause::ReceiverNotReady,
        () => DownCause::PeerMisbehaved("it ended the stream for an error that was not made"),
    }
}
