// spinrpc: ONC RPC over RDMA and shared memory, in user space. The README of spinrpc-capi has an example.
//
// Generated from the Rust sources; do not edit it.
//
// Rules for all functions:
//
// * Results. Most functions return a spinrpc_status. Results that they return otherwise are written to the places that
//   the last parameters point to, and only if they return SPINRPC_STATUS_OK. spinrpc_last_error_message() has the text of
//   an error.
// * Pointers. An object comes from the function that makes it and is valid until the one that frees it. Null and misaligned
//   pointers, and text that is not UTF-8, are errors; other pointers that are wrong are undefined behaviour. Text ends with a
//   zero byte. Bytes and text that are passed are only read, while the function runs, unless it says otherwise.
// * Threads. An engine, a client, a slab, a queue, a mounted directory and a file of it may be used by any thread at any time;
//   requests and what callbacks are given, on the thread of the callback; all other objects, by one thread at a time. Callbacks run on the threads of cores, except
//   that of spinrpc_set_log(). They must not block, and functions that do fail in them with SPINRPC_STATUS_INVALID_STATE.
// * Times are nanoseconds, lengths are bytes.
// * Arguments and results are XDR (RFC 4506): big-endian, in units of four bytes.
// * A process that was forked must not use what its parent made.


#ifndef SPINRPC_H
#define SPINRPC_H


#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Flag of spinrpc_connect_options: a lost connection is established again, with growing pauses for up to a minute.
// Calls wait for it; those in flight end with SPINRPC_STATUS_DISCONNECTED unless they are marked
// SPINRPC_CALL_IDEMPOTENT.
#define SPINRPC_CONNECT_RECONNECT 1

// Flag of spinrpc_connect_options, with SPINRPC_CONNECT_RECONNECT: also retries the first connection, so that a client may
// be made before its server listens. Calls wait for it, until their deadlines.
#define SPINRPC_CONNECT_RETRY_FIRST 2

// Flag of spinrpc_call_options: executing the call twice does no harm, so that it is sent again if the
// connection was lost and SPINRPC_CONNECT_RECONNECT has established another one.
#define SPINRPC_CALL_IDEMPOTENT 1

// The longest results, in bytes, whose reply fits into any message: see spinrpc_call_options.
#define SPINRPC_SHORT_RESULTS_BYTES 572

// Flag of spinrpc_nfs_options: calls are made as its uid and gid, without other groups. Else they are made as the user of
// the process.
#define SPINRPC_NFS_USER 1

// Flag of spinrpc_nfs_open(): the file is created if it is missing.
#define SPINRPC_NFS_CREATE 1

// Flag of spinrpc_nfs_open(), with SPINRPC_NFS_CREATE: a file that is there becomes empty.
#define SPINRPC_NFS_TRUNCATE 2

// Flag of spinrpc_nfs_write(): the answer comes when the data are on stable storage.
#define SPINRPC_NFS_STABLE 1

// Result of a function, and outcome of a call. SPINRPC_STATUS_OK is 0; every other value is an error, whose text
// spinrpc_last_error_message() returns. Later versions may add values.
typedef enum spinrpc_status {
    // Success.
    SPINRPC_STATUS_OK = 0,
    // An argument is wrong: a null or misaligned pointer, a length that is not a multiple of four, text that is
    // not UTF-8.
    SPINRPC_STATUS_INVALID_ARGUMENT = 1,
    // The object is not in a state for this: an engine that runs already, a request that has been answered; or
    // a function that blocks was called in a callback.
    SPINRPC_STATUS_INVALID_STATE = 2,
    // The profile or a setting cannot be used.
    SPINRPC_STATUS_CONFIG = 3,
    // The engine could not be started or cannot listen, or a core's thread panicked.
    SPINRPC_STATUS_ENGINE = 4,
    // The connection is down or failed, and none will replace it.
    SPINRPC_STATUS_CONNECT = 5,
    // Nothing was sent, because a limit is reached. The call may be tried again when replies have arrived.
    SPINRPC_STATUS_AGAIN = 6,
    // The call is longer than can be sent. The same call will fail again.
    SPINRPC_STATUS_TOO_LARGE = 7,
    // The connection went down. Calls in flight may have been executed.
    SPINRPC_STATUS_DISCONNECTED = 8,
    // The connection went down, and the server did not execute the call.
    SPINRPC_STATUS_NOT_EXECUTED = 9,
    // The deadline expired. The server may still execute the call.
    SPINRPC_STATUS_TIMED_OUT = 10,
    // The call was cancelled. The server may still execute it.
    SPINRPC_STATUS_CANCELLED = 11,
    // The server does not serve the program (RFC 5531: PROG_UNAVAIL).
    SPINRPC_STATUS_PROGRAM_UNAVAILABLE = 12,
    // The server does not serve this version of the program (PROG_MISMATCH).
    SPINRPC_STATUS_VERSION_MISMATCH = 13,
    // The program does not have the procedure (PROC_UNAVAIL).
    SPINRPC_STATUS_PROCEDURE_UNAVAILABLE = 14,
    // The server could not decode the arguments (GARBAGE_ARGS).
    SPINRPC_STATUS_GARBAGE_ARGUMENTS = 15,
    // The server failed to execute the call (SYSTEM_ERR).
    SPINRPC_STATUS_SYSTEM_ERROR = 16,
    // The server denied the call for its credential or RPC version (MSG_DENIED).
    SPINRPC_STATUS_DENIED = 17,
    // Arguments or results cannot be decoded: they are shorter, or items in them longer, than expected.
    SPINRPC_STATUS_DECODE = 18,
    // All registered memory is lent, or the length is beyond the longest block (mem.arena_mib).
    SPINRPC_STATUS_NO_MEMORY = 19,
    // The server broke the protocol, or its transport refused the call.
    SPINRPC_STATUS_PROTOCOL = 20,
    // The queue is empty. The last error message stays as it is.
    SPINRPC_STATUS_EMPTY = 21,
    // A panic inside of the library was caught: a bug in it. The objects that were passed can only be freed.
    SPINRPC_STATUS_PANIC = 22,
    // The NFS server answered with an error, whose number spinrpc_nfs_last_error() returns.
    SPINRPC_STATUS_NFS = 23,
    // An NFS server has restarted before it had written data to stable storage. They may be lost: write them again.
    SPINRPC_STATUS_DATA_LOST = 24,
} spinrpc_status;

