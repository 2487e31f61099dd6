//! The header of a reply: the chunks of its call come back with the lengths placed in them, and
//! there may be a Read list of data for the requester to fetch (RFC 5666 sections 3.6 to 3.8, RFC
//! 8166 section 4.3). Used by the responder.

use super::chunk_list::{WriteChunk, read_entries_bytes, write_chunk, write_reads};
use super::header::{HeaderView, LINK_BYTES, MessageType};
use super::segment::{ReadSegment, Segment};
use super::sent::Start;
use crate::ids::Xid;
use crate::rpc::Direction;
use crate::xdr::Writer;

/// Position of the credit word in every header (RFC 5666 section 4.1).
const CREDITS_AT: usize = 8;

/// The header of a reply to send.
#[derive(Clone, Copy, Debug)]
pub struct ReplyRepr<'a> {
    /// XID of the call.
    pub xid: Xid,
    /// Credits granted; never zero (RFC 8166 section 3.3.1).
    pub credits: u32,
    /// [`MessageType::Msg`], or [`MessageType::Nomsg`] if the RPC message is in the Reply chunk or
    /// in a Position-Zero Read chunk.
    pub message_type: MessageType,
    /// Read list; empty under RFC 8166 (section 4.3.1).
    pub reads: &'a [ReadSegment],
    /// Bytes placed in each Write chunk, in order; chunks beyond are unused.
    pub write_lengths: &'a [u32],
    /// Bytes placed in the Reply chunk; `None` if unused.
    pub reply_length: Option<u32>,
    /// The length of a Write chunk counts the roundup of its item (RFC 5666 section 3.7).
    pub counts_roundup: bool,
}

impl ReplyRepr<'_> {
    /// Bytes which [`Self::emit`] writes for a reply to `call` with so many segments in its Read
    /// list, whatever the lengths.
    #[inline]
    pub const fn bytes_of(call: &HeaderView<'_>, read_segments: usize) -> usize {
        // The Write list and the Reply chunk come back as they are.
        let lists_at = call.transport_version().lists_at();
        lists_at + read_entries_bytes(read_segments) + LINK_BYTES + call.results_bytes()
    }

    /// Writes the header at the start of `buffer`; returns its length, that of
    /// [`Self::bytes_of`].
    ///
    /// The reply is of the version of `call`, which is the header of a call, thus not of type Done
    /// or Error (version two section 5.3: a responder sends "Replies with the same RPC-over-RDMA
    /// protocol version that the requester uses to send its Calls"). Never panics, except that debug
    /// builds assert that `credits` is not zero and that each length fits its chunk. A `buffer` that
    /// is too short is left with part of a header, which the returned length tells.
    pub fn emit(&self, buffer: &mut [u8], call: &HeaderView<'_>) -> usize {
        debug_assert!(matches!(self.message_type, MessageType::Msg | MessageType::Nomsg));
        debug_assert!(self.write_lengths.len() <= call.writes().len(), "too many results");
        debug_assert!(self.reply_length.is_none() || call.reply_chunk().is_some());
        let mut writer = Writer::new(buffer);
        let version = call.transport_version();
        Start::new(version, Direction::Reply, self.xid, self.credits)
            .write(self.message_type, &mut writer);
        write_reads(&mut writer, self.reads);
        let mut lengths = self.write_lengths.iter().copied();
        for chunk in call.writes() {
            echo_chunk(&mut writer, chunk, lengths.next(), self.counts_roundup);
        }
        writer.bool(false);
        match call.reply_chunk() {
            Some(chunk) => echo_chunk(&mut writer, chunk, self.reply_length, false),
            None => writer.bool(false),
        }
        writer.len()
    }
}

fn echo_chunk(
    writer: &mut Writer<'_>,
    chunk: WriteChunk<'_>,
    placed: Option<u32>,
    counts_roundup: bool,
) {
    let placed = placed.unwrap_or(0);
    debug_assert!(u64::from(placed) <= chunk.total_length(), "more bytes than the chunk holds");
    let roundup = if counts_roundup { placed.wrapping_neg() & 3 } else { 0 };
    write_chunk(writer, rounded_up(chunk, placed, roundup));
}

/// The segments as they are once `placed` bytes are in them. "Roundup bytes are not transferred,
/// instead the chunk length sent to the receiver in the reply is simply increased", which "can only
/// occur on the final chunk receiving data" (RFC 5666 section 3.7).
fn rounded_up(
    chunk: WriteChunk<'_>,
    placed: u32,
    roundup: u32,
) -> impl ExactSizeIterator<Item = Segment> {
    let mut left = placed;
    chunk.filled(placed).map(move |segment| {
        left -= segment.length;
        let is_final = segment.length > 0 && left == 0;
        let length = segment.length.saturating_add(if is_final { roundup } else { 0 });
        Segment { length, ..segment }
    })
}

/// Puts another credit word into a message that was written before.
pub fn set_credits(message: &mut [u8], credits: u32) {
    debug_assert!(credits != 0, "zero credits in a header to send");
    if let Some(word) = message.get_mut(CREDITS_AT..CREDITS_AT + 4) {
        word.copy_from_slice(&credits.to_be_bytes());
    }
}
