//! Reading arguments and results, wherever their bytes came to lie.

use crate::mem::Bulk;
use crate::reactor::chains::{Padded, Spill};
use spinrpc_proto::payload::{Beside, Found, StreamReader};
use spinrpc_proto::xdr::{DecodeError, Reader, roundup4};

/// Writes arguments or results: plain XDR, and [`bulk`](Encoder::bulk) where a registered buffer
/// given beside the stream stands as `opaque<>`. It never fails: what does not fit inline makes the
/// engine ask for the same stream again with more room, so the closure that writes must be
/// repeatable.
pub use spinrpc_proto::payload::StreamWriter as Encoder;

/// A data item of an argument or a result.
#[derive(Debug)]
pub enum Data<'a> {
    /// It came in the message.
    Inline(&'a [u8]),
    /// It was placed in registered memory, which is the application's now.
    Bulk(Bulk),
}

impl Data<'_> {
    /// The bytes, wherever they are.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Bulk(bulk) => bulk.bytes(),
        }
    }
}

/// Reads arguments (in a handler) or results (in a reply). Every method returns a [`DecodeError`]
/// for bytes that do not fit; none panics on what a peer sent.
#[derive(Debug)]
pub struct Decoder<'a> {
    stream: StreamReader<'a>,
    /// The buffers that were not looked at yet.
    bulks: &'a mut [Option<Bulk>],
    /// How many were.
    seen: usize,
    is_call: bool,
    /// What lies behind the end of the stream, in the second buffer of the receive.
    spill: Option<&'a mut Spill<'a>>,
}

impl<'a> Decoder<'a> {
    /// Reads the arguments at byte `base` of a call.
    pub(super) fn arguments(
        stream: &'a [u8],
        base: usize,
        chunks: &'a [(u32, u32)],
        bulks: &'a mut [Option<Bulk>],
    ) -> Self {
        let stream = StreamReader::new(stream, base, Beside::Reads(chunks));
        Self { stream, bulks, seen: 0, is_call: true, spill: None }
    }

    /// Reads the results of a reply.
    pub(super) fn results(
        stream: &'a [u8],
        placed: &'a [u32],
        bulks: &'a mut [Option<Bulk>],
    ) -> Self {
        let stream = StreamReader::new(stream, 0, Beside::Writes(placed));
        Self { stream, bulks, seen: 0, is_call: false, spill: None }
    }

    /// The same for a stream that came in an RDMA_MSGP: its data have padding before them
    /// (RFC 5666 section 3.9), and it may go on in the second buffer of its receive.
    #[inline]
    pub(super) fn padded(mut self, padded: Option<&'a mut Padded<'a>>) -> Self {
        if let Some(Padded { alignment, start, spill }) = padded {
            let xdr = self.stream.xdr();
            *xdr = Reader::aligned(xdr.rest(), *alignment, *start);
            self.spill = spill.as_mut();
        }
        self
    }

    /// A reader at its end.
    pub(super) fn exhausted() -> Self {
        Self::results(&[], &[], &mut [])
    }

