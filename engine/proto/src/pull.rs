//! The Read chunks of one received message, and how far they are fetched (RFC 5666 sections 3.4,
//! 3.5 and 3.7, both drafts section 3.4, RFC 8166 section 3.4.5). The responder fetches those of calls with it, the requester
//! those of replies.

use crate::dialect::Profile;
use crate::events::{ReadRequest, SlotId};
use crate::limits::READ_CHUNKS_MAX;
use crate::rdma::ReadSegment;
use crate::rdma::v1::{HeaderView, MessageType};

/// One Read chunk of a message: one data item, or the message itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PullChunk {
    /// Position in the unreduced stream; zero for the chunk that is the message itself.
    pub position: u32,
    /// Bytes of all its segments.
    pub length: u32,
}

/// Segments of a Read list that follow each other in one chunk: those of one position, or, where an item may be split,
/// of positions each of which begins where the one before ends.
#[derive(Clone, Copy, Default)]
struct Part {
    position: u32,
    length: u32,
    /// Position of its last segment.
    last: u32,
}

impl Part {
    /// The part belongs to the item whose chunk ends where it begins: as its roundup in a chunk of its own (RFC 5666
    /// section 3.7), or as a part of a split item. A message is never split, because its chunks could be items.
    fn continues(&self, chunk: PullChunk, profile: Profile) -> bool {
        let into_word = self.position % 4;
        let is_roundup = into_word != 0 && self.length == 4 - into_word;
        let is_allowed = (is_roundup && profile.has_roundup_chunks())
            || (chunk.position != 0 && profile.has_split_items());
        is_allowed && chunk.position.checked_add(chunk.length) == Some(self.position)
    }

    fn ends_at(&self, position: u32) -> bool {
        self.position != 0 && self.position.checked_add(self.length) == Some(position)
    }
}

struct Parts {
    parts: [Part; READ_CHUNKS_MAX],
    count: usize,
}

impl Parts {
    /// `None` if there are too many.
    fn of(view: &HeaderView<'_>, profile: Profile) -> Option<Self> {
        let mut all = Self { parts: [Part::default(); READ_CHUNKS_MAX], count: 0 };
        for segment in view.reads() {
            all.add(&segment, profile)?;
        }
        all.parts[..all.count].sort_unstable_by_key(|part| part.position);
        Some(all)
    }

    fn add(&mut self, segment: &ReadSegment, profile: Profile) -> Option<()> {
        let parts = self.as_slice();
        let of_position = parts.iter().position(|part| part.last == segment.position);
        let behind = || parts.iter().position(|part| part.ends_at(segment.position));
        let known = of_position.or_else(|| behind().filter(|_| profile.has_split_items()));
        let index = known.unwrap_or(self.count);
        let part = self.parts.get_mut(index)?;
        if index == self.count {
            part.position = segment.position;
            self.count += 1;
        }
        part.last = segment.position;
        part.length = part.length.checked_add(segment.target.length)?;
        Some(())
    }

    fn as_slice(&self) -> &[Part] {
        &self.parts[..self.count]
    }
}

/// The Read chunks of one message and how far they are fetched. Its size does not depend on the number of segments,
/// which are read from the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    chunks: [PullChunk; READ_CHUNKS_MAX],
    /// Positions at which the parts of the chunks begin.
    parts: [u32; READ_CHUNKS_MAX],
    count: u8,
    part_count: u8,
    /// The part whose segments are asked for, the next segment of the list to look at for that, and the bytes of the
    /// part that were asked for.
    part: u8,
    next_segment: u16,
    requested: u32,
    segments: u16,
    asked: u16,
    outstanding: u16,
}