// How much a line of the log matters.
typedef enum spinrpc_log_level {
    // Something failed that should not.
    SPINRPC_LOG_LEVEL_ERROR = 1,
    // Something that may need attention.
    SPINRPC_LOG_LEVEL_WARN = 2,
    // Events of operation, such as a connection that cannot be made.
    SPINRPC_LOG_LEVEL_INFO = 3,
    // Details, for looking into a problem.
    SPINRPC_LOG_LEVEL_DEBUG = 4,
} spinrpc_log_level;

// Errors of RFC 5531 that a server answers with.
typedef enum spinrpc_rejection {
    // PROC_UNAVAIL: the program does not have the procedure.
    SPINRPC_REJECTION_PROCEDURE_UNAVAILABLE = 3,
    // GARBAGE_ARGS: the arguments cannot be decoded.
    SPINRPC_REJECTION_GARBAGE_ARGUMENTS = 4,
    // SYSTEM_ERR: the server cannot execute the call, for example for lack of memory.
    SPINRPC_REJECTION_SYSTEM_ERROR = 5,
} spinrpc_rejection;

// The answer of a call: its results, as long as it is kept. It counts as a call in flight until it is
// freed. One thread at a time may use it.
typedef struct spinrpc_answer spinrpc_answer;

// A connection to a server, of one core of an engine. All its functions but spinrpc_client_free() may be called from
// any thread at any time, in callbacks as well.
typedef struct spinrpc_client spinrpc_client;

// Reads XDR: the arguments of a request, or the results of a call. Items are read in order; after an error the place
// is undefined. Whatever the peer sent, no function reads beyond it.
//
// A decoder belongs to its request, answer or callback and ends with it; it is not freed. That of an answer may be
// used by one thread at a time, any other one on the thread of its callback only. Bytes that it returns are valid as long
// as the decoder, and must not be written.
typedef struct spinrpc_decoder spinrpc_decoder;

// A request that is answered later, by any one thread, or on the core. It can be kept as long as needed, and ends
// with spinrpc_deferred_reply(), _reject() or _free().
typedef struct spinrpc_deferred spinrpc_deferred;

// An engine: its configuration, the programs that it serves, its listeners and its cores. A process usually has
// one. All its functions but spinrpc_engine_free() may be called from any thread at any time.
typedef struct spinrpc_engine spinrpc_engine;

// A block of registered memory: the bytes of a data item (`opaque<>`) that is placed directly instead of travelling
// in the message. It comes from a slab, or from the memory of a core, which has mem.arena_mib MiB, so keep no more than needed.
// One thread at a time may use it.
//
// A block that is passed with a call or a reply belongs to the library from then on, whatever the function
// returns. All others are freed with spinrpc_memory_free(), before or after their client and engine.
typedef struct spinrpc_memory spinrpc_memory;

// A mounted directory of an NFS server, by a connection of one core of an engine. A lost connection is established again,
// however long that takes, and reads, writes and commits that were in flight are sent again: each at most three times, and
// until its time has passed (timeout_ns of spinrpc_nfs_options), after which it ends with an error.
typedef struct spinrpc_nfs spinrpc_nfs;

// A file of an NFS server. It remembers whether data that were written can still be lost.
typedef struct spinrpc_nfs_file spinrpc_nfs_file;

// A queue of answers with a descriptor that poll(), epoll and io_uring can watch. Calls of several clients may have the
// same queue. Any thread may take answers; one thread at a time may wait.
//
// A loop: take answers with spinrpc_queue_next() until it is SPINRPC_STATUS_EMPTY; then spinrpc_queue_arm(); if that
// says so, wait until the descriptor is readable; begin again.
typedef struct spinrpc_queue spinrpc_queue;

// A request in its handler. It ends when the handler returns: answer or defer it before, on the same thread.
typedef struct spinrpc_request spinrpc_request;

// Memory of the application's own, of blocks of one size, which start at multiples of 4096 bytes. A block is a
// spinrpc_memory, for data items of calls and replies and for file I/O of the application. Any thread may use a
// slab at any time, but for spinrpc_slab_free().
//
// Connections that a slab is lent to (spinrpc_connect_options, spinrpc_listen_options) use its blocks
// with fewer copies over shared memory. **The other side can read all of a slab that it is lent**, and can keep the
// descriptor: from then on, for as long as the memory exists, the end of the connection takes nothing back. It can
// write none of it.
typedef struct spinrpc_slab spinrpc_slab;

// Takes a line of the log: its level, the part of the library that it comes from, and its text, which are valid until it
// returns. Texts are of at most 1,023 bytes, of one line each. It runs on any thread but those of cores, maybe on several at
// a time. A thread of the library that waits for it delays further lines, of which up to 1024 are kept, and the end of an
// engine by a second at most; it delays no core. It must not leave by longjmp() or by an exception.
typedef void (*spinrpc_log_callback)(void *user_data,
                                     enum spinrpc_log_level level,
                                     const char *target,
                                     const char *text);

// Options of a listener. Fill it with zeros, then set what is needed: `spinrpc_listen_options options = {0};`. It is
// read while the function runs.
typedef struct spinrpc_listen_options {
    // Slabs that clients are lent, `slab_count` of them, at most four. Over shared memory they copy results in blocks of
    // them to where they want them, and nothing else is copied. Clients whose limits
    // (limits.peer_slab_mib, limits.peer_mib, limits.core_mib) have no room for all slabs are lent none, and results are
    // copied as from other memory. Clients can read all of each slab, also after their connection has ended
    // (spinrpc_slab). With mem.bulk "copy" nothing is lent.
    const struct spinrpc_slab *const *slabs;
    // Number of `slabs`.
    size_t slab_count;
    // For later versions: zeros.
    uint64_t reserved[4];
} spinrpc_listen_options;

