//! Reads whole files: several READs in flight, whose data the server places directly (a Write chunk
//! each, RFC 8267 section 2), delivered in order.

use super::pipeline::{Piece, Window};
use super::{Error, Files, Found, Nfs, Root, add};
use crate::nfs3::{READ_RESULT_HEAD_BYTES, outcome};
use crate::protocol::{FileHandle, Nfsstat3, ProcedureId, Read3args, Read3resok};
use spinrpc::{Bulk, CallSpec, DecodeError, Decoder};
use spinrpc_xdr::{Encode, Placed};
use std::collections::BTreeMap;

pub(super) struct Part {
    pub(super) count: u32,
    pub(super) eof: bool,
    pub(super) data: PartData,
}

pub(super) enum PartData {
    /// In the memory where the server placed them.
    Placed(Bulk),
    /// From a message, if the server did not use the chunk.
    Inline(Vec<u8>),
}

impl PartData {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Placed(bulk) => bulk.bytes(),
            Self::Inline(bytes) => bytes,
        }
    }
}

struct Reading<'a> {
    nfs: &'a Nfs,
    file: &'a FileHandle,
    window: Window<'a, Part>,
    depth: usize,
    block_bytes: u32,
    end: u64,
    /// Offset of the next new piece.
    next: u64,
    /// Pieces to request again, and rests of short reads: count by offset.
    again: BTreeMap<u64, u32>,
    early: BTreeMap<u64, PartData>,
    /// End of the delivered bytes.
    given: u64,
}

impl Nfs {
    /// Reads the current content of the file, and passes it to `sink` in order; returns the number
    /// of bytes.
    ///
    /// # Errors
    /// Those of `sink`; [`Error::Status`]; [`Error::Misbehaved`] for an invalid reply, such as a
    /// premature end of file.
    pub fn read_file(
        &self,
        root: &Root,
        file: &Found,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let size = file.attributes.size;
        let operation = ProcedureId::Nfsproc3Read;
        let block_bytes = self.block_bytes(root, operation)?;
        let mut reading = Reading {
            nfs: self,
            file: &file.handle,
            window: Window::new(self, operation),
            // One is reserved for the next piece in order.
            depth: self.depth_for(operation, block_bytes)?.saturating_sub(1).max(1),
            block_bytes,
            // Only READ tells whether an empty file can be read, and whether it is one.
            end: if size == 0 { block_bytes.into() } else { size },
            next: 0,
            again: BTreeMap::new(),
            early: BTreeMap::new(),
            given: 0,
        };
        reading.run(sink)?;
        reading.check_end(size)
    }
}

impl Reading<'_> {
    fn run(&mut self, sink: &mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        while self.given < self.end {
            while let Some(piece) = self.next_piece() {
                self.ask(piece)?;
            }
            match self.window.next()? {
                (piece, Some(part)) => self.take(piece, part)?,
                (piece, None) => drop(self.again.insert(piece.offset, piece.count)),
            }
            self.give(sink)?;
        }
        Ok(())
    }

    /// The next piece in order is always requested: all others may wait for it.
    fn next_piece(&mut self) -> Option<Piece> {
        let is_full = self.window.in_flight() + self.early.len() >= self.depth;
        if let Some((&offset, &count)) = self.again.first_key_value()
            && (!is_full || offset == self.given)
        {
            self.again.pop_first();
            return Some(Piece { offset, count });
        }
        if is_full || self.next >= self.end {
            return None;
        }
        let count = (self.end - self.next).min(self.block_bytes.into()) as u32;
        let piece = Piece { offset: self.next, count };
        self.next += u64::from(count);
        Some(piece)
    }

    fn ask(&mut self, piece: Piece) -> Result<(), Error> {
        let room = self.window.memory(piece.count)?;
        let spec = CallSpec::new().reply_bytes_max(READ_RESULT_HEAD_BYTES).result_into(room);
        let Piece { offset, count } = piece;
        let args = Read3args { file: self.file.wire(), offset, count };
        let decode = move |from: &mut Decoder<'_>| part(from, count as usize);
        self.window.start(piece, spec, |to| args.encode(to), decode)
    }

    fn take(&mut self, piece: Piece, part: Part) -> Result<(), Error> {
        let wrong = |problem| Err(Error::misbehaved(ProcedureId::Nfsproc3Read, problem));
        let length = part.data.bytes().len();
        if length != part.count as usize {
            return wrong(format!("a count of {} and {length} bytes of data", part.count));
        }
        if part.count == 0 && !part.eof {
            return wrong(format!("no data at offset {}, and no end of file", piece.offset));
        }
        let behind = piece.offset + u64::from(part.count);
        if part.eof {
            self.end = self.end.min(behind);
        } else if part.count < piece.count {
            self.again.insert(behind, piece.count - part.count);
        }
        match &part.data {
            PartData::Placed(_) => add(&self.nfs.counts.placed_bytes, part.count.into()),
            PartData::Inline(_) => add(&self.nfs.counts.inline_bytes, part.count.into()),
        }
        self.early.insert(piece.offset, part.data);
        Ok(())
    }

    fn give(&mut self, sink: &mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        while let Some(data) = self.early.remove(&self.given) {
            let left = self.end.saturating_sub(self.given);
            let bytes = data.bytes();
            let bytes = bytes.get(..left as usize).unwrap_or(bytes);
            if bytes.is_empty() {
                return Ok(());
            }
            sink(bytes)?;
            self.given += bytes.len() as u64;
        }
        Ok(())
    }

    /// Accepts an early end of file only if the file has become that short.
    fn check_end(&self, size: u64) -> Result<u64, Error> {
        if self.given < size {
            let size = self.nfs.attributes(self.file)?.size;
            if size > self.given {
                let problem = format!("an end of file at {} and a size of {size}", self.given);
                return Err(Error::misbehaved(ProcedureId::Nfsproc3Read, problem));
            }
        }
        Ok(self.given)
    }
}

pub(super) fn part(
    from: &mut Decoder<'_>,
    bytes_max: usize,
) -> Result<Result<Part, Nfsstat3>, DecodeError> {
    let Read3resok { count, eof, data, .. } = match outcome(from)? {
        Ok(results) => results,
        Err(status) => return Ok(Err(status)),
    };
    let length = data.bytes().len();
    if length > bytes_max {
        return Err(DecodeError::TooLong { at: from.position(), length, max: bytes_max });
    }
    let data = match data {
        Placed::Bulk(bulk) => PartData::Placed(bulk),
        data => PartData::Inline(data.bytes().to_vec()),
    };
    Ok(Ok(Part { count, eof, data }))
}
