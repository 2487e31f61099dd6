//! Decoding of padded data, and of a message that goes on in the second buffer of its receive (RFC 5666 section 3.9).

use crate::api::codec::{Data, Decoder};
use crate::reactor::types::rfc5666::{Padded, Spill};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::xdr::{DecodeError, Reader, roundup4};

impl<'a> Decoder<'a> {
    /// The same for a stream that came in an RDMA_MSGP: its data have padding before them
    /// (RFC 5666 section 3.9), and it may go on in the second buffer of its receive.
    #[inline]
    pub(in crate::api) fn padded(mut self, padded: Option<Padded<'a>>) -> Self {
        if let Some(Padded { alignment, start, spill }) = padded {
            self = self.aligned(alignment, start);
            self.spill = spill;
        }
        self
    }

    /// The same for one that is whole in one buffer.
    pub(in crate::api) fn aligned(mut self, alignment: Alignment, start: usize) -> Self {
        let xdr = self.stream.xdr();
        *xdr = Reader::aligned(xdr.rest(), alignment, start);
        self
    }

    /// The stream ends here, as `error` tells: continues behind its end. The bytes of the item that
    /// lies in both buffers, and all behind it, are copied together.
    #[cold]
    pub(in crate::api) fn go_on<T>(
        &mut self,
        error: DecodeError,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let spill = self.spill_for(error)?;
        let stream = self.stream.xdr();
        stream.go_on_in(spill.join(stream.rest()).ok_or(error)?);
        read(self)
    }

    /// Bytes behind the end of the stream, if `error` is about running past that end.
    fn spill_for(&mut self, error: DecodeError) -> Result<Spill<'a>, DecodeError> {
        match error {
            DecodeError::Truncated { .. } | DecodeError::BadPadding { .. } => {
                self.spill.take().ok_or(error)
            }
            _ => Err(error),
        }
    }

    /// Data that begin in the second buffer are borrowed from there.
    #[cold]
    pub(in crate::api) fn opaque_behind(
        &mut self,
        error: DecodeError,
        max_bytes: usize,
    ) -> Result<&'a [u8], DecodeError> {
        let Some(length) = self.stream.opaque_behind() else {
            return self.go_on(error, |rest| rest.opaque(max_bytes));
        };
        let bytes = self.spill_for(error)?.bytes();
        let (data, rest) = bytes.get(..length).zip(bytes.get(roundup4(length)..)).ok_or(error)?;
        self.stream.xdr().pass_opaque(length, rest);
        Ok(data)
    }

    /// Data that begin in the second buffer come with it: the alignment was meant for that.
    #[cold]
    pub(in crate::api) fn data_behind(
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
}

/// Padding of a message that was copied out of its turn.
#[derive(Clone, Copy, Default)]
pub(in crate::api) struct KeptPadding(
    /// Alignment, and the offset of the stream in the message; none for most messages.
    Option<(Alignment, usize)>,
);

impl KeptPadding {
    /// Padding of `padded`, whose second part is appended to the copy of its first one.
    pub(in crate::api) fn keep(padded: Option<Padded<'_>>, copy: &mut Vec<u8>) -> Self {
        Self(padded.map(|padded| {
            if let Some(spill) = padded.spill {
                copy.extend_from_slice(spill.bytes());
            }
            (padded.alignment, padded.start)
        }))
    }

    pub(in crate::api) fn of<'a>(self, decoder: Decoder<'a>) -> Decoder<'a> {
        match self.0 {
            Some((alignment, start)) => decoder.aligned(alignment, start),
            None => decoder,
        }
    }
}
