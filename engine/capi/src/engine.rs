//! Engines: configuration, listening, and the threads of cores.

use crate::error::{Failure, Status, guard, guard_or, may_block};
use crate::pointers::{self, Out, borrow, take_back, text, unused};
use crate::slab::{RpcSlab, lent};
use spinrpc::{Config, Engine, EngineError, ListenOptions, Running};
use spinrpc_tuning::Loader;
use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An engine: its configuration, the programs that it serves, its listeners and its cores. A process usually has
/// one. All its functions but spinrpc_engine_free() may be called from any thread at any time.
pub struct RpcEngine {
    pub(crate) engine: Engine,
    threads: Mutex<Threads>,
}

enum Threads {
    NotStarted,
    Running(Running),
    /// Joined, or being joined.
    Over,
}

impl RpcEngine {
    fn new(config: Config) -> Result<Self, Failure> {
        let engine = Engine::new(config)?;
        Ok(Self { engine, threads: Mutex::new(Threads::NotStarted) })
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) -> Result<(), Failure> {
        may_block()?;
        let mut threads = self.threads();
        check_not_started(&threads)?;
        // Whatever fails: an engine starts once.
        *threads = Threads::Over;
        *threads = Threads::Running(self.engine.start()?);
        Ok(())
    }

    /// Fails if the cores run already: they would not learn of what is configured now.
    pub(crate) fn configure(
        &self,
        configure: impl FnOnce(&Engine) -> Result<(), EngineError>,
    ) -> Result<(), Failure> {
        let threads = self.threads();
        check_not_started(&threads)?;
        Ok(configure(&self.engine)?)
    }

    fn join(&self) -> Result<(), Failure> {
        may_block()?;
        // The lock is released before it waits, so that others may ask for the state meanwhile.
        let running = self.take_running()?;
        Ok(running.join()?)
    }

    fn take_running(&self) -> Result<Running, Failure> {
        let mut threads = self.threads();
        match std::mem::replace(&mut *threads, Threads::Over) {
            Threads::Running(running) => Ok(running),
            Threads::NotStarted => {
                *threads = Threads::NotStarted;
                Err(Failure::new(Status::InvalidState, "the engine was not started"))
            }
            Threads::Over => {
                Err(Failure::new(Status::InvalidState, "the engine does not run any more"))
            }
        }
    }
}

fn check_not_started(threads: &Threads) -> Result<(), Failure> {
    match threads {
        Threads::NotStarted => Ok(()),
        _ => Err(Failure::new(Status::InvalidState, "the engine was started before")),
    }
}

/// Profile `profile`, with one `KEY=VALUE` on each line of `settings` laid over it.
fn configuration(profile: &str, settings: &str) -> Result<Config, Failure> {
    let host = spinrpc::config::Host::current();
    let lines = settings.lines().map(str::trim).filter(|line| !line.is_empty());
    let loader = lines.fold(Loader::new(&host), Loader::set);
    Ok(loader.load(profile)?.config().clone())
}

/// Makes an engine. No core runs yet. Blocks while files are read; not in a callback.
///
/// `profile` is the name of a shipped profile ("base", "latency", "throughput", "dev-vm", ...) or the path of a TOML
/// file, as `spintune` knows them; NULL is "base". `settings` is NULL or text with one KEY=VALUE on each line, such as
/// "poll.mode=adaptive\ncores.max=2", which goes over the profile. Addresses rdma://... need "fabric.driver=verbs" and a
/// library with the feature `verbs`, addresses iwarp://... "fabric.driver=iwarp".
///
/// On success `*engine` is an engine, to be freed with spinrpc_engine_free(). Errors: SPINRPC_STATUS_CONFIG for the
/// profile or a setting, SPINRPC_STATUS_ENGINE if the driver cannot be started.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_engine_new(
    profile: *const c_char,
    settings: *const c_char,
    engine: *mut *mut RpcEngine,
) -> Status {
    guard(|| {
        // SAFETY: memory for a pointer, as the header asks for.
        let out = unsafe { Out::new(engine, "engine") }?;
        may_block()?;
        let or = |given: *const c_char, otherwise, name| match given.is_null() {
            true => Ok(otherwise),
            // SAFETY: text, as the header asks for, which lives until this function returns.
            false => unsafe { text(given, name) },
        };
        let config = configuration(or(profile, "base", "profile")?, or(settings, "", "settings")?)?;
        out.give(RpcEngine::new(config)?);
        Ok(())
    })
}

/// Options of a listener. Fill it with zeros, then set what is needed: `spinrpc_listen_options options = {0};`. It is
/// read while the function runs.
#[repr(C)]
#[derive(Debug)]
pub struct ListenerOptions {
    /// Slabs that clients are lent, `slab_count` of them, at most four. Over shared memory they copy results in blocks of
    /// them to where they want them, and nothing else is copied. Clients whose limits
    /// (limits.peer_slab_mib, limits.peer_mib, limits.core_mib) have no room for all slabs are lent none, and results are
    /// copied as from other memory. Clients can read all of each slab, also after their connection has ended
    /// (spinrpc_slab). With mem.bulk "copy" nothing is lent.
    pub slabs: *const *const RpcSlab,
    /// Number of `slabs`.
    pub slab_count: usize,
    /// For later versions: zeros.
    pub reserved: [u64; 4],
}

