//! Extensions of version two of RPC-over-RDMA that an application supplies
//! (draft-cel-nfsv4-rpcrdma-version-two-01 section 3): their registration, and the messages that
//! their handlers get.

use super::client::{LinkState, Token};
use super::contained;
use super::core::CoreContext;
use super::dispatch::Dispatch;
use super::engine::Engine;
use super::errors::{CallError, EngineError};
use super::service::ConnectionId;
use crate::fabric::ConnId;
use crate::reactor::Backpressure;
pub use crate::reactor::OptionMessage;
use crate::reactor::state::core::CoreCell;
use crate::reactor::words::calls::{CallOutcome, ReplyTarget};
use spinrpc_proto::deadlines::{DEADLINE_CALL, LATE};
use spinrpc_proto::goodbye::GOODBYE;
use spinrpc_proto::ids::Xid;
pub use spinrpc_proto::limits::{OPTION_INFO_MAX_BYTES, OPTIONS_MAX};
pub use spinrpc_proto::options::Carries;
use spinrpc_proto::options::Options;
use spinrpc_proto::output::SlotId;
use std::cell::Cell;
use std::rc::Rc;

/// The messages of an extension that arrive as calls, one value per core, made by the factory given to
/// [`Engine::option`] on the core's own thread.
pub trait OptionHandler {
    /// Answers a message of direction CALL, now by [`OptionCall::reply`] or later by [`OptionCall::defer`].
    /// It must not block: the core serves nothing else meanwhile.
    fn on_option(&mut self, call: OptionCall<'_>);
}

/// A closure is a handler.
impl<F: FnMut(OptionCall<'_>)> OptionHandler for F {
    fn on_option(&mut self, call: OptionCall<'_>) {
        self(call);
    }
}

/// A message of an extension that wants an answer. It has a credit and a slot of its connection until
/// then, as a call. Dropped unanswered it is refused, as by [`OptionCall::refuse`].
pub struct OptionCall<'a> {
    ops: &'a Rc<CoreCell>,
    to: ReplyTarget<'a>,
    message: OptionMessage<'a>,
    /// Some when it is answered, or will be.
    outcome: &'a Cell<Option<CallOutcome>>,
}

impl<'a> OptionCall<'a> {
    /// The received message: operation, information and payload, as the peer wrote them. The
    /// payload of an option that carries a whole RPC message is known to be a call with the XID of
    /// the header; nothing else has been checked.
    pub fn message(&self) -> OptionMessage<'a> {
        self.message
    }

    /// The transaction, unique among the calls of this connection in progress.
    pub fn xid(&self) -> Xid {
        Xid(self.to.message.first_chunk().map_or(0, |word| u32::from_be_bytes(*word)))
    }

    /// The connection it came by.
    pub fn connection(&self) -> ConnectionId {
        ConnectionId(self.to.conn)
    }

    /// Answers by a message of direction REPLY. It has to be one that the peer knows for an answer, as
    /// the document of the extension says.
    ///
    /// # Errors
    /// [`Backpressure::TooLarge`] if the information is longer than [`OPTION_INFO_MAX_BYTES`] or the
    /// message longer than the connection takes inline; the peer then gets RDMA2_ERR_BAD_HEADER.
    pub fn reply(self, message: &OptionMessage<'_>) -> Result<(), Backpressure> {
        self.outcome.set(Some(CallOutcome::Done));
        self.ops.reply_option(&self.to, message)
    }

    /// Takes the message out of the handler, to be answered later by code that holds the core:
    /// another handler, a service that is polled ([`Service::poll`](crate::Service::poll)), or the
    /// thread that polls the core. Parts of it that are still needed must be copied before. It
    /// keeps its credit and its slot, of which the connection has a bounded number.
    pub fn defer(self) -> DeferredOption {
        self.outcome.set(Some(CallOutcome::Deferred));
        self.ops.defer_option();
        let (ops, conn, slot) = (Rc::clone(self.ops), self.to.conn, self.to.slot);
        DeferredOption { ops, conn, slot, xid: self.xid(), is_answered: false }
    }

    /// Answers with RDMA2_ERR_BAD_HEADER: the extension makes no sense of it.
    pub fn refuse(self) {
        drop(self);
    }
}

