//! Typed calls from any thread, by a [`ClientHandle`]. Called by generated code and by applications; may use the
//! codec traits and the engine's handles only.

use super::{Procedure, Typed, bounded};
use crate::codec::{Encode, whole};
use spinrpc::{
    Answer, AnswerQueue, Backpressure, CallError, CallSpec, ClientHandle, DecodeError, OnAnswer,
    PendingCall, Token,
};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A call of procedure `P` that has not ended: a [`Future`] of its answer, for any executor, or to be waited for.
/// Dropped before the answer is there, it cancels the call, as [`PendingCall`].
pub type TypedPending<P> = Typed<PendingCall, P>;

impl<P: Procedure> TypedPending<P> {
    /// Blocks the thread until the answer is there.
    ///
    /// # Errors
    /// As [`PendingCall::wait`].
    pub fn wait(self) -> Result<TypedAnswer<P>, CallError> {
        self.inner.wait().map(Typed::of)
    }
}

impl<P: Procedure> Future for TypedPending<P> {
    type Output = Result<TypedAnswer<P>, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.inner).poll(context).map_ok(Typed::of)
    }
}

/// A successful answer to a call of procedure `P`. It takes one of the calls that a core has in flight
/// (`Config::handle_calls`) until it is dropped.
pub type TypedAnswer<P> = Typed<Answer, P>;

impl<P: Procedure> TypedAnswer<P> {
    /// Decodes the results, to the last byte. They borrow from the answer. Data that were placed in registered
    /// memory come with the first call.
    ///
    /// # Errors
    /// [`DecodeError`] if they are not the results of the procedure.
    pub fn results(&mut self) -> Result<P::Results<'_>, DecodeError> {
        whole(self.inner.results())
    }
}

/// Starts a call of procedure `P` from any thread, as [`ClientHandle::start`], and returns at once.
///
/// ```
/// use spinrpc::{CallSpec, Config, ConnectOptions, CoreContext, Engine, Program, Version};
/// use spinrpc_xdr::rpc::{self, TypedCall};
///
/// /// Code generated from `unsigned int DOUBLE(unsigned int) = 1;` has this type.
/// struct Double;
/// impl rpc::Procedure for Double {
///     const NUMBER: u32 = 1;
///     type Args<'a> = u32;
///     type Results<'a> = u32;
/// }
///
/// let (program, version) = (Program(0x2000_0001), Version(1));
/// let engine = Engine::new(Config::default())?;
/// engine.serve(program, version, |_: &CoreContext| {
///     |call: rpc::Call<'_>| {
///         if let Some((number, call)) = TypedCall::<Double>::accept(call) {
///             call.reply(&(2 * number));
///         }
///     }
/// })?;
/// engine.listen("shm:doc-xdr-start")?;
/// let running = engine.start()?;
///
/// let client = engine.connect(0, "shm:doc-xdr-start", program, version, &ConnectOptions::new())?;
/// // Or `.await` instead of `wait()`.
/// let mut answer = rpc::start::<Double>(&client, CallSpec::new(), &21)?.wait()?;
/// assert_eq!(answer.results()?, 42);
/// drop((answer, client));
/// engine.shutdown();
/// running.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`ClientHandle::start`].
pub fn start<P: Procedure>(
    client: &ClientHandle,
    mut spec: CallSpec,
    args: &P::Args<'_>,
) -> Result<TypedPending<P>, Backpressure> {
    bounded::<P>(&mut spec);
    let call = client.start(spinrpc::Procedure(P::NUMBER), spec, |to| args.encode(to))?;
    Ok(Typed::of(call))
}

/// As [`start`]; the answer comes to `queue`, with this token. [`Typed::of`] gives it its type.
///
/// # Errors
/// As [`ClientHandle::start_to_queue`].
pub fn start_to_queue<P: Procedure>(
    client: &ClientHandle,
    queue: &AnswerQueue,
    token: Token,
    mut spec: CallSpec,
    args: &P::Args<'_>,
) -> Result<(), Backpressure> {
    bounded::<P>(&mut spec);
    let procedure = spinrpc::Procedure(P::NUMBER);
    client.start_to_queue(queue, token, procedure, spec, |to| args.encode(to))
}

/// As [`start`]; `on_answer` runs on the thread of the core, as [`ClientHandle::start_on_core`] says. It decodes the
/// reply with [`results`](super::results).
///
/// # Errors
/// As [`ClientHandle::start_on_core`].
pub fn start_on_core<P: Procedure>(
    client: &ClientHandle,
    on_answer: &std::sync::Arc<OnAnswer>,
    token: Token,
    mut spec: CallSpec,
    args: &P::Args<'_>,
) -> Result<(), Backpressure> {
    bounded::<P>(&mut spec);
    let procedure = spinrpc::Procedure(P::NUMBER);
    client.start_on_core(on_answer, token, procedure, spec, |to| args.encode(to))
}
