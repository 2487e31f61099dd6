//! One end of a connection as the world keeps it: the state of its device, and messages in flight.

use super::super::{DownCause, RemoteSlice, SHORT_BYTES_MAX, SendWr, WrError, WrId};
use super::config::Device;
use super::connector::Waker;
use super::early_completion::Early;
use super::exposure::Exposures;
use crate::mem::{Buf, BulkPool, Lease};
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug)]
pub(super) enum Flying {
    Send { message: Arc<[u8]>, invalidate: Option<u32> },
    Write { from: Source, to: RemoteSlice },
    Read { id: WrId, from: RemoteSlice, into: Lease },
    Back { id: WrId, bytes: Vec<u8>, into: Lease },
    End { cause: DownCause },
}

/// Source of a Write's bytes: memory is read at the last moment, as a device does.
#[derive(Debug)]
pub(super) enum Source {
    Memory(Lease),
    /// Taken out before, as the connection ended and the memory went back.
    Copied(Vec<u8>),
}

impl Source {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Memory(lease) => lease.len(),
            Self::Copied(bytes) => bytes.len(),
        }
    }

    pub(super) fn take(self) -> Vec<u8> {
        match self {
            Self::Memory(lease) => copy_of(&lease),
            Self::Copied(bytes) => bytes,
        }
    }
}

fn copy_of(lease: &Lease) -> Vec<u8> {
    let mut bytes = vec![0; lease.len()];
    lease.read_at(0, &mut bytes);
    bytes
}

#[derive(Debug)]
pub(super) struct Side {
    pub(super) device: Arc<Device>,
    pub(super) pool: BulkPool,
    /// Receives that its owner posted at first, in one go; none before.
    pub(super) first_receives: Option<usize>,
    pub(super) exposures: Exposures,
    pub(super) waker: Option<Arc<Waker>>,
    pub(super) cause: Option<DownCause>,
    /// Its owner has taken the last completion, or never will.
    pub(super) over: bool,

    /// Messages sent and not arrived, by ticket.
    pub(super) flying: Vec<(u64, Flying)>,
    /// Arrival time of the last Send or Read: nothing behind them arrives earlier.
    pub(super) ordered_at: u64,
    /// Latest arrival time of all: no Send behind it arrives earlier.
    pub(super) newest_at: u64,
    pub(super) back_at: u64,
    pub(super) done_at: u64,
    pub(super) done: u64,
    pub(super) early: Option<Early>,
    pub(super) reads: VecDeque<WrId>,

    pub(super) receives: VecDeque<usize>,
    /// Messages from the peer that wait behind a message without a receive.
    pub(super) stalled: VecDeque<Flying>,
    /// Names the message at the head of `stalled`.
    pub(super) stall: u64,
    /// Messages that found their receive, with the key that died with them.
    pub(super) arrived: VecDeque<(Arc<[u8]>, Option<u32>)>,
    pub(super) fetched: VecDeque<(WrId, Result<(), WrError>)>,
    /// Time at which the last key that is being killed is dead.
    pub(super) revoked_at: u64,
    pub(super) revoked: VecDeque<u32>,
}

impl Side {
    pub(super) fn short_length(&self) -> Option<usize> {
        let (message, dead) = self.arrived.front()?;
        (dead.is_none() && message.len() <= SHORT_BYTES_MAX).then_some(message.len())
    }

    pub(super) fn new(device: Arc<Device>, pool: BulkPool, exposures: Exposures) -> Self {
        Self {
            early: device.early.map(|early| Early::new(early, device.send_queue_depth)),
            device,
            pool,
            first_receives: None,
            exposures,
            waker: None,
            cause: None,
            over: false,
            flying: Vec::new(),
            ordered_at: 0,
            newest_at: 0,
            back_at: 0,
            done_at: 0,
            done: 0,
            reads: VecDeque::new(),
            receives: VecDeque::new(),
            stalled: VecDeque::new(),
            stall: 0,
            arrived: VecDeque::new(),
            fetched: VecDeque::new(),
            revoked_at: 0,
            revoked: VecDeque::new(),
        }
    }

    pub(super) fn copies(&self, bytes: usize) -> bool {
        self.early.as_ref().is_some_and(|early| early.copies(bytes))
    }

    pub(super) fn is_down(&self) -> bool {
        self.cause.is_some()
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.set();
        }
    }

    /// Takes the item with this ticket off the wire; it may have been lost.
    pub(super) fn land(&mut self, ticket: u64) -> Option<Flying> {
        let at = self.flying.iter().position(|(of, _)| *of == ticket)?;
        Some(self.flying.swap_remove(at).1)
    }

    pub(super) fn end_read(&mut self, id: WrId, result: Result<(), WrError>) {
        if let Some(at) = self.reads.iter().position(|of| *of == id) {
            self.reads.remove(at);
            self.fetched.push_back((id, result));
        }
    }

    /// Nothing reaches it or its memory any more. Its messages in flight are lost if `loses` is set.
    pub(super) fn go_down(&mut self, cause: DownCause, loses: bool) {
        self.cause = Some(cause);
        self.exposures.revoke_all();
        self.stalled.clear();
        self.receives.clear();
        self.flying.retain_mut(|(_, flying)| flying.outlives_sender(loses));
        while let Some(id) = self.reads.pop_front() {
            self.fetched.push_back((id, Err(WrError::Flushed)));
        }
        self.wake();
    }
}

impl Flying {
    /// Its memory goes back. Returns true if it arrives all the same.
    pub(super) fn outlives_sender(&mut self, loses: bool) -> bool {
        if let Self::Write { from: from @ Source::Memory(_), .. } = self {
            let taken = std::mem::replace(from, Source::Copied(Vec::new()));
            *from = Source::Copied(if loses { Vec::new() } else { taken.take() });
        }
        match self {
            Self::Read { .. } | Self::Back { .. } => false,
            Self::Send { .. } | Self::Write { .. } => !loses,
            Self::End { .. } => true,
        }
    }

    /// With the buffer that a work request keeps until it completes.
    pub(super) fn of(wr: SendWr) -> (Self, Option<Buf>) {
        match wr {
            SendWr::Send { message, invalidate } => {
                (Self::Send { message: message.bytes().into(), invalidate }, Some(message))
            }
            SendWr::Read { id, from, into } => (Self::Read { id, from, into }, None),
            SendWr::Write { from, to } => (Self::Write { from: Source::Memory(from), to }, None),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Send { message, .. } => message.len(),
            Self::Write { from, .. } => from.len(),
            Self::Back { bytes, .. } => bytes.len(),
            Self::Read { .. } | Self::End { .. } => 0,
        }
    }
}
