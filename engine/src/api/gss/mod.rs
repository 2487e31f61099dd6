//! RPCSEC_GSS (RFC 2203): calls that prove who makes them, and whose arguments and results are protected.
//!
//! A server is given a mechanism that accepts contexts ([`Engine::gss`](crate::Engine::gss)), a client one that
//! establishes them ([`ConnectOptions::gss`](crate::ConnectOptions::gss)). A client is
//! [`Up`](crate::ConnectionEvent::Up) when its context is there, and every call of it goes under that context.
//! [`Call::identity`](crate::Call::identity) tells a handler who calls; until the verifier has been checked, and the body
//! with [`GssService::Integrity`] and [`GssService::Privacy`], a call reaches no handler. Mechanisms run on a thread of
//! their own and may block.
//!
//! With [`GssService::None`] data go to and from registered buffers as ever. With the other two they stand in the message
//! (RFC 8166 section 8.2.2.3), so that they are copied, and long messages go by one chunk.
//!
//! Limits: a body is sealed or opened in one step, which takes about a millisecond for a mebibyte, and its core serves nothing
//! else meanwhile. A call that is denied because its context has gone ends with
//! [`CallError::Rejected`](crate::CallError::Rejected); the client then establishes another context by itself, and refuses calls with
//! [`Backpressure::Connecting`](crate::Backpressure::Connecting) until that is there. Calls in reverse cannot go under
//! RPCSEC_GSS. Messages of extensions of version two have no credential and are not protected: a client with a context sends
//! none, and takes none as an answer.

mod accept;
mod initiate;
mod securing;
mod serve;
mod threads;

pub use accept::GssAcceptor;
pub use initiate::GssInitiator;
pub(super) use securing::Securing;
pub use spinrpc_gss::context::Established;
pub use spinrpc_gss::mechanism;
pub use spinrpc_gss::{Enctype, SessionKey};
pub use spinrpc_proto::rpc::GssService;
pub(super) use threads::{GssCore, GssShared};
