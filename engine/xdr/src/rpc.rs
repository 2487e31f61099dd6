//! Typed calls: the part of a stub that is the same for all programs.
//!
//! | calls are made | the reply comes | generated | with a [`CallSpec`] |
//! |---|---|---|---|
//! | on a core | to a [`ReplyHandler`](spinrpc::ReplyHandler) | `Client` | `Client` |
//! | on a thread with an engine of its own | when the call returns | `Blocking` | [`call_wait`] |
//! | from any thread | as a `Future`, or by [`TypedPending::wait`] | `Handle` | [`start`] |
//! | from any thread | to a function on the core | | [`start_on_core`] |
//! | from any thread | to an [`AnswerQueue`](spinrpc::AnswerQueue) | | [`start_to_queue`] |
//!
//! | calls are served | the results go | generated |
//! |---|---|---|
//! | by a function | at once, or by another thread: [`TypedCall::defer`] | `Service`, `Server` |
//! | by a future on the core, with [`async_service`](spinrpc::async_service) | when it ends: [`TypedResults`] | `AsyncService`, `AsyncServer` |

mod asynchronous;
mod handle;

use crate::codec::{Decode, Encode, whole};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

pub use asynchronous::{Answered, AnyResults, KeptCall, TypedArgs, TypedResults};
pub use handle::{TypedAnswer, TypedPending, start, start_on_core, start_to_queue};
pub use spinrpc::{
    AcceptStatus, AsyncService, Backpressure, Call, CallError, CallId, CallSpec, Client,
    ClientHandle, ConnectError, DecodeError, Deferred, Program, Reply, ReplyData, Service, Token,
    Version, blocking,
};

/// A procedure of a version of a program. Generated code has a type for each, which has no values of
/// use.
pub trait Procedure {
    /// Its number.
    const NUMBER: u32;
    /// Its arguments; `()` is void.
    type Args<'a>: Decode<'a> + Encode;
    /// Its results; `()` is void.
    type Results<'a>: Decode<'a> + Encode;
}

/// A value of the engine that belongs to a call of procedure `P`. It dereferences to that value.
#[must_use = "dropped, it ends the call"]
pub struct Typed<T, P> {
    inner: T,
    procedure: PhantomData<fn() -> P>,
}

impl<T, P> Typed<T, P> {
    /// The value, which the caller knows to belong to the procedure.
    pub fn of(inner: T) -> Self {
        Self { inner, procedure: PhantomData }
    }

    /// The value itself. A call or deferred call is rejected by it, or answered without types.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<T, P> Deref for Typed<T, P> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T, P> DerefMut for Typed<T, P> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// Without a bound on the value and the procedure, which need not be [`Debug`](fmt::Debug).
impl<T, P> fmt::Debug for Typed<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Typed").finish_non_exhaustive()
    }
}

/// A call of procedure `P`, to be answered once. Dropping it unanswered sends SYSTEM_ERR.
pub type TypedCall<'a, P> = Typed<Call<'a>, P>;

impl<'a, P: Procedure> TypedCall<'a, P> {
    /// Decodes the arguments of `call`. `None` if they are not those of the procedure, to the last
    /// byte: the call was answered with GARBAGE_ARGS.
    pub fn accept(mut call: Call<'a>) -> Option<(P::Args<'a>, Self)> {
        match whole(call.args()) {
            Ok(args) => Some((args, Self::of(call))),
            Err(_) => {
                call.reject(AcceptStatus::GarbageArgs);
                None
            }
        }
    }

    /// Answers with results.
    #[inline]
    pub fn reply(self, results: &P::Results<'_>) {
        self.inner.reply(|to| results.encode(to));
    }

    /// Answers with results whose items for direct placement ([`Placed::Beside`](crate::Placed)) are
    /// in `data`, in the same order.
    #[inline]
    pub fn reply_with(self, data: ReplyData, results: &P::Results<'_>) {
        self.inner.reply_with(data, |to| results.encode(to));
    }

    /// Takes the call out of the handler, to be answered later or by another thread. `None`, and
    /// SYSTEM_ERR, as [`Call::defer`].
    pub fn defer(self) -> Option<TypedDeferred<P>> {
        self.inner.defer().map(Typed::of)
    }
}

/// Answers PROC_UNAVAIL.
pub fn unavailable(call: Call<'_>) {
    call.reject(AcceptStatus::ProcUnavail);
}

/// A call of procedure `P` that is answered later, from any thread. Dropping it unanswered sends
/// SYSTEM_ERR.
pub type TypedDeferred<P> = Typed<Deferred, P>;

impl<P: Procedure> TypedDeferred<P> {
    /// Answers with results.
    pub fn reply(self, results: &P::Results<'_>) {
        self.inner.reply(|to| results.encode(to));
    }

    /// Answers with results and registered data, as [`TypedCall::reply_with`].
    pub fn reply_with(self, data: ReplyData, results: &P::Results<'_>) {
        self.inner.reply_with(data, |to| results.encode(to));
    }
}

/// The spec, with the longest results of procedure `P` if the caller has not given another length.
#[inline]
fn bounded<P: Procedure>(spec: &mut CallSpec) -> &mut CallSpec {
    spec.assume_reply_bytes_max(<P::Results<'static> as Decode<'static>>::BYTES_MAX)
}

/// Starts a call of procedure `P`, as [`Client::call`]. Its handler decodes the reply with
/// [`results`].
///
/// # Errors
/// [`Backpressure`]: nothing was sent.
#[inline]
pub fn call<P: Procedure>(
    client: &Client,
    token: Token,
    spec: &mut CallSpec,
    args: &P::Args<'_>,
) -> Result<CallId, Backpressure> {
    let started =
        client.call(spinrpc::Procedure(P::NUMBER), token, bounded::<P>(spec), |to| args.encode(to));
    // The caller may use the spec for another procedure.
    spec.assume_reply_bytes_max(None);
    started
}

/// Decodes the reply to a call of procedure `P`, to the last byte.
///
/// # Errors
/// [`DecodeError`] if they are not the results of the procedure.
#[inline]
pub fn results<'a, P: Procedure>(reply: &mut Reply<'a>) -> Result<P::Results<'a>, DecodeError> {
    whole(reply.results())
}

/// Calls procedure `P` and waits for the reply; `take` gets the results, which borrow from it.
///
/// # Errors
/// [`CallError`] says why there are no results, and whether to try again.
pub fn call_wait<P: Procedure, T>(
    client: &mut blocking::Client,
    spec: &mut CallSpec,
    args: &P::Args<'_>,
    take: impl FnOnce(P::Results<'_>) -> T,
) -> Result<T, CallError> {
    let procedure = spinrpc::Procedure(P::NUMBER);
    client.call_with(
        procedure,
        bounded::<P>(spec),
        |to| args.encode(to),
        |from| P::Results::decode(from).map(take),
    )
}
