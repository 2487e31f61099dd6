//! Calls from any thread: with a callback on the core, or blocking.

use crate::client::RpcClient;
use crate::decoder::RpcDecoder;
use crate::error::{Failure, InCallback, Status, guard, guard_or, may_block, remember};
use crate::memory::{DataItem, Message, RpcMemory, take_blocks};
use crate::pointers::{self, Out, borrow, borrow_mut, free, slice, stream, unused};
use spinrpc::{
    Answer, CallError, CallSpec, Decoder, Encoder, OnAnswer, Procedure, Reply, Resend, Token,
};
use std::cell::RefCell;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null, null_mut, with_exposed_provenance_mut};
use std::sync::Arc;
use std::time::Duration;

/// Flag of spinrpc_call_options: executing the call twice does no harm, so that it is sent again if the
/// connection was lost and SPINRPC_CONNECT_RECONNECT has established another one.
pub const SPINRPC_CALL_IDEMPOTENT: u32 = 1;

/// The longest results, in bytes, whose reply fits into any message: see spinrpc_call_options.
pub const SPINRPC_SHORT_RESULTS_BYTES: usize = 572;

/// Options of a call. Fill it with zeros, then set what is needed: `spinrpc_call_options options = {0};`. It is read
/// while the function runs. All blocks of memory in it belong to the library from then on, whatever the function returns.
#[repr(C)]
#[derive(Debug)]
pub struct CallOptions {
    /// Nanoseconds from when the call is sent until its answer must be there. 0: as configured (rpc.timeout_ms);
    /// UINT64_MAX: no deadline.
    pub deadline_ns: u64,
    /// Most bytes of the results, those in `results` not counted. 0: not known; the call then offers memory for
    /// rpc.max_read_bytes, unless it has `results`, when the rest is short. It waits while none is free, and ends with
    /// SPINRPC_STATUS_AGAIN at its deadline: over shared memory 12 such calls are in flight with the defaults
    /// (mem.conn_arena_mib).
    /// Calls with at most SPINRPC_SHORT_RESULTS_BYTES need no memory for their results, and are the fastest.
    pub reply_bytes_max: usize,
    /// Data items of the arguments, `item_count` of them, at most four.
    pub items: *const DataItem,
    /// Number of `items`.
    pub item_count: usize,
    /// Blocks in which the server places data items of the results, in order, `result_count` of them, at most four. The
    /// room of each is its length in use. spinrpc_decode_data() gives them back.
    pub results: *const *mut RpcMemory,
    /// Number of `results`.
    pub result_count: usize,
    /// 0 or SPINRPC_CALL_IDEMPOTENT.
    pub flags: u32,
    /// For later versions: zeros.
    pub reserved: [u64; 4],
}

const DEFAULTS: CallOptions = CallOptions {
    deadline_ns: 0,
    reply_bytes_max: 0,
    items: null(),
    item_count: 0,
    results: null(),
    result_count: 0,
    flags: 0,
    reserved: [0; 4],
};

/// Gets the answer of a call, on the thread of the client's core, which it must not block. `results` reads the results
/// until it returns. If `status` is not SPINRPC_STATUS_OK, `results` is NULL and spinrpc_last_error_message() has the text.
/// The callback may start calls. It must not leave by longjmp() or by an exception.
///
/// The object behind `user_data` must exist until the callback has run, which is before spinrpc_engine_free() returns.
///
/// If the engine has ended, the callback runs on the thread that detects that, which may be the calling thread.
pub type AnswerCallback = Option<
    unsafe extern "C" fn(user_data: *mut c_void, status: Status, results: *mut RpcDecoder<'_>),
>;

pub(crate) struct Prepared<'a> {
    pub(crate) spec: CallSpec,
    message: Message<'a>,
}

impl<'a> Prepared<'a> {
    /// Takes all blocks over, and then checks.
    ///
    /// # Safety
    /// The pointers are as the header asks for.
    pub(crate) unsafe fn new(
        arguments: *const u8,
        length: usize,
        options: *const CallOptions,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let options = unsafe { pointers::options(options) }?.unwrap_or(&DEFAULTS);
        // SAFETY: the caller's promise.
        let (message, results) = unsafe {
            let results = slice(options.results, options.result_count, "results");
            refuse_shared(options, results.as_ref().map_or(&[], |results| results))?;
            let arguments = stream(arguments, length, "arguments");
            let message = Message::take(arguments, options.items, options.item_count);
            (message, results.and_then(|results| take_blocks(results.iter().copied())))
        };
        let (message, blocks) = message?;
        let spec = blocks.into_iter().fold(spec(options)?, CallSpec::argument);
        let spec = results?.into_iter().fold(spec, CallSpec::result_into);
        Ok(Self { spec, message })
    }