impl Drop for OptionCall<'_> {
    fn drop(&mut self) {
        if self.outcome.get().is_none() {
            self.outcome.set(Some(CallOutcome::Done));
            self.ops.refuse_option(&self.to);
        }
    }
}

/// A message of an extension that is answered later, on the thread of its core. Dropped unanswered it is
/// refused, as by [`DeferredOption::refuse`]. An answer to a connection that has gone down meanwhile goes
/// nowhere and is counted (`stale`).
///
/// ```compile_fail
/// fn is_sent<T: Send>() {}
/// is_sent::<spinrpc::options::DeferredOption>();
/// ```
pub struct DeferredOption {
    ops: Rc<CoreCell>,
    conn: ConnId,
    slot: SlotId,
    /// Fields of the message that an answer needs; the message may still be in its handler.
    xid: Xid,
    is_answered: bool,
}

impl DeferredOption {
    /// Answers as [`OptionCall::reply`] does. It leaves with the core's next turn, or with this one.
    ///
    /// # Errors
    /// As [`OptionCall::reply`].
    pub fn reply(mut self, message: &OptionMessage<'_>) -> Result<(), Backpressure> {
        self.is_answered = true;
        self.ops.finish_option(self.conn, self.slot, self.xid, Some(message))
    }

    /// Answers as [`OptionCall::refuse`] does.
    pub fn refuse(self) {
        drop(self);
    }

    /// The connection it came by.
    pub fn connection(&self) -> ConnectionId {
        ConnectionId(self.conn)
    }
}

impl Drop for DeferredOption {
    fn drop(&mut self) {
        if !self.is_answered {
            // A refusal is never too long.
            let _ = self.ops.finish_option(self.conn, self.slot, self.xid, None);
        }
    }
}

impl std::fmt::Debug for DeferredOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeferredOption").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for OptionCall<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OptionCall").field("message", &self.message).finish_non_exhaustive()
    }
}

/// Makes the handler of a feature, on the thread of a core.
pub(super) type OptionFactory = Box<dyn Fn(&CoreContext) -> Box<dyn OptionHandler> + Send + Sync>;

/// The handler of a feature on one core, and the options that it gets.
pub(super) type OptionEntry = (Vec<u32>, Box<dyn OptionHandler>);

/// Features registered with an engine.
#[derive(Default)]
pub(super) struct Registered {
    pub(super) known: Options,
    features: Vec<(Vec<u32>, OptionFactory)>,
}

impl Registered {
    /// Adds a feature as a whole. Returns `false`, and adds nothing, if there is not enough room,
    /// or one of its numbers is taken.
    pub(super) fn add(&mut self, feature: &[(u32, Carries)], factory: OptionFactory) -> bool {
        let numbers: Vec<_> = feature.iter().map(|(option, _)| *option).collect();
        let is_ours =
            numbers.iter().any(|option| matches!(*option, DEADLINE_CALL | LATE | GOODBYE));
        let Some(known) = self.known.with(feature).filter(|_| !is_ours) else { return false };
        self.known = known;
        self.features.push((numbers, factory));
        true
    }

    pub(super) fn make(&self, context: &CoreContext) -> Vec<OptionEntry> {
        let features = self.features.iter();
        features.map(|(numbers, factory)| (numbers.clone(), factory(context))).collect()
    }
}

impl Dispatch {
    /// Adds the handlers of extensions.
    pub(super) fn with_options(mut self, options: Vec<OptionEntry>) -> Self {
        self.options = options;
        self
    }

    pub(super) fn take_option(
        &mut self,
        to: &ReplyTarget<'_>,
        message: OptionMessage<'_>,
    ) -> CallOutcome {
        if self.leaves_calls(to.conn) {
            self.ops.leave_call(to);
            return CallOutcome::Done;
        }
        let outcome = Cell::new(None);
        let call = OptionCall { ops: &self.ops, to: *to, message, outcome: &outcome };
        let mut features = self.options.iter_mut();
        if let Some((_, handler)) = features.find(|(known, _)| known.contains(&message.option)) {
            contained::call_option(&self.ops, &mut **handler, call);
        }
        outcome.get().unwrap_or(CallOutcome::Done)
    }

