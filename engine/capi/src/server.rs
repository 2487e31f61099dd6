//! Programs that are served, their requests, and replies, at once or deferred.

use crate::decoder::RpcDecoder;
use crate::engine::RpcEngine;
use crate::error::{Failure, InCallback, Status, guard};
use crate::memory::{DataItem, Message, OF_CORE, RpcMemory, lend};
use crate::pointers::{Out, UserData, borrow, borrow_mut, free, stream, take_back};
use spinrpc::{
    AcceptStatus, Bulk, Call, CoreContext, Deferred, Encoder, Program, ReplyData, Version,
};
use std::ffi::c_void;

/// A request in its handler. It ends when the handler returns: answer or defer it before, on the same thread.
pub struct RpcRequest<'call, 'core> {
    /// `None` after it was answered or deferred.
    call: Option<Call<'call>>,
    context: &'core CoreContext,
}

/// A request that is answered later, by any one thread, or on the core. It can be kept as long as needed, and ends
/// with spinrpc_deferred_reply(), _reject() or _free().
pub struct RpcDeferred {
    deferred: Deferred,
    context: CoreContext,
}

/// Executes a request of a program, on the thread of a core: several cores run it at the same time. It must
/// return soon and must not block, because the core does nothing else meanwhile; what takes longer is deferred. `request`
/// and `arguments` are valid until it returns. A request that it neither answers nor defers is answered with
/// SYSTEM_ERR. It must not leave by longjmp() or by an exception.
pub type RequestHandler = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        request: *mut RpcRequest<'_, '_>,
        procedure: u32,
        arguments: *mut RpcDecoder<'_>,
    ),
>;

/// Errors of RFC 5531 that a server answers with.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// PROC_UNAVAIL: the program does not have the procedure.
    ProcedureUnavailable = 3,
    /// GARBAGE_ARGS: the arguments cannot be decoded.
    GarbageArguments = 4,
    /// SYSTEM_ERR: the server cannot execute the call, for example for lack of memory.
    SystemError = 5,
}

fn accept_status(rejection: u32) -> Result<AcceptStatus, Failure> {
    let known = [
        (Rejection::ProcedureUnavailable, AcceptStatus::ProcUnavail),
        (Rejection::GarbageArguments, AcceptStatus::GarbageArgs),
        (Rejection::SystemError, AcceptStatus::SystemErr),
    ];
    let found = known.into_iter().find(|(known, _)| *known as u32 == rejection);
    let unknown = || Failure::argument(format!("{rejection} is not a spinrpc_rejection"));
    found.map(|(_, status)| status).ok_or_else(unknown)
}

impl<'call> RpcRequest<'call, '_> {
    fn take(&mut self) -> Result<Call<'call>, Failure> {
        let over = || Failure::new(Status::InvalidState, "the request was answered before");
        self.call.take().ok_or_else(over)
    }
}

fn handle(
    handler: unsafe extern "C" fn(*mut c_void, *mut RpcRequest<'_, '_>, u32, *mut RpcDecoder<'_>),
    user_data: UserData,
    context: &CoreContext,
    mut call: Call<'_>,
) {
    let procedure = call.procedure().0;
    let mut arguments = RpcDecoder(call.args());
    let mut request = RpcRequest { call: Some(call), context };
    let _inside = InCallback::enter();
    // SAFETY: a function of this type, as the header asks for; both objects live until it returns.
    unsafe {
        handler(user_data.pointer(), &raw mut request, procedure, &raw mut arguments);
    }
}

/// Serves a version of a program: `handler` is called for each request, with `user_data`, which several
/// threads use at the same time. Before spinrpc_engine_start(). Of two handlers for one version the first gets all requests.
///
/// Errors: SPINRPC_STATUS_INVALID_STATE if the engine was started before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_engine_serve(
    engine: *const RpcEngine,
    program: u32,
    version: u32,
    handler: RequestHandler,
    user_data: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: an engine, as the header asks for.
        let engine = unsafe { borrow(engine, "engine") }?;
        let null = || Failure::argument("handler is null");
        let (handler, user_data) = (handler.ok_or_else(null)?, UserData::new(user_data));
        let service = move |context: &CoreContext| {
            let context = context.clone();
            move |call: Call<'_>| handle(handler, user_data, &context, call)
        };
        engine.configure(|engine| engine.serve(Program(program), Version(version), service))
    })
}

/// Answers with results, which are copied: `length` bytes of XDR, a multiple of four, with `item_count` data items
/// (at most four) among them. `items` may be NULL if there are none; their blocks belong to the library
/// whatever is returned. A data item goes straight into the client's memory if the client has offered some.
///
/// The answer leaves when the handler has returned. If the results are longer than the client takes, it gets an error.
///
/// Errors: SPINRPC_STATUS_INVALID_STATE if the request was answered or deferred before;
/// SPINRPC_STATUS_INVALID_ARGUMENT, after which it can still be answered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_request_reply(
    request: *mut RpcRequest<'_, '_>,
    results: *const u8,
    length: usize,
    items: *const DataItem,
    item_count: usize,
) -> Status {
    guard(|| {
        // SAFETY: bytes and items, as the header asks for.
        let message =
            unsafe { Message::take(stream(results, length, "results"), items, item_count) };
        // SAFETY: a request in its handler, as the header asks for.
        let request = unsafe { borrow_mut(request, "request") }?;
        let (message, blocks) = message?;
        let call = request.take()?;
        match blocks.is_empty() {
            true => call.reply(|to| message.encode(to)),
            false => call.reply_with(reply_data(blocks), |to| message.encode(to)),
        }
        Ok(())
    })
}

