//! A wrapper of drivers that records the messages that a core sends and receives, for Wireshark.
//!
//! A core that is captured copies every packet it posts or receives into its own ring. One thread
//! per capture makes pcapng of the records of all cores. Packets are written in the form of RoCE
//! version 2. The setup and the end of a connection are written as messages of its connection
//! manager, so that `tshark -r FILE` finds RPC-over-RDMA in the file without further options.
//!
//! * Noted are Sends with all their bytes, RDMA Reads and Writes that this side makes with the start
//!   of their data ([`CaptureSink::snap_bytes`]), and each connection's private data.
//! * What a peer reads from or writes to memory here is not: no processor of this side sees it. Such
//!   transfers are in the capture of the side that makes them, the Responder.
//! * Wireshark shows calls of programs it does not know as such when it is told to:
//!   `tshark -o rpc.dissect_unknown_programs:TRUE -r FILE`. Messages of fewer than 16 bytes, which no
//!   RPC-over-RDMA message has, it calls malformed.
//! * Wireshark decodes version one of RPC-over-RDMA. Messages of version two are in the file, too, and
//!   it shows their bytes.
//! * Addresses, queue pair numbers and packet sequence numbers are made up; no acknowledgement is
//!   told. In a capture of both ends every message is there twice, as sent and as received, in two
//!   conversations.
//!
//! The cost is two copies and one reading of a clock for each packet of up to 4096 bytes, on the
//! core, and the rings. A core never waits for the writer: packets that do not fit are dropped,
//! counted, and marked in the file. An engine without a capture has none of this code in its cores.
//!
//! Uses `mem`, `sync` and `sys`; the api wraps a driver with it where an engine is made.

mod connector;
mod driver;
mod file;
mod frame;
mod management;
mod pcapng;
mod record;
mod session;
#[cfg(all(test, not(loom)))]
mod tests;
mod wire;
mod writer;

#[doc(hidden)]
pub use connector::CaptureConnector;
#[doc(hidden)]
pub use driver::Capture;
pub use session::{CaptureCounters, CaptureSink};
