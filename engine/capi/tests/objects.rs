//! Null pointers are errors, in each parameter of each function; and objects may be freed in any order.
#![allow(clippy::unwrap_used, reason = "a test ends here")]
#![allow(unsafe_code, reason = "the interface is one for C")]

use spinrpc_capi::*;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut, with_exposed_provenance_mut};
use std::sync::mpsc::{Sender, channel};

fn last() -> String {
    // SAFETY: the text is valid until the next error on this thread.
    let text = unsafe { CStr::from_ptr(spinrpc_last_error_message()) };
    text.to_str().unwrap().to_owned()
}

#[track_caller]
fn invalid(status: Status, text: &str) {
    assert_eq!((status, last().as_str()), (Status::InvalidArgument, text));
}

unsafe extern "C" fn on_answer(_: *mut c_void, _: Status, _: *mut RpcDecoder<'_>) {}

fn engine() -> *mut RpcEngine {
    let mut engine = null_mut();
    let settings = c"poll.mode=sleep\n\n mem.arena_mib = 8 \ncores.max=1";
    // SAFETY: text, and a place for the engine.
    let status = unsafe { spinrpc_engine_new(null(), settings.as_ptr(), &raw mut engine) };
    assert_eq!(status, Status::Ok, "{}", last());
    engine
}

fn client(engine: *const RpcEngine) -> *mut RpcClient {
    let (mut client, address) = (null_mut(), c"shm:none".as_ptr());
    // SAFETY: an engine, text, and a place for the client.
    let status = unsafe { spinrpc_client_connect(engine, address, 1, 1, null(), &raw mut client) };
    assert_eq!(status, Status::Ok, "{}", last());
    client
}

#[test]
fn objects_that_are_null_are_refused() {
    let mut size = 0_usize;
    // SAFETY: each of these functions refuses what it is given first.
    unsafe {
        invalid(spinrpc_engine_new(null(), null(), null_mut()), "engine is null");
        invalid(spinrpc_engine_listen(null(), c"shm:x".as_ptr(), null()), "engine is null");
        invalid(spinrpc_engine_start(null()), "engine is null");
        invalid(spinrpc_engine_shutdown(null()), "engine is null");
        invalid(spinrpc_engine_drain(null(), 0, &raw mut size), "engine is null");
        invalid(spinrpc_engine_join(null()), "engine is null");
        invalid(spinrpc_engine_serve(null(), 1, 1, None, null_mut()), "engine is null");
        invalid(spinrpc_client_wait_up(null(), 0), "client is null");
        invalid(spinrpc_client_close(null()), "client is null");
        invalid(spinrpc_client_memory(null(), 1, null_mut()), "client is null");
        invalid(spinrpc_memory_set_length(null_mut(), 1), "memory is null");
        invalid(spinrpc_slab_new(null(), 1, 1, null_mut()), "engine is null");
        invalid(spinrpc_slab_from_memfd(0, 1, 1, null_mut()), "slab is null");
        invalid(spinrpc_slab_take(null(), 1, null_mut()), "slab is null");
        invalid(spinrpc_decode_u32(null_mut(), null_mut()), "decoder is null");
        invalid(spinrpc_decode_u64(null_mut(), null_mut()), "decoder is null");
        invalid(spinrpc_decode_finish(null_mut()), "decoder is null");
        invalid(spinrpc_request_reply(null_mut(), null(), 0, null(), 0), "request is null");
        invalid(spinrpc_request_reject(null_mut(), 3), "request is null");
        invalid(spinrpc_request_defer(null_mut(), null_mut()), "request is null");
        invalid(spinrpc_request_memory(null(), 1, null_mut()), "request is null");
        invalid(spinrpc_deferred_reply(null_mut(), null(), 0, null(), 0), "deferred is null");
        invalid(spinrpc_deferred_reject(null_mut(), 3), "deferred is null");
        invalid(spinrpc_deferred_memory(null(), 1, null_mut()), "deferred is null");
        invalid(spinrpc_queue_new(1, null_mut()), "queue is null");
        invalid(spinrpc_queue_arm(null(), null_mut()), "queue is null");
        let (mut nfs, mut file, mut memory) = (null_mut(), null_mut(), null_mut());
        let (text, mut is_end) = (c"shm:x//y".as_ptr(), false);
        invalid(spinrpc_nfs_mount(null(), text, null(), &raw mut nfs), "engine is null");
        invalid(spinrpc_nfs_limits(null(), &raw mut size, &raw mut size), "nfs is null");
        invalid(spinrpc_nfs_memory(null(), 1, &raw mut memory), "nfs is null");
        invalid(spinrpc_nfs_open(null(), text, 0, 0, &raw mut file), "nfs is null");
        invalid(spinrpc_nfs_file_attributes(null(), null_mut()), "file is null");
        invalid(spinrpc_nfs_read(null(), 0, null_mut(), null(), 0), "file is null");
        invalid(spinrpc_nfs_write(null(), 0, null_mut(), 0, null(), 0), "file is null");
        invalid(spinrpc_nfs_commit(null(), null(), 0), "file is null");
        let read = spinrpc_nfs_read_result(null_mut(), 1, &raw mut memory, &raw mut is_end);
        invalid(read, "answer is null");
        let place = (&raw mut size, &raw mut is_end);
        let written = spinrpc_nfs_write_result(null(), null_mut(), 1, place.0, place.1);
        invalid(written, "answer is null");
        invalid(spinrpc_nfs_commit_result(null(), null_mut()), "answer is null");
    }
}

/// Functions that return no status say so otherwise.
#[test]
fn getters_and_frees_accept_null() {
    // SAFETY: null is allowed.
    unsafe {
        assert_eq!(spinrpc_slab_available(null()), 0);
        assert!(spinrpc_memory_data(null_mut()).is_null());
        assert_eq!(last(), "memory is null");
        assert_eq!(spinrpc_memory_length(null()) + spinrpc_memory_capacity(null()), 0);
        assert!(spinrpc_answer_results(null_mut()).is_null());
        assert_eq!(last(), "answer is null");
        assert_eq!(spinrpc_queue_fd(null()), -1);
        assert_eq!(spinrpc_engine_free(null_mut()), Status::Ok);
        spinrpc_client_free(null_mut());
        spinrpc_queue_free(null_mut());
        spinrpc_answer_free(null_mut());
        spinrpc_memory_free(null_mut());
        spinrpc_slab_free(null_mut());
        spinrpc_deferred_free(null_mut());
        spinrpc_nfs_free(null_mut());
        spinrpc_nfs_file_free(null_mut());
        assert_eq!(last(), "queue is null", "frees are no errors");
    }
}

const NO_OPTIONS: ClientOptions =
    ClientOptions { core: 0, slabs: null(), slab_count: 0, flags: 0, reserved: [0; 4] };

#[test]
fn other_arguments_that_cannot_be_right_are_refused() {
    let (engine, mut place, mut queue) = (engine(), null_mut(), null_mut());
    let client = client(engine);
    let word = [0_u8; 4];
    let at = word.as_ptr();
    // SAFETY: what is not null is there, and each function refuses what is.
    unsafe {
        assert_eq!(spinrpc_queue_new(1, &raw mut queue), Status::Ok);
        invalid(spinrpc_engine_listen(engine, null(), null()), "address is null");
        invalid(spinrpc_engine_listen(engine, c"\xff".as_ptr(), null()), "address is not UTF-8");
        invalid(spinrpc_engine_serve(engine, 1, 1, None, null_mut()), "handler is null");
        let none = ListenerOptions { slabs: null(), slab_count: 1, reserved: [0; 4] };
        invalid(spinrpc_engine_listen(engine, c"shm:x".as_ptr(), &raw const none), "slabs is null");
        let later = ListenerOptions { slab_count: 0, reserved: [1, 0, 0, 0], ..none };
        let text = "options.reserved is not zero";
        invalid(spinrpc_engine_listen(engine, c"shm:x".as_ptr(), &raw const later), text);
        let connect = |address, flags, to| {
            let options = ClientOptions { flags, ..NO_OPTIONS };
            spinrpc_client_connect(engine, address, 1, 1, &raw const options, to)
        };
        let address = c"shm:none".as_ptr();
        invalid(connect(null(), 0, null_mut()), "address is null");
        invalid(connect(address, 0, null_mut()), "client is null");
        let mut other = null_mut();
        invalid(connect(address, 2, &raw mut other), "options.flags has unknown bits");
        let later = ClientOptions { reserved: [0, 1, 0, 0], ..NO_OPTIONS };
        let status =
            spinrpc_client_connect(engine, address, 1, 1, &raw const later, &raw mut other);
        invalid(status, text);
        let call =
            |at, length| spinrpc_call(client, 1, at, length, null(), Some(on_answer), null_mut());
        invalid(call(null(), 4), "arguments is null");
        let text = "arguments is not XDR: its length is not a multiple of four";
        invalid(call(at, 3), text);
        invalid(call(at, usize::MAX - 3), "arguments is longer than memory");
        invalid(spinrpc_call(client, 1, at, 4, null(), None, null_mut()), "callback is null");
        invalid(spinrpc_call_wait(client, 1, at, 4, null(), null_mut()), "answer is null");
        invalid(spinrpc_call_wait(null(), 1, at, 4, null(), &raw mut place), "client is null");
        invalid(spinrpc_call_queued(client, 1, at, 4, null(), null(), 0), "queue is null");
        assert_eq!(spinrpc_engine_join(engine), Status::InvalidState);
        assert_eq!(last(), "the engine was not started");
        spinrpc_queue_free(queue);
        spinrpc_client_free(client);
        assert_eq!(spinrpc_engine_free(engine), Status::Ok);
    }
    assert!(place.is_null());
}

#[test]
fn options_that_cannot_be_right_are_refused() {
    let engine = engine();
    let client = client(engine);
    let defaults = CallOptions {
        deadline_ns: 0,
        reply_bytes_max: 0,
        items: null(),
        item_count: 0,
        results: null(),
        result_count: 0,
        flags: 0,
        reserved: [0; 4],
    };
    let refused = |options: CallOptions, text: &str| {
        let (at, mut answer) = (null(), null_mut());
        // SAFETY: the client and the options are there.
        let status =
            unsafe { spinrpc_call_wait(client, 1, at, 0, &raw const options, &raw mut answer) };
        invalid(status, text);
    };
    refused(CallOptions { flags: 2, ..defaults }, "options.flags has unknown bits");
    refused(CallOptions { reserved: [0, 0, 0, 1], ..defaults }, "options.reserved is not zero");
    refused(CallOptions { item_count: 1, ..defaults }, "items is null");
    refused(CallOptions { result_count: 1, ..defaults }, "results is null");
    let no_blocks = [null_mut(); 1];
    refused(
        CallOptions { results: no_blocks.as_ptr(), result_count: 1, ..defaults },
        "data items need a block of memory each, and there may be four at most",
    );
    // SAFETY: neither is used any more.
    unsafe {
        spinrpc_client_free(client);
        assert_eq!(spinrpc_engine_free(engine), Status::Ok);
    }
}

/// Counts callbacks, and keeps the status of the last one.
#[derive(Default)]
struct Answers(Cell<u32>, Cell<Option<Status>>);

unsafe extern "C" fn count(answers: *mut c_void, status: Status, results: *mut RpcDecoder<'_>) {
    // SAFETY: each call here has answers of its test as its data.
    let answers = unsafe { &*answers.cast::<Answers>() };
    answers.0.set(answers.0.get() + 1);
    answers.1.set(Some(status));
    assert!(results.is_null(), "it failed");
}

/// A call whose core never runs is answered before the engine has gone, on this thread.
#[test]
fn an_engine_is_freed_expect_its_calls_answered() {
    let (engine, answers) = (engine(), Answers::default());
    let client = client(engine);
    let data = (&raw const answers).cast_mut().cast();
    // SAFETY: the objects and the callback's data are there.
    unsafe {
        let call = || spinrpc_call(client, 1, null(), 0, null(), Some(count), data);
        assert_eq!([call(), call()], [Status::Ok; 2]);
        assert_eq!(answers.0.get(), 0);
        assert_eq!(spinrpc_engine_free(engine), Status::Ok);
        assert_eq!(answers.0.get(), 2);
        assert_eq!(answers.1.get(), Some(Status::NotExecuted));
        assert_eq!(call(), Status::Disconnected, "{}", last());
        assert_eq!(answers.0.get(), 2);
        spinrpc_client_free(client);
    }
}

/// Defers every request and hands it out, with a block of memory.
unsafe extern "C" fn keep(
    kept: *mut c_void,
    request: *mut RpcRequest<'_, '_>,
    _: u32,
    _: *mut RpcDecoder<'_>,
) {
    let (mut memory, mut deferred) = (null_mut(), null_mut());
    // SAFETY: the request is in its handler, and its data are those of the test.
    unsafe {
        assert_eq!(spinrpc_request_memory(request, 4, &raw mut memory), Status::Ok);
        assert_eq!(spinrpc_request_defer(request, &raw mut deferred), Status::Ok);
        let kept = &*kept.cast::<Sender<[usize; 2]>>();
        kept.send([memory.expose_provenance(), deferred.expose_provenance()]).unwrap();
    }
}

#[test]
fn an_engine_is_freed_expect_deferred_requests_and_memory_to_outlive_it() {
    let (sender, kept) = channel::<[usize; 2]>();
    let address = CString::new(format!("shm:capi-objects-{}", std::process::id())).unwrap();
    let (server, caller) = (engine(), engine());
    let (mut client, mut queue) = (null_mut(), null_mut());
    let data = (&raw const sender).cast_mut().cast();
    // SAFETY: all objects are there, and used once after their engine was freed.
    unsafe {
        assert_eq!(spinrpc_engine_serve(server, 7, 1, Some(keep), data), Status::Ok);
        assert_eq!(spinrpc_engine_listen(server, address.as_ptr(), null()), Status::Ok);
        assert_eq!(spinrpc_engine_start(server), Status::Ok, "{}", last());
        assert_eq!(spinrpc_engine_start(caller), Status::Ok, "{}", last());
        let address = address.as_ptr();
        let made = spinrpc_client_connect(caller, address, 7, 1, null(), &raw mut client);
        assert_eq!(made, Status::Ok, "{}", last());
        assert_eq!(spinrpc_queue_new(1, &raw mut queue), Status::Ok);
        let call = spinrpc_call_queued(client, 1, null(), 0, null(), queue, 5);
        assert_eq!(call, Status::Ok, "{}", last());
        let [memory, deferred] = kept.recv().unwrap();
        assert_eq!(spinrpc_engine_free(server), Status::Ok);
        let item = DataItem { memory: with_exposed_provenance_mut(memory), at: 0 };
        spinrpc_memory_data(item.memory).write_bytes(1, 4);
        let deferred = with_exposed_provenance_mut(deferred);
        let reply = spinrpc_deferred_reply(deferred, null(), 0, &raw const item, 1);
        assert_eq!(reply, Status::Ok, "{}", last());

        assert_eq!(spinrpc_engine_free(caller), Status::Ok);
        let (mut token, mut outcome, mut answer) = (0, Status::Ok, null_mut());
        let next = spinrpc_queue_next(queue, &raw mut token, &raw mut outcome, &raw mut answer);
        assert_eq!((next, token, outcome), (Status::Ok, 5, Status::Disconnected));
        let before = last();
        let next = spinrpc_queue_next(queue, &raw mut token, &raw mut outcome, &raw mut answer);
        assert_eq!((next, last()), (Status::Empty, before));
        spinrpc_queue_free(queue);
        spinrpc_client_free(client);
    }
}

#[test]
fn slabs_that_are_wrong_are_refused_and_are_freed_in_any_order() {
    let engine = engine();
    let (mut slab, mut memory, mut client) = (null_mut(), null_mut(), null_mut());
    let address = c"shm:none".as_ptr();
    // SAFETY: objects and places for them; what is wrong is refused.
    unsafe {
        assert_eq!(spinrpc_slab_new(engine, 0, 1, &raw mut slab), Status::Engine);
        invalid(spinrpc_slab_from_memfd(-1, 1, 1, &raw mut slab), "memfd is negative");
        let none = spinrpc_slab_from_memfd(i32::MAX, 1, 1, &raw mut slab);
        assert_eq!(none, Status::InvalidArgument, "{}", last());
        let file = std::fs::File::open("/dev/null").unwrap();
        let file = std::os::fd::AsRawFd::as_raw_fd(&file);
        let no_memfd = spinrpc_slab_from_memfd(file, 1, 1, &raw mut slab);
        assert_eq!(no_memfd, Status::InvalidArgument, "{}", last());
        assert_eq!(spinrpc_slab_new(engine, 5000, 1, &raw mut slab), Status::Ok, "{}", last());
        assert_eq!(spinrpc_slab_take(slab, 8193, &raw mut memory), Status::NoMemory);
        assert_eq!(spinrpc_slab_take(slab, 8192, &raw mut memory), Status::Ok);
        assert_eq!((spinrpc_memory_capacity(memory), spinrpc_slab_available(slab)), (8192, 0));
        let mut connect = |slabs: &[*const RpcSlab], count| {
            let options = ClientOptions { slabs: slabs.as_ptr(), slab_count: count, ..NO_OPTIONS };
            spinrpc_client_connect(engine, address, 1, 1, &raw const options, &raw mut client)
        };
        invalid(connect(&[slab, null()], 2), "slab is null");
        invalid(connect(&[slab], usize::MAX), "slabs is longer than memory");
        assert_eq!(connect(&[slab.cast_const(); 5], 5), Status::Connect, "{}", last());
        assert_eq!(connect(&[slab], 1), Status::Ok, "{}", last());
        spinrpc_slab_free(slab);
        assert_eq!(spinrpc_engine_free(engine), Status::Ok);
        *spinrpc_memory_data(memory) = 1;
        spinrpc_memory_free(memory);
        spinrpc_client_free(client);
    }
}
