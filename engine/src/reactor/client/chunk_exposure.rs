//! Exposes the memory of a call to its responder: arguments by Read chunks, results by Write chunks, long calls and
//! replies by chunks of their own (RFC 5666 section 3.4). Called when a call is sent.

use crate::fabric::{Access, ConnId, ExposeError};
use crate::mem::{Bulk, Lease};
use crate::reactor::in_flight::outgoing::Outgoing;
use crate::reactor::state::core::Core;
use crate::reactor::types::calls::Backpressure;
use crate::reactor::types::header_bytes::{no_block, put_xid};
use crate::reactor::types::memory::longest_block_bytes;
use spinrpc_proto::chunking::{CallChunks, ChunkOffer, Encoded};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::{INLINE_THRESHOLD_MIN_BYTES, ITEMS_MAX};
use spinrpc_proto::version::TransportVersion;
use spinrpc_proto::xdr::roundup4;

/// Makes the memory of one call reachable, chunk by chunk.
pub(in crate::reactor) struct ChunkExposure<'a> {
    core: &'a mut Core,
    conn: ConnId,
    version: TransportVersion,
    chunks: CallChunks,
    call: &'a mut Outgoing,
}

impl<'a> ChunkExposure<'a> {
    pub(in crate::reactor) fn new(
        core: &'a mut Core,
        conn: ConnId,
        version: TransportVersion,
        call: &'a mut Outgoing,
    ) -> Self {
        Self { core, conn, version, chunks: CallChunks::EMPTY, call }
    }

    /// The chunks that were exposed.
    pub(in crate::reactor) fn chunks(&self) -> &CallChunks {
        &self.chunks
    }

    /// Memory for results is taken first: where there is none, nothing has been copied for the arguments.
    pub(in crate::reactor) fn offer_all(
        &mut self,
        xid: Xid,
        inline_bytes_max: usize,
        encoded: &Encoded,
        whole: &mut Option<Bulk>,
    ) -> Result<(), Backpressure> {
        self.offer_results(inline_bytes_max)?;
        let Some(message) = whole else { return self.offer_reads(encoded) };
        // The stream's first word is the XID, which must be right before the peer may look.
        put_xid(message.bytes_mut(), xid);
        let (offer, copy) = self.expose_item(message, Access::RemoteRead)?;
        require_room(self.chunks.push_read(0, offer))?;
        self.call.lent.message = copy;
        Ok(())
    }

    fn offer_results(&mut self, inline_bytes_max: usize) -> Result<(), Backpressure> {
        let count = if self.call.is_sealed() { 0 } else { ITEMS_MAX };
        for index in 0..count {
            let Some(mut result) = self.call.results[index].take() else { continue };
            let exposed = self.expose_item(&mut result, Access::RemoteWrite);
            self.call.results[index] = Some(result);
            let (offer, copy) = exposed?;
            self.call.lent.note_result(index, offer.handle, copy);
            require_room(self.chunks.push_write(offer))?;
        }
        let write_list_bytes = self.call.write_list_bytes(self.core.config().segment_bytes());
        if let Some(bytes) = self.call.reply_chunk_bytes(write_list_bytes, inline_bytes_max) {
            self.offer_reply(bytes).map_err(|refused| match refused {
                Backpressure::NoBuffer if self.call.terms().is_reply_assumed() => {
                    Backpressure::NoReplyRoom
                }
                refused => refused,
            })?;
        }
        Ok(())
    }

    fn offer_reply(&mut self, bytes: usize) -> Result<(), Backpressure> {
        let mut reply = self.lend(bytes)?;
        let offer = self.expose(&mut reply, Access::RemoteWrite, None)?;
        require_room(self.chunks.set_reply(offer))?;
        self.call.lent.reply = Some(reply);
        Ok(())
    }

    /// Data items stay within the configured sizes. A long message, which is not data alone, also has the room that peers
    /// allow for the rest. The header stays within the threshold, which it counts towards (RFC 8166 section 3.3.2). A peer
    /// that takes less than 1 KB of an inline message has a receive of 1 KB for the header of a long one (RFC 5666 sections
    /// 6.1 and 6.2).
    pub(in crate::reactor) fn check(&self, threshold_bytes: usize) -> Result<(), Backpressure> {
        let config = self.core.config();
        let (reads, writes) = (self.chunks.reads(), self.chunks.writes());
        let segments = [
            reads.iter().map(|(_, offer)| offer.segment_count()).sum::<usize>(),
            writes.iter().map(ChunkOffer::segment_count).sum(),
            self.chunks.reply().map_or(0, ChunkOffer::segment_count),
        ];
        if reads.len().max(writes.len()) > config.chunks_max() {
            return Err(Backpressure::Misuse("more data items than a list has chunks"));
        }
        if segments.iter().any(|count| *count > config.segments_max()) {
            return Err(Backpressure::Misuse("more segments of a list than rpc.max_segments"));
        }
        let header_bytes_max = match self.chunks.is_long_call() {
            true => threshold_bytes.max(INLINE_THRESHOLD_MIN_BYTES as usize),
            false => threshold_bytes,
        };
        let reads_max = match self.chunks.is_long_call() {
            true => config.read_list_bytes_max(),
            false => config.write_bytes_max(),
        };
        let sizes = [
            (self.read_list_bytes(), reads_max),
            (self.write_list_bytes(), config.read_bytes_max()),
            (self.reply_bytes(), config.write_list_bytes_max()),
            (self.chunks.header_bytes_in(self.version), header_bytes_max),
        ];
        match sizes.into_iter().find(|(needed_bytes, bytes_max)| needed_bytes > bytes_max) {
            Some((needed_bytes, _)) => Err(Backpressure::TooLarge { needed_bytes }),
            None => Ok(()),
        }
    }

