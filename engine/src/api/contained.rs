//! Boundary to the application's handlers: a panic in one is caught here, and ends neither its core nor
//! the calls of others (`rpc.on_panic`). Used by the dispatch, which calls handlers nowhere else.
//!
//! Handlers run while no state of the core is borrowed, and all that they reach of it goes through
//! operations that are whole when they return, or encode into memory that is given back: so what a
//! panic leaves behind is as consistent as after any other return ([`AssertUnwindSafe`]). The state of
//! the handler itself is its author's to keep.

use super::call::{Call, CallState};
use super::client::{Link, Reply, ReplyHandler, Token};
use super::errors::CallError;
use super::options::{OptionCall, OptionHandler, OptionMessage};
use super::service::{ConnectionEvent, Service};
use crate::reactor::ops::{CallOutcome, CoreOps};
use crate::reactor::panics::PanicPlace;
use crate::reactor::{HandlerKind, Progress};
use spinrpc_proto::ids::{Procedure, Program, Version};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// The service of a program.
pub(super) struct ContainedService {
    program: (Program, Version),
    inner: Box<dyn Service>,
}

impl ContainedService {
    pub(super) fn new(program: (Program, Version), inner: Box<dyn Service>) -> Self {
        Self { program, inner }
    }

    /// Has a call answered, or deferred.
    #[inline(always)]
    pub(super) fn call<'a>(&mut self, ops: &dyn CoreOps, state: &'a CallState<'a>) -> CallOutcome {
        let inner = &mut self.inner;
        match catch_unwind(AssertUnwindSafe(|| inner.call(Call(state)))) {
            Ok(()) => state.outcome.get().unwrap_or(CallOutcome::Done),
            Err(payload) => self.end_call(ops, state, payload),
        }
    }

    #[cold]
    fn end_call(
        &self,
        ops: &dyn CoreOps,
        state: &CallState<'_>,
        payload: Box<dyn Any + Send>,
    ) -> CallOutcome {
        ops.take_panic(self.place(HandlerKind::Call, Some(state.header.procedure)), payload);
        let outcome = state.outcome.get().unwrap_or(CallOutcome::Done);
        if outcome == CallOutcome::Done {
            ops.fail_call(&state.to);
        }
        outcome
    }

    pub(super) fn polls(&self) -> bool {
        self.inner.polls()
    }

    pub(super) fn poll(&mut self, ops: &dyn CoreOps) -> Progress {
        let inner = &mut self.inner;
        catch_unwind(AssertUnwindSafe(|| inner.poll())).unwrap_or_else(|payload| {
            ops.take_panic(self.place(HandlerKind::Poll, None), payload);
            Progress { events: 1, is_waiting: false }
        })
    }

    pub(super) fn on_event(&mut self, ops: &dyn CoreOps, event: &ConnectionEvent) {
        let inner = &mut self.inner;
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| inner.on_event(event))) {
            ops.take_panic(self.place(HandlerKind::Event, None), payload);
        }
    }

    fn place(&self, handler: HandlerKind, procedure: Option<Procedure>) -> PanicPlace {
        PanicPlace { handler, program: Some(self.program), procedure }
    }
}

/// The handler of a client.
pub(super) struct ContainedHandler {
    link: Rc<Link>,
    inner: Box<dyn ReplyHandler>,
}

impl ContainedHandler {
    pub(super) fn new(link: Rc<Link>, inner: Box<dyn ReplyHandler>) -> Self {
        Self { link, inner }
    }

    #[inline(always)]
    pub(super) fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        let inner = &mut self.inner;
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| inner.on_reply(token, reply))) {
            self.take_panic(HandlerKind::Reply, payload);
        }
    }

    pub(super) fn on_option_reply(&mut self, token: Token, answer: OptionMessage<'_>) {
        let inner = &mut self.inner;
        if let Err(payload) =
            catch_unwind(AssertUnwindSafe(|| inner.on_option_reply(token, answer)))
        {
            self.take_panic(HandlerKind::Reply, payload);
        }
    }

    pub(super) fn on_event(&mut self, event: &ConnectionEvent) {
        let inner = &mut self.inner;
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| inner.on_event(event))) {
            self.take_panic(HandlerKind::Event, payload);
        }
    }

    #[cold]
    fn take_panic(&self, handler: HandlerKind, payload: Box<dyn Any + Send>) {
        let place = PanicPlace { handler, program: Some(self.link.called()), procedure: None };
        self.link.ops.take_panic(place, payload);
    }
}

/// Has a call of an extension answered, deferred or refused.
pub(super) fn call_option(
    ops: &dyn CoreOps,
    handler: &mut dyn OptionHandler,
    call: OptionCall<'_>,
) {
    // Unwinding drops the call, which refuses it.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| handler.on_option(call))) {
        let place = PanicPlace { handler: HandlerKind::Option, program: None, procedure: None };
        ops.take_panic(place, payload);
    }
}
