//! The bytes of a file, in chunks; ranges that were never written need no memory.

use std::collections::BTreeMap;

const CHUNK_BYTES: usize = 64 << 10;
/// Cost of a chunk besides its bytes: its place in the map and on the heap. Otherwise one byte in
/// each of very many chunks would exceed the limit of memory by far.
const PLACE_BYTES: u64 = 64;

#[derive(Debug, Default)]
pub(super) struct Content {
    size: u64,
    /// Trailing zeros of each may be missing; bytes beyond the file's size are not stored.
    chunks: BTreeMap<u64, Vec<u8>>,
    stored_bytes: u64,
}

struct Piece {
    chunk: u64,
    at: usize,
    bytes: usize,
}

fn pieces(offset: u64, bytes: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (chunk, at) = place(offset + done as u64);
        let count = (CHUNK_BYTES - at).min(bytes - done);
        done += count;
        (count > 0).then_some(Piece { chunk, at, bytes: count })
    })
}

fn place(offset: u64) -> (u64, usize) {
    (offset / CHUNK_BYTES as u64, (offset % CHUNK_BYTES as u64) as usize)
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Stored bytes, including the cost of their places.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let bytes = self.size.saturating_sub(offset).min(into.len() as u64) as usize;
        let mut rest = into.get_mut(..bytes).unwrap_or_default();
        for piece in pieces(offset, bytes) {
            let (part, behind) = rest.split_at_mut(piece.bytes);
            self.read_piece(&piece, part);
            rest = behind;
        }
        bytes
    }

    fn read_piece(&self, piece: &Piece, into: &mut [u8]) {
        let chunk = self.chunks.get(&piece.chunk).map_or(&[][..], Vec::as_slice);
        let there = chunk.get(piece.at..).unwrap_or_default();
        let count = there.len().min(into.len());
        let (data, hole) = into.split_at_mut(count);
        data.copy_from_slice(&there[..count]);
        hole.fill(0);
    }

    /// Growth of [`Content::stored_bytes`] if this many bytes are written at `offset`.
    pub(super) fn growth_bytes(&self, offset: u64, bytes: usize) -> u64 {
        let growth = |piece: Piece| {
            let (end, chunk) = (piece.at + piece.bytes, self.chunks.get(&piece.chunk));
            chunk.map_or(PLACE_BYTES + end as u64, |chunk| end.saturating_sub(chunk.len()) as u64)
        };
        pieces(offset, bytes).map(growth).sum()
    }

    /// Writes at `offset`, which may be beyond the end.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        self.stored_bytes += self.growth_bytes(offset, data.len());
        let mut rest = data;
        for piece in pieces(offset, data.len()) {
            let (part, behind) = rest.split_at(piece.bytes);
            let chunk = self.chunks.entry(piece.chunk).or_default();
            let end = piece.at + piece.bytes;
            if chunk.len() < end {
                chunk.resize(end, 0);
            }
            chunk[piece.at..end].copy_from_slice(part);
            rest = behind;
        }
        if !data.is_empty() {
            self.size = self.size.max(offset + data.len() as u64);
        }
    }

    /// Truncates the file, or extends it with zeros. Takes time for the chunks that go, not for those that stay.
    pub(super) fn set_size(&mut self, size: u64) {
        let (last, end) = place(size);
        while let Some(chunk) = self.chunks.last_entry().filter(|chunk| *chunk.key() > last) {
            self.stored_bytes -= PLACE_BYTES + chunk.remove().len() as u64;
        }
        if let Some(chunk) = self.chunks.get_mut(&last) {
            self.stored_bytes -= chunk.len().saturating_sub(end) as u64;
            chunk.truncate(end);
            chunk.shrink_to_fit();
        }
        self.size = size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        SetSize(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let offset = 0..4 * CHUNK_BYTES as u64;
        let write = (offset.clone(), 0..2 * CHUNK_BYTES, any::<u8>())
            .prop_map(|(at, length, byte)| Step::Write(at, vec![byte; length]));
        prop::collection::vec(prop_oneof![write, offset.prop_map(Step::SetSize)], 1..12)
    }

    fn apply(model: &mut Vec<u8>, step: &Step) {
        match step {
            Step::Write(_, data) if data.is_empty() => {}
            Step::Write(at, data) => {
                let (at, end) = (*at as usize, *at as usize + data.len());
                model.resize(model.len().max(end), 0);
                model[at..end].copy_from_slice(data);
            }
            Step::SetSize(size) => model.resize(*size as usize, 0),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn reads_what_was_written_and_zeros_elsewhere(steps in steps()) {
            let (mut content, mut model) = (Content::default(), Vec::new());
            for step in &steps {
                match step {
                    Step::Write(at, data) => content.write(*at, data),
                    Step::SetSize(size) => content.set_size(*size),
                }
                apply(&mut model, step);
                let mut read = vec![0xaa; model.len() + 10];
                prop_assert_eq!(content.read(0, &mut read), model.len());
                prop_assert!(read[..model.len()] == model[..]);
                let kept: usize = content.chunks.values().map(Vec::len).sum();
                let places = content.chunks.len() as u64 * PLACE_BYTES;
                prop_assert_eq!(content.stored_bytes(), kept as u64 + places);
            }
        }
    }

    #[test]
    fn a_byte_far_out_takes_one_chunk() {
        let mut content = Content::default();
        content.write(1 << 60, b"x");
        assert!((PLACE_BYTES..=CHUNK_BYTES as u64).contains(&content.stored_bytes()));
        assert_eq!(content.size(), (1 << 60) + 1);
        let mut byte = [1; 2];
        assert_eq!(content.read((1 << 60) - 1, &mut byte), 2);
        assert_eq!(&byte, &[0, b'x']);
    }
}