fn reply_data(blocks: Vec<Bulk>) -> ReplyData {
    blocks.into_iter().fold(ReplyData::new(), ReplyData::bulk)
}

/// Answers with an error: `rejection` is a spinrpc_rejection.
///
/// Errors: as spinrpc_request_reply().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_request_reject(
    request: *mut RpcRequest<'_, '_>,
    rejection: u32,
) -> Status {
    guard(|| {
        // SAFETY: a request in its handler, as the header asks for.
        let request = unsafe { borrow_mut(request, "request") }?;
        let status = accept_status(rejection)?;
        request.take()?.reject(status);
        Ok(())
    })
}

/// Takes the request out of its handler, to be answered later. Copy arguments that are still needed, or
/// take them with spinrpc_decode_data(): the decoder ends with the handler.
///
/// On success `*deferred` is the request. Errors: SPINRPC_STATUS_AGAIN if too many requests are deferred; the
/// request can still be answered. SPINRPC_STATUS_INVALID_STATE if it was answered or deferred before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_request_defer(
    request: *mut RpcRequest<'_, '_>,
    deferred: *mut *mut RpcDeferred,
) -> Status {
    guard(|| {
        // SAFETY: a request in its handler and memory for a pointer, as the header asks for.
        let (request, out) =
            unsafe { (borrow_mut(request, "request")?, Out::new(deferred, "deferred")?) };
        let context = request.context.clone();
        match request.take()?.try_defer() {
            Ok(deferred) => {
                out.give(RpcDeferred { deferred, context });
                Ok(())
            }
            Err(call) => {
                request.call = Some(call);
                Err(Failure::new(Status::Again, "too many requests are deferred"))
            }
        }
    })
}

/// Lends registered memory of the request's core for a data item of its reply. `*memory` is a block of `bytes` bytes or
/// more, of which `bytes` are in use.
///
/// Errors: SPINRPC_STATUS_NO_MEMORY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_request_memory(
    request: *const RpcRequest<'_, '_>,
    bytes: usize,
    memory: *mut *mut RpcMemory,
) -> Status {
    guard(|| {
        // SAFETY: a request in its handler, as the header asks for.
        let request = unsafe { borrow(request, "request") }?;
        lend(memory, bytes, OF_CORE, |bytes| request.context.bulk(bytes))
    })
}

/// Answers a deferred request, as spinrpc_request_reply(), on this thread, and frees it, whatever is returned. If this
/// function fails, the client gets SYSTEM_ERR. If the client has gone meanwhile, the answer goes nowhere, which is not an
/// error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_deferred_reply(
    deferred: *mut RpcDeferred,
    results: *const u8,
    length: usize,
    items: *const DataItem,
    item_count: usize,
) -> Status {
    guard(|| {
        // SAFETY: bytes and items, as the header asks for.
        let message =
            unsafe { Message::take(stream(results, length, "results"), items, item_count) };
        // SAFETY: null, or a request that is not used any more, as the header asks for.
        let deferred = unsafe { take_deferred(deferred) }?;
        let (message, blocks) = message?;
        deferred.reply_with(reply_data(blocks), |to: &mut Encoder<'_>| message.encode(to));
        Ok(())
    })
}

/// # Safety
/// It is null, or not used any more.
unsafe fn take_deferred(deferred: *mut RpcDeferred) -> Result<Deferred, Failure> {
    let null = || Failure::argument("deferred is null");
    // SAFETY: the caller's promise.
    Ok(unsafe { take_back(deferred, "deferred") }?.ok_or_else(null)?.deferred)
}

/// Answers a deferred request with an error, and frees it, whatever is returned. `rejection` is a spinrpc_rejection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_deferred_reject(
    deferred: *mut RpcDeferred,
    rejection: u32,
) -> Status {
    guard(|| {
        // SAFETY: null, or a request that is not used any more, as the header asks for.
        let deferred = unsafe { take_deferred(deferred) }?;
        deferred.reject(accept_status(rejection)?);
        Ok(())
    })
}

/// Frees a deferred request, which is answered with SYSTEM_ERR. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_deferred_free(deferred: *mut RpcDeferred) {
    // SAFETY: null, or a request that is not used any more, as the header asks for.
    unsafe { free(deferred, "deferred") }
}

/// As spinrpc_request_memory(), for a deferred request; on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_deferred_memory(
    deferred: *const RpcDeferred,
    bytes: usize,
    memory: *mut *mut RpcMemory,
) -> Status {
    guard(|| {
        // SAFETY: a deferred request, as the header asks for.
        let deferred = unsafe { borrow(deferred, "deferred") }?;
        lend(memory, bytes, OF_CORE, |bytes| deferred.context.bulk(bytes))
    })
}
