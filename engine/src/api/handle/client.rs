//! A connection as it is held by threads other than its core.

use super::answer::PendingCall;
use super::call::{Destination, OnAnswer, Waiter};
use super::pool::{CallGuard, Order, Pool, When};
use super::queue::AnswerQueue;
use crate::api::client::{Token, credential_of};
use crate::api::client_state::ConnectTo;
use crate::api::codec::{Decoder, Encoder};
use crate::api::errors::{CallError, ConnectError};
use crate::mem::{Bulk, BulkPool, ExposedBulk};
use crate::reactor::{Backpressure, CallSpec};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{lock, wait_for_change};
use spinrpc_proto::ids::Procedure;
use spinrpc_proto::rpc::{AUTH_BODY_MAX_BYTES, AuthSys, OpaqueAuth};
use spinrpc_proto::xdr::DecodeError;
use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

thread_local! {
    /// This thread's memory for the arguments that it writes.
    static MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// State of the connection of a handle, for its threads.
#[derive(Default)]
pub(in crate::api) struct Connection {
    state: Mutex<State>,
    changed: Condvar,
    is_up: AtomicBool,
    /// The connection has gone, or never came up.
    is_over: AtomicBool,
    pub(super) memory: OnceLock<BulkPool>,
}

#[derive(Clone, Default)]
pub(super) enum State {
    #[default]
    Connecting,
    /// Another attempt follows.
    Retrying(ConnectError),
    /// With the memory of the connection, if the application may have it.
    Up(Option<BulkPool>),
    Failed(ConnectError),
    Down,
}

impl Connection {
    fn failure(&self) -> Option<ConnectError> {
        match &*lock(&self.state) {
            State::Retrying(error) | State::Failed(error) => Some(error.clone()),
            _ => None,
        }
    }

    pub(super) fn change(&self, state: State) {
        // Relaxed: a caller can always ask too early or too late.
        self.is_up.store(matches!(state, State::Up(_)), Ordering::Relaxed);
        self.is_over.store(matches!(state, State::Failed(_) | State::Down), Ordering::Relaxed);
        *lock(&self.state) = state;
        self.changed.notify_all();
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn exposed_bulk(&self, bytes: usize) -> Option<ExposedBulk> {
        match &*lock(&self.state) {
            State::Up(Some(memory)) => memory.take(bytes).map(ExposedBulk::new),
            _ => None,
        }
    }

    fn wait(&self, at_most: Duration) -> Result<(), ConnectError> {
        let began = Instant::now();
        let mut state = lock(&self.state);
        loop {
            match &*state {
                State::Up(_) => return Ok(()),
                State::Failed(error) => return Err(error.clone()),
                State::Down => return Err(ConnectError::Down),
                State::Connecting | State::Retrying(_) => {}
            }
            let left = at_most.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(ConnectError::TimedOut(at_most));
            }
            state = wait_for_change(&self.changed, state, &self.state, left);
        }
    }
}

/// A client for threads other than cores: calls go over one connection of a core
/// ([`Engine::connect`](crate::Engine::connect)), or several
/// ([`ConnectOptions::connections`](crate::ConnectOptions::connections)), from any thread at any time. Clones are the same
/// client; when the last one is dropped the connection is closed, as soon as its calls have ended.
///
/// A call is started by its core, in order of its thread's calls: at once, or when the connection
/// is up and the server grants a credit. The way of the answer is chosen with each call:
///
/// * [`ClientHandle::call`] blocks the thread;
/// * [`ClientHandle::start`] returns a [`PendingCall`], which is a [`Future`] and can be waited for;
/// * [`ClientHandle::start_to_queue`] has it put into an [`AnswerQueue`], which an event loop can watch;
/// * [`ClientHandle::start_on_core`] has a function run on the core.
///
/// ```
/// use spinrpc::{Call, CallSpec, Config, ConnectOptions, Engine, OnAnswer, PendingCall};
/// use spinrpc::{Procedure, Program, Token, Version};
/// use std::sync::{Arc, mpsc};
///
/// let (program, version) = (Program(0x2000_0001), Version(1));
/// let engine = Engine::new(Config::default())?;
/// engine.serve(program, version, |_| |mut call: Call<'_>| match call.args().u32() {
///     Ok(number) => call.reply(|results| results.u32(2 * number)),
///     Err(_) => call.reject(spinrpc::AcceptStatus::GarbageArgs),
/// })?;
/// engine.listen("shm:doc-handle")?;
/// let running = engine.start()?;
///
/// let client = engine.connect(0, "shm:doc-handle", program, version, &ConnectOptions::new())?;
/// assert_eq!(client.call(Procedure(1), |args| args.u32(3), |results| results.u32())?, 6);
/// let pending: PendingCall = client.start(Procedure(1), CallSpec::short(), |args| args.u32(4))?;
/// assert_eq!(pending.wait()?.results().u32()?, 8);
/// let (sender, answers) = mpsc::channel();
/// let on_answer: Arc<OnAnswer> = Arc::new(move |Token(token), reply| {
///     // On the core.
///     let _ = sender.send((token, reply.is_ok()));
/// });
/// client.start_on_core(&on_answer, Token(5), Procedure(1), CallSpec::short(), |args| args.u32(5))?;
/// assert_eq!(answers.recv()?, (5, true));
/// drop(client);
/// engine.shutdown();
/// running.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ClientHandle(Arc<Shared>);

struct Shared {
    number: u32,
    pool: Arc<Pool>,
    connection: Arc<Connection>,
    is_closed: AtomicBool,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.pool.order(Order::Close { client: self.number, when: When::Forgotten });
    }
}

