//! Reading arguments and results, wherever their bytes came to lie.

use crate::mem::{Bulk, ExposedBulk};
use crate::reactor::types::rfc5666::{Padded, PulledChunks};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::{Beside, Found, StreamReader};
use spinrpc_proto::xdr::{DecodeError, Reader};

/// Writes arguments or results: plain XDR, and [`bulk`](Encoder::bulk) in the place of an
/// `opaque<>` whose bytes are in a registered buffer given with the stream. It never fails: a
/// stream that does not fit a short message continues in longer memory. The closure that writes
/// runs at most once.
pub use spinrpc_proto::chunking::StreamWriter as Encoder;

/// A data item of an argument or a result.
#[derive(Debug)]
pub enum Data<'a> {
    /// The item came in the message.
    Inline(&'a [u8]),
    /// The item was placed in registered memory, which now belongs to the application.
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

/// A data item of a result that may have been placed in memory of
/// [`Client::exposed_bulk`](crate::Client::exposed_bulk).
#[derive(Debug)]
pub enum ExposedData<'a> {
    /// The item was placed in memory that the server can still write.
    Exposed(ExposedBulk),
    /// The item came another way.
    Private(Data<'a>),
}

/// Reads arguments (in a handler) or results (in a reply). Every method returns a [`DecodeError`]
/// for bytes that do not fit; none panics, whatever a peer sent.
#[derive(Debug)]
pub struct Decoder<'a> {
    pub(super) stream: StreamReader<'a>,
    /// Buffers of a call's Read chunks or a reply's Write chunks.
    bulks: Bulks<'a>,
    /// Buffers of a reply's Read chunks.
    pulled: Bulks<'a>,
}

/// Items of a message that were skipped ([`Decoder::span`]), to be read as often as needed. It
/// borrows the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    bytes: &'a [u8],
    alignment: Alignment,
    /// Distance of the first byte from the start of the Send.
    start: usize,
}

impl<'a> Span<'a> {
    /// A decoder at the first of the items. Its positions count from there.
    pub fn decoder(&self) -> Decoder<'a> {
        Decoder::plain(self.bytes).aligned(self.alignment, self.start)
    }

    /// The bytes, if they are the items' XDR and nothing else: most are. Those of an RDMA_MSGP may have
    /// padding among them.
    #[inline]
    pub fn plain_bytes(&self) -> Option<&'a [u8]> {
        (self.alignment == Alignment::NONE).then_some(self.bytes)
    }

    /// Reads items, and passes over them: the next ones are read by the next call.
    ///
    /// # Errors
    /// That of `read`, after which nothing was skipped.
    pub fn read<T>(
        &mut self,
        read: impl FnOnce(&mut Decoder<'a>) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let mut from = self.decoder();
        let items = read(&mut from)?;
        let rest = from.xdr();
        (_, self.start) = rest.alignment();
        self.bytes = rest.rest();
        Ok(items)
    }
}

/// The buffers of the chunks of one kind, which are met in rising order.
#[derive(Debug, Default)]
struct Bulks<'a> {
    rest: &'a mut [Option<Bulk>],
    seen: usize,
}

/// Declares functions of [`Decoder`] that read a word or two.
macro_rules! read_words {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)+) => {
        impl Decoder<'_> {
            $(
                $(#[$doc])*
                #[inline]
                pub fn $name(&mut self) -> Result<$type, DecodeError> {
                    self.stream.xdr().$name()
                }
            )+
        }
    };
}

read_words! {
    /// Reads an unsigned integer.
    u32: u32;
    /// Reads an integer.
    i32: i32;
    /// Reads an unsigned hyper integer.
    u64: u64;
    /// Reads a hyper integer.
    i64: i64;
    /// Reads a boolean.
    bool: bool;
}

impl<'a> Decoder<'a> {
    /// Reads `bytes` that came another way than by a message of this engine, over TCP for example:
    /// plain XDR without chunks.
    pub fn plain(bytes: &'a [u8]) -> Self {
        Self::results(bytes, &[], &mut [])
    }

    /// Reads the arguments at byte `base` of a call.
    pub(super) fn arguments(
        stream: &'a [u8],
        base: usize,
        chunks: &'a [(u32, u32)],
        bulks: &'a mut [Option<Bulk>],
    ) -> Self {
        Self::new((stream, base), Beside::Reads(chunks), bulks, &mut [])
    }