    pub(crate) fn parts(self) -> (CallSpec, impl FnOnce(&mut Encoder<'_>) + use<'a>) {
        let Self { spec, message } = self;
        (spec, move |to: &mut Encoder<'_>| message.encode(to))
    }
}

/// A block must not be both an item of the arguments and one of `results`: then all are taken over, each once.
///
/// # Safety
/// The pointers of `options` are as the header asks for.
unsafe fn refuse_shared(options: &CallOptions, results: &[*mut RpcMemory]) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let items = unsafe { slice(options.items, options.item_count, "items") }.unwrap_or_default();
    let is_shared = |item: &DataItem| !item.memory.is_null() && results.contains(&item.memory);
    if items.iter().any(is_shared) {
        let blocks = items.iter().map(|item| item.memory).chain(results.iter().copied());
        let blocks: Vec<_> = blocks.collect();
        // SAFETY: the caller's promise. It refuses blocks that are there twice.
        drop(unsafe { take_blocks(blocks.into_iter()) }?);
    }
    Ok(())
}

fn spec(options: &CallOptions) -> Result<CallSpec, Failure> {
    unused(&options.reserved)?;
    const { assert!(SPINRPC_SHORT_RESULTS_BYTES == CallSpec::SHORT_RESULTS_BYTES_MAX) };
    let spec = match options.reply_bytes_max {
        0 => CallSpec::new(),
        bytes => CallSpec::new().reply_bytes_max(bytes),
    };
    let spec = match options.deadline_ns {
        0 => spec,
        u64::MAX => spec.no_deadline(),
        deadline => spec.deadline(Duration::from_nanos(deadline)),
    };
    match options.flags {
        0 => Ok(spec),
        SPINRPC_CALL_IDEMPOTENT => Ok(spec.resend(Resend::AtLeastOnce)),
        _ => Err(Failure::argument("options.flags has unknown bits")),
    }
}

type Callback = unsafe extern "C" fn(*mut c_void, Status, *mut RpcDecoder<'_>);

thread_local! {
    /// The callback that this thread's last call had: most threads have one, and need not allocate again.
    static LAST_CALLBACK: RefCell<Option<(Callback, Arc<OnAnswer>)>> = const { RefCell::new(None) };
}

/// The handler that the core runs for calls with this callback; the token of a call is its user data.
fn on_answer(callback: Callback) -> Arc<OnAnswer> {
    LAST_CALLBACK.with_borrow_mut(|last| match last {
        Some((known, run)) if std::ptr::fn_addr_eq(*known, callback) => Arc::clone(run),
        _ => {
            let run: Arc<OnAnswer> = Arc::new(move |token, reply| answer(callback, token, reply));
            *last = Some((callback, Arc::clone(&run)));
            run
        }
    })
}

fn answer(callback: Callback, Token(user_data): Token, reply: Result<Reply<'_>, CallError>) {
    let user_data = with_exposed_provenance_mut(user_data as usize);
    let _inside = InCallback::enter();
    let (status, mut decoder) = match reply {
        Ok(mut reply) => (Status::Ok, Some(RpcDecoder(reply.results()))),
        Err(error) => (remember(&error.into()), None),
    };
    let results = decoder.as_mut().map_or(null_mut(), |decoder| &raw mut *decoder);
    // SAFETY: a function of this type, as the header asks for; the decoder lives until it returns.
    unsafe { callback(user_data, status, results) };
}

/// Starts a call and returns at once: `callback` gets the answer, with `user_data`, exactly once. If this function does
/// not return SPINRPC_STATUS_OK, nothing was sent and `callback` is not called.
///
/// `arguments` are `length` bytes of XDR, a multiple of four, which are copied; NULL if there are none. `options` may
/// be NULL. A call waits for the connection and for credits; calls of a thread are sent in order.
///
/// Errors: SPINRPC_STATUS_AGAIN if as many calls are in flight as the core takes (1024);
/// SPINRPC_STATUS_TOO_LARGE; SPINRPC_STATUS_DISCONNECTED if the engine has ended; SPINRPC_STATUS_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_call(
    client: *const RpcClient,
    procedure: u32,
    arguments: *const u8,
    length: usize,
    options: *const CallOptions,
    callback: AnswerCallback,
    user_data: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: pointers as the header asks for.
        let call = unsafe { Prepared::new(arguments, length, options) };
        // SAFETY: a client, as the header asks for.
        let (call, client) = (call?, unsafe { borrow(client, "client") }?);
        let null = || Failure::argument("callback is null");
        let run = on_answer(callback.ok_or_else(null)?);
        let token = Token(user_data.expose_provenance() as u64);
        let (spec, encode) = call.parts();
        Ok(client.0.start_on_core(&run, token, Procedure(procedure), spec, encode)?)
    })
}

