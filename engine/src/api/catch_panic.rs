//! Boundary to the application's handlers: a panic in one is caught here, and ends neither its core nor
//! the calls of others (`rpc.on_panic`). Used by the dispatch, which calls handlers nowhere else.
//!
//! Handlers run while no state of the core is borrowed. All that they reach of it goes through
//! operations that are complete when they return, or encode into memory that is given back.
//! Therefore the state after a panic is as consistent as after any other return
//! ([`AssertUnwindSafe`]). The author of the handler is responsible for the handler's own state.

use super::call::{Call, CallState, Called};
use super::client::{ClientLink, Reply, ReplyHandler, Token};
use super::errors::CallError;
use super::service::{ConnectionEvent, Service};
use crate::reactor::Progress;
use crate::reactor::in_flight::latency::row_of;
use crate::reactor::in_flight::panic_log::{HandlerKind, PanicPlace};
use crate::reactor::in_flight::slow_calls::CallName;
use crate::reactor::state::core::CoreCell;
use crate::reactor::types::calls::CallOutcome;
use spinrpc_proto::ids::{Procedure, Program, Version};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// The service of a call.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) index: usize,
    /// It is timed, for those who ask for latencies or slow calls ([`control`](crate::control)).
    pub(super) is_measured: bool,
}

pub(super) struct ContainedService {
    ops: Rc<CoreCell>,
    program: (Program, Version),
    inner: Box<dyn Service>,
}

impl ContainedService {
    pub(super) fn new(
        ops: Rc<CoreCell>,
        program: (Program, Version),
        inner: Box<dyn Service>,
    ) -> Self {
        Self { ops, program, inner }
    }

    /// Returns true if this is the service of that program.
    #[inline(always)]
    pub(super) fn serves(&self, program: Program, version: Version) -> bool {
        self.program == (program, version)
    }

    pub(super) fn program(&self) -> (Program, Version) {
        self.program
    }

    /// Runs the service, which is this one, and answers or defers the call.
    #[inline(always)]
    pub(super) fn call<'a>(&mut self, found: Found, state: &'a CallState<'a>) -> CallOutcome {
        if found.is_measured {
            return self.call_measured(found, state);
        }
        let inner = &mut self.inner;
        match catch_unwind(AssertUnwindSafe(|| inner.call(Call(state)))) {
            // Most calls; apart from the others, whose outcome takes a closer look.
            Ok(()) if state.outcome.get() == Some(CallOutcome::Replied) => CallOutcome::Replied,
            Ok(()) => Self::other_outcome(state),
            Err(payload) => self.end_call(state, payload),
        }
    }

    #[cold]
    fn call_measured<'a>(&mut self, found: Found, state: &'a CallState<'a>) -> CallOutcome {
        self.ops.begin_timer(row_of(found.index, state.called.procedure));
        let outcome = self.call(Found { is_measured: false, ..found }, state);
        let Called { xid, program, version, procedure } = state.called;
        let called = Some((program, version, procedure));
        self.ops.end_timer(state.serving.conn, CallName { xid, called });
        outcome
    }

    #[inline(never)]
    fn other_outcome(state: &CallState<'_>) -> CallOutcome {
        state.outcome.get().unwrap_or(CallOutcome::Done)
    }

    #[cold]
    fn end_call(&self, state: &CallState<'_>, payload: Box<dyn Any + Send>) -> CallOutcome {
        let place = self.place(HandlerKind::Call, Some(state.called.procedure));
        self.ops.take_panic(place, payload);
        let outcome = state.outcome.get().unwrap_or(CallOutcome::Done);
        if outcome == CallOutcome::Done
            && let Some(to) = state.target()
        {
            self.ops.fail_call(&to);
        }
        outcome
    }

    pub(super) fn polls(&self) -> bool {
        self.inner.polls()
    }

    pub(super) fn poll(&mut self) -> Progress {
        let inner = &mut self.inner;
        catch_unwind(AssertUnwindSafe(|| inner.poll())).unwrap_or_else(|payload| {
            self.ops.take_panic(self.place(HandlerKind::Poll, None), payload);
            Progress { events: 1, is_waiting: false }
        })
    }

    pub(super) fn on_event(&mut self, event: &ConnectionEvent) {
        let inner = &mut self.inner;
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| inner.on_event(event))) {
            self.ops.take_panic(self.place(HandlerKind::Event, None), payload);
        }
    }

    fn place(&self, handler: HandlerKind, procedure: Option<Procedure>) -> PanicPlace {
        PanicPlace { handler, program: Some(self.program), procedure }
    }
}

#[repr(C)]
pub(super) struct ContainedHandler {
    inner: Box<dyn ReplyHandler>,
    link: Rc<ClientLink>,
}

impl ContainedHandler {
    pub(super) fn new(link: Rc<ClientLink>, inner: Box<dyn ReplyHandler>) -> Self {
        Self { link, inner }
    }

    #[inline(always)]
    pub(super) fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        let inner = &mut self.inner;
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| inner.on_reply(token, reply))) {
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