    pub(super) fn results(
        stream: &'a [u8],
        placed: &'a [u32],
        bulks: &'a mut [Option<Bulk>],
    ) -> Self {
        Self::new((stream, 0), Beside::Writes(placed), bulks, &mut [])
    }

    /// Reads the results of a reply that had Read chunks.
    pub(super) fn pulled_results(
        stream: &'a [u8],
        placed: &'a [u32],
        bulks: &'a mut [Option<Bulk>],
        pulled: PulledChunks<'a>,
    ) -> Self {
        let beside = Beside::Both { reads: pulled.chunks, writes: placed };
        Self::new((stream, pulled.base), beside, bulks, pulled.bulks)
    }

    #[inline]
    fn new(
        (stream, base): (&'a [u8], usize),
        beside: Beside<'a>,
        bulks: &'a mut [Option<Bulk>],
        pulled: &'a mut [Option<Bulk>],
    ) -> Self {
        let stream = StreamReader::new(stream, base, beside);
        Self { stream, bulks: Bulks::of(bulks), pulled: Bulks::of(pulled) }
    }

    /// The same for a stream that came in an RDMA_MSGP: its data have padding before them (RFC 5666
    /// section 3.9).
    #[inline]
    pub(super) fn padded(mut self, padded: Option<Padded>) -> Self {
        if let Some(Padded { alignment, start }) = padded {
            self = self.aligned(alignment, start);
        }
        self
    }

    fn aligned(mut self, alignment: Alignment, start: usize) -> Self {
        let xdr = self.stream.xdr();
        *xdr = Reader::aligned(xdr.rest(), alignment, start);
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

    /// Bytes of the stream that were read, those in chunks not counted: where a [`DecodeError`] of
    /// the application's own says it is.
    pub fn position(&mut self) -> usize {
        self.stream.xdr().position()
    }

    /// Reads `opaque[length]`, whose bytes may have come in a Read chunk.
    #[inline]
    pub fn fixed(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        if !self.stream.has_reads() {
            return self.stream.xdr().fixed(length);
        }
        let found = self.stream.fixed(length)?;
        self.borrow(found)
    }

    /// Reads `length` bytes, and their padding, that are encodings of fixed length and cannot be in a chunk.
    #[inline]
    pub fn words(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        self.stream.xdr().fixed(length)
    }

    /// Reads a `string<max_bytes>`.
    #[inline]
    pub fn string(&mut self, max_bytes: usize) -> Result<&'a str, DecodeError> {
        self.stream.xdr().string(max_bytes)
    }

    /// Reads an `opaque<max_bytes>`, whose bytes may have come in a Read chunk; they are borrowed from
    /// there. In a reply this is for items that no buffer was given for.
    #[inline]
    pub fn opaque(&mut self, max_bytes: usize) -> Result<&'a [u8], DecodeError> {
        if !self.stream.has_reads() {
            return self.stream.xdr().opaque(max_bytes);
        }
        let found = self.stream.opaque(max_bytes)?;
        self.borrow(found)
    }

