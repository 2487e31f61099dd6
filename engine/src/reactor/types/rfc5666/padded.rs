//! A message with padded data (RDMA_MSGP) in the hands of the application. Made by both halves of a core,
//! decoded by the api.

use crate::mem::{Buf, Bulk, Parts};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::rdma::v1::alignment_of;
use spinrpc_proto::xdr::Reader;
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
    /// A message whose stream begins behind `header_bytes`, and whose header has been checked: its first buffer, and what
    /// is to be known of it if it is an RDMA_MSGP.
    pub(crate) fn of(
        message: &'a mut Buf,
        header_bytes: usize,
        joined: &'a Cell<bool>,
    ) -> (&'a [u8], Option<Self>) {
        let (spills, alignment) = (message.spills(), alignment_of(message.bytes()));
        let Parts { head, spare, tail } = message.parts_mut();
        let tail = tail.filter(|_| spills);
        let spill = tail.map(|tail| Spill { spare, tail, joined });
        let padded = Self { alignment, start: header_bytes, spill };
        (head, (alignment != Alignment::NONE).then_some(padded))
    }

    /// A reader of a stream, which is that of an RDMA_MSGP if `padded` is set.
    #[inline]
    pub(crate) fn reader<'s>(padded: Option<&Self>, stream: &'s [u8]) -> Reader<'s> {
        match padded {
            Some(Self { alignment, start, .. }) => Reader::aligned(stream, *alignment, *start),
            None => Reader::new(stream),
        }
    }

    /// The rest of the message behind what `reader` has read.
    pub(crate) fn behind(mut self, reader: &Reader<'_>) -> Self {
        self.start += reader.position();
        self
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
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.tail.as_ref().map_or(&[], Bulk::bytes)
    }

    /// Takes the tail, whose first `item_bytes` become its length; what is behind them up to the
    /// end, from `rest_at` on, is copied out.
    pub(crate) fn take(self, item_bytes: usize, rest_at: usize) -> Option<(Bulk, &'a [u8])> {
        let rest = self.tail.as_ref()?.bytes().get(rest_at..)?;
        let place = self.spare.get_mut(..rest.len())?;
        place.copy_from_slice(rest);
        self.joined.set(self.joined.get() || !place.is_empty());
        let mut tail = self.tail.take()?;
        tail.set_len(item_bytes);
        Some((tail, place))
    }

    /// Copies the tail behind `unread`, the end of the head.
    pub(crate) fn join(self, unread: &[u8]) -> Option<&'a [u8]> {
        let tail = self.tail.as_ref()?.bytes();
        let place = self.spare.get_mut(..unread.len() + tail.len())?;
        let (before, behind) = place.split_at_mut(unread.len());
        before.copy_from_slice(unread);
        behind.copy_from_slice(tail);
        self.joined.set(true);
        Some(place)
    }
}
