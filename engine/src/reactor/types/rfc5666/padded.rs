//! A message with padded data (RDMA_MSGP) in the hands of the application. Made by both halves of a core,
//! decoded by the api.

use crate::mem::{Buf, Bulk, Parts};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::rdma::v1::alignment_of;
use std::cell::Cell;

/// An RDMA_MSGP in the hands of the application.
#[derive(Debug)]
pub(crate) struct Padded<'a> {
    /// Padding that the message states.
    pub(crate) alignment: Alignment,
    /// Offset in the message of the stream that belongs to it.
    pub(crate) start: usize,
    /// The part that lies in the tail of its receive.
    pub(crate) spill: Option<Spill<'a>>,
}

impl<'a> Padded<'a> {
    /// Returns true if a message whose header has been checked is an RDMA_MSGP.
    pub(crate) fn is(message: &[u8]) -> bool {
        alignment_of(message) != Alignment::NONE
    }

    /// The same message, out of its place: it may then have a shorter life.
    pub(crate) fn take(&mut self) -> Self {
        Self { alignment: self.alignment, start: self.start, spill: self.spill.take() }
    }

    /// A message whose stream begins behind `header_bytes`: its first buffer, and the rest.
    pub(crate) fn of(
        message: &'a mut Buf,
        header_bytes: usize,
        joined: &'a Cell<bool>,
    ) -> (&'a [u8], Self) {
        let spills = message.spills();
        let Parts { head, spare, tail } = message.parts_mut();
        let tail = tail.filter(|_| spills);
        let spill = tail.map(|tail| Spill { spare, tail, joined });
        let alignment = alignment_of(head);
        (head, Self { alignment, start: header_bytes, spill })
    }
}

/// The part of a message that lies in the tail of its receive.
#[derive(Debug)]
pub(crate) struct Spill<'a> {
    /// Free bytes, in which what is left of the head can be joined with the tail.
    pub(crate) spare: &'a mut [u8],
    /// The tail: to be taken, or to be read.
    pub(crate) tail: &'a mut Option<Bulk>,
    /// Set when bytes were copied because they lay in two buffers.
    pub(crate) joined: &'a Cell<bool>,
}

impl<'a> Spill<'a> {
    /// The bytes in the tail.
    pub(crate) fn bytes(&'a self) -> &'a [u8] {
        self.tail.as_ref().map_or(&[], Bulk::bytes)
    }

    /// Takes the tail, whose first `item_bytes` become its length; what is behind them up to the
    /// end, from `rest_at` on, is copied out.
    pub(crate) fn take(
        &'a mut self,
        item_bytes: usize,
        rest_at: usize,
    ) -> Option<(Bulk, &'a [u8])> {
        let rest = self.tail.as_ref()?.bytes().get(rest_at..)?;
        let place = self.spare.get_mut(..rest.len())?;
        place.copy_from_slice(rest);
        self.joined.set(self.joined.get() || !place.is_empty());
        let mut tail = self.tail.take()?;
        tail.set_len(item_bytes);
        Some((tail, place))
    }

    /// Copies the tail behind `unread`, the end of the head.
    pub(crate) fn join(&'a mut self, unread: &[u8]) -> Option<&'a [u8]> {
        let tail = self.tail.as_ref()?.bytes();
        let place = self.spare.get_mut(..unread.len() + tail.len())?;
        let (before, behind) = place.split_at_mut(unread.len());
        before.copy_from_slice(unread);
        behind.copy_from_slice(tail);
        self.joined.set(true);
        Some(place)
    }
}