    #[cold]
    fn borrow(&mut self, found: Found<'a>) -> Result<&'a [u8], DecodeError> {
        let (bulk, length) = match found {
            Found::Inline(bytes) => return Ok(bytes),
            Found::Chunk { index, length } => (self.bulks.at(index), length),
            Found::Pulled { index, length } => (self.pulled.at(index), length),
        };
        let bulk = bulk.and_then(|bulk| bulk.as_ref()).filter(|bulk| !bulk.is_exposed());
        bulk.and_then(|bulk| bulk.bytes().get(..length)).ok_or(LOST)
    }

    /// Passes over items, to be decoded later from the [`Span`]: arrays and lists whose items differ in
    /// length. `walk` reads them, to find their end and to check them.
    ///
    /// # Errors
    /// The error of `walk`, after which the decoder has not moved. [`DecodeError::LimitExceeded`] if the
    /// bytes of one of the items are in a Read chunk: such items have to be decoded one by one.
    pub fn span(
        &mut self,
        walk: impl FnOnce(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<Span<'a>, DecodeError> {
        let xdr = self.stream.xdr();
        let (alignment, start) = xdr.alignment();
        let mut ahead = Self::over(xdr.clone());
        walk(&mut ahead)?;
        let bytes = self.stream.pass_to(ahead.stream.xdr())?;
        Ok(Span { bytes, alignment, start })
    }

    /// As [`Decoder::span`], faster, for items that are plain XDR: `measure` is given all bytes of the stream
    /// that were not read yet, and returns the number of those to pass over. Returns them.
    ///
    /// `None`, and the decoder has not moved, if `measure` returns that or more than there is; if
    /// data may have padding before them, as in an RDMA_MSGP; and if a Read chunk belongs among the
    /// bytes. [`Decoder::span`] then returns the error, if there is one.
    #[inline]
    pub fn pass_plain(
        &mut self,
        measure: impl FnOnce(&'a [u8]) -> Option<usize>,
    ) -> Option<&'a [u8]> {
        let xdr = self.stream.xdr();
        if xdr.alignment().0 != Alignment::NONE {
            return None;
        }
        let rest = xdr.rest();
        let length = measure(rest).filter(|length| length % 4 == 0 && *length <= rest.len())?;
        let mut end = self.stream.xdr().clone();
        end.fixed(length).ok()?;
        self.stream.pass_to(&end).ok()
    }

    /// Reads the bytes of `xdr`, without chunks.
    fn over(xdr: Reader<'a>) -> Self {
        let stream = StreamReader::over(xdr, 0, Beside::Reads(&[]));
        Self { stream, bulks: Bulks::default(), pulled: Bulks::default() }
    }

    /// Reads an `opaque<max_bytes>` with direct placement. Bytes that came in registered memory
    /// come with that memory: in a call that of the server's pool, in a reply the buffer given by
    /// [`CallSpec::result_into`](crate::CallSpec::result_into), its length set, or memory of the
    /// client's pool for a result that the engine had to fetch. A result in memory of
    /// [`Client::exposed_bulk`](crate::Client::exposed_bulk) is an error here.
    #[inline]
    pub fn data(&mut self, max_bytes: usize) -> Result<Data<'a>, DecodeError> {
        match self.exposed_data(max_bytes)? {
            ExposedData::Private(data) => Ok(data),
            ExposedData::Exposed(_) => Err(LOST),
        }
    }

    /// As [`Decoder::data`], for a result that may lie in memory of
    /// [`Client::exposed_bulk`](crate::Client::exposed_bulk).
    pub fn exposed_data(&mut self, max_bytes: usize) -> Result<ExposedData<'a>, DecodeError> {
        let (bulk, length) = match self.stream.item(max_bytes)? {
            Found::Inline(bytes) => return Ok(ExposedData::Private(Data::Inline(bytes))),
            Found::Chunk { index, length } => (self.bulks.at(index), length),
            Found::Pulled { index, length } => (self.pulled.at(index), length),
        };
        let mut bulk = bulk.and_then(Option::take).ok_or(LOST)?;
        if length > bulk.capacity() {
            return Err(LOST);
        }
        bulk.set_len(length);
        Ok(match bulk.is_exposed() {
            true => ExposedData::Exposed(ExposedBulk::new(bulk)),
            false => ExposedData::Private(Data::Bulk(bulk)),
        })
    }

    /// Every byte and every chunk was read: worth a check before acting on arguments.
    pub fn finish(self) -> Result<(), DecodeError> {
        self.stream.finish()
    }
}

impl<'a> Bulks<'a> {
    fn of(rest: &'a mut [Option<Bulk>]) -> Self {
        Self { rest, seen: 0 }
    }

    fn at(&mut self, index: usize) -> Option<&'a mut Option<Bulk>> {
        let rest = std::mem::take(&mut self.rest);
        let (_, rest) = rest.split_at_mut_checked(index.checked_sub(self.seen)?)?;
        let (bulk, rest) = rest.split_first_mut()?;
        self.rest = rest;
        self.seen = index + 1;
        Some(bulk)
    }
}

/// The chunk's memory is not there: it was taken before, or the peer placed more than was offered.
const LOST: DecodeError = DecodeError::LimitExceeded { what: "bytes in a chunk" };

#[cfg(test)]
mod tests {
    use super::*;

    /// Two strings and a word.
    const STRINGS: &[u8] = b"\0\0\0\x01a\0\0\0\0\0\0\x02bc\0\0\0\0\0\x07";

    fn two_strings(from: &mut Decoder<'_>) -> Result<(), DecodeError> {
        (0..2).try_for_each(|_| from.opaque(8).map(drop))
    }

