//! FPDUs on their way to the socket. Headers and short payloads are copied to a buffer; long payloads stay where they are, in
//! memory that is held until their last byte is the socket's.

use super::exposure::Exposures;
use super::socket::{self, Moved};
use super::wire::{Crc, HEADER_BYTES_MAX, Segment};
use crate::mem::{Buf, Lease};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::AsFd;

/// A payload of at most so many bytes is copied: a piece of its own costs the kernel as much as to copy it.
const COPIED_BYTES_MAX: usize = 1024;

/// Bytes of the buffer.
const BUFFER_BYTES: usize = 64 << 10;

/// Pieces that one system call sends, and so many that wait.
const PIECES_MAX: usize = 256;

/// Pieces for which a list is made that takes no time to clear.
const FEW_PIECES: usize = 4;

/// Bytes that are framed ahead of the socket: what is sent in one turn.
const AHEAD_BYTES: usize = 256 << 10;

/// Pad and CRC.
const TRAILER_BYTES_MAX: usize = 7;

/// Pieces of one FPDU: header, payload and trailer.
const PIECES_PER_FPDU: usize = 3;

/// Memory of a request of this side.
#[derive(Debug)]
pub(super) enum Memory {
    Message(Buf),
    Written(Lease),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Message(message) => message.bytes(),
            Self::Written(lease) => lease.stable_bytes(),
        }
    }
}

/// Origin of a payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload {
    /// The request that was held last.
    Request,
    /// The exposure of this key, from this byte on.
    Exposure(u32, usize),
    /// The header has all of the FPDU.
    None,
}

#[derive(Debug)]
struct Piece {
    place: PiecePlace,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum PiecePlace {
    Buffer,
    /// Of the oldest request whose last piece is not before this one.
    Request {
        at: usize,
        is_last: bool,
    },
    Exposure {
        key: u32,
        at: usize,
    },
}

#[derive(Debug)]
pub(super) struct SendStream {
    uses_crc: bool,
    buffer: Box<[u8]>,
    /// The part of the buffer that is in use.
    start: usize,
    end: usize,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that the socket has.
    sent: usize,
    /// Bytes of all pieces.
    bytes: usize,
    /// Memory of requests, and the numbers that they were posted with, in the order of sending: that of the one whose segments
    /// come next is the last.
    pub(super) held: VecDeque<(u64, Memory)>,
}

impl SendStream {
    pub(super) fn new(uses_crc: bool, depth: usize) -> Self {
        Self {
            uses_crc,
            buffer: vec![0; BUFFER_BYTES].into(),
            start: 0,
            end: 0,
            pieces: VecDeque::with_capacity(PIECES_MAX),
            sent: 0,
            bytes: 0,
            held: VecDeque::with_capacity(depth),
        }
    }

    /// Nothing waits for the socket.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// There is room for any FPDU. Makes it, if it can be made.
    pub(super) fn has_room(&mut self) -> bool {
        const FPDU_BYTES: usize = HEADER_BYTES_MAX + COPIED_BYTES_MAX + TRAILER_BYTES_MAX;
        if self.buffer.len() - self.end < FPDU_BYTES && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.buffer.len() - self.end >= FPDU_BYTES
            && self.bytes < AHEAD_BYTES
            && self.pieces.len() + PIECES_PER_FPDU <= PIECES_MAX
    }

    /// Appends an FPDU. There is room for it.
    pub(super) fn push(
        &mut self,
        header: &[u8],
        segment: &Segment,
        payload: Payload,
        exposures: &mut Exposures,
    ) {
        let (at, length) = (segment.offset as usize, segment.length as usize);
        let request = || self.held.back()?.1.bytes().get(at..at + length);
        let bytes = match payload {
            Payload::Request => request().unwrap_or_default(),
            Payload::Exposure(key, from) => exposures.bytes(key, from, length),
            Payload::None => &[],
        };
        let crc = self.uses_crc.then(|| {
            let mut crc = Crc::new();
            crc.update(header);
            crc.update(bytes);
            crc
        });
        let trailer = segment.trailer(crc);
        let is_whole = segment.offset == 0 && segment.last;
        let is_copied = length <= COPIED_BYTES_MAX
            && (is_whole || matches!(payload, Payload::Exposure(..)) || length == 0);
        let mut end = append(&mut self.buffer, self.end, header);
        if is_copied {
            end = append(&mut self.buffer, end, bytes);
        }
        let leads = end - self.end;
        self.end = append(&mut self.buffer, end, trailer.bytes());
        self.add(PiecePlace::Buffer, leads);
        match payload {
            Payload::Request if is_copied && is_whole => drop(self.held.pop_back()),
            Payload::Request => {
                self.add(PiecePlace::Request { at, is_last: segment.last }, length);
            }
            Payload::Exposure(key, at) if !is_copied => {
                exposures.queue(key);
                self.add(PiecePlace::Exposure { key, at }, length);
            }
            Payload::Exposure(..) | Payload::None => {}
        }
        self.add(PiecePlace::Buffer, trailer.bytes().len());
    }

