//! The Read chunks of a reply, fetched, on their way to its handler.

use crate::mem::Bulk;
use std::mem::take;

/// The Read chunks of a reply: position and length of each, and the place of its bytes.
#[derive(Debug, Default)]
pub(crate) struct PulledChunks<'a> {
    pub(crate) chunks: &'a [(u32, u32)],
    pub(crate) bulks: &'a mut [Option<Bulk>],
    /// Offset of the results in the RPC message.
    pub(crate) base: usize,
}

impl<'a> PulledChunks<'a> {
    /// Takes the first one, which is the whole RPC message.
    pub(in crate::reactor) fn take_stream(&mut self) -> &'a [u8] {
        let Some((Some(stream), rest)) = take(&mut self.bulks).split_first_mut() else {
            return &[];
        };
        (self.chunks, self.bulks) = (&self.chunks[1..], rest);
        stream.bytes()
    }
}
