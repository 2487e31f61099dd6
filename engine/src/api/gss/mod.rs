//! RPCSEC_GSS (RFC 2203): calls that prove who makes them, and whose arguments and results are protected.
//!
//! A server is given a mechanism that accepts contexts ([`Engine::gss`](crate::Engine::gss)), a client one that
//! establishes them ([`ConnectOptions::gss`](crate::ConnectOptions::gss)). A client is
//! [`Up`](crate::ConnectionEvent::Up) when its context is there, and every call of it goes under that context.
//! [`Call::identity`](crate::Call::identity) tells a handler who calls; until the verifier has been checked, and the body
//! with [`GssService::Integrity`] and [`GssService::Privacy`], a call reaches no handler. Mechanisms run on threads of
//! their own and may block.
//!
//! With [`GssService::None`] data go to and from registered buffers as ever. With the other two they stand in the message
//! (RFC 8166 section 8.2.2.3), so that they are copied, and long messages go by one chunk. Under RFC 5666 and its drafts the body
//! of a message may be a Read chunk, and a message may be padded (RDMA_MSGP): such messages are taken, and not sent.
//!
//! Kerberos is the mechanism with the feature `krb5` (`Kerberos`). Servers can demand protection for all programs
//! ([`GssAcceptor::require`]).
//!
//! A core seals and unseals short bodies itself, and leaves bodies of more than 32 KiB (`Config::gss_at_once_bytes`) to two threads of
//! its own, so that its other connections do not wait for them. Connections take turns there. Short calls may overtake long ones, as they
//! overtake calls whose data are being fetched. A long call has its slot and its credit when it is made, and leaves when its
//! arguments are sealed: over shared memory it is copied then to memory that the server can read, for which it needs a second
//! block until it has left. Sealed and unsealed at once are long calls that are sent again by another connection, and bodies for
//! which there is no place: one for each four of the longest blocks of a core's memory (`mem.arena_mib`), 64 at most, of which a
//! connection may have half.
//!
//! A server may deny to establish contexts over the connection, and offer another transport for that: see
//! [`GssInitiator::fallback`].
//!
//! A call that is denied because its context has gone was not executed, and is sent again under another context, once,
//! whatever [`CallSpec::resend`](crate::CallSpec::resend) says; its first [`CallId`](crate::CallId) cancels it all the same, and
//! its deadline ends it. A call of which this side has kept nothing ends with
//! [`CallError::Rejected`](crate::CallError::Rejected): one longer than 8 KiB that may not be sent again by another
//! connection, under a context that is known to be in use; one with an exposed argument; and one that found half of the
//! blocks for it in use. One that an earlier connection may have executed ends with
//! [`CallError::Disconnected`](crate::CallError::Disconnected). The client establishes another context by itself then, and refuses calls with
//! [`Backpressure::Connecting`](crate::Backpressure::Connecting) until that is there.
//!
//! Before its own context ends, the client establishes another one by the clock, an eighth of its life or ten seconds before:
//! calls go on under the first until the other is there, and replies to them are verified with its keys. If none can be had in seven tries, the
//! connection is closed; a mechanism that has not returned in `Config::gss_mechanism_time` has failed such a try. The server is told
//! when it may forget a context that was replaced. It forgets one that no call has used after `Config::gss_unused`.
//!
//! A call that is not answered holds up those that are a whole window of the server later
//! than it ([`Backpressure::NoCredit`](crate::Backpressure::NoCredit)); servers of this engine tell a window of 2048. Calls in
//! reverse cannot go under RPCSEC_GSS.
//!
//! With `rpc.ccp_auth = "gss"` the Connection Configuration Protocol is asked under the context, before any other call (RFC
//! 5666 section 11), and denied to clients without one. A client under [`GssService::None`], whose arguments nothing
//! protects, does not ask then.
//!
//! [`Engine::gss_stats`](crate::Engine::gss_stats) counts contexts, calls by their service, and what was refused. The control
//! socket shows these counters (`gss` in a [snapshot](crate::control)), and `spinperf metrics` reports them.
//!
//! With [`GssService::None`] and [`GssService::Integrity`] anybody can read what is sent. The verifier of a reply proves
//! that the server has answered that call; results are protected beyond that by the other two services, and neither the
//! status of a reply nor results without a byte are under any of them.
//!
//! Bodies are checked and unsealed in memory that no peer can write to. The exception is `verbs.registration = "pool"`: its key lets
//! every peer write all memory of a core at any time, so that a peer can change a body, of its own calls or of others, after that was
//! checked. Do not combine it with peers that have to prove who they are.
//!
//! Verifiers and the frames of bodies take 28 to 200 bytes of a message. Replies that were just short enough without them
//! need a Reply chunk: say how long results can be by
//! [`CallSpec::reply_bytes_max`](crate::CallSpec::reply_bytes_max), or such a call fails with ERR_CHUNK.
//!
//! Not there yet:
//!
//! * Threads of a core seal and unseal long bodies, so that they need a CPU beside those of the cores. Their arguments and results are
//!   written and copied at once: that takes a core about a tenth of a millisecond for a mebibyte.
//! * Of mechanisms of clients that never return, four keep their threads, and then no client of the engine gets a context;
//!   of a server, eight, which tokens of at least four hosts can take.
//! * Where a core has no memory left for the copy of a call, that is answered SYSTEM_ERR at once, without being executed: it
//!   does not wait `Config::memory_wait`. Replies that find none are answered SYSTEM_ERR after their call was executed.
//! * A context that has been forgotten by its server is replaced while calls wait; and so is one that is about to end when
//!   the key distribution center or the server has not given another one in time, or no credit was free for its tokens.
//! * A client does not hear that its context is replaced.
//! * Contexts end by a clock that is up to 10 ms late. Clients stop using a context that much earlier; servers may take calls that much
//!   longer.
//! * A context is that of one connection, and another connection of the client gets another one.
//! * While calls are sent again over a new connection, a server that forgets its context meanwhile denies them one by one.
//! * A long call whose header is among what a server has no memory for is answered ERR_CHUNK, where the connection has had a call
//!   under a context. Before that, the answer is SYSTEM_ERR without a verifier, which the client takes for forged.
//! * A mechanism of a client that is no longer needed is dropped on a thread for that, on the thread on which it was working, or on the core
//!   that had the client. On a core its destructor holds up all connections. Four that never return on threads for mechanisms keep all of
//!   these; one that never returns on the thread for that keeps the mechanisms that come after it in memory: 256, and then clients get
//!   no context.
//! * The table of contexts may be full of contexts in use: then new ones replace each other until a call has used them.
//! * What is required of calls ([`GssAcceptor::require`]) is required for all programs of an engine.
//! * Keys are cleared when they are dropped. Core dumps leave the keys of contexts out (`MADV_DONTDUMP`), and the stack of the
//!   thread on which they were derived is overwritten, but values that are moved may leave copies in memory. Memory of the
//!   mechanism's own (MIT's library, its ticket cache and keytab), generators of confounders, and the running hashes of messages that
//!   are being processed are dumped. Of a key of a context these have the inner half of an HMAC and never a key of AES.

mod acceptor;
mod client_context;
mod context_threads;
mod initiator;
mod initiator_threads;
mod keys;
mod other_transport;
mod server;
mod stats;
mod tcp_contexts;
mod unseal_reply;

pub use acceptor::GssAcceptor;
pub(super) use client_context::{GssClientState, NOT_AUTHENTIC};
pub(super) use context_threads::{GssCore, GssShared};
pub use initiator::{Awaited, GssInitiator};
pub use spinrpc_gss::context::Established;
#[cfg(feature = "krb5")]
pub use spinrpc_gss::library::{AcceptorOptions, Fault, InitiatorOptions, Kerberos, KerberosError};
pub use spinrpc_gss::mechanism;
pub use spinrpc_gss::{Enctype, SessionKey};
/// Clock of mechanisms: nanoseconds of the system's monotonic clock, exact to some milliseconds.
pub use spinrpc_proto::ids::Instant;
pub use spinrpc_proto::rpc::GssService;
pub use stats::GssStats;
