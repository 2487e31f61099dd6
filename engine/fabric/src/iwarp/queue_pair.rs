//! One connection: its queues, its socket, and the memory that its peer may reach. `arrivals` acts on what the peer sends,
//! `framing` on what was posted, `ending` takes it down.

use super::super::{
    Access, Completions, ConnMemory, ExposeError, Full, InFlight, QpId, RemoteSlice, Revoked,
    SendWr, WrId,
};
use super::arrivals::Input;
use super::budget::Budget;
use super::config::IwarpConfig;
use super::ending::Phase;
use super::exposure::{Exposures, Killed};
use super::link::Link;
use super::send_stream::{Payload, SendStream};
use super::socket::ReceiveRing;
use super::wire::{FPDU_BYTES_MAX, Message, ReadRequest, ReadSink, Receiver, Rtr, Sender};
use crate::first_message::Reminder;
use crate::mem::{Buf, BulkPool, KeyGenerator, Lease};
use crate::sys::socket_option;
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Bytes of the ring that a connection receives to: several of the longest FPDUs. Only what is used of it takes memory.
const RECEIVE_BYTES: usize = 256 << 10;

const _: () = assert!(RECEIVE_BYTES >= 2 * FPDU_BYTES_MAX);

/// Least bytes of an FPDU, whatever MSS the peer announces: that of hosts that announce none (RFC 9293 section 3.7.1). TCP cuts
/// an FPDU that is longer than a segment.
const FPDU_BYTES_LEAST: usize = 536;

/// Opens a stream, or reminds of it. No key is looked at for no bytes; some adapters treat key 0 in a special way.
pub(super) const EMPTY_WRITE: Message = Message::Write { stag: 1, offset: 0, length: 0 };

/// An RDMA Read of this side whose response has not come.
#[derive(Debug)]
pub(super) struct OutRead {
    /// `None` for the one that only lets the peer send.
    pub(super) id: Option<WrId>,
    pub(super) into: Option<Lease>,
    pub(super) number: u64,
}

#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) id: QpId,
    pub(super) link: Link,
    pub(super) phase: Phase,
    pub(super) depth: usize,
    pub(super) recv_depth: usize,
    pub(super) patience: Duration,

    pub(super) ring: ReceiveRing,
    pub(super) input: Input,
    pub(super) receiver: Receiver,
    pub(super) receives: VecDeque<Buf>,

    pub(super) sender: Sender,
    pub(super) stream: SendStream,
    /// Origin of the payload of this side's message in progress.
    pub(super) current: Payload,
    /// Posted and not framed.
    pub(super) waiting: VecDeque<SendWr>,
    /// Requests that were posted.
    pub(super) posted: u64,
    pub(super) reads: VecDeque<OutRead>,
    sink_keys: KeyGenerator,
    sinks: usize,
    /// Reads of the peer that are not answered, in order.
    pub(super) owed: VecDeque<ReadRequest>,
    pub(super) reminder: Option<Reminder>,

    pub(super) exposures: Exposures,
    pub(super) pool: BulkPool,
    is_own_pool: bool,

    /// It is in the list of those to flush.
    pub(super) is_dirty: bool,
    /// The socket has something, as far as is known.
    pub(super) is_ready: bool,
    /// The stream has an end, or an error, which may hide behind its last bytes.
    pub(super) has_hung_up: bool,
    /// The socket took less than all: the kernel tells when it takes more.
    pub(super) is_blocked: bool,
}

