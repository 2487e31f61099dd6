//! SIGINT and SIGTERM during a measurement: the first ends it early and prints the results so far;
//! the second ends the program at once.

use crate::failure::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Number of the received signal, or 0.
static SIGNAL: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

pub(crate) fn catch() -> Result<(), Failure> {
    let (came, number) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    if SIGNAL.set(number.clone()).is_err() {
        return Ok(());
    }
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_default(signal, came.clone())
            .and_then(|_| flag::register(signal, came.clone()))
            .and_then(|_| flag::register_usize(signal, number.clone(), signal as usize))
            .map_err(|error| Failure::system("waiting for signals", error))?;
    }
    Ok(())
}

pub(crate) fn signal() -> Option<i32> {
    let number = SIGNAL.get()?.load(Ordering::Relaxed);
    (number != 0).then_some(number as i32)
}
