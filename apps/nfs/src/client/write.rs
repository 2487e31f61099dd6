//! Writes whole files: several WRITEs in flight, UNSTABLE, then COMMIT. Data that a server lost in
//! between are written again (RFC 1813 sections 3.3.7 and 3.3.21).

use super::pipeline::{Piece, Window};
use super::{Error, Files, Nfs, Root, add};
use crate::nfs3::{PLAIN_RESULT_BYTES_MAX, owned_outcome};
use crate::protocol::{FileHandle, ProcedureId, StableHow, Write3args, Write3resok, Writeverf3};
use spinrpc::{Bulk, CallSpec};
use spinrpc_xdr::{Encode, Placed};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

const REWRITES_MAX: usize = 8;

/// Data that the server accepted, and may have lost before the commit.
struct Taken {
    range: Range<u64>,
    verifier: Writeverf3,
}

struct Writing<'a> {
    nfs: &'a Nfs,
    file: &'a FileHandle,
    source: &'a Source<'a>,
    window: Window<'a, Write3resok>,
    depth: usize,
    block_bytes: u32,
    left: VecDeque<Range<u64>>,
    taken: Vec<Taken>,
}

/// Source of the data of a file.
pub struct Source<'a> {
    /// A seekable file.
    pub file: &'a File,
    /// Its name, for errors.
    pub name: &'a str,
    /// Number of bytes.
    pub size: u64,
}

impl Nfs {
    /// Creates or truncates the file `name` in a directory, and fills it from `source`. The data
    /// are on stable storage when this returns. `progress` gets the accepted bytes.
    ///
    /// # Errors
    /// [`Error::Local`] for the source; [`Error::Status`]; [`Error::Misbehaved`] for an invalid
    /// reply, or a server that keeps losing data.
    pub fn write_file(
        &self,
        root: &Root,
        (directory, name): (&FileHandle, &[u8]),
        mode: u32,
        source: &Source<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let operation = ProcedureId::Nfsproc3Write;
        let block_bytes = self.block_bytes(root, operation)?;
        let depth = self.depth_for(operation, block_bytes)?;
        let file = self.create(directory, name, mode, Some(0))?;
        let mut writing = Writing {
            nfs: self,
            file: &file,
            source,
            window: Window::new(self, operation),
            depth,
            block_bytes,
            left: VecDeque::from_iter((source.size > 0).then_some(0..source.size)),
            taken: Vec::new(),
        };
        writing.run(progress)
    }
}

impl Writing<'_> {
    fn run(&mut self, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
        for _ in 0..=REWRITES_MAX {
            self.write_left(progress)?;
            if self.taken.is_empty() {
                return Ok(());
            }
            let verifier = self.nfs.commit(self.file)?;
            let forgotten = self.taken.drain(..).filter(|taken| taken.verifier != verifier);
            self.left = forgotten.map(|taken| taken.range).collect();
        }
        let problem = format!("{REWRITES_MAX} changes of the verifier: it keeps losing data");
        Err(Error::misbehaved(ProcedureId::Nfsproc3Commit, problem))
    }

    fn write_left(&mut self, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
        loop {
            while self.window.in_flight() < self.depth
                && let Some(piece) = self.next_piece()
            {
                self.send(piece)?;
            }
            if self.window.in_flight() == 0 {
                return Ok(());
            }
            match self.window.next()? {
                (piece, Some(results)) => progress(self.take(piece, &results)?),
                (Piece { offset, count }, None) => {
                    self.left.push_front(offset..offset + u64::from(count));
                }
            }
        }
    }

    fn next_piece(&mut self) -> Option<Piece> {
        let range = self.left.pop_front()?;
        let count = (range.end - range.start).min(self.block_bytes.into());
        if range.start + count < range.end {
            self.left.push_front(range.start + count..range.end);
        }
        Some(Piece { offset: range.start, count: count as u32 })
    }

    fn send(&mut self, piece: Piece) -> Result<(), Error> {
        let Piece { offset, count } = piece;
        let mut data = self.window.memory(count)?;
        self.fill(&mut data, offset)?;
        let (file, stable) = (self.file.wire(), StableHow::Unstable);
        let args = Write3args { file, offset, count, stable, data: Placed::Beside };
        let spec = CallSpec::new().reply_bytes_max(PLAIN_RESULT_BYTES_MAX).argument(data);
        self.window.start(piece, spec, |to| args.encode(to), owned_outcome)
    }

    fn fill(&self, data: &mut Bulk, offset: u64) -> Result<(), Error> {
        let read = self.source.file.read_exact_at(data.bytes_mut(), offset);
        read.map_err(|error| {
            let error = match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    io::Error::other("the file became shorter while it was read")
                }
                _ => error,
            };
            Error::file(self.source.name, &error)
        })
    }

    fn take(&mut self, piece: Piece, results: &Write3resok) -> Result<u64, Error> {
        let Piece { offset, count } = piece;
        if results.count == 0 || results.count > count {
            let problem = format!("a count of {} bytes of {count} requested", results.count);
            return Err(Error::misbehaved(ProcedureId::Nfsproc3Write, problem));
        }
        let (taken, end) = (offset + u64::from(results.count), offset + u64::from(count));
        if taken < end {
            self.left.push_front(taken..end);
        }
        add(&self.nfs.counts.written_bytes, results.count.into());
        if results.committed == StableHow::Unstable {
            self.note(offset..taken, results.verf);
        }
        Ok(results.count.into())
    }

    /// Joins adjacent ranges, so that a large file needs little memory.
    fn note(&mut self, range: Range<u64>, verifier: Writeverf3) {
        match self.taken.last_mut() {
            Some(last) if last.verifier == verifier && last.range.end == range.start => {
                last.range.end = range.end;
            }
            _ => self.taken.push(Taken { range, verifier }),
        }
    }
}
