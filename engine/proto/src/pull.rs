//! The Read chunks of one received message, and how far they are fetched (RFC 5666 sections 3.4,
//! 3.5 and 3.7, RFC 8166 section 3.4.5). The responder fetches those of calls with it, the requester
//! those of replies.

use crate::limits::READ_CHUNKS_MAX;
use crate::output::{Output, ReadRequest, SlotId};
use crate::profile::Profile;
use crate::rdma::ReadSegment;
use crate::rdma::v1::{HeaderView, MessageType};

/// One Read chunk of a message: everything at one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PullChunk {
    /// Position in the unreduced stream; zero for the chunk that is the message itself.
    pub position: u32,
    /// Bytes of all its segments.
    pub length: u32,
    /// Bytes whose RDMA Read was asked for.
    requested: u32,
}

impl PullChunk {
    fn holds(&self, position: u32) -> bool {
        position > self.position && position - self.position < self.length
    }
}

/// The Read chunks of one message and how far they are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    chunks: [PullChunk; READ_CHUNKS_MAX],
    count: u8,
    segments: u16,
    next_segment: u16,
    outstanding: u16,
}

impl Pull {
    pub(crate) const NONE: Self = Self {
        chunks: [PullChunk { position: 0, length: 0, requested: 0 }; READ_CHUNKS_MAX],
        count: 0,
        segments: 0,
        next_segment: 0,
        outstanding: 0,
    };

    /// The chunks by rising position.
    pub fn chunks(&self) -> &[PullChunk] {
        &self.chunks[..usize::from(self.count)]
    }

    /// Groups a Read list by position and sorts it, bounded; `None` when it breaks a rule.
    /// `stream_bytes` is the length of the reduced stream where no Position-Zero chunk has it,
    /// `placed_bytes` the number of bytes that Write chunks took out of it.
    ///
    /// A list need not be in order, but the segments of one position keep theirs (RFC 5666
    /// section 3.4), and roundup stands behind its item. Chunks must not overlap, and each has to
    /// start inside the reduced stream.
    pub(crate) fn plan(
        view: &HeaderView<'_>,
        stream_bytes: usize,
        placed_bytes: usize,
        profile: Profile,
    ) -> Option<Self> {
        let mut pull = Self::NONE;
        for segment in view.reads() {
            pull.add(&segment)?;
        }
        pull.chunks[..usize::from(pull.count)].sort_unstable_by_key(|chunk| chunk.position);
        pull.join_roundup(profile)?;
        pull.check_order(view)?;
        let stream_bytes = match pull.chunks().first() {
            Some(message) if message.position == 0 => message.length as usize,
            _ => stream_bytes,
        };
        let stream_bytes = stream_bytes.saturating_add(placed_bytes);
        positions_fit(pull.chunks(), stream_bytes).then_some(pull)
    }

    fn add(&mut self, segment: &ReadSegment) -> Option<()> {
        let known = self.chunks().iter().position(|chunk| chunk.position == segment.position);
        let index = known.unwrap_or(usize::from(self.count));
        let chunk = self.chunks.get_mut(index)?;
        chunk.position = segment.position;
        chunk.length = chunk.length.checked_add(segment.target.length)?;
        self.count = self.count.max(index as u8 + 1);
        self.segments += 1;
        Some(())
    }

    /// Merges a separate chunk for the roundup of an item (RFC 5666 section 3.7) into the end of
    /// that item's chunk, which is then as if the roundup had been included in it. No other chunk
    /// may start within a word.
    fn join_roundup(&mut self, profile: Profile) -> Option<()> {
        let mut kept = 0;
        for index in 0..usize::from(self.count) {
            let chunk = self.chunks[index];
            if chunk.position.is_multiple_of(4) {
                self.chunks[kept] = chunk;
                kept += 1;
                continue;
            }
            let item = self.chunks[..kept].last_mut().filter(|_| profile.has_roundup_chunks())?;
            if item.position.checked_add(item.length)? != chunk.position {
                return None;
            }
            item.length = item.length.checked_add(chunk.length)?;
            if !item.length.is_multiple_of(4) {
                return None;
            }
        }
        self.count = kept as u8;
        Some(())
    }

    /// Checks the order of chunks. Each chunk is filled from its start to its end, one RDMA Read
    /// after the other in the segment order of the list, because memory is lent to the Reads in
    /// rising order. A separate roundup chunk therefore comes after the whole item.
    fn check_order(mut self, view: &HeaderView<'_>) -> Option<()> {
        for segment in view.reads() {
            let chunk = &mut self.chunks[self.chunk_of(segment.position)?];
            if chunk.requested < segment.position - chunk.position {
                return None;
            }
            chunk.requested += segment.target.length;
        }
        Some(())
    }

    /// The chunk that a segment belongs to.
    fn chunk_of(&self, position: u32) -> Option<usize> {
        let exact = self.chunks().iter().position(|chunk| chunk.position == position);
        // The last one: a Position-Zero chunk holds the positions of all.
        exact.or_else(|| self.chunks().iter().rposition(|chunk| chunk.holds(position)))
    }

    /// Asks for the next RDMA Reads, at most `room` of them, and says how many. `view` is the header
    /// of the message `slot` stands for.
    pub(crate) fn ask(
        &mut self,
        slot: SlotId,
        view: &HeaderView<'_>,
        room: u16,
        out: &mut impl Output,
    ) -> u16 {
        let mut asked = 0;
        for segment in view.reads().skip(usize::from(self.next_segment)).take(usize::from(room)) {
            let Some(chunk) = self.chunk_of(segment.position) else { break };
            let at = self.chunks[chunk].requested;
            self.chunks[chunk].requested += segment.target.length;
            self.next_segment += 1;
            self.outstanding += 1;
            asked += 1;
            out.read(ReadRequest { slot, chunk: chunk as u8, at, from: segment.target });
        }
        asked
    }

    /// An RDMA Read completed; whether it was the last.
    pub(crate) fn on_read_done(&mut self) -> bool {
        self.outstanding = self.outstanding.saturating_sub(1);
        !self.wants_reads() && self.is_quiet()
    }

    /// True if not all RDMA Reads have been requested yet.
    pub(crate) fn wants_reads(&self) -> bool {
        self.next_segment < self.segments
    }

    /// No RDMA Read is on its way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.outstanding == 0
    }
}

/// Bytes of a stream in its message. The stream of an RDMA_MSGP may continue in a second receive
/// buffer, which is not seen here; decoding then finds a chunk to which no item belongs.
pub(crate) fn inline_bytes(view: &HeaderView<'_>) -> usize {
    match view.message_type() {
        MessageType::Msgp => usize::MAX,
        _ => view.payload().len(),
    }
}

/// Every position lies in the reduced stream once the chunks before it are taken out, and no chunk
/// reaches into the next.
fn positions_fit(chunks: &[PullChunk], stream_bytes: usize) -> bool {
    let (mut removed, mut end) = (0u64, 0u64);
    for chunk in chunks.iter().filter(|chunk| chunk.position != 0) {
        let position = u64::from(chunk.position);
        if position < end || position - removed > stream_bytes as u64 {
            return false;
        }
        removed += (u64::from(chunk.length) + 3) & !3;
        end = position + u64::from(chunk.length);
    }
    true
}

/// Result of an RDMA Read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// More are needed or still on their way: pull again.
    More,
    /// The message is whole: a call has been delivered, the pull of a reply can be ended.
    Complete,
    /// No such message is being fetched.
    Stale,
}