/// Accepts connections at `address`: "shm:NAME" for processes of this host, "rdma://HOST:PORT" with the driver
/// for RDMA devices, "iwarp://HOST:PORT" with that for TCP sockets. May be called for several addresses, before spinrpc_engine_start() or after. Programs
/// have to be there (spinrpc_engine_serve()) before the first client comes. `options` may be NULL: nothing is lent. Blocks
/// until the address is taken; not in a callback.
///
/// Errors: SPINRPC_STATUS_ENGINE if the address is taken, malformed, or of another driver, or for more than four slabs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_engine_listen(
    engine: *const RpcEngine,
    address: *const c_char,
    options: *const ListenerOptions,
) -> Status {
    guard(|| {
        // SAFETY: an engine and text, as the header asks for.
        let (engine, address) = unsafe { (borrow(engine, "engine")?, text(address, "address")?) };
        // SAFETY: options, as the header asks for.
        let lent = match unsafe { pointers::options(options) }? {
            None => Vec::new(),
            Some(options) => {
                unused(&options.reserved)?;
                // SAFETY: slabs, as the header asks for.
                unsafe { lent(options.slabs, options.slab_count) }?
            }
        };
        may_block()?;
        let options = lent.iter().fold(ListenOptions::new(), ListenOptions::lend);
        Ok(engine.engine.listen_with(address, &options)?)
    })
}

/// Starts the threads of all cores and returns. Each ties itself to a CPU (unless cores.list is "any") and polls; callbacks
/// run on these threads.
/// An engine can be started once.
///
/// Errors: SPINRPC_STATUS_ENGINE if a core cannot be started; then none runs, and the engine can only be freed.
/// SPINRPC_STATUS_INVALID_STATE if it was started before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_engine_start(engine: *const RpcEngine) -> Status {
    guard(|| {
        // SAFETY: an engine, as the header asks for.
        unsafe { borrow(engine, "engine") }?.run()
    })
}

/// Tells all cores to close their connections and end, and returns at once. May be called in a callback. Calls in
/// flight end with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_engine_shutdown(engine: *const RpcEngine) -> Status {
    guard(|| {
        // SAFETY: an engine, as the header asks for.
        unsafe { borrow(engine, "engine") }?.engine.shutdown();
        Ok(())
    })
}

/// Shuts the engine down gracefully: stops listening, lets deferred requests be answered for at most `at_most_ns`
/// nanoseconds, and then does as spinrpc_engine_shutdown(). Requests that arrive meanwhile are not executed: each
/// connection is closed after its last reply. Blocks; not in a callback.
///
/// `*unfinished` (unless `unfinished` is NULL) is the number of calls that were not finished.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_engine_drain(
    engine: *const RpcEngine,
    at_most_ns: u64,
    unfinished: *mut usize,
) -> Status {
    guard(|| {
        // SAFETY: an engine, as the header asks for.
        let engine = unsafe { borrow(engine, "engine") }?;
        may_block()?;
        let left = engine.engine.drain(Duration::from_nanos(at_most_ns));
        if !unfinished.is_null() {
            // SAFETY: memory for a number, as the header asks for.
            unsafe { Out::new(unfinished, "unfinished") }?.set(left);
        }
        Ok(())
    })
}

/// Waits until all cores have ended, which something else has to bring about: spinrpc_engine_shutdown() or
/// spinrpc_engine_drain(). Blocks; not in a callback; once.
///
/// Errors: SPINRPC_STATUS_ENGINE if the thread of a core panicked. SPINRPC_STATUS_INVALID_STATE if the engine was not
/// started, or was joined before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_engine_join(engine: *const RpcEngine) -> Status {
    guard(|| {
        // SAFETY: an engine, as the header asks for.
        unsafe { borrow(engine, "engine") }?.join()
    })
}

/// Shuts the engine down, waits for its cores, and frees it. NULL is allowed. When it returns, all calls have been
/// answered, and no callback runs any more unless another thread is in spinrpc_call(). Blocks; not in a callback, where it
/// fails with SPINRPC_STATUS_INVALID_STATE and frees nothing.
///
/// Clients, queues, answers, memory and deferred requests of the engine may be freed before or after it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_engine_free(engine: *mut RpcEngine) -> Status {
    guard(|| {
        may_block()?;
        // SAFETY: null, or an engine that is not used any more, as the header asks for.
        let Some(engine) = unsafe { take_back(engine, "engine") }? else { return Ok(()) };
        engine.engine.shutdown();
        let is_running = matches!(&*engine.threads(), Threads::Running(_));
        // What a core panicked with is for spinrpc_engine_join() to tell.
        guard_or((), || if is_running { engine.join() } else { Ok(()) });
        Ok(())
    })
}
