//! Transport headers of RPC-over-RDMA: what precedes an RPC message in an RDMA Send.
//!
//! A received header is checked once, into a view that hands out bounded iterators; a header to
//! send is a `HeaderRepr`, which knows its own length. Used by the requester, the responder and
//! the connection; uses [`crate::xdr`] and [`crate::limits`] only.

mod chunk_list;
mod error;
mod reply;
mod segment;
pub mod v1;

pub use chunk_list::{ReadList, Segments, WriteChunk, WriteList};
pub use error::RdmaError;
pub use reply::{ReplyRepr, set_credits};
pub use segment::{ReadSegment, Segment};