// Executes a request of a program, on the thread of a core: several cores run it at the same time. It must
// return soon and must not block, because the core does nothing else meanwhile; what takes longer is deferred. `request`
// and `arguments` are valid until it returns. A request that it neither answers nor defers is answered with
// SYSTEM_ERR. It must not leave by longjmp() or by an exception.
typedef void (*spinrpc_request_handler)(void *user_data,
                                        struct spinrpc_request *request,
                                        uint32_t procedure,
                                        struct spinrpc_decoder *arguments);

// A data item of arguments or results, and its place among the other bytes: it stands behind the first `at` of them,
// as `opaque<>`. Do not write its length word; the library does.
typedef struct spinrpc_item {
    // The bytes: those in use (spinrpc_memory_length()). The library takes the block over.
    struct spinrpc_memory *memory;
    // A multiple of four, at most the length of the other bytes, and not less than that of the item before.
    size_t at;
} spinrpc_item;

// Options of a connection. Fill it with zeros, then set what is needed: `spinrpc_connect_options options = {0};`. It is
// read while the function runs.
typedef struct spinrpc_connect_options {
    // Number of the engine's core that the connection belongs to, counted from 0.
    size_t core;
    // Slabs that the server is lent, `slab_count` of them, at most four. Over shared memory it reads arguments in blocks
    // of them in place. It can read all of each slab, also after the connection has ended (spinrpc_slab). The server
    // accepts so many bytes as its limits.peer_slab_mib and limits.peer_mib say;
    // spinrpc_client_wait_up() tells. With mem.bulk "copy" nothing is lent.
    const struct spinrpc_slab *const *slabs;
    // Number of `slabs`.
    size_t slab_count;
    // 0, SPINRPC_CONNECT_RECONNECT, or SPINRPC_CONNECT_RECONNECT | SPINRPC_CONNECT_RETRY_FIRST.
    uint32_t flags;
    // For later versions: zeros.
    uint64_t reserved[4];
} spinrpc_connect_options;

// Options of a call. Fill it with zeros, then set what is needed: `spinrpc_call_options options = {0};`. It is read
// while the function runs. All blocks of memory in it belong to the library from then on, whatever the function returns.
typedef struct spinrpc_call_options {
    // Nanoseconds from when the call is sent until its answer must be there. 0: as configured (rpc.timeout_ms);
    // UINT64_MAX: no deadline.
    uint64_t deadline_ns;
    // Most bytes of the results, those in `results` not counted. 0: not known; the call then offers memory for
    // rpc.max_read_bytes, unless it has `results`, when the rest is short. It waits while none is free, and ends with
    // SPINRPC_STATUS_AGAIN at its deadline: over shared memory 12 such calls are in flight with the defaults
    // (mem.conn_arena_mib).
    // Calls with at most SPINRPC_SHORT_RESULTS_BYTES need no memory for their results, and are the fastest.
    size_t reply_bytes_max;
    // Data items of the arguments, `item_count` of them, at most four.
    const struct spinrpc_item *items;
    // Number of `items`.
    size_t item_count;
    // Blocks in which the server places data items of the results, in order, `result_count` of them, at most four. The
    // room of each is its length in use. spinrpc_decode_data() gives them back.
    struct spinrpc_memory *const *results;
    // Number of `results`.
    size_t result_count;
    // 0 or SPINRPC_CALL_IDEMPOTENT.
    uint32_t flags;
    // For later versions: zeros.
    uint64_t reserved[4];
} spinrpc_call_options;

// Gets the answer of a call, on the thread of the client's core, which it must not block. `results` reads the results
// until it returns. If `status` is not SPINRPC_STATUS_OK, `results` is NULL and spinrpc_last_error_message() has the text.
// The callback may start calls. It must not leave by longjmp() or by an exception.
//
// The object behind `user_data` must exist until the callback has run, which is before spinrpc_engine_free() returns.
//
// If the engine has ended, the callback runs on the thread that detects that, which may be the calling thread.
typedef void (*spinrpc_answer_callback)(void *user_data,
                                        enum spinrpc_status status,
                                        struct spinrpc_decoder *results);

// Options of a mount. Fill it with zeros, then set what is needed: `spinrpc_nfs_options options = {0};`. It is read while
// the function runs.
typedef struct spinrpc_nfs_options {
    // Number of the engine's core that the connections belong to, counted from 0.
    size_t core;
    // Nanoseconds for a read, write or commit, and for retries with a server that needs longer. 0: 30 seconds. Other calls
    // have the configured time (rpc.timeout_ms).
    uint64_t timeout_ns;
    // Slabs that the server is lent, `slab_count` of them, at most four: as in spinrpc_connect_options.
    const struct spinrpc_slab *const *slabs;
    // Number of `slabs`.
    size_t slab_count;
    // User of the calls (AUTH_SYS), with SPINRPC_NFS_USER.
    uint32_t uid;
    // Group of the calls, with SPINRPC_NFS_USER.
    uint32_t gid;
    // TCP port of the server's MOUNT service. 0: rpcbind on the server knows it, or the service is at the server's own
    // address, as it is over shared memory in any case.
    uint16_t mount_port;
    // 0 or SPINRPC_NFS_USER.
    uint32_t flags;
    // For later versions: zeros.
    uint64_t reserved[4];
} spinrpc_nfs_options;