impl ClientHandle {
    pub(in crate::api) fn connect(pool: &Arc<Pool>, to: ConnectTo) -> Result<Self, ConnectError> {
        to.options.check(&pool.config)?;
        let number = pool.take_handle();
        let number = number.ok_or(ConnectError::TooManyHandles(pool.config.conns_max()))?;
        let connection = Arc::default();
        pool.order_first(Order::Connect(number, Box::new((to, Arc::clone(&connection)))));
        Ok(Self::new(number, pool, connection))
    }

    fn new(number: u32, pool: &Arc<Pool>, connection: Arc<Connection>) -> Self {
        let (pool, is_closed) = (Arc::clone(pool), AtomicBool::new(false));
        Self(Arc::new(Shared { number, pool, connection, is_closed }))
    }

    /// Calls, and blocks the thread until the answer is there. A few microseconds of that it spins, in case the answer
    /// comes at once. The results may be as long as `rpc.max_read_bytes`; if they are short, [`ClientHandle::start`] with
    /// [`CallSpec::short`] is faster.
    ///
    /// # Errors
    /// [`CallError`] gives the reason why the call failed, and whether to try again.
    /// [`CallError::NotStarted`] with [`Backpressure::Misuse`] on the thread of the core, which
    /// would wait for itself.
    pub fn call<T>(
        &self,
        procedure: Procedure,
        encode: impl FnOnce(&mut Encoder<'_>),
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, CallError> {
        const OWN: Backpressure =
            Backpressure::Misuse("a core cannot wait for a call that it has to run itself");
        if self.0.pool.is_core_here() {
            return Err(OWN.into());
        }
        let mut answer = self.start(procedure, CallSpec::new(), encode)?.wait()?;
        Ok(decode(&mut answer.results())?)
    }

    /// Starts a call, and returns at once. `encode` writes the arguments, on this thread; it runs once at most, and
    /// must not start a call by a handle.
    ///
    /// The deadline of the spec counts from when the core sends the call; a call that cannot be sent for as long
    /// ends with [`CallError::NotStarted`].
    ///
    /// # Errors
    /// [`Backpressure::TooManyCalls`] if as many calls are in flight on the core as it takes
    /// (`Config::handle_calls`); [`Backpressure::TooLarge`] for arguments that are longer than any
    /// message; [`Backpressure::Misuse`] if the stream and the spec differ in their data items, and
    /// from inside of an encoder; [`Backpressure::Down`] if the core has ended. The call is lost
    /// then, with its buffers. Any other reason why a call is not sent is reported in its answer.
    pub fn start(
        &self,
        procedure: Procedure,
        spec: CallSpec,
        encode: impl FnOnce(&mut Encoder<'_>),
    ) -> Result<PendingCall, Backpressure> {
        let (mut waiter, deadline) = (None, spec.deadline);
        let was_parked = self.order(procedure, spec, encode, |own| {
            waiter = Some(Arc::clone(own));
            Destination::Holder
        })?;
        let waiter = waiter.ok_or(Backpressure::Down)?;
        let end = waiter.pool.end_without_core(deadline);
        Ok(PendingCall::new(waiter, was_parked, end))
    }

    /// As [`ClientHandle::start`]: the answer comes to `queue`, with this token.
    ///
    /// # Errors
    /// As [`ClientHandle::start`]; [`Backpressure::AnswerQueueFull`] if the queue could not take all answers.
    pub fn start_to_queue(
        &self,
        queue: &AnswerQueue,
        token: Token,
        procedure: Procedure,
        spec: CallSpec,
        encode: impl FnOnce(&mut Encoder<'_>),
    ) -> Result<(), Backpressure> {
        let place = queue.reserve()?;
        self.order(procedure, spec, encode, |_| place.destination(token)).map(drop)
    }

    /// As [`ClientHandle::start`]: `on_answer` runs on the core's thread with the answer, where it holds up all
    /// connections of that core while it runs. It may start calls. (If the core has ended before, it runs on the
    /// thread that notices.)
    ///
    /// # Errors
    /// As [`ClientHandle::start`].
    pub fn start_on_core(
        &self,
        on_answer: &Arc<OnAnswer>,
        token: Token,
        procedure: Procedure,
        spec: CallSpec,
        encode: impl FnOnce(&mut Encoder<'_>),
    ) -> Result<(), Backpressure> {
        let on_answer = Arc::clone(on_answer);
        self.order(procedure, spec, encode, |_| Destination::Core(on_answer, token)).map(drop)
    }

    /// Returns true if the core was parked.
    #[inline]
    fn order(
        &self,
        procedure: Procedure,
        spec: CallSpec,
        encode: impl FnOnce(&mut Encoder<'_>),
        to: impl FnOnce(&Arc<Waiter>) -> Destination,
    ) -> Result<bool, Backpressure> {
        let Shared { number, pool, .. } = &*self.0;
        let mut claimed = CallGuard::new(pool)?;
        claimed.write(|call| {
            (call.client, call.procedure) = (*number, procedure);
            call.spec.replace(spec);
            in_memory(pool.longest_bytes, |memory| call.encode(memory, encode))?;
            call.to = to(&call.waiter);
            Ok(())
        })?;
        Ok(claimed.order(pool))
    }

    /// Blocks until the connection is up, for `at_most` this long. Calls need not wait for it. Does not wait on the thread
    /// of the core, which could not make the connection meanwhile.
    ///
    /// # Errors
    /// [`ConnectError`] gives the reason why the connection is not up. [`ConnectError::TimedOut`]
    /// leaves the attempt running: the connection may come up later, and [`ClientHandle::failure`] tells why it did not yet.
    pub fn wait_up(&self, at_most: Duration) -> Result<(), ConnectError> {
        let at_most = if self.0.pool.is_core_here() { Duration::ZERO } else { at_most };
        self.0.connection.wait(at_most)
    }

    /// Reason why the last attempt to make the first connection failed, also while further ones follow
    /// ([`Reconnect::retry_first`](crate::Reconnect::retry_first)). `None` before that, and once it has been up.
    pub fn failure(&self) -> Option<ConnectError> {
        self.0.connection.failure()
    }

    /// True if the connection is up, as far as is known here.
    pub fn is_up(&self) -> bool {
        self.0.connection.is_up.load(Ordering::Relaxed)
    }

    /// Memory of the core for data items of arguments and results, `bytes` long, with the bytes of
    /// its last user in it: as [`CoreContext::bulk`](crate::CoreContext::bulk). `None` before the
    /// core has started the connection, if that is longer than the longest block, or if all is lent
    /// out.
    pub fn bulk(&self, bytes: usize) -> Option<Bulk> {
        self.0.connection.memory.get()?.take(bytes)
    }

    /// As [`Client::exposed_bulk`](crate::Client::exposed_bulk): memory of the connection itself, which the server can write
    /// at any time, without the copy of [`ClientHandle::bulk`]. Also `None` while the connection is not up, and with several. Locks for the
    /// time that it takes to find a block. [`Answer::take_exposed_result`](crate::Answer::take_exposed_result) gives a block
    /// back, for the next call.
    pub fn exposed_bulk(&self, bytes: usize) -> Option<ExposedBulk> {
        self.0.connection.exposed_bulk(bytes)
    }

    /// Calls that are started from now on are made as this user (AUTH_SYS, RFC 5531 appendix A); `None`: without a user
    /// (AUTH_NONE).
    ///
    /// # Errors
    /// [`Backpressure::Misuse`] if it is too long for a credential, [`Backpressure::TooManyCalls`] if the core has
    /// not come to too many such wishes yet.
    pub fn set_auth_sys(&self, user: Option<&AuthSys<'_>>) -> Result<(), Backpressure> {
        let mut body = [0; AUTH_BODY_MAX_BYTES];
        let OpaqueAuth { flavor, body } = credential_of(user, &mut body)?;
        let Shared { number, pool, .. } = &*self.0;
        pool.order_credential(Order::Credential { client: *number, flavor, body: body.into() })
    }

    /// Closes the connection: its calls in flight end with [`CallError::Disconnected`], later ones with
    /// [`CallError::NotStarted`]. In a later turn of the core.
    pub fn close(&self) {
        let Shared { number, pool, is_closed, .. } = &*self.0;
        // Relaxed: the first one orders it.
        if !is_closed.swap(true, Ordering::Relaxed) {
            pool.order(Order::Close { client: *number, when: When::AtOnce });
        }
    }
}

impl std::fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientHandle").field("is_up", &self.is_up()).finish_non_exhaustive()
    }
}

fn in_memory(
    bytes: usize,
    write: impl FnOnce(&mut [u8]) -> Result<(), Backpressure>,
) -> Result<(), Backpressure> {
    const NESTED: Backpressure = Backpressure::Misuse("an encoder of a call starts a call");
    MEMORY.with(|memory| {
        let mut memory = memory.try_borrow_mut().map_err(|_| NESTED)?;
        if memory.len() < bytes {
            *memory = vec![0; bytes];
        }
        write(&mut memory[..bytes])
    })
}