/// The answer of a call: its results, as long as it is kept. It counts as a call in flight until it is
/// freed. One thread at a time may use it.
pub struct RpcAnswer {
    /// Borrows from `answer`, and from nothing that belongs to a core.
    decoder: RpcDecoder<'static>,
    answer: NonNull<Answer>,
}

impl RpcAnswer {
    pub(crate) fn new(answer: Answer) -> Self {
        let answer = NonNull::from(Box::leak(Box::new(answer)));
        // SAFETY: the answer stays where it is until the decoder is gone, and only the decoder uses it.
        let decoder = RpcDecoder(unsafe { &mut *answer.as_ptr() }.results());
        Self { decoder, answer }
    }

    /// The answer, to be read from the beginning again.
    pub(crate) fn into_inner(self) -> Answer {
        let mut own = ManuallyDrop::new(self);
        own.decoder = RpcDecoder(Decoder::plain(&[]));
        // SAFETY: `new` made it by a box, the decoder that borrowed from it is gone, and `drop` does not run.
        *unsafe { Box::from_raw(own.answer.as_ptr()) }
    }
}

impl Drop for RpcAnswer {
    fn drop(&mut self) {
        self.decoder = RpcDecoder(Decoder::plain(&[]));
        // SAFETY: `new` made it by a box, and the decoder that borrowed from it is gone.
        drop(unsafe { Box::from_raw(self.answer.as_ptr()) });
    }
}

/// Calls and waits for the answer. Blocks, also as long as the engine was not started; not in a callback.
///
/// Arguments and options as for spinrpc_call(). On success `*answer` is the answer, to be freed with
/// spinrpc_answer_free(). Errors: all those of a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_call_wait(
    client: *const RpcClient,
    procedure: u32,
    arguments: *const u8,
    length: usize,
    options: *const CallOptions,
    answer: *mut *mut RpcAnswer,
) -> Status {
    guard(|| {
        // SAFETY: pointers as the header asks for.
        let call = unsafe { Prepared::new(arguments, length, options) };
        // SAFETY: a client and memory for a pointer, as the header asks for.
        let (client, out) = unsafe { (borrow(client, "client")?, Out::new(answer, "answer")?) };
        may_block()?;
        let (spec, encode) = call?.parts();
        out.give(RpcAnswer::new(client.0.start(Procedure(procedure), spec, encode)?.wait()?));
        Ok(())
    })
}

/// Returns the decoder of the results, always the same one; NULL if `answer` is. It is valid until the answer is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_answer_results(
    answer: *mut RpcAnswer,
) -> *mut RpcDecoder<'static> {
    guard_or(null_mut(), || {
        // SAFETY: an answer that no other thread uses, as the header asks for.
        let answer = unsafe { borrow_mut(answer, "answer") }?;
        Ok(&raw mut answer.decoder)
    })
}

/// Frees an answer, and with it the bytes that its decoder has returned. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_answer_free(answer: *mut RpcAnswer) {
    // SAFETY: null, or an answer that is not used any more, as the header asks for.
    unsafe { free(answer, "answer") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spinrpc::Bulk;

    #[test]
    fn a_block_that_is_an_argument_and_a_result_is_refused_and_freed_once() {
        let memory = Box::into_raw(Box::new(RpcMemory(Bulk::from_vec(b"data".to_vec()))));
        let (items, results) = ([DataItem { memory, at: 0 }], [memory]);
        let options = CallOptions {
            items: items.as_ptr(),
            item_count: items.len(),
            results: results.as_ptr(),
            result_count: results.len(),
            ..DEFAULTS
        };
        // SAFETY: the block was made for this, and the lists live longer.
        let prepared = unsafe { Prepared::new(std::ptr::null(), 0, &raw const options) };
        assert_eq!(prepared.map(|_| ()).unwrap_err().status, Status::InvalidArgument);
    }
}
