//! Transport headers of RPC-over-RDMA, which precede an RPC message in an RDMA Send.
//!
//! A received header is checked once, into a view that hands out bounded iterators; a header to
//! send is a [`HeaderRepr`], which knows its own length. Used by the requester, the responder and
//! the connection; uses [`crate::xdr`], [`crate::limits`] and the small types of [`crate::rpc`] and
//! [`crate::version`] only.

mod chunk_list;
mod error;
mod header;
mod reply;
mod segment;
mod sent;
pub mod v1;
pub mod v2;

pub use chunk_list::{ReadList, Segments, WriteChunk, WriteList};
pub use error::RdmaError;
pub(crate) use header::START_BYTES;
pub use header::{HeaderError, HeaderView, MessageType, emit_msg_header};
pub use reply::{ReplyRepr, set_credits};
pub use segment::{ReadSegment, Segment};
pub use sent::{Body, HeaderRepr, Lists, emit_error};