    pub(super) fn take_option_reply(
        &mut self,
        conn: ConnId,
        token: u64,
        message: OptionMessage<'_>,
    ) {
        let Some(entry) = self.client_of_calls(conn) else { return };
        if entry.link.state.get() == LinkState::Probing(conn) {
            entry.opening = None;
            let error = CallError::AnsweredByOption { option: message.option };
            return Self::on_opening_failed(entry, conn, error);
        }
        #[cfg(feature = "gss")]
        if entry.securing.is_some() {
            // It has no verifier.
            return entry.handler.on_reply(Token(token), Err(CallError::NotAuthentic));
        }
        entry.handler.on_option_reply(Token(token), message);
    }
}

impl Engine {
    /// Registers an extension of version two: the options (`rdma_opttype`) it consists of and the
    /// payload behind the header of their messages. Connections of cores that start later know it,
    /// those that were made and those that were accepted. Messages of direction CALL go to the
    /// handler that `factory` makes once per core, on the core's thread; answers to calls of this
    /// side go to [`ReplyHandler::on_option_reply`](crate::ReplyHandler::on_option_reply). A peer
    /// that does not know an option answers its calls with
    /// [`CallError::InvalidOption`](crate::CallError::InvalidOption), as this engine does for
    /// options that are not registered.
    ///
    /// ```
    /// use spinrpc::config::{RawConfig, Versions};
    /// use spinrpc::options::{Carries, OptionCall, OptionMessage};
    /// use spinrpc::{CallError, Client, Engine, Program, Reply, ReplyHandler, Token, Version};
    /// use std::cell::Cell;
    /// use std::rc::Rc;
    ///
    /// /// "How warm is it where you are?": an option without payload, answered by itself.
    /// const WARMTH: u32 = 0x4000_0001;
    /// const FEATURE: &[(u32, Carries)] = &[(WARMTH, Carries::Nothing)];
    ///
    /// fn tell(call: OptionCall<'_>) {
    ///     let (option, degrees) = (call.message().option, 21_u32.to_be_bytes());
    ///     let answer = OptionMessage { option, info: &degrees, payload: &[] };
    ///     call.reply(&answer).expect("a short message");
    /// }
    ///
    /// struct Asks(Rc<Cell<Option<u32>>>);
    /// impl ReplyHandler for Asks {
    ///     fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {}
    ///
    ///     fn on_option_reply(&mut self, _: Token, answer: OptionMessage<'_>) {
    ///         self.0.set(answer.info.try_into().ok().map(u32::from_be_bytes));
    ///     }
    /// }
    ///
    /// let mut raw = RawConfig::default();
    /// raw.rpc.version = Versions::Two;
    /// let config = raw.validate()?;
    /// # let (program, version) = (Program(0x2000_0001), Version(1));
    /// let engine = Engine::new(config.clone())?;
    /// engine.serve(program, version, |_| |call: spinrpc::Call<'_>| call.reply(|_| {}));
    /// engine.option(FEATURE, |_| tell)?;
    /// engine.listen("shm:doc-option")?;
    /// let server = engine.start()?;
    ///
    /// let here = Engine::new(config)?;
    /// here.option(FEATURE, |_| |call: OptionCall<'_>| call.refuse())?;
    /// let mut core = here.core(0)?;
    /// let warmth = Rc::new(Cell::new(None));
    /// let asks = Asks(Rc::clone(&warmth));
    /// let client = core.connect("shm:doc-option", program, version, |_| asks)?;
    /// core.run_until(|| client.is_up());
    /// client.call_option(Token(1), &OptionMessage { option: WARMTH, info: &[], payload: &[] })?;
    /// core.run_until(|| warmth.get().is_some());
    /// assert_eq!(warmth.get(), Some(21));
    /// engine.shutdown();
    /// server.join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`EngineError::ApiMisuse`], and nothing is registered, if one of the numbers is registered
    /// already or belongs to an extension of the engine (0x73702d01 to 0x73702d03), or if there were
    /// more than [`OPTIONS_MAX`] in all.
    pub fn option<H: OptionHandler + 'static>(
        &self,
        feature: &[(u32, Carries)],
        factory: impl Fn(&CoreContext) -> H + Send + Sync + 'static,
    ) -> Result<(), EngineError> {
        let factory: OptionFactory = Box::new(move |context| Box::new(factory(context)));
        if self.0.add_option(feature, factory) {
            return Ok(());
        }
        let why =
            format!("an option of the feature is taken, or there are more than {OPTIONS_MAX}");
        Err(EngineError::ApiMisuse(why))
    }
}