    #[test]
    fn a_span_can_be_read_again_and_the_decoder_goes_on_behind_it() {
        let mut from = Decoder::plain(STRINGS);
        let span = from.span(two_strings).unwrap();
        assert_eq!(from.position(), 16);
        assert_eq!(from.u32(), Ok(7));
        for _ in 0..2 {
            let mut again = span.decoder();
            assert_eq!(again.opaque(8), Ok(&b"a"[..]));
            assert_eq!(again.opaque(8), Ok(&b"bc"[..]));
            assert_eq!(again.finish(), Ok(()));
        }
    }

    #[test]
    fn a_walk_that_fails_moves_nothing_and_names_the_place_in_the_message() {
        let mut from = Decoder::plain(&STRINGS[..12]);
        from.u32().unwrap();
        from.u32().unwrap();
        let failed = from.span(|ahead| ahead.opaque(8).map(drop)).unwrap_err();
        assert_eq!(failed, DecodeError::Truncated { at: 12, wanted: 4 });
        assert_eq!(from.position(), 8);
    }

    #[test]
    fn a_read_chunk_among_the_items_is_refused_and_one_behind_them_is_not() {
        let among = [(4, 1)];
        let mut from = Decoder::arguments(STRINGS, 0, &among, &mut []);
        assert!(matches!(from.span(two_strings), Err(DecodeError::LimitExceeded { .. })));
        assert_eq!(from.position(), 0);
        let behind = [(20, 1)];
        let mut from = Decoder::arguments(STRINGS, 0, &behind, &mut []);
        assert!(from.span(two_strings).is_ok());
    }

    #[test]
    fn plain_items_are_passed_by_their_length_unless_a_chunk_or_padding_is_possible() {
        let mut from = Decoder::plain(STRINGS);
        assert_eq!(from.pass_plain(|_| None), None);
        assert_eq!(from.pass_plain(|bytes| Some(bytes.len() + 4)), None);
        assert_eq!(from.pass_plain(|_| Some(3)), None);
        assert_eq!(from.position(), 0);
        assert_eq!(from.pass_plain(|_| Some(16)), STRINGS.get(..16));
        assert_eq!(from.u32(), Ok(7));
        let among = [(4, 1)];
        let mut from = Decoder::arguments(STRINGS, 0, &among, &mut []);
        assert_eq!(from.pass_plain(|_| Some(16)), None);
        let mut from = Decoder::plain(STRINGS).aligned(Alignment::new(16, 1), 0);
        assert_eq!(from.pass_plain(|_| Some(16)), None);
        assert_eq!(from.position(), 0);
    }

    #[test]
    fn words_of_fixed_length_are_read_at_once_or_not_at_all() {
        let mut from = Decoder::plain(&STRINGS[..10]);
        assert_eq!(from.words(8), Ok(&STRINGS[..8]));
        assert_eq!(from.words(4), Err(DecodeError::Truncated { at: 8, wanted: 4 }));
        assert_eq!(from.position(), 8);
    }

    #[test]
    fn a_span_with_padding_is_read_item_by_item() {
        let mut bytes = 4u32.to_be_bytes().to_vec();
        bytes.extend([0; 12]);
        bytes.extend(*b"data");
        bytes.extend(4u32.to_be_bytes());
        bytes.extend([0; 8]);
        bytes.extend(*b"more");
        let mut from = Decoder::plain(&bytes).aligned(Alignment::new(16, 1), 0);
        let two = |ahead: &mut Decoder<'_>| (0..2).try_for_each(|_| ahead.opaque(8).map(drop));
        let mut span = from.span(two).unwrap();
        assert_eq!(span.plain_bytes(), None);
        assert!(span.read(|from| from.opaque(1)).is_err());
        assert_eq!(span.read(|from| from.opaque(8)), Ok(&b"data"[..]));
        assert_eq!(span.read(|from| from.opaque(8)), Ok(&b"more"[..]));
        assert!(span.read(|from| from.opaque(8)).is_err());
    }

    #[test]
    fn padding_before_data_is_passed_in_a_span_as_in_its_message() {
        let mut bytes = 9u32.to_be_bytes().to_vec();
        bytes.extend(4u32.to_be_bytes());
        bytes.extend([0; 8]);
        bytes.extend(*b"data");
        let mut from = Decoder::plain(&bytes).aligned(Alignment::new(16, 1), 0);
        assert_eq!(from.u32(), Ok(9));
        let span = from.span(|ahead| ahead.opaque(8).map(drop)).unwrap();
        assert_eq!(span.decoder().opaque(8), Ok(&b"data"[..]));
        assert_eq!(from.finish(), Ok(()));
    }
}
