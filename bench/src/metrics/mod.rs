//! `spinperf metrics`: counters of running engines, as OpenMetrics text for Prometheus.
//!
//! `top` finds the engines and asks them over their control sockets; `text` formats the answers,
//! and `http` serves them. `main` is the caller. No state is kept between two requests: engines
//! count since their start.

mod http;
mod text;

use crate::cli::MetricsArgs;
use crate::failure::Failure;
use crate::top::{Found, Target, Watched};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Prints the metrics once, or serves them until interrupted.
///
/// # Errors
/// There is no such engine, or the server cannot listen at the address.
pub(crate) fn run(args: &MetricsArgs) -> Result<(), Failure> {
    let wanted =
        Wanted { target: args.target.clone(), latency: args.latency, turn: Mutex::new(()) };
    if let Some(address) = args.listen {
        return http::serve(address, wanted);
    }
    let found = wanted.look(&Watched::find(wanted.target.as_ref())?);
    let text = text::render(found);
    io::stdout().write_all(text.as_bytes()).map_err(|error| Failure::system("printing", error))
}

struct Wanted {
    target: Option<Target>,
    latency: bool,
    /// Serializes answers, because snapshots of engines may be long.
    turn: Mutex<()>,
}

impl Wanted {
    fn look(&self, watched: &Watched) -> Vec<Found> {
        watched.look_at_cores(self.latency).unwrap_or_default()
    }

    /// The metrics of all current engines, possibly none.
    fn now(&self) -> String {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match Watched::find(self.target.as_ref()) {
            Ok(watched) => self.look(&watched),
            Err(_) => Vec::new(),
        };
        text::render(found)
    }
}
