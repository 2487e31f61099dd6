// spinrpc: ONC RPC over RDMA and shared memory, in user space. README.md beside the sources has an example.
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
// * Threads. An engine, a client and a queue may be used by any thread at any time. All other objects may be used by one
//   thread at a time. Callbacks run on the threads of cores. They must not block, and functions that do fail in them
//   with SPINRPC_STATUS_INVALID_STATE.
// * Times are nanoseconds, lengths are bytes.
// * Arguments and results are XDR (RFC 4506): big-endian, in units of four bytes.
// * A process that was forked must not use what its parent made.