// Attributes of a file (RFC 1813 section 2.5). Times are nanoseconds since 1970.
typedef struct spinrpc_nfs_attributes {
    // 1: a regular file, 2: a directory, 3: a block device, 4: a character device, 5: a symbolic link, 6: a socket, 7: a FIFO.
    uint32_t kind;
    // Permissions.
    uint32_t mode;
    // Number of names.
    uint32_t links;
    // Its user.
    uint32_t uid;
    // Its group.
    uint32_t gid;
    // Size.
    uint64_t size;
    // Bytes of the disk that it takes.
    uint64_t used;
    // Its file system.
    uint64_t fsid;
    // Its number there.
    uint64_t fileid;
    // Time of the last access.
    uint64_t atime_ns;
    // Time of the last change of its data.
    uint64_t mtime_ns;
    // Time of the last change of its data or attributes.
    uint64_t ctime_ns;
} spinrpc_nfs_attributes;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the text of this thread's last error: of the last function that failed, or, in a callback that is given
// an error, of that one. The empty text if there was none. A success leaves it as it is.
//
// The text is valid until the next error on this thread; do not free it.
const char *spinrpc_last_error_message(void);

// Returns the number of this thread's last error, if that was an error that an NFS server answered with
// (SPINRPC_STATUS_NFS): as in RFC 1813, such as 2 for NFS3ERR_NOENT, 28 for NFS3ERR_NOSPC, 70 for NFS3ERR_STALE, whose file is
// gone, and 10008 for NFS3ERR_JUKEBOX, after which the call is repeated later. 0 for all other errors.
uint32_t spinrpc_nfs_last_error(void);

// Returns the name of a status, such as "timed out"; "unknown" for a number that is not one. The text is constant.
const char *spinrpc_status_name(uint32_t status);

// Has `callback` get the lines of the log, of all engines of the process, up to `level` (a spinrpc_log_level): what matters
// less is left out. It gets them until the process ends, with `user_data`. Without this function the library logs nothing.
// Best before the first engine is made.
//
// Errors: SPINRPC_STATUS_INVALID_STATE if the process has a log already; SPINRPC_STATUS_INVALID_ARGUMENT if `callback` is
// NULL or `level` is not a level.
enum spinrpc_status spinrpc_set_log(spinrpc_log_callback callback,
                                    void *user_data,
                                    uint32_t level);

// Makes an engine. No core runs yet. Blocks while files are read; not in a callback.
//
// `profile` is the name of a shipped profile ("base", "latency", "throughput", "dev-vm", ...) or the path of a TOML
// file, as `spintune` knows them; NULL is "base". `settings` is NULL or text with one KEY=VALUE on each line, such as
// "poll.mode=adaptive\ncores.max=2", which goes over the profile. Addresses rdma://... need "fabric.driver=verbs" and a
// library with the feature `verbs`, addresses iwarp://... "fabric.driver=iwarp".
//
// On success `*engine` is an engine, to be freed with spinrpc_engine_free(). Errors: SPINRPC_STATUS_CONFIG for the
// profile or a setting, SPINRPC_STATUS_ENGINE if the driver cannot be started.
enum spinrpc_status spinrpc_engine_new(const char *profile,
                                       const char *settings,
                                       struct spinrpc_engine **engine);

// Accepts connections at `address`: "shm:NAME" for processes of this host, "rdma://HOST:PORT" with the driver
// for RDMA devices, "iwarp://HOST:PORT" with that for TCP sockets. May be called for several addresses, before spinrpc_engine_start() or after. Programs
// have to be there (spinrpc_engine_serve()) before the first client comes. `options` may be NULL: nothing is lent. Blocks
// until the address is taken; not in a callback.
//
// Errors: SPINRPC_STATUS_ENGINE if the address is taken, malformed, or of another driver, or for more than four slabs.
enum spinrpc_status spinrpc_engine_listen(const struct spinrpc_engine *engine,
                                          const char *address,
                                          const struct spinrpc_listen_options *options);

// Starts the threads of all cores and returns. Each ties itself to a CPU (unless cores.list is "any") and polls; callbacks
// run on these threads.
// An engine can be started once.
//
// Errors: SPINRPC_STATUS_ENGINE if a core cannot be started; then none runs, and the engine can only be freed.
// SPINRPC_STATUS_INVALID_STATE if it was started before.
enum spinrpc_status spinrpc_engine_start(const struct spinrpc_engine *engine);

// Tells all cores to close their connections and end, and returns at once. May be called in a callback. Calls in
// flight end with an error.
enum spinrpc_status spinrpc_engine_shutdown(const struct spinrpc_engine *engine);

// Shuts the engine down gracefully: stops listening, lets deferred requests be answered for at most `at_most_ns`
// nanoseconds, and then does as spinrpc_engine_shutdown(). Requests that arrive meanwhile are not executed: each
// connection is closed after its last reply. Blocks; not in a callback.
//
// `*unfinished` (unless `unfinished` is NULL) is the number of calls that were not finished.
enum spinrpc_status spinrpc_engine_drain(const struct spinrpc_engine *engine,
                                         uint64_t at_most_ns,
                                         size_t *unfinished);

// Waits until all cores have ended, which something else has to bring about: spinrpc_engine_shutdown() or
// spinrpc_engine_drain(). Blocks; not in a callback; once.
//
// Errors: SPINRPC_STATUS_ENGINE if the thread of a core panicked. SPINRPC_STATUS_INVALID_STATE if the engine was not
// started, or was joined before.
enum spinrpc_status spinrpc_engine_join(const struct spinrpc_engine *engine);

// Shuts the engine down, waits for its cores, and frees it. NULL is allowed. When it returns, all calls have been
// answered, and no callback runs any more unless another thread is in spinrpc_call(). Blocks; not in a callback, where it
// fails with SPINRPC_STATUS_INVALID_STATE and frees nothing.
//
// Clients, queues, answers, memory and deferred requests of the engine may be freed before or after it.
enum spinrpc_status spinrpc_engine_free(struct spinrpc_engine *engine);

// Returns the first byte of a block; NULL if `memory` is. The bytes are there until the block is freed or passed on:
// spinrpc_memory_capacity() many, of which spinrpc_memory_length() are in use. They begin with what their last user
// left there.
uint8_t *spinrpc_memory_data(struct spinrpc_memory *memory);

