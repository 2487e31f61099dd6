//! Services of the kernel for back ends, and with feature `cephfs` those of libcephfs. The only module with `unsafe`.
//! May use std, libc, rustix, io-uring and the memory of the engine, and nothing else of this crate. Only
//! `file_ring`, which makes one call for many operations, is for the data path.
#![allow(unsafe_code)]

mod bulk;
#[cfg(feature = "cephfs")]
pub(crate) mod ceph;
pub(crate) mod file_handle;
pub(crate) mod file_ring;
pub(crate) mod thread_identity;
