//! Chained receives: where padded data arrive in memory of their own (RFC 5666 section 3.9).
//!
//! A receive of such a connection is a head as long as the alignment and, behind it, a page-aligned
//! tail. Data that begin at the boundary fill the tail from its start, and the application gets that
//! tail as its own, without a copy. Everything else works as in one buffer: a message that is no
//! RDMA_MSGP is joined when it arrives, one whose data do not begin at the boundary when the decoder
//! comes across it.
//!
//! The core posts receives through this; the dispatch decodes what [`Padded`] says.

use super::call_table::CallHold;
use super::connection::Conn;
use super::core::{CoreCell, Reactor};
use super::ops::{PulledChunks, ReplyBuffers, ReplyFrame, Upcalls};
use crate::config::Config;
use crate::fabric::{ConnId, Fabric, FabricError};
use crate::mem::{Buf, Bulk, BulkClass, BulkPool, Parts, PoolError, Region};
use crate::sys::mmap::{HugePages, Mapping, PageRequest};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::limits::Limits;
use spinrpc_proto::output::DeliveredReply;
use spinrpc_proto::rdma::v1::{HeaderView, alignment_of};
use spinrpc_proto::rpc::{self, CallHeader, Direction, ReplyHeader};
use spinrpc_proto::xdr::Reader;
use std::cell::Cell;

/// Tails of a connection for each of its receives: one is posted, and one the application may hold.
/// When it holds more, receives are posted as whole buffers.
const TAILS_PER_RECEIVE: usize = 2;

/// What blocks of a page or more start at multiples of: so do tails, whatever the alignment.
const PAGE_BYTES: usize = 4096;

/// The second buffers of one connection's receives.
pub(crate) struct ReceiveChains {
    tails: BulkPool,
    head_bytes: usize,
    tail_bytes: usize,
}

impl ReceiveChains {
    /// Those of a connection with so many receives (slow path: maps memory).
    pub(super) fn new(
        config: &Config,
        alignment: Alignment,
        receives: u64,
    ) -> Result<Self, FabricError> {
        let head_bytes = alignment.align_bytes() as usize;
        let tail_bytes = config.recv_buffer_bytes().saturating_sub(head_bytes);
        let count = receives as usize * TAILS_PER_RECEIVE;
        let block_bytes = tail_bytes.next_multiple_of(PAGE_BYTES);
        let tails = block_pool(BulkClass { block_bytes, count })?;
        Ok(Self { tails, head_bytes, tail_bytes })
    }

    /// Bytes each receive buffer has beyond a whole message, so that a head, and what is left of it
    /// when the tail begins, can be joined with the tail.
    pub(super) fn extra_bytes(&self) -> usize {
        self.head_bytes
    }

    /// Makes a buffer ready to be posted. False when no tail is left: then the whole buffer is
    /// posted, which holds any message.
    pub(super) fn prepare(&self, buf: &mut Buf) -> bool {
        let room = self.tail_bytes;
        if buf.tail().is_some_and(|tail| tail.len() == room) {
            return true;
        }
        let Some(mut tail) = buf.unchain().or_else(|| self.tails.take(room)) else { return false };
        tail.set_len(room);
        buf.chain(self.head_bytes, tail);
        true
    }
}

fn block_pool(class: BulkClass) -> Result<BulkPool, FabricError> {
    let BulkClass { block_bytes, count } = class;
    let failed = |reason: String, source: Option<std::io::Error>| FabricError {
        op: format!("map {count} second receive buffers of {block_bytes} bytes"),
        reason,
        source,
    };
    let no_pool = |error: PoolError| failed(error.to_string(), None);
    let bytes = BulkPool::region_bytes(&[class]).map_err(no_pool)?;
    let request = PageRequest { huge: HugePages::Off, prefault: false, lock: false, node: None };
    let mapping = Mapping::anonymous(bytes, request).map_err(|e| failed(e.to_string(), Some(e)))?;
    BulkPool::new(Region::from_mapping(mapping), &[class]).map_err(no_pool)
}