    /// The plain XDR reader, for items that are decoded elsewhere.
    pub(crate) fn xdr(&mut self) -> &mut Reader<'a> {
        self.stream.xdr()
    }

    /// Reads an unsigned integer.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.stream.xdr().u32().or_else(|error| self.go_on(error, Self::u32))
    }

    /// Reads an integer.
    #[inline]
    pub fn i32(&mut self) -> Result<i32, DecodeError> {
        self.stream.xdr().i32().or_else(|error| self.go_on(error, Self::i32))
    }

    /// Reads an unsigned hyper integer.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.stream.xdr().u64().or_else(|error| self.go_on(error, Self::u64))
    }

    /// Reads a hyper integer.
    #[inline]
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        self.stream.xdr().i64().or_else(|error| self.go_on(error, Self::i64))
    }

    /// Reads a boolean.
    #[inline]
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        self.stream.xdr().bool().or_else(|error| self.go_on(error, Self::bool))
    }

    /// Reads `opaque[length]`.
    #[inline]
    pub fn fixed(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let read = self.stream.xdr().fixed(length);
        read.or_else(|error| self.go_on(error, |rest| rest.fixed(length)))
    }

    /// Reads a `string<max_bytes>`.
    #[inline]
    pub fn string(&mut self, max_bytes: usize) -> Result<&'a str, DecodeError> {
        let read = self.stream.xdr().string(max_bytes);
        read.or_else(|error| self.go_on(error, |rest| rest.string(max_bytes)))
    }

    /// Reads an `opaque<max_bytes>`. In a call its bytes may have come as a Read chunk; they are
    /// borrowed from there. In a reply this is for items without direct placement.
    #[inline]
    pub fn opaque(&mut self, max_bytes: usize) -> Result<&'a [u8], DecodeError> {
        if !self.is_call {
            let read = self.stream.xdr().opaque(max_bytes);
            return read.or_else(|error| self.opaque_behind(error, max_bytes));
        }
        match self.stream.item(max_bytes) {
            Ok(Found::Inline(bytes)) => Ok(bytes),
            Ok(Found::Chunk { index, length }) => {
                let bulk = self.bulk_at(index).and_then(|bulk| bulk.as_ref());
                bulk.and_then(|bulk| bulk.bytes().get(..length)).ok_or(LOST)
            }
            Err(error) => self.opaque_behind(error, max_bytes),
        }
    }

    /// Reads an `opaque<max_bytes>` with direct placement. Bytes that came in registered memory
    /// come with that memory: in a call that of the server's pool, in a reply the buffer given by
    /// [`CallSpec::result_into`](crate::CallSpec::result_into), its length set. With
    /// `rpc.msgp_align_bytes` inline bytes that begin where the second buffer of their receive
    /// begins come with that buffer, which starts at a page.
    pub fn data(&mut self, max_bytes: usize) -> Result<Data<'a>, DecodeError> {
        match self.stream.item(max_bytes) {
            Err(error) => self.data_behind(error, max_bytes),
            Ok(Found::Inline(bytes)) => Ok(Data::Inline(bytes)),
            Ok(Found::Chunk { index, length }) => {
                let mut bulk = self.bulk_at(index).and_then(Option::take).ok_or(LOST)?;
                if length > bulk.capacity() {
                    return Err(LOST);
                }
                bulk.set_len(length);
                Ok(Data::Bulk(bulk))
            }
        }
    }

    /// Every byte and every chunk was read: worth a check before acting on arguments.
    pub fn finish(mut self) -> Result<(), DecodeError> {
        let at = self.stream.xdr().position();
        self.stream.finish()?;
        match self.spill {
            Some(_) => Err(DecodeError::TrailingBytes { at }),
            None => Ok(()),
        }
    }

    /// The stream ends here, and `error` says so: goes on behind its end. The bytes of the item that
    /// lies in both buffers, and all behind it, are copied together.
    #[cold]
    fn go_on<T>(
        &mut self,
        error: DecodeError,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let spill = self.spill_for(error)?;
        let stream = self.stream.xdr();
        stream.go_on_in(spill.join(stream.rest()).ok_or(error)?);
        read(self)
    }

    /// What lies behind the end of the stream, if that is what `error` is about.
    fn spill_for(&mut self, error: DecodeError) -> Result<&'a mut Spill<'a>, DecodeError> {
        match error {
            DecodeError::Truncated { .. } | DecodeError::BadPadding { .. } => {
                self.spill.take().ok_or(error)
            }
            _ => Err(error),
        }
    }

    /// Data that begin in the second buffer are borrowed from there.
    #[cold]
    fn opaque_behind(
        &mut self,
        error: DecodeError,
        max_bytes: usize,
    ) -> Result<&'a [u8], DecodeError> {
        let behind = match self.is_call {
            true => self.stream.item_behind(),
            false => self.stream.xdr().opaque_at_end(),
        };
        let Some(length) = behind else { return self.go_on(error, |rest| rest.opaque(max_bytes)) };
        let bytes = self.spill_for(error)?.bytes();
        let (data, rest) = bytes.get(..length).zip(bytes.get(roundup4(length)..)).ok_or(error)?;
        match self.is_call {
            true => self.stream.pass_item(length, rest),
            false => self.stream.xdr().pass_opaque(length, rest),
        }
        Ok(data)
    }

    /// Data that begin in the second buffer come with it: the alignment was meant for that.
    #[cold]
    fn data_behind(
        &mut self,
        error: DecodeError,
        max_bytes: usize,
    ) -> Result<Data<'a>, DecodeError> {
        let Some(length) = self.stream.item_behind() else {
            return self.go_on(error, |rest| rest.data(max_bytes));
        };
        let taken = self.spill_for(error)?.take(length, roundup4(length));
        let (tail, rest) = taken.ok_or(error)?;
        self.stream.pass_item(length, rest);
        Ok(Data::Bulk(tail))
    }

    /// The buffer of chunk `index`; chunks are met in rising order.
    fn bulk_at(&mut self, index: usize) -> Option<&'a mut Option<Bulk>> {
        let rest = std::mem::take(&mut self.bulks);
        let (_, rest) = rest.split_at_mut_checked(index.checked_sub(self.seen)?)?;
        let (bulk, rest) = rest.split_first_mut()?;
        self.bulks = rest;
        self.seen = index + 1;
        Some(bulk)
    }
}

/// The chunk's memory is not there: it was taken before, or the peer placed more than was offered.
const LOST: DecodeError = DecodeError::LimitExceeded { what: "bytes in a chunk" };
