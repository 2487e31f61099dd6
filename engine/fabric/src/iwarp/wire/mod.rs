//! The protocol of iWARP without I/O: RDMAP (RFC 5040) over DDP (RFC 5041) over MPA (RFC 5044, started as in RFC 6581).
//!
//! Bytes of a TCP stream come in and go out; the driver owns sockets, memory and keys. Nothing here allocates after
//! [`Receiver::new`], and no input makes it panic.
//!
//! **Start.** The connecting side sends [`Local::request`]; the other side reads it with [`Frame::parse`] and sends what
//! [`Local::answer`] returns; [`Local::conclude`] reads that answer. Both ends then have [`Agreed`] terms. The connecting side
//! sends the first FPDU ([`Agreed::rtr`], or its first message), the other end nothing before
//! [`Receiver::has_received`].
//!
//! **Receiving.** The driver fills a ring of at least [`FPDU_BYTES_MAX`] bytes and calls [`Receiver::next`] with all of its
//! [`Readable`] bytes. [`Parsed::Need`] asks for more bytes. [`Parsed::Done`] is one whole FPDU, its CRC verified: the driver
//! acts on the [`Event`], which has payload as a range of the readable bytes, and then frees [`Arrival::bytes`]. Bounds and
//! rights of keys are the driver's to check, before it places a byte; if it refuses, it picks the [`Fault`].
//!
//! **Sending.** A [`Sender`] has one own message and one Read Response in progress. The driver fills either place while it
//! is free ([`Sender::start`], [`Sender::respond`]) and calls [`Sender::next`], which writes the header of the next FPDU and
//! names the payload behind it. [`Segment::trailer`] is pad and CRC.
//!
//! **Reads.** [`Receiver::expect_read`] counts against ORD and tells which Read Response may come; it precedes
//! [`Sender::start`] of the Read, in the same order. A Read Request counts against IRD until
//! [`Receiver::request_answered`].
//!
//! **Errors.** A [`Fault`] ends the stream: the driver sends [`Terminate::about`] it ([`Sender::terminate`]) and closes.
#![forbid(unsafe_code)]

mod ddp;
mod fault;
mod fpdu;
mod rdmap;
mod receive;
mod send;
mod start;
#[cfg(all(test, not(loom)))]
mod tests;

pub use fault::{Fault, TerminateCode};
pub use fpdu::{Crc, FPDU_BYTES_MAX, Parsed, Readable, Trailer};
pub use rdmap::{ReadRequest, Terminate};
pub use receive::{Arrival, Event, ReadSink, Receiver};
pub use send::{
    Busy, HEADER_BYTES_MAX, Message, ReadResponse, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, Segment,
    Sender, Source,
};
pub use start::{
    Agreed, Answer, Enhanced, FRAME_BYTES_MAX, Frame, FrameError, FrameKind, Local,
    PRIVATE_DATA_BYTES_MAX, ReplyError, Rtr, RtrKinds,
};