/// An RDMA_MSGP in the hands of the application.
#[derive(Debug)]
pub(crate) struct Padded<'a> {
    /// What it says about its padding.
    pub(crate) alignment: Alignment,
    /// Where in the message the stream begins that goes with this.
    pub(crate) start: usize,
    /// What of it lies in the tail of its receive.
    pub(crate) spill: Option<Spill<'a>>,
}

impl<'a> Padded<'a> {
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

impl<F: Fabric> CoreCell<F> {
    /// As [`CoreCell::deliver_reply`], for an RDMA_MSGP.
    #[cold]
    pub(super) fn deliver_padded_reply(
        &self,
        conn: ConnId,
        mut message: Buf,
        header_bytes: usize,
        reply: &DeliveredReply,
        mut hold: Option<Box<CallHold>>,
        up: &mut impl Upcalls,
    ) {
        let mut buffers = hold.as_deref_mut().map(|hold| {
            let CallHold { arguments, results, .. } = hold;
            ReplyBuffers { arguments, results, pulled: PulledChunks::default() }
        });
        let joined = Cell::new(false);
        let (head, mut padded) = Padded::of(&mut message, header_bytes, &joined);
        let (stream, placed, token) = (&head[header_bytes..], &reply.placed[..], reply.token);
        let (buffers, padded) = (buffers.as_mut(), Some(&mut padded));
        up.on_reply(ReplyFrame { conn, token, stream, placed, buffers, padded });
        let mut reactor = self.reactor();
        reactor.stats.joins += u64::from(joined.get());
        reactor.finish_reply(conn, message, hold);
    }
}

impl Conn {
    /// Gives every receive buffer to the driver: as many as credits, and the slack.
    pub(crate) fn post_receives<F: Fabric>(&mut self, fabric: &mut F) {
        while let Some(mut buf) = self.recvs.take() {
            if let Some(chains) = &self.chains {
                chains.prepare(&mut buf);
            }
            if fabric.post_recv(self.id, buf).is_err() {
                break;
            }
        }
    }
}

impl<F: Fabric> Reactor<F> {
    /// Where data of padded messages begin, if connections of this core have chained receives.
    pub(super) fn receive_alignment(config: &Config, fabric: &F) -> Option<Alignment> {
        let alignment = config.msgp_alignment();
        let chains = alignment != Alignment::NONE && fabric.caps().recv_buffers_max >= 2;
        chains.then_some(alignment)
    }

    /// Gives a receive buffer its second one again.
    #[cold]
    pub(super) fn prepare_receive(&mut self, conn: ConnId, message: &mut Buf) {
        let chains = self.conns.find(conn).and_then(|c| c.chains.as_ref());
        if chains.is_some_and(|chains| !chains.prepare(message)) {
            self.stats.receives_unchained += 1;
        }
    }

    /// A message arrived on a core with chained receives: it becomes one again, unless it is a
    /// padded one whose headers lie in the first buffer.
    #[cold]
    pub(super) fn join_unless_padded(&mut self, conn: ConnId, message: &mut Buf) {
        let Some(c) = self.conns.find(conn).filter(|_| message.spills()) else { return };
        if !begins_padded(message.bytes(), c.proto.limits()) {
            self.stats.joins += 1;
            message.join();
        }
    }
}

/// Whether these are the whole headers of an RDMA_MSGP, transport and RPC.
fn begins_padded(head: &[u8], limits: &Limits) -> bool {
    let alignment = alignment_of(head);
    let Ok(view) = HeaderView::new_checked(head, limits) else { return false };
    let mut reader = Reader::aligned(view.payload(), alignment, view.header_bytes());
    let is_whole = match rpc::message_direction(view.payload()) {
        Some(Direction::Reply) => ReplyHeader::read(&mut reader).is_ok(),
        Some(Direction::Call) => CallHeader::read(&mut reader).is_ok(),
        None => false,
    };
    alignment != Alignment::NONE && is_whole
}
