//! One call of another thread, and where its answer goes.

use super::pool::Pool;
use super::queue::Queued;
use crate::api::client::{Client, NOTHING_PLACED, Reply, Token};
use crate::api::codec::{Decoder, Encoder};
use crate::api::errors::CallError;
use crate::api::owned_reply::Arrived;
use crate::fabric::DownCause;
use crate::reactor::types::encode_buffer::StoredDraft;
use crate::reactor::{Backpressure, CallId, CallSpec};
use crate::sync::box_queue::prefetch_line;
use crate::sync::handoff::Handoff;
use crate::sys::journal::event;
use atomic_waker::AtomicWaker;
use spinrpc_proto::ids::Procedure;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A function that runs on the core with the answers of calls ([`ClientHandle::start_on_core`]).
///
/// [`ClientHandle::start_on_core`]: crate::ClientHandle::start_on_core
pub type OnAnswer = dyn Fn(Token, Result<Reply<'_>, CallError>) + Send + Sync;

/// Bytes of arguments, or of results, that travel with the call itself.
const SHORT_BYTES: usize = 128;

/// A call, in memory that goes round. Only the holder of the box touches it.
///
/// Each cache line that both sides touch costs as much time as a call started by the core itself.
/// Everything that a call without buffers needs is therefore in the first two lines, and short data are in
/// the next ones: [`HandleCall::prefetch`].
#[repr(C, align(128))]
pub(in crate::api) struct HandleCall {
    /// Its place among those of the core; its token there.
    pub(super) number: u32,
    pub(super) client: u32,
    pub(super) procedure: Procedure,
    arguments: Stored,
    answer: Stored,
    pub(super) to: Destination,
    pub(super) waiter: Arc<Waiter>,
    pub(super) spec: CallSpec,
    /// Arguments, and later the answer.
    short: ShortBytes,
    long_arguments: StoredDraft,
    arrived: Arrived,
}

const _: () = assert!(offset_of!(HandleCall, spec) + offset_of!(CallSpec, arguments) <= 128);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    Short(u8),
    Long,
}

const _: () = assert!(SHORT_BYTES <= u8::MAX as usize);

/// Starts on a new cache line.
#[repr(align(64))]
struct ShortBytes([u8; SHORT_BYTES]);

#[derive(Default)]
pub(super) enum Destination {
    /// The thread that has the [`Waiter`].
    #[default]
    Holder,
    /// A queue, under a name.
    Queue(Arc<Queued>, Token),
    /// A function that runs on the core.
    Core(Arc<OnAnswer>, Token),
}

/// Shared with the thread that waits for the answer. Each call has its own, also when its memory is used again.
pub(super) struct Waiter {
    pub(super) number: u32,
    pub(super) answer: Handoff<HandleCall>,
    pub(super) waker: AtomicWaker,
    pub(super) pool: Arc<Pool>,
}

impl Waiter {
    /// Gives the memory of its call back.
    pub(super) fn give_back(&self, mut call: Box<HandleCall>) {
        call.clear();
        self.pool.give_back(call);
    }
}

impl HandleCall {
    pub(super) fn new(number: u32, pool: Arc<Pool>) -> Self {
        let (answer, waker) = (Handoff::default(), AtomicWaker::new());
        Self {
            number,
            client: 0,
            procedure: Procedure(0),
            arguments: Stored::Short(0),
            answer: Stored::Short(0),
            to: Destination::Holder,
            waiter: Arc::new(Waiter { number, answer, waker, pool }),
            spec: CallSpec::new(),
            short: ShortBytes([0; SHORT_BYTES]),
            long_arguments: StoredDraft::default(),
            arrived: Arrived::default(),
        }
    }

