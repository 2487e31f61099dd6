//! The RDMA devices of a host and what stands in their way, as the kernel tells it without
//! rdma-core: programs show it to people who want to know why there is no connection.
//!
//! Reads sysfs, `/proc` and, for the addresses of network interfaces, a netlink socket. Nothing is
//! changed. `spinperf` calls it.

mod addresses;
mod device;
mod memlock;

pub use addresses::{Interface, interfaces};
pub use device::{Device, Gid, Port, Transport, devices};
pub use memlock::Memlock;
