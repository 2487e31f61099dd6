//! Answers for a thread with an event loop of its own.

use crate::calls::{CallOptions, Prepared, RpcAnswer};
use crate::client::RpcClient;
use crate::error::{Failure, Status, guard, guard_or, remember};
use crate::pointers::{Out, borrow, free};
use spinrpc::{AnswerQueue, Procedure, Token};
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;

/// A queue of answers with a descriptor that poll(), epoll and io_uring can watch. Calls of several clients may have the
/// same queue. Any thread may take answers; one thread at a time may wait.
///
/// A loop: take answers with spinrpc_queue_next() until it is SPINRPC_STATUS_EMPTY; then spinrpc_queue_arm(); if that
/// says so, wait until the descriptor is readable; begin again.
pub struct RpcQueue(pub(crate) AnswerQueue);

/// Makes a queue for at most `calls` calls at a time, at least one. Calls whose answers have not been taken count.
///
/// On success `*queue` is a queue, to be freed with spinrpc_queue_free(). Errors: SPINRPC_STATUS_ENGINE if there are too
/// many descriptors; SPINRPC_STATUS_INVALID_ARGUMENT if `calls` is beyond a million.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_queue_new(calls: usize, queue: *mut *mut RpcQueue) -> Status {
    guard(|| {
        // SAFETY: memory for a pointer, as the header asks for.
        let out = unsafe { Out::new(queue, "queue") }?;
        if calls > 1_000_000 {
            return Err(Failure::argument("calls is beyond a million"));
        }
        let made = AnswerQueue::new(calls);
        let failed = |error| Failure::new(Status::Engine, format!("no descriptor: {error}"));
        out.give(RpcQueue(made.map_err(failed)?));
        Ok(())
    })
}

/// Returns the descriptor to watch for reading; -1 if `queue` is NULL. It belongs to the queue: do not read from it or
/// close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_queue_fd(queue: *const RpcQueue) -> c_int {
    // SAFETY: a queue, as the header asks for.
    guard_or(-1, || unsafe { Ok(borrow(queue, "queue")?.0.as_fd().as_raw_fd()) })
}

/// Makes the descriptor readable with the next answer. `*must_wait` is true then; it is false if an answer
/// is there already, and then the descriptor stays as it is. One system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_queue_arm(queue: *const RpcQueue, must_wait: *mut bool) -> Status {
    guard(|| {
        // SAFETY: a queue and memory for a bool, as the header asks for.
        let (queue, out) = unsafe { (borrow(queue, "queue")?, Out::new(must_wait, "must_wait")?) };
        out.set(queue.0.arm());
        Ok(())
    })
}

/// Takes the oldest answer; never blocks. `*token` is that of its call, and `*outcome` how it ended. If that is
/// SPINRPC_STATUS_OK, `*answer` is the answer, to be freed with spinrpc_answer_free(). Otherwise it is NULL, and
/// spinrpc_last_error_message() has the text.
///
/// Returns SPINRPC_STATUS_OK if an answer was taken, SPINRPC_STATUS_EMPTY if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_queue_next(
    queue: *const RpcQueue,
    token: *mut u64,
    outcome: *mut Status,
    answer: *mut *mut RpcAnswer,
) -> Status {
    // A loop meets an empty queue often: that costs no text.
    let mut is_empty = false;
    let status = guard(|| {
        // SAFETY: a queue and memory for the results, as the header asks for.
        let (queue, token, outcome, answer) = unsafe {
            (
                borrow(queue, "queue")?,
                Out::new(token, "token")?,
                Out::new(outcome, "outcome")?,
                Out::new(answer, "answer")?,
            )
        };
        let Some((Token(name), taken)) = queue.0.next() else {
            is_empty = true;
            return Ok(());
        };
        token.set(name);
        match taken {
            Ok(taken) => {
                outcome.set(Status::Ok);
                answer.give(RpcAnswer::new(taken));
            }
            Err(error) => {
                outcome.set(remember(&error.into()));
                answer.set(null_mut());
            }
        }
        Ok(())
    });
    if is_empty { Status::Empty } else { status }
}

/// Starts a call and returns at once: its answer comes to `queue`, with `token`, exactly once. If this function does not
/// return SPINRPC_STATUS_OK, nothing was sent and no answer comes.
///
/// Arguments, options and errors as for spinrpc_call(); SPINRPC_STATUS_AGAIN also if the queue could not take all answers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_call_queued(
    client: *const RpcClient,
    procedure: u32,
    arguments: *const u8,
    length: usize,
    options: *const CallOptions,
    queue: *const RpcQueue,
    token: u64,
) -> Status {
    guard(|| {
        // SAFETY: pointers as the header asks for.
        let call = unsafe { Prepared::new(arguments, length, options) };
        // SAFETY: a client and a queue, as the header asks for.
        let (client, queue) = unsafe { (borrow(client, "client")?, borrow(queue, "queue")?) };
        let (spec, encode) = call?.parts();
        let (token, procedure) = (Token(token), Procedure(procedure));
        Ok(client.0.start_to_queue(&queue.0, token, procedure, spec, encode)?)
    })
}

/// Frees a queue. NULL is allowed. Answers in it, and those that come later, are dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_queue_free(queue: *mut RpcQueue) {
    // SAFETY: null, or a queue that is not used any more, as the header asks for.
    unsafe { free(queue, "queue") }
}