impl QueuePair {
    /// `pool`: memory that may be exposed, and whether it is the connection's own.
    pub(super) fn new(
        id: QpId,
        link: Link,
        config: &IwarpConfig,
        (pool, is_own_pool): (BulkPool, bool),
    ) -> io::Result<Self> {
        let segment_bytes = socket_option::segment_bytes(&link.socket)?.max(FPDU_BYTES_LEAST);
        let (agreed, accepted) = (link.agreed, !link.is_connecting);
        let reads_max = usize::from(agreed.ord.max(1));
        let regions = link.lent.iter().copied().chain([pool.region_id()]).collect();
        let keys = KeyGenerator::new(config.keys_max)?;
        let depth = usize::from(config.send_queue_depth);
        let reminder = link.is_connecting.then(|| Reminder::new(id, Instant::now()));
        let mut pair = Self {
            id,
            phase: Phase::Live,
            depth,
            recv_depth: config.recv_queue_depth.into(),
            patience: config.receive_patience,
            ring: ReceiveRing::new(RECEIVE_BYTES),
            input: Input::default(),
            receiver: Receiver::new(&agreed, accepted),
            receives: VecDeque::with_capacity(config.recv_queue_depth.into()),
            sender: Sender::new(segment_bytes),
            stream: SendStream::new(agreed.crc, depth),
            current: Payload::None,
            waiting: VecDeque::with_capacity(depth),
            posted: 0,
            reads: VecDeque::with_capacity(reads_max),
            sink_keys: KeyGenerator::new(reads_max)?,
            sinks: reads_max,
            owed: VecDeque::with_capacity(agreed.ird.into()),
            reminder,
            exposures: Exposures::new(keys, config.keys_max, regions),
            pool,
            is_own_pool,
            is_dirty: false,
            // Its peer may have sent before it was watched.
            is_ready: true,
            has_hung_up: false,
            is_blocked: false,
            link,
        };
        pair.let_peer_send();
        Ok(pair)
    }

    /// As the connecting side, begins with the FPDU that was agreed to be the first.
    fn let_peer_send(&mut self) {
        let rtr = self.link.agreed.rtr.filter(|_| self.link.is_connecting);
        let message = match rtr {
            None => return,
            Some(Rtr::Send) => Message::Send { length: 0, invalidate: None, solicited: false },
            Some(Rtr::Write) => EMPTY_WRITE,
            Some(Rtr::Read) => {
                let nothing = RemoteSlice { handle: 1, length: 0, offset: 0 };
                let Some(request) = self.expect_read(None, nothing) else { return };
                Message::Read(request)
            }
        };
        // Nothing is in progress.
        let _ = self.sender.start(message);
    }

