//! The RDMA devices of a host and obstacles to using them, as reported by the kernel without
//! rdma-core. Programs print this to explain why a connection fails.
//!
//! Reads sysfs and `/proc`, and asks the C library for the addresses of network interfaces. Changes nothing.

mod addresses;
mod device;
mod memlock;

pub use addresses::interfaces;
pub use device::{Device, Gid, Port, Transport, devices};
pub use memlock::Memlock;
