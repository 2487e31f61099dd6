//! Helper threads that an application runs in addition to its cores.

use super::errors::EngineError;
use crate::sys::journal::event;
use crate::sys::{affinity, journal, pinning};
use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that keeps off the CPUs on which the engines of this process poll: it runs on the
/// others that the process may use, or, if there are none, on all. A thread that a handler starts by
/// [`std::thread`] has the one CPU of its core, which polls there all the time. (A service's factory runs
/// off that CPU, so that threads which it starts are free of it without this.) Never blocks.
///
/// # Errors
/// The system has no thread. That the CPUs cannot be had is not an error: the thread then runs where it
/// would have run without this.
pub fn spawn_helper<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let cpus = pinning::helper_cpus();
    Builder::new().name(name.to_owned()).spawn(move || {
        if let Some(Err(error)) = cpus.as_ref().map(affinity::run_current_thread_on) {
            event!(WARN, %error, "a helper thread cannot leave the CPU of a core");
        }
        run()
    })
}

pub(super) fn run_journal() -> Result<(), EngineError> {
    let started = journal::start(|run| spawn_helper("spinrpc-log", run));
    started.map_err(|error| EngineError::host("the thread that logs cannot be started", error))
}