// Returns the number of bytes in use; 0 if `memory` is NULL.
size_t spinrpc_memory_length(const struct spinrpc_memory *memory);

// Returns the number of bytes that the block has, at least as many as were asked for; 0 if `memory` is NULL.
size_t spinrpc_memory_capacity(const struct spinrpc_memory *memory);

// Sets how many bytes are in use: those that are sent, or the room that a result may take.
//
// Errors: SPINRPC_STATUS_INVALID_ARGUMENT if `length` is beyond the capacity.
enum spinrpc_status spinrpc_memory_set_length(struct spinrpc_memory *memory, size_t length);

// Gives a block back. NULL is allowed.
void spinrpc_memory_free(struct spinrpc_memory *memory);

// Makes a slab of `count` blocks of `block_bytes` bytes, which are rounded up to a multiple of 4096. Its pages are huge,
// locked and local as the engine's mem.hugepages and mem.lock say, and all in place. Blocks while that is
// done; not in a callback. The kernel ends a process that it has no memory for: ask for no more than the machine has free.
//
// On success `*slab` is a slab, to be freed with spinrpc_slab_free(), before or after the engine. Errors:
// SPINRPC_STATUS_ENGINE if such memory cannot be allocated.
enum spinrpc_status spinrpc_slab_new(const struct spinrpc_engine *engine,
                                     size_t block_bytes,
                                     size_t count,
                                     struct spinrpc_slab **slab);

// Makes a slab of a memfd of the application's own, of usual or huge pages: as many blocks of `block_bytes`, rounded up
// to a multiple of 4096, as fit. The memfd is not larger than `blocks_max` blocks, was made with MFD_ALLOW_SEALING, and is open for
// writing. The descriptor is duplicated. Blocks while all pages are brought into being; not in a callback.
//
// The file is sealed (F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL): from then on it can be written by way
// of the blocks only. Seals do not touch what exists already. So the file must have no shared mapping (MAP_SHARED), in any
// process, and nothing in flight may write its pages: no registration for RDMA, no fixed buffer of io_uring, no I/O.
//
// On success `*slab` is a slab, to be freed with spinrpc_slab_free(). Errors: SPINRPC_STATUS_INVALID_ARGUMENT if the file is
// not a memfd that can be sealed like that, or has another size: the file is as it was then;
// SPINRPC_STATUS_NO_MEMORY where pages are missing; SPINRPC_STATUS_ENGINE for what else the kernel reports: the file may be
// sealed then.
enum spinrpc_status spinrpc_slab_from_memfd(int memfd,
                                            size_t block_bytes,
                                            size_t blocks_max,
                                            struct spinrpc_slab **slab);

// Takes a block of the slab, of which `bytes` bytes are in use. It begins with what its last user left there, and goes
// back into the slab when it is freed: by spinrpc_memory_free(), or by the library at the end of the call or reply that it
// was passed with, unless spinrpc_decode_data() has given it to the caller.
//
// Errors: SPINRPC_STATUS_NO_MEMORY if all blocks are in use, or `bytes` is more than a block has.
enum spinrpc_status spinrpc_slab_take(const struct spinrpc_slab *slab,
                                      size_t bytes,
                                      struct spinrpc_memory **memory);

// Returns the number of blocks that are not in use; 0 if `slab` is NULL. Other threads change it.
size_t spinrpc_slab_available(const struct spinrpc_slab *slab);

// Frees a slab. NULL is allowed. Its memory stays until the last block, connection and listener that has it is gone.
void spinrpc_slab_free(struct spinrpc_slab *slab);

// Reads an `unsigned int`; cast it for an `int`, `bool` or `enum`.
enum spinrpc_status spinrpc_decode_u32(struct spinrpc_decoder *decoder, uint32_t *value);

// Reads an `unsigned hyper`; cast it for a `hyper`.
enum spinrpc_status spinrpc_decode_u64(struct spinrpc_decoder *decoder, uint64_t *value);

// Reads an `opaque<max_bytes>` or a `string<max_bytes>`, which has no zero byte at its end here. `*data` is not NULL,
// not even if `*length` is 0.
//
// Errors: SPINRPC_STATUS_DECODE if it is longer than `max_bytes`, or if the results were placed in memory given with
// the call, which spinrpc_decode_data() reads.
enum spinrpc_status spinrpc_decode_opaque(struct spinrpc_decoder *decoder,
                                          size_t max_bytes,
                                          const uint8_t **data,
                                          size_t *length);

// Reads an `opaque<max_bytes>` whose bytes may have been placed directly. If they were, `*memory` is their block, which
// is the caller's now: it is freed, or sent on, and `*data` points into it. If they came in the message, `*memory` is
// NULL, and `*data` is valid as long as the decoder.
//
// In a server these are arguments that the client sent as a data item; in a client, results for which the call had
// memory (spinrpc_call_options). Errors: SPINRPC_STATUS_DECODE.
enum spinrpc_status spinrpc_decode_data(struct spinrpc_decoder *decoder,
                                        size_t max_bytes,
                                        const uint8_t **data,
                                        size_t *length,
                                        struct spinrpc_memory **memory);

// Reads all that is left, as XDR for a codec of the application's: `*length` is a multiple of four.
//
// Errors: SPINRPC_STATUS_DECODE if a data item that was placed directly is among it, or the message is padded
// (RDMA_MSGP, which is never used unless rpc.protocol allows it); the functions above read it.
enum spinrpc_status spinrpc_decode_rest(struct spinrpc_decoder *decoder,
                                        const uint8_t **data,
                                        size_t *length);

// Checks that everything was read; the decoder is at its end then. For a server before it acts on arguments.
//
// Errors: SPINRPC_STATUS_DECODE if there is more.
enum spinrpc_status spinrpc_decode_finish(struct spinrpc_decoder *decoder);

