//! The Read chunks of a reply, fetched, on their way to its handler.

use crate::mem::Bulk;

/// The Read chunks of a reply: position and length of each, and the place of its bytes.
#[derive(Debug, Default)]
pub(crate) struct PulledChunks<'a> {
    pub(crate) chunks: &'a [(u32, u32)],
    pub(crate) bulks: &'a mut [Option<Bulk>],
    /// Offset of the results in the RPC message.
    pub(crate) base: usize,
}
