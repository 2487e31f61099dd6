//! Services of the machine: time, CPUs and their layout, memory mappings, files.
//!
//! May use std, libc, rustix and io-uring, and nothing of this crate. Everyone above may call it;
//! apart from [`clock`], and `file_ring`, which makes one call for many operations, none of it is
//! for the data path, as it makes system calls. `file_ring`, `file_handle` and `thread_identity`
//! are there with feature `file-io`; the engine itself uses none of them, they are for services
//! that keep files.
#![allow(unsafe_code)]

pub mod affinity;
pub mod clock;
mod closer;
pub mod cpu_claim;
pub mod credentials;
#[cfg(feature = "file-io")]
pub mod file_handle;
#[cfg(feature = "file-io")]
pub mod file_ring;
pub mod latency;
pub mod mmap;
pub mod peer_socket;
pub mod pinning;
pub mod random;
pub mod socket_file;
#[cfg(feature = "file-io")]
pub mod thread_identity;
pub mod topology;