// Serves a version of a program: `handler` is called for each request, with `user_data`, which several
// threads use at the same time. Before spinrpc_engine_start(). Of two handlers for one version the first gets all requests.
//
// Errors: SPINRPC_STATUS_INVALID_STATE if the engine was started before.
enum spinrpc_status spinrpc_engine_serve(const struct spinrpc_engine *engine,
                                         uint32_t program,
                                         uint32_t version,
                                         spinrpc_request_handler handler,
                                         void *user_data);

// Answers with results, which are copied: `length` bytes of XDR, a multiple of four, with `item_count` data items
// (at most four) among them. `items` may be NULL if there are none; their blocks belong to the library
// whatever is returned. A data item goes straight into the client's memory if the client has offered some.
//
// The answer leaves when the handler has returned. If the results are longer than the client takes, it gets an error.
//
// Errors: SPINRPC_STATUS_INVALID_STATE if the request was answered or deferred before;
// SPINRPC_STATUS_INVALID_ARGUMENT, after which it can still be answered.
enum spinrpc_status spinrpc_request_reply(struct spinrpc_request *request,
                                          const uint8_t *results,
                                          size_t length,
                                          const struct spinrpc_item *items,
                                          size_t item_count);

// Answers with an error: `rejection` is a spinrpc_rejection.
//
// Errors: as spinrpc_request_reply().
enum spinrpc_status spinrpc_request_reject(struct spinrpc_request *request, uint32_t rejection);

// Takes the request out of its handler, to be answered later. Copy arguments that are still needed, or
// take them with spinrpc_decode_data(): the decoder ends with the handler.
//
// On success `*deferred` is the request. Errors: SPINRPC_STATUS_AGAIN if too many requests are deferred; the
// request can still be answered. SPINRPC_STATUS_INVALID_STATE if it was answered or deferred before.
enum spinrpc_status spinrpc_request_defer(struct spinrpc_request *request,
                                          struct spinrpc_deferred **deferred);

// Lends registered memory of the request's core for a data item of its reply. `*memory` is a block of `bytes` bytes or
// more, of which `bytes` are in use.
//
// Errors: SPINRPC_STATUS_NO_MEMORY.
enum spinrpc_status spinrpc_request_memory(const struct spinrpc_request *request,
                                           size_t bytes,
                                           struct spinrpc_memory **memory);

// Answers a deferred request, as spinrpc_request_reply(), on this thread, and frees it, whatever is returned. If this
// function fails, the client gets SYSTEM_ERR. If the client has gone meanwhile, the answer goes nowhere, which is not an
// error.
enum spinrpc_status spinrpc_deferred_reply(struct spinrpc_deferred *deferred,
                                           const uint8_t *results,
                                           size_t length,
                                           const struct spinrpc_item *items,
                                           size_t item_count);

// Answers a deferred request with an error, and frees it, whatever is returned. `rejection` is a spinrpc_rejection.
enum spinrpc_status spinrpc_deferred_reject(struct spinrpc_deferred *deferred,
                                            uint32_t rejection);

// Frees a deferred request, which is answered with SYSTEM_ERR. NULL is allowed.
void spinrpc_deferred_free(struct spinrpc_deferred *deferred);

// As spinrpc_request_memory(), for a deferred request; on any thread.
enum spinrpc_status spinrpc_deferred_memory(const struct spinrpc_deferred *deferred,
                                            size_t bytes,
                                            struct spinrpc_memory **memory);

// Connects a core of the engine to a program at `address`, and returns at once. Calls may be made immediately. They are
// sent when the connection is up, and fail if it never comes up. They wait while the core does not run
// (spinrpc_engine_start(), before or after). `options` may be NULL: core 0, without slabs and flags.
//
// On success `*client` is a client, to be freed with spinrpc_client_free(). Errors: SPINRPC_STATUS_CONNECT if the core
// does not exist, or for more than four slabs; SPINRPC_STATUS_AGAIN if the core has too many clients (limits.conns).
// spinrpc_client_wait_up() reports why a connection failed.
enum spinrpc_status spinrpc_client_connect(const struct spinrpc_engine *engine,
                                           const char *address,
                                           uint32_t program,
                                           uint32_t version,
                                           const struct spinrpc_connect_options *options,
                                           struct spinrpc_client **client);

// Waits until the connection is up, for at most `at_most_ns` nanoseconds. Blocks; not in a callback.
//
// Errors: SPINRPC_STATUS_TIMED_OUT, after which it may still come up; SPINRPC_STATUS_CONNECT if it failed or was
// closed; SPINRPC_STATUS_PROGRAM_UNAVAILABLE or SPINRPC_STATUS_VERSION_MISMATCH if the server does not serve the program.
// With SPINRPC_CONNECT_RETRY_FIRST the text of a timeout has the error of the last attempt.
enum spinrpc_status spinrpc_client_wait_up(const struct spinrpc_client *client,
                                           uint64_t at_most_ns);

// Lends registered memory of the client's core, for data items of arguments or results. `*memory` is a block of `bytes`
// bytes or more, of which `bytes` are in use. The connection must be up.
//
// Errors: SPINRPC_STATUS_NO_MEMORY, also before the connection is up.
enum spinrpc_status spinrpc_client_memory(const struct spinrpc_client *client,
                                          size_t bytes,
                                          struct spinrpc_memory **memory);

// Closes the connection: calls in flight end with SPINRPC_STATUS_DISCONNECTED, and so do later ones. Returns at once.
enum spinrpc_status spinrpc_client_close(const struct spinrpc_client *client);

// Frees a client. NULL is allowed. Calls in flight go on, and their answers arrive; then the connection is closed. Their
// callbacks may run after this function has returned.
void spinrpc_client_free(struct spinrpc_client *client);

