//! One call of another thread, and where its answer goes.

use super::pool::Pool;
use super::queue::Queued;
use crate::api::arrived::Arrived;
use crate::api::client::{Reply, Token};
use crate::api::errors::CallError;
use crate::fabric::DownCause;
use crate::reactor::CallSpec;
use crate::reactor::words::message_memory::StoredDraft;
use crate::sync::handoff::Handoff;
use atomic_waker::AtomicWaker;
use spinrpc_proto::ids::Procedure;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// A function that runs on the core with the answers of calls ([`ClientHandle::start_on_core`]).
///
/// [`ClientHandle::start_on_core`]: crate::ClientHandle::start_on_core
pub type OnAnswer = dyn Fn(Token, Result<Reply<'_>, CallError>) + Send + Sync;

/// A call, in memory that goes round. Only the holder of the box touches it.
pub(in crate::api) struct HandleCall {
    /// Its place among those of the core; its token there.
    pub(super) number: u32,
    /// Number of the handle that it goes by.
    pub(super) client: u32,
    pub(super) procedure: Procedure,
    pub(super) spec: CallSpec,
    pub(super) arguments: StoredDraft,
    pub(super) arrived: Arrived,
    pub(super) to: Destination,
    /// Since when it has waited on the core to be started, by the core's time.
    pub(super) waits_since: Option<Duration>,
    pub(super) ticket: Arc<Ticket>,
}

/// The place that an answer goes to.
#[derive(Default)]
pub(super) enum Destination {
    /// To the holder of the ticket.
    #[default]
    Holder,
    /// To a queue, under a name.
    Queue(Arc<Queued>, Token),
    /// To a function that runs on the core.
    Core(Arc<OnAnswer>, Token),
}

/// Kept by the thread that waits for a call. Each call has its own, and keeps it when it goes round.
pub(super) struct Ticket {
    pub(super) number: u32,
    pub(super) answer: Handoff<HandleCall>,
    pub(super) waker: AtomicWaker,
    pub(super) pool: Arc<Pool>,
}

impl HandleCall {
    pub(super) fn new(number: u32, pool: Arc<Pool>) -> Self {
        let (answer, waker) = (Handoff::default(), AtomicWaker::new());
        Self {
            number,
            client: 0,
            procedure: Procedure(0),
            spec: CallSpec::new(),
            arguments: StoredDraft::default(),
            arrived: Arrived::default(),
            to: Destination::Holder,
            waits_since: None,
            ticket: Arc::new(Ticket { number, answer, waker, pool }),
        }
    }

    /// Makes it ready for another caller: buffers go back to where they are from.
    pub(super) fn clear(&mut self) {
        (self.spec, self.to, self.waits_since) = (CallSpec::new(), Destination::Holder, None);
        self.arrived.clear();
        self.ticket.answer.reset();
    }

    /// Ends it with this answer, on the core, or on whichever thread finds that the core has ended.
    pub(super) fn finish(mut self: Box<Self>, reply: Result<Reply<'_>, CallError>) {
        match take(&mut self.to) {
            Destination::Core(on_answer, token) => {
                // Before it runs, so that it may make the next call.
                give_back(self);
                on_answer(token, reply);
            }
            Destination::Queue(queue, token) => {
                self.arrived.keep(reply);
                queue.push(token, self);
            }
            Destination::Holder => {
                self.arrived.keep(reply);
                let ticket = Arc::clone(&self.ticket);
                match ticket.answer.give(self) {
                    Ok(()) => ticket.waker.wake(),
                    Err(unwanted) => give_back(unwanted),
                }
            }
        }
    }

    /// Ends it, because its core has ended. A panic of a function of the application ends nothing else here.
    pub(super) fn lose(self: Box<Self>) {
        let lost = Err(CallError::Disconnected(DownCause::Local));
        if catch_unwind(AssertUnwindSafe(|| self.finish(lost))).is_err() {
            tracing::error!(
                "a function that was to take an answer panicked after the end of its core"
            );
        }
    }
}

/// Gives the memory of a call back to its core's pool.
pub(super) fn give_back(mut call: Box<HandleCall>) {
    call.clear();
    let ticket = Arc::clone(&call.ticket);
    ticket.pool.give_back(call);
}
