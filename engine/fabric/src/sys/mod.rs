//! Services of the machine: time, CPUs and their layout, memory mappings, sockets.
//!
//! May use libraries of the system and for threads, and of this crate only the lock and the instructions of [`sync`](crate::sync). Everyone above may call it;
//! apart from [`clock`] none of it is for the data path, as it makes system calls.
#![allow(unsafe_code)]

pub mod affinity;
pub mod clock;
mod close_thread;
pub mod cpu_claim;
pub mod credentials;
pub mod journal;
pub mod line_server;
pub(crate) mod mailbox;
pub mod mmap;
pub mod peer_socket;
pub mod pinning;
pub mod pm_qos;
pub mod random;
pub mod socket_file;
pub(crate) mod socket_option;
pub mod topology;