impl Pull {
    pub(crate) const NONE: Self = Self {
        chunks: [PullChunk { position: 0, length: 0 }; READ_CHUNKS_MAX],
        parts: [0; READ_CHUNKS_MAX],
        count: 0,
        part_count: 0,
        part: 0,
        next_segment: 0,
        requested: 0,
        segments: 0,
        asked: 0,
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
    /// section 3.4). Chunks must not overlap, and each has to start inside the reduced stream, with a word (RFC 8166
    /// section 3.4.5).
    pub(crate) fn plan(
        view: &HeaderView<'_>,
        stream_bytes: usize,
        placed_bytes: usize,
        profile: Profile,
    ) -> Option<Self> {
        let parts = Parts::of(view, profile)?;
        let mut pull = Self { segments: view.reads().len() as u16, ..Self::NONE };
        for part in parts.as_slice() {
            pull.push(part, profile)?;
        }
        let stream_bytes = match pull.chunks().first() {
            Some(message) if message.position == 0 => message.length as usize,
            _ => stream_bytes,
        };
        let stream_bytes = stream_bytes.saturating_add(placed_bytes);
        let fits = pull.finds(view, &parts) && positions_fit(pull.chunks(), stream_bytes);
        fits.then_some(pull)
    }

    /// Adds the next part by position: a chunk, or more of the one before.
    fn push(&mut self, part: &Part, profile: Profile) -> Option<()> {
        *self.parts.get_mut(usize::from(self.part_count))? = part.position;
        self.part_count += 1;
        let before = usize::from(self.count).checked_sub(1).map(|last| &mut self.chunks[last]);
        if let Some(chunk) = before.filter(|chunk| part.continues(**chunk, profile)) {
            chunk.length = chunk.length.checked_add(part.length)?;
            return Some(());
        }
        let starts_word = part.position.is_multiple_of(4);
        let chunk = self.chunks.get_mut(usize::from(self.count)).filter(|_| starts_word)?;
        *chunk = PullChunk { position: part.position, length: part.length };
        self.count += 1;
        Some(())
    }

    /// Checks that [`Self::part_of`] finds every segment in its part: a part that begins within another one could take
    /// some.
    fn finds(&self, view: &HeaderView<'_>, parts: &Parts) -> bool {
        let mut found = [0_u64; READ_CHUNKS_MAX];
        for segment in view.reads() {
            let Some(part) = self.part_of(segment.position) else { return false };
            found[part] += u64::from(segment.target.length);
        }
        parts.as_slice().iter().zip(found).all(|(part, found)| u64::from(part.length) == found)
    }

    fn part_of(&self, position: u32) -> Option<usize> {
        self.parts[..usize::from(self.part_count)].iter().rposition(|start| *start <= position)
    }

    fn place(&self) -> Option<(usize, u32)> {
        let start = self.parts[usize::from(self.part)];
        let chunk = self.chunks().iter().rposition(|chunk| chunk.position <= start)?;
        Some((chunk, start - self.chunks[chunk].position))
    }

    /// At most `room` Reads of the message that `slot` stands for. Each chunk is filled from its start to its end,
    /// whatever the order of the list, because memory is lent to RDMA Reads in rising order.
    pub(crate) fn ask(
        &mut self,
        slot: SlotId,
        view: &HeaderView<'_>,
        room: u16,
        mut read: impl FnMut(ReadRequest),
    ) -> u16 {
        let before = self.asked;
        while self.wants_reads() && self.part < self.part_count {
            let Some((chunk, start)) = self.place() else { break };
            for segment in view.reads().skip(usize::from(self.next_segment)) {
                if self.asked - before == room {
                    return room;
                }
                self.next_segment += 1;
                if self.part_of(segment.position) == Some(usize::from(self.part)) {
                    let at = start + self.requested;
                    self.requested += segment.target.length;
                    self.asked += 1;
                    self.outstanding += 1;
                    read(ReadRequest { slot, chunk: chunk as u8, at, from: segment.target });
                }
            }
            (self.part, self.next_segment, self.requested) = (self.part + 1, 0, 0);
        }
        self.asked - before
    }

    pub(crate) fn on_read_done(&mut self) -> bool {
        self.outstanding = self.outstanding.saturating_sub(1);
        !self.wants_reads() && self.is_quiet()
    }

    /// True if not all RDMA Reads have been requested yet.
    #[must_use]
    pub const fn wants_reads(&self) -> bool {
        self.asked < self.segments
    }

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