    /// Prefetches the lines that the core reads and writes of every call, before it executes an
    /// order. The lines that it only reads stay with the caller.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch_line(self, 0);
    }

    /// Encodes the arguments, by way of `memory` if they are not short.
    #[inline]
    pub(super) fn encode(
        &mut self,
        memory: &mut [u8],
        encode: impl FnOnce(&mut Encoder<'_>),
    ) -> Result<(), Backpressure> {
        let items = self.spec.argument_count();
        let memory = (&mut self.short.0[..], memory);
        let short = self.long_arguments.encode(memory, items, encode)?;
        self.arguments = short.map_or(Stored::Long, |bytes| Stored::Short(bytes as u8));
        Ok(())
    }

    #[inline]
    pub(super) fn issue(&mut self, client: &Client) -> Result<CallId, Backpressure> {
        let Self { number, procedure, arguments, spec, short, long_arguments, .. } = self;
        let token = Token((*number).into());
        client.call(*procedure, token, spec, |writer| match *arguments {
            Stored::Short(bytes) => {
                StoredDraft::write_short(&short.0[..usize::from(bytes)], writer);
            }
            Stored::Long => long_arguments.write(writer),
        })
    }

    /// Keeps its answer: one without buffers where the arguments were.
    #[inline]
    fn keep(&mut self, reply: Result<Reply<'_>, CallError>) {
        if let Ok(Reply { stream, beside: None }) = &reply
            && let Some(room) = self.short.0.get_mut(..stream.len())
        {
            room.copy_from_slice(stream);
            self.answer = Stored::Short(stream.len() as u8);
            return;
        }
        self.answer = Stored::Long;
        self.arrived.keep(reply);
    }

    /// The answer, unless it is a short one.
    pub(super) fn arrived(&mut self) -> Option<&mut Arrived> {
        (self.answer == Stored::Long).then_some(&mut self.arrived)
    }

    pub(super) fn results(&mut self) -> Decoder<'_> {
        match self.answer {
            Stored::Short(bytes) => {
                Decoder::results(&self.short.0[..usize::from(bytes)], &NOTHING_PLACED, &mut [])
            }
            Stored::Long => self.arrived.decoder(),
        }
    }

    /// True if no thread waits for the answer any more.
    #[inline]
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(self.to, Destination::Holder) && self.waiter.answer.is_abandoned()
    }

    /// Makes it ready for another caller: buffers go back to where they are from.
    #[inline]
    fn clear(&mut self) {
        self.spec.clear();
        if self.answer == Stored::Long {
            self.arrived.clear();
            self.answer = Stored::Short(0);
        }
        if matches!(self.to, Destination::Holder) {
            self.waiter.answer.reset();
        }
        self.to = Destination::Holder;
    }

    /// Ends it with this answer, on the core, or on whichever thread finds that the core has ended.
    pub(super) fn finish(mut self: Box<Self>, reply: Result<Reply<'_>, CallError>) {
        match &self.to {
            Destination::Core(..) => self.finish_here(reply),
            Destination::Queue(queue, _) => {
                let queue = Arc::clone(queue);
                self.keep(reply);
                queue.push(self);
            }
            Destination::Holder => {
                self.keep(reply);
                let waiter = Arc::clone(&self.waiter);
                match waiter.answer.give(self) {
                    Ok(()) => waiter.waker.wake(),
                    Err(unwanted) => give_back(unwanted),
                }
            }
        }
    }

    /// Keeps an answer that goes to a queue, with others of its turn; else ends the call. Returns the call then.
    #[inline]
    pub(super) fn finish_later(
        mut self: Box<Self>,
        reply: Result<Reply<'_>, CallError>,
    ) -> Option<Box<Self>> {
        if !matches!(self.to, Destination::Queue(..)) || reply.is_err() {
            self.finish(reply);
            return None;
        }
        self.keep(reply);
        Some(self)
    }

    fn finish_here(mut self: Box<Self>, reply: Result<Reply<'_>, CallError>) {
        let to = std::mem::take(&mut self.to);
        // Before it runs, so that it may make the next call.
        give_back(self);
        if let Destination::Core(on_answer, token) = to {
            on_answer(token, reply);
        }
    }

    /// Ends it, because its core has ended. A panic of a function of the application ends nothing else here.
    pub(super) fn lose(self: Box<Self>, was_sent: bool) {
        let lost = match was_sent {
            true => CallError::Disconnected(DownCause::Local),
            false => CallError::NotExecuted(DownCause::Local),
        };
        if catch_unwind(AssertUnwindSafe(|| self.finish(Err(lost)))).is_err() {
            event!(
                ERROR,
                "a function that was to take an answer panicked after the end of its core"
            );
        }
    }
}

/// Gives the memory of a call back to its core's pool.
pub(super) fn give_back(call: Box<HandleCall>) {
    let waiter = Arc::clone(&call.waiter);
    waiter.give_back(call);
}
