//! The driver for hosts without an RDMA device: RDMAP over DDP over MPA (iWARP) over a TCP socket of the process.

#[doc(hidden)]
pub mod wire;