    fn add(&mut self, place: PiecePlace, bytes: usize) {
        self.bytes += bytes;
        match (place, self.pieces.back_mut()) {
            (PiecePlace::Buffer, Some(Piece { place: PiecePlace::Buffer, bytes: before })) => {
                *before += bytes;
            }
            _ => self.pieces.push_back(Piece { place, bytes }),
        }
    }

    /// Sends what the socket takes (system call).
    pub(super) fn send(
        &mut self,
        socket: impl AsFd,
        exposures: &mut Exposures,
    ) -> Result<(), Errno> {
        let moved = match self.pieces.len() {
            0 => return Ok(()),
            // Short messages, which are in the buffer.
            1..=FEW_PIECES => self.send_pieces::<FEW_PIECES>(socket, exposures),
            _ => self.send_pieces::<PIECES_MAX>(socket, exposures),
        };
        match moved {
            Moved::Bytes(bytes) => {
                self.advance(bytes, exposures);
                Ok(())
            }
            Moved::NotNow | Moved::End => Ok(()),
            Moved::Failed(error) => Err(error),
        }
    }

    fn send_pieces<const COUNT: usize>(&self, socket: impl AsFd, exposures: &Exposures) -> Moved {
        let mut slices = [IoSlice::new(&[]); COUNT];
        self.gather(&mut slices, exposures);
        socket::send(socket, &slices[..self.pieces.len().min(COUNT)])
    }

    fn gather<'a>(&'a self, into: &mut [IoSlice<'a>], exposures: &'a Exposures) {
        let (mut buffered, mut skipped) = (self.start, self.sent);
        let mut requests = self.held.iter();
        let mut request = requests.next();
        for (slice, piece) in into.iter_mut().zip(&self.pieces) {
            let bytes = match piece.place {
                PiecePlace::Buffer => {
                    // What has left of it is not in use any more.
                    let bytes = piece.bytes - skipped;
                    skipped = 0;
                    buffered += bytes;
                    &self.buffer[buffered - bytes..buffered]
                }
                PiecePlace::Request { at, is_last } => {
                    let bytes = request.map_or(&[][..], |(_, memory)| memory.bytes());
                    request = if is_last { requests.next() } else { request };
                    bytes.get(at..at + piece.bytes).unwrap_or_default()
                }
                PiecePlace::Exposure { key, at } => exposures.bytes(key, at, piece.bytes),
            };
            *slice = IoSlice::new(&bytes[std::mem::take(&mut skipped).min(bytes.len())..]);
        }
    }

    fn advance(&mut self, mut bytes: usize, exposures: &mut Exposures) {
        self.bytes -= bytes.min(self.bytes);
        while let Some(piece) = self.pieces.front() {
            let left = piece.bytes - self.sent;
            let now = left.min(bytes);
            if let PiecePlace::Buffer = piece.place {
                self.start += now;
            }
            if now < left {
                self.sent += now;
                break;
            }
            bytes -= now;
            self.sent = 0;
            let place = piece.place;
            self.pieces.pop_front();
            self.leave(place, exposures);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    fn leave(&mut self, place: PiecePlace, exposures: &mut Exposures) {
        match place {
            PiecePlace::Request { is_last: true, .. } => drop(self.held.pop_front()),
            PiecePlace::Exposure { key, .. } => exposures.left(key),
            PiecePlace::Request { .. } | PiecePlace::Buffer => {}
        }
    }

    /// Gives up everything that the socket does not have.
    pub(super) fn clear(&mut self, exposures: &mut Exposures) {
        while let Some(piece) = self.pieces.pop_front() {
            self.leave(piece.place, exposures);
        }
        self.held.clear();
        (self.start, self.end, self.sent, self.bytes) = (0, 0, 0, 0);
    }
}

/// Copies `bytes` to the buffer at `at`, and returns their end.
fn append(buffer: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    buffer[at..at + bytes.len()].copy_from_slice(bytes);
    at + bytes.len()
}
