//! What the machine offers: time, CPUs and their layout, memory mappings.
//!
//! May use std, libc and rustix, and nothing of this crate. Everyone above may call it; apart from
//! [`clock`], none of it is for the data path, as it makes system calls.
#![allow(unsafe_code)]

pub mod affinity;
pub mod clock;
pub mod mmap;
pub mod random;
pub mod topology;