// Starts a call and returns at once: `callback` gets the answer, with `user_data`, exactly once. If this function does
// not return SPINRPC_STATUS_OK, nothing was sent and `callback` is not called.
//
// `arguments` are `length` bytes of XDR, a multiple of four, which are copied; NULL if there are none. `options` may
// be NULL. A call waits for the connection and for credits; calls of a thread are sent in order.
//
// Errors: SPINRPC_STATUS_AGAIN if as many calls are in flight as the core takes (1024);
// SPINRPC_STATUS_TOO_LARGE; SPINRPC_STATUS_DISCONNECTED if the engine has ended; SPINRPC_STATUS_INVALID_ARGUMENT.
enum spinrpc_status spinrpc_call(const struct spinrpc_client *client,
                                 uint32_t procedure,
                                 const uint8_t *arguments,
                                 size_t length,
                                 const struct spinrpc_call_options *options,
                                 spinrpc_answer_callback callback,
                                 void *user_data);

// Calls and waits for the answer. Blocks, also as long as the engine was not started; not in a callback.
//
// Arguments and options as for spinrpc_call(). On success `*answer` is the answer, to be freed with
// spinrpc_answer_free(). Errors: all those of a call.
enum spinrpc_status spinrpc_call_wait(const struct spinrpc_client *client,
                                      uint32_t procedure,
                                      const uint8_t *arguments,
                                      size_t length,
                                      const struct spinrpc_call_options *options,
                                      struct spinrpc_answer **answer);

// Returns the decoder of the results, always the same one; NULL if `answer` is. It is valid until the answer is freed.
struct spinrpc_decoder *spinrpc_answer_results(struct spinrpc_answer *answer);

// Frees an answer, and with it the bytes that its decoder has returned. NULL is allowed.
void spinrpc_answer_free(struct spinrpc_answer *answer);

// Makes a queue for at most `calls` calls at a time, at least one. Calls whose answers have not been taken count.
//
// On success `*queue` is a queue, to be freed with spinrpc_queue_free(). Errors: SPINRPC_STATUS_ENGINE if there are too
// many descriptors; SPINRPC_STATUS_INVALID_ARGUMENT if `calls` is beyond a million.
enum spinrpc_status spinrpc_queue_new(size_t calls,
                                      struct spinrpc_queue **queue);

// Returns the descriptor to watch for reading; -1 if `queue` is NULL. It belongs to the queue: do not read from it or
// close it.
int spinrpc_queue_fd(const struct spinrpc_queue *queue);

// Makes the descriptor readable with the next answer. `*must_wait` is true then; it is false if an answer
// is there already, and then the descriptor stays as it is. One system call.
enum spinrpc_status spinrpc_queue_arm(const struct spinrpc_queue *queue,
                                      bool *must_wait);

// Takes the oldest answer; never blocks. `*token` is that of its call, and `*outcome` how it ended. If that is
// SPINRPC_STATUS_OK, `*answer` is the answer, to be freed with spinrpc_answer_free(). Otherwise it is NULL, and
// spinrpc_last_error_message() has the text.
//
// Returns SPINRPC_STATUS_OK if an answer was taken, SPINRPC_STATUS_EMPTY if there is none.
enum spinrpc_status spinrpc_queue_next(const struct spinrpc_queue *queue,
                                       uint64_t *token,
                                       enum spinrpc_status *outcome,
                                       struct spinrpc_answer **answer);

// Starts a call and returns at once: its answer comes to `queue`, with `token`, exactly once. If this function does not
// return SPINRPC_STATUS_OK, nothing was sent and no answer comes.
//
// Arguments, options and errors as for spinrpc_call(); SPINRPC_STATUS_AGAIN also if the queue could not take all answers.
enum spinrpc_status spinrpc_call_queued(const struct spinrpc_client *client,
                                        uint32_t procedure,
                                        const uint8_t *arguments,
                                        size_t length,
                                        const struct spinrpc_call_options *options,
                                        const struct spinrpc_queue *queue,
                                        uint64_t token);

// Frees a queue. NULL is allowed. Answers in it, and those that come later, are dropped.
void spinrpc_queue_free(struct spinrpc_queue *queue);

// Mounts a directory of an NFS server: "rdma://HOST:PORT/EXPORT/PATH", where the port may be missing, the same with "iwarp://",
// or "shm:NAME//EXPORT/PATH" with two slashes before the path. The driver of the engine has to be that of the address
// (spinrpc_engine_new()), and the engine must have been started. `options` may be NULL. Paths of spinrpc_nfs_open() begin at
// the directory, and ".." does not leave it, nor do absolute symbolic links. Blocks; not in a callback.
//
// On success `*nfs` is a mounted directory, to be freed with spinrpc_nfs_free(). Errors: SPINRPC_STATUS_CONNECT if there is no
// connection to the server or its MOUNT service, or the engine has no such core; those of spinrpc_client_wait_up(); SPINRPC_STATUS_NFS if the server refuses the directory, or it is another kind of file;
// SPINRPC_STATUS_INVALID_ARGUMENT for an address that cannot be one; all those of a call.
enum spinrpc_status spinrpc_nfs_mount(const struct spinrpc_engine *engine,
                                      const char *address,
                                      const struct spinrpc_nfs_options *options,
                                      struct spinrpc_nfs **nfs);

// Returns the most bytes that one read and one write may have. The limits of the engine may be lower
// (rpc.max_read_bytes, rpc.max_write_bytes).
enum spinrpc_status spinrpc_nfs_limits(const struct spinrpc_nfs *nfs,
                                       size_t *read_bytes_max,
                                       size_t *write_bytes_max);

// Lends registered memory of the connection's core, for reads and writes: as spinrpc_client_memory(). Blocks of a slab
// will do as well.
//
// Errors: SPINRPC_STATUS_NO_MEMORY.
enum spinrpc_status spinrpc_nfs_memory(const struct spinrpc_nfs *nfs,
                                       size_t bytes,
                                       struct spinrpc_memory **memory);

