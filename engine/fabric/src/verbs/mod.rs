//! The driver for RDMA devices, InfiniBand, RoCE and iWARP alike, through rdma-core.
//!
//! Two halves meet in `link`. The control half sets connections up with librdmacm, and takes them
//! down. It runs on a separate thread, because that takes a device milliseconds. The data half
//! belongs to a core: it posts work requests and polls completion queues. Only this module uses the
//! raw binding.
#![allow(unsafe_code)]

mod cm;
mod config;
mod connector;
mod control;
mod core;
mod device;
mod driver;
mod exposure;
mod link;
mod memory;
mod objects;
mod poll;
mod post;
mod queue_pair;
mod reads;
mod recv_queue;
mod resource_limits;
mod short_endpoint;
mod silence;
mod window_probe;
mod work_id;

pub use config::{Registration, VerbsConfig};
pub use connector::VerbsConnector;
pub(crate) use connector::leads_to;
pub use device::{DeviceCaps, DeviceInfo, devices};
pub use driver::VerbsFabric;
pub use short_endpoint::VerbsShortEndpoint;

#[cfg(all(test, not(loom)))]
mod tests;