    /// The request of a Read, whose response may come from now on. `None` if there are as many already as the peer takes.
    pub(super) fn expect_read(
        &mut self,
        into: Option<(WrId, Lease, u64)>,
        from: RemoteSlice,
    ) -> Option<ReadRequest> {
        let sink_stag = self.sink_keys.next(self.posted as usize % self.sinks);
        let sink = ReadSink { stag: sink_stag, offset: 0, length: from.length };
        self.receiver.expect_read(sink).ok()?;
        self.reads.push_back(match into {
            Some((id, into, number)) => OutRead { id: Some(id), into: Some(into), number },
            None => OutRead { id: None, into: None, number: self.posted },
        });
        Some(ReadRequest {
            msn: 0,
            sink_stag,
            sink_offset: 0,
            length: from.length,
            source_stag: from.handle,
            source_offset: from.offset,
        })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.link.socket.as_fd()
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live)
    }

    pub(super) fn room(&self) -> usize {
        let used = self.waiting.len() + self.stream.held.len() + self.reads.len();
        if self.is_live() { self.depth.saturating_sub(used) } else { 0 }
    }

    pub(super) fn post(&mut self, wr: SendWr) -> Result<(), Full<SendWr>> {
        if self.room() == 0 {
            return Err(Full(wr));
        }
        self.posted += 1;
        self.waiting.push_back(wr);
        Ok(())
    }

    pub(super) fn post_recv(&mut self, buf: Buf) -> Result<(), Full<Buf>> {
        if !self.is_live() || self.receives.len() >= self.recv_depth {
            return Err(Full(buf));
        }
        self.receives.push_back(buf);
        self.input.has_more |= self.input.stalled_since.take().is_some();
        Ok(())
    }

    /// Requests that have not completed; see [`InFlight`]. The memory of a short one is copied, and so is free early.
    pub(super) fn outstanding(&self) -> InFlight {
        if !self.is_live() {
            return InFlight::default();
        }
        let waiting = (!self.waiting.is_empty()).then(|| self.posted - self.waiting.len() as u64);
        let read = self.reads.front().map(|read| read.number);
        let held = self.stream.held.front().map(|(number, _)| *number);
        let oldest = [waiting, read, held].into_iter().flatten().min();
        let is_sending = !self.stream.is_empty() || !self.sender.is_free();
        InFlight {
            numbers: oldest.map(|oldest| oldest..self.posted).or_else(|| self.exposures.dying()),
            // What is sent before the first request is none.
            is_unsent: !self.waiting.is_empty() || (is_sending && self.posted > 0),
        }
    }

    pub(super) fn memory(&self) -> ConnMemory<'_> {
        ConnMemory { arena: Some(&self.pool).filter(|_| self.is_own_pool), read_sinks: None }
    }

    pub(super) fn expose(
        &mut self,
        memory: Lease,
        access: Access,
    ) -> Result<RemoteSlice, ExposeError> {
        if !self.is_live() {
            return Err(ExposeError::Down);
        }
        self.exposures.expose(memory, access)
    }

    pub(super) fn revoke(&mut self, handle: u32) -> Revoked {
        if !self.is_live() {
            // What is still to be sent may be its memory: Down tells when none is.
            return Revoked::Soon;
        }
        match self.exposures.kill(handle) {
            Killed::Later => Revoked::Soon,
            Killed::Now | Killed::Unknown => Revoked::Now,
        }
    }

    /// The kernel tells that the socket has become ready.
    pub(super) fn on_event(&mut self, event: EventFlags) {
        let is_end = event.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        self.has_hung_up |= is_end;
        self.is_ready |= is_end || event.contains(EventFlags::IN);
        self.is_blocked &= !is_end && !event.contains(EventFlags::OUT);
    }

    /// True if there is something to send, or to frame and then send, and the socket takes it.
    pub(super) fn has_output(&self) -> bool {
        self.may_send() && (!self.stream.is_empty() || (self.is_live() && self.has_messages()))
    }

    /// True if a poll or a flush has something to do that the socket does not tell of.
    pub(super) fn is_runnable(&self, now: Instant) -> bool {
        let has_input = self.input.has_more || (self.is_ready && !self.ring.room().is_empty());
        self.has_output()
            || !self.exposures.revoked.is_empty()
            || self.timer().is_some_and(|at| at <= now)
            || match &self.phase {
                Phase::Live => self.input.has_more || (has_input && self.input.ended.is_none()),
                Phase::Draining(draining) => {
                    (has_input && !draining.is_silent)
                        || self.has_to_give_back()
                        || draining.is_over(now)
                        || (self.stream.is_empty() && !draining.is_shut)
                }
            }
    }

    /// Time at which a poll has something to do, if nothing happens before.
    pub(super) fn timer(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Live => {
                let reminder = self.reminder.as_ref().map(Reminder::at);
                let stalled = self.input.stalled_since.map(|since| since + self.patience);
                reminder.into_iter().chain(stalled).min()
            }
            Phase::Draining(draining) => Some(draining.until),
        }
    }

    /// Moves completions into `out`. True when the last one, `Down`, is out.
    pub(super) fn poll(&mut self, out: &mut Completions, budget: &mut Budget) -> bool {
        if self.is_live() {
            self.take_arrivals(out, budget);
            let now = self.timer().filter(|_| self.is_live()).map(|_| Instant::now());
            if let Some(now) = now {
                self.on_timer(now);
            }
        }
        self.report_revoked(out);
        !self.is_live() && self.advance_end(out, budget)
    }
}
