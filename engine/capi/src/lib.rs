//! C interface of spinrpc: the functions of `include/spinrpc.h`.
//!
//! Each topic is a file: engines, programs that are served, clients and their calls, decoders, registered
//! memory, and errors. Every exported function checks its pointers (`pointers`), catches panics and turns
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
mod memory;
mod pointers;
mod queue;
mod server;
mod slab;

pub use calls::{
    AnswerCallback, CallOptions, SPINRPC_CALL_IDEMPOTENT, spinrpc_call, spinrpc_call_wait,
};
pub use calls::{RpcAnswer, spinrpc_answer_free, spinrpc_answer_results};
pub use client::SPINRPC_CONNECT_RECONNECT;
pub use client::{
    ClientOptions, RpcClient, spinrpc_client_close, spinrpc_client_connect, spinrpc_client_free,
    spinrpc_client_memory, spinrpc_client_wait_up,
};
pub use decoder::{
    RpcDecoder, spinrpc_decode_data, spinrpc_decode_finish, spinrpc_decode_opaque,
    spinrpc_decode_rest, spinrpc_decode_u32, spinrpc_decode_u64,
};
pub use engine::{
    ListenerOptions, RpcEngine, spinrpc_engine_drain, spinrpc_engine_free, spinrpc_engine_join,
    spinrpc_engine_listen, spinrpc_engine_new, spinrpc_engine_shutdown, spinrpc_engine_start,
};
pub use error::{Status, spinrpc_last_error_message, spinrpc_status_name};
pub use memory::{
    DataItem, RpcMemory, spinrpc_memory_capacity, spinrpc_memory_data, spinrpc_memory_free,
    spinrpc_memory_length, spinrpc_memory_set_length,
};
pub use queue::{
    RpcQueue, spinrpc_call_queued, spinrpc_queue_arm, spinrpc_queue_fd, spinrpc_queue_free,
    spinrpc_queue_new, spinrpc_queue_next,
};
pub use server::{
    Rejection, RequestHandler, RpcDeferred, RpcRequest, spinrpc_deferred_free,
    spinrpc_deferred_memory, spinrpc_deferred_reject, spinrpc_deferred_reply, spinrpc_engine_serve,
    spinrpc_request_defer, spinrpc_request_memory, spinrpc_request_reject, spinrpc_request_reply,
};
pub use slab::{
    RpcSlab, spinrpc_slab_available, spinrpc_slab_free, spinrpc_slab_from_memfd, spinrpc_slab_new,
    spinrpc_slab_take,
};

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
        moved::<RpcMemory>();
        moved::<RpcDeferred>();
        // All that the decoder of an RpcAnswer borrows from.
        moved::<spinrpc::Answer>();
    }
}