    fn read_list_bytes(&self) -> usize {
        self.chunks.reads().iter().map(|(_, offer)| offer.length as usize).sum()
    }

    /// Bytes that the Write list names when the reply returns it, each length with its roundup (RFC 5666 section 3.7). We
    /// would reject a returned list beyond our own limits.
    fn write_list_bytes(&self) -> usize {
        self.chunks.writes().iter().map(|offer| roundup4(offer.length as usize)).sum()
    }

    /// The same of the Reply chunk.
    fn reply_bytes(&self) -> usize {
        self.chunks.reply().map_or(0, |offer| roundup4(offer.length as usize))
    }

    fn offer_reads(&mut self, encoded: &Encoded) -> Result<(), Backpressure> {
        for item in encoded.reduced() {
            let given = self.call.arguments.iter().enumerate();
            let mut given = given.filter(|(_, argument)| argument.is_some());
            let Some((index, _)) = given.nth(usize::from(item.index)) else { continue };
            let Some(mut argument) = self.call.arguments[index].take() else { continue };
            let exposed = self.expose_item(&mut argument, Access::RemoteRead);
            self.call.arguments[index] = Some(argument);
            let (offer, copy) = exposed?;
            self.call.lent.argument_copies[usize::from(item.index)] = copy;
            require_room(self.chunks.push_read(item.position, offer))?;
        }
        Ok(())
    }

    /// Exposes an item of the application. An item outside of the connection's memory is exposed through a copy
    /// there, which the call keeps.
    fn expose_item(
        &mut self,
        item: &mut Bulk,
        access: Access,
    ) -> Result<(ChunkOffer, Option<Bulk>), Backpressure> {
        if let Some(offer) = self.try_expose(item, access, None)? {
            return Ok((offer, None));
        }
        let mut copy = self.lend(item.len())?;
        if access == Access::RemoteRead {
            copy.copy_from_bulk(item, item.len());
            self.core.stats().copies += 1;
        }
        let home = (access == Access::RemoteWrite).then(|| item.lease(0..item.len()));
        let offer = self.expose(&mut copy, access, home)?;
        Ok((offer, Some(copy)))
    }

    fn lend(&mut self, bytes: usize) -> Result<Bulk, Backpressure> {
        let bulk = self.core.fabric_mut().bulk(self.conn, bytes);
        bulk.ok_or_else(|| no_block(bytes, longest_block_bytes(self.core.config())))
    }

    fn expose(
        &mut self,
        memory: &mut Bulk,
        access: Access,
        home: Option<Lease>,
    ) -> Result<ChunkOffer, Backpressure> {
        let offer = self.try_expose(memory, access, home)?;
        offer.ok_or(Backpressure::Misuse("the driver does not know its own memory"))
    }

    /// `None` for memory that does not belong to the connection.
    fn try_expose(
        &mut self,
        memory: &mut Bulk,
        access: Access,
        home: Option<Lease>,
    ) -> Result<Option<ChunkOffer>, Backpressure> {
        let lease = memory.lease(0..memory.len());
        let remote = match self.core.fabric_mut().expose(self.conn, lease, access, home) {
            Ok(remote) => remote,
            Err(ExposeError::Foreign) => return Ok(None),
            Err(ExposeError::NoKey) => return Err(Backpressure::NoBuffer),
            Err(ExposeError::Down) => return Err(Backpressure::Down),
        };
        self.call.lent.add_handle(remote.handle);
        let offer = ChunkOffer {
            handle: remote.handle,
            length: remote.length,
            offset: remote.offset,
            segment_bytes: self.core.config().segment_bytes() as u32,
        };
        Ok(Some(offer))
    }
}

fn require_room(taken: bool) -> Result<(), Backpressure> {
    taken.then_some(()).ok_or(Backpressure::Misuse("more segments than one call may offer"))
}
