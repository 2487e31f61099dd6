//! Clients: connections of a core to a server, for any thread.

use crate::engine::RpcEngine;
use crate::error::{Failure, Status, guard, may_block};
use crate::memory::{OF_CORE, RpcMemory, lend};
use crate::pointers::{self, Out, borrow, free, text, unused};
use crate::slab::{RpcSlab, lent};
use spinrpc::{ClientHandle, ConnectError, ConnectOptions, Program, Reconnect, Version};
use std::ffi::c_char;
use std::ptr::null;
use std::time::Duration;

/// A connection to a server, of one core of an engine. All its functions but spinrpc_client_free() may be called from
/// any thread at any time, in callbacks as well.
pub struct RpcClient(pub(crate) ClientHandle);

/// Flag of spinrpc_connect_options: a lost connection is established again, with growing pauses for up to a minute.
/// Calls wait for it; those in flight end with SPINRPC_STATUS_DISCONNECTED unless they are marked
/// SPINRPC_CALL_IDEMPOTENT.
pub const SPINRPC_CONNECT_RECONNECT: u32 = 1;

/// Flag of spinrpc_connect_options, with SPINRPC_CONNECT_RECONNECT: also retries the first connection, so that a client may
/// be made before its server listens. Calls wait for it, until their deadlines.
pub const SPINRPC_CONNECT_RETRY_FIRST: u32 = 2;

/// Options of a connection. Fill it with zeros, then set what is needed: `spinrpc_connect_options options = {0};`. It is
/// read while the function runs.
#[repr(C)]
#[derive(Debug)]
pub struct ClientOptions {
    /// Number of the engine's core that the connection belongs to, counted from 0.
    pub core: usize,
    /// Slabs that the server is lent, `slab_count` of them, at most four. Over shared memory it reads arguments in blocks
    /// of them in place. It can read all of each slab, also after the connection has ended (spinrpc_slab). The server
    /// accepts so many bytes as its limits.peer_slab_mib and limits.peer_mib say;
    /// spinrpc_client_wait_up() tells. With mem.bulk "copy" nothing is lent.
    pub slabs: *const *const RpcSlab,
    /// Number of `slabs`.
    pub slab_count: usize,
    /// 0, SPINRPC_CONNECT_RECONNECT, or SPINRPC_CONNECT_RECONNECT | SPINRPC_CONNECT_RETRY_FIRST.
    pub flags: u32,
    /// For later versions: zeros.
    pub reserved: [u64; 4],
}

const DEFAULTS: ClientOptions =
    ClientOptions { core: 0, slabs: null(), slab_count: 0, flags: 0, reserved: [0; 4] };

impl ClientOptions {
    /// # Safety
    /// `slabs` points to `slab_count` pointers, each of which is null or points to a slab.
    unsafe fn checked(&self) -> Result<ConnectOptions, Failure> {
        unused(&self.reserved)?;
        // SAFETY: the caller's promise.
        let lent = unsafe { lent(self.slabs, self.slab_count) }?;
        const RETRIES_FIRST: u32 = SPINRPC_CONNECT_RECONNECT | SPINRPC_CONNECT_RETRY_FIRST;
        let policy = Reconnect::default();
        let options = match self.flags {
            0 => ConnectOptions::new(),
            SPINRPC_CONNECT_RECONNECT => ConnectOptions::new().reconnect(policy),
            RETRIES_FIRST => ConnectOptions::new().reconnect(policy.retry_first()),
            _ => return Err(Failure::argument("options.flags has unknown bits")),
        };
        Ok(lent.iter().fold(options, ConnectOptions::lend))
    }
}

/// Connects a core of the engine to a program at `address`, and returns at once. Calls may be made immediately. They are
/// sent when the connection is up, and fail if it never comes up. They wait while the core does not run
/// (spinrpc_engine_start(), before or after). `options` may be NULL: core 0, without slabs and flags.
///
/// On success `*client` is a client, to be freed with spinrpc_client_free(). Errors: SPINRPC_STATUS_CONNECT if the core
/// does not exist, or for more than four slabs; SPINRPC_STATUS_AGAIN if the core has too many clients (limits.conns).
/// spinrpc_client_wait_up() reports why a connection failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_client_connect(
    engine: *const RpcEngine,
    address: *const c_char,
    program: u32,
    version: u32,
    options: *const ClientOptions,
    client: *mut *mut RpcClient,
) -> Status {
    guard(|| {
        // SAFETY: an engine, text and memory for a pointer, as the header asks for.
        let (engine, address, out) = unsafe {
            (borrow(engine, "engine")?, text(address, "address")?, Out::new(client, "client")?)
        };
        // SAFETY: options, as the header asks for.
        let given = unsafe { pointers::options(options) }?.unwrap_or(&DEFAULTS);
        // SAFETY: slabs, as the header asks for.
        let options = unsafe { given.checked() }?;
        let (program, version) = (Program(program), Version(version));
        out.give(RpcClient(
            engine.engine.connect(given.core, address, program, version, &options)?,
        ));
        Ok(())
    })
}

/// Waits until the connection is up, for at most `at_most_ns` nanoseconds. Blocks; not in a callback.
///
/// Errors: SPINRPC_STATUS_TIMED_OUT, after which it may still come up; SPINRPC_STATUS_CONNECT if it failed or was
/// closed; SPINRPC_STATUS_PROGRAM_UNAVAILABLE or SPINRPC_STATUS_VERSION_MISMATCH if the server does not serve the program.
/// With SPINRPC_CONNECT_RETRY_FIRST the text of a timeout has the error of the last attempt.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_client_wait_up(
    client: *const RpcClient,
    at_most_ns: u64,
) -> Status {
    guard(|| {
        // SAFETY: a client, as the header asks for.
        let client = unsafe { borrow(client, "client") }?;
        may_block()?;
        client.0.wait_up(Duration::from_nanos(at_most_ns)).map_err(|error| {
            let last = client.0.failure().filter(|_| matches!(error, ConnectError::TimedOut(_)));
            let failure = Failure::from(error);
            match last {
                Some(last) => Failure::new(failure.status, format!("{}: {last}", failure.text)),
                None => failure,
            }
        })
    })
}

/// Lends registered memory of the client's core, for data items of arguments or results. `*memory` is a block of `bytes`
/// bytes or more, of which `bytes` are in use. The connection must be up.
///
/// Errors: SPINRPC_STATUS_NO_MEMORY, also before the connection is up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_client_memory(
    client: *const RpcClient,
    bytes: usize,
    memory: *mut *mut RpcMemory,
) -> Status {
    guard(|| {
        // SAFETY: a client, as the header asks for.
        let client = unsafe { borrow(client, "client") }?;
        lend(memory, bytes, OF_CORE, |bytes| client.0.bulk(bytes))
    })
}

/// Closes the connection: calls in flight end with SPINRPC_STATUS_DISCONNECTED, and so do later ones. Returns at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_client_close(client: *const RpcClient) -> Status {
    guard(|| {
        // SAFETY: a client, as the header asks for.
        unsafe { borrow(client, "client") }?.0.close();
        Ok(())
    })
}

/// Frees a client. NULL is allowed. Calls in flight go on, and their answers arrive; then the connection is closed. Their
/// callbacks may run after this function has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_client_free(client: *mut RpcClient) {
    // SAFETY: null, or a client that is not used any more, as the header asks for.
    unsafe { free(client, "client") }
}
