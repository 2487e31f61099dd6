//! The RDMA devices of a host and obstacles to using them, as reported by the kernel without
//! rdma-core. Programs print this to explain why a connection fails.
//!
//! Reads sysfs, `/proc` and, for the addresses of network interfaces, a netlink socket. Changes
//! nothing. `spinperf` calls it.

mod addresses;
mod device;
mod memlock;

pub use addresses::{Interface, interfaces};
pub use device::{Device, Gid, Port, Transport, devices};
pub use memlock::Memlock;
