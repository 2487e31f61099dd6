//! C interface of spinrpc: the functions of `include/spinrpc.h`.
//!
//! Each topic is a file: engines, programs that are served, clients and their calls, decoders, registered
//! memory, files of NFS servers, and errors. Every exported function checks its pointers (`pointers`), catches panics and turns
//! errors into a status (`error`). `tests/header.rs` writes the header from these sources, so that doc
//! comments here are for readers of C.
//!
//! Version of the binary interface (`package.metadata.capi.library` in the manifest): a new function, a new
//! status or a field in the place of `reserved` raises the minor number; a change of anything that is there raises the
//! major number. While that is zero the minor number stands for it, and for both: it is part of the name that the loader
//! looks for (`build.rs`), so a program asks for the interface that it was compiled against. Before the first
//! release nothing is promised.
#![allow(unsafe_code)]
#![allow(
    clippy::missing_safety_doc,
    reason = "the head of the header has the rules for all functions"
)]

mod calls;
mod client;
mod decoder;
mod engine;
mod error;
mod log;
mod memory;
mod nfs;
mod pointers;
mod queue;
mod server;
mod slab;

pub use calls::*;
pub use client::*;
pub use decoder::*;
pub use engine::*;
pub use error::*;
pub use log::*;
pub use memory::*;
pub use nfs::*;
pub use queue::*;
pub use server::*;
pub use slab::*;

#[cfg(test)]
mod tests {
    use super::*;

    /// As the header says.
    #[test]
    fn objects_cross_threads() {
        fn shared<T: Send + Sync>() {}
        fn moved<T: Send>() {}
        shared::<RpcEngine>();
        shared::<RpcClient>();
        shared::<RpcQueue>();
        shared::<RpcSlab>();
        shared::<RpcNfs>();
        shared::<RpcNfsFile>();
        moved::<RpcMemory>();
        moved::<RpcDeferred>();
        // All that the decoder of an RpcAnswer borrows from.
        moved::<spinrpc::Answer>();
    }
}