// Unmounts the directory: tells the server, which may take as long as a call, and frees it. NULL is allowed. Files that are
// open stay usable. In a callback the server is not told.
void spinrpc_nfs_free(struct spinrpc_nfs *nfs);

// Opens the file at `path`, from the mounted directory on; symbolic links are followed. `flags` are 0,
// SPINRPC_NFS_CREATE, or SPINRPC_NFS_CREATE | SPINRPC_NFS_TRUNCATE; then the last name is not followed, and `mode` has the
// permissions of a file that is created. Blocks; not in a callback.
//
// On success `*file` is a file, to be freed with spinrpc_nfs_file_free(). The server is not told of it, and permissions are
// checked by each read and write. Errors: SPINRPC_STATUS_NFS, with SPINRPC_NFS_CREATE also if the name is there and not a
// regular file (21 of a directory, 17 of others); SPINRPC_STATUS_INVALID_ARGUMENT for a path that cannot be one; all
// those of a call.
enum spinrpc_status spinrpc_nfs_open(const struct spinrpc_nfs *nfs,
                                     const char *path,
                                     uint32_t flags,
                                     uint32_t mode,
                                     struct spinrpc_nfs_file **file);

// Asks the server for the attributes of a file. Blocks; not in a callback.
//
// Errors: SPINRPC_STATUS_NFS; all those of a call.
enum spinrpc_status spinrpc_nfs_file_attributes(const struct spinrpc_nfs_file *file,
                                                struct spinrpc_nfs_attributes *attributes);

// Starts to read from `offset` on, as many bytes as `memory` has in use (spinrpc_memory_set_length()), and returns at once.
// The answer comes to `queue`, with `token`, exactly once; spinrpc_nfs_read_result() reads it. `memory` belongs to the
// library from now on, whatever is returned, and comes back by the result. If this function does not return
// SPINRPC_STATUS_OK, nothing was sent and no answer comes.
//
// Errors: SPINRPC_STATUS_TOO_LARGE for more bytes than spinrpc_nfs_limits() tells, which are not divided; those of
// spinrpc_call_queued().
enum spinrpc_status spinrpc_nfs_read(const struct spinrpc_nfs_file *file,
                                     uint64_t offset,
                                     struct spinrpc_memory *memory,
                                     const struct spinrpc_queue *queue,
                                     uint64_t token);

// Starts to write the bytes in use of `memory` at `offset`, and returns at once. The answer comes to `queue`, with `token`,
// exactly once; spinrpc_nfs_write_result() reads it. `flags` are 0 or SPINRPC_NFS_STABLE. `memory` belongs to the library from
// now on, whatever is returned. It is free again when the answer has been taken. If this function does not return
// SPINRPC_STATUS_OK, nothing was sent and no answer comes.
//
// Errors: as for spinrpc_nfs_read().
enum spinrpc_status spinrpc_nfs_write(const struct spinrpc_nfs_file *file,
                                      uint64_t offset,
                                      struct spinrpc_memory *memory,
                                      uint32_t flags,
                                      const struct spinrpc_queue *queue,
                                      uint64_t token);

// Starts to put all data of the file on stable storage that were written without SPINRPC_NFS_STABLE and whose results have
// been read, and returns at once. The answer comes to `queue`, with `token`, exactly once; spinrpc_nfs_commit_result()
// reads it. If this function does not return SPINRPC_STATUS_OK, nothing was sent and no answer comes.
//
// Errors: those of spinrpc_call_queued().
enum spinrpc_status spinrpc_nfs_commit(const struct spinrpc_nfs_file *file,
                                       const struct spinrpc_queue *queue,
                                       uint64_t token);

// Reads the result of a read of `length` bytes. `answer`, which the queue returned with SPINRPC_STATUS_OK, is freed,
// whatever is returned.
//
// On success `*memory` has the data: it is the block of the call, and the bytes in use are those that were read, which may be
// fewer than were asked for. Free it, or pass it on. `*is_end` is true if the file ends behind them. Errors:
// SPINRPC_STATUS_NFS; SPINRPC_STATUS_PROTOCOL for an answer that cannot be one. The memory is freed then.
enum spinrpc_status spinrpc_nfs_read_result(struct spinrpc_answer *answer,
                                            size_t length,
                                            struct spinrpc_memory **memory,
                                            bool *is_end);

// Reads the result of a write of `length` bytes to `file`. `answer`, which the queue returned with SPINRPC_STATUS_OK, is
// freed, whatever is returned.
//
// On success `*written` is the number of bytes that the server has taken, at least one: if it is fewer than `length`, write the
// rest. `*is_stable` is true if they are on stable storage; else they may be lost until spinrpc_nfs_commit().
// After a write with SPINRPC_NFS_STABLE look at it: false is an error of the server then. Errors: SPINRPC_STATUS_INVALID_ARGUMENT
// for a length of 0; others as for spinrpc_nfs_read_result().
enum spinrpc_status spinrpc_nfs_write_result(const struct spinrpc_nfs_file *file,
                                             struct spinrpc_answer *answer,
                                             size_t length,
                                             size_t *written,
                                             bool *is_stable);

// Reads the result of a commit of `file`. `answer`, which the queue returned with SPINRPC_STATUS_OK, is freed, whatever is
// returned. On success all data are on stable storage whose results had been read before the commit was started.
//
// Errors: SPINRPC_STATUS_DATA_LOST if the server has restarted since data were written (its write verifier has changed): all
// that was written since the last commit that succeeded may be lost, and has to be written again. That is told once. If commits of
// a file overlap or have failed, a restart may be told although nothing was lost. Others as for spinrpc_nfs_read_result().
enum spinrpc_status spinrpc_nfs_commit_result(const struct spinrpc_nfs_file *file,
                                              struct spinrpc_answer *answer);

// Frees a file. NULL is allowed. The server is not told, and nothing is committed. Reads and writes in flight go on, but the
// results of writes and commits need the file.
void spinrpc_nfs_file_free(struct spinrpc_nfs_file *file);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPINRPC_H */
