//! `spinperf metrics`: what running engines have counted, as OpenMetrics text for Prometheus.
//!
//! `top` finds the engines and asks them by their control sockets; `text` says it in OpenMetrics, and `http` to those who
//! ask by HTTP. `main` is the caller. Nothing is kept between two questions: engines count since their start.

mod http;
mod text;

use crate::cli::MetricsArgs;
use crate::failure::Failure;
use crate::top::{Found, Target, Watched};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Prints the metrics once, or serves them until it is ended.
///
/// # Errors
/// There is no such engine, or the address cannot be listened on.
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

/// Of whom metrics are wanted, and which.
struct Wanted {
    target: Option<Target>,
    latency: bool,
    /// One answer is made at a time: what engines say may be long.
    turn: Mutex<()>,
}

impl Wanted {
    fn look(&self, watched: &Watched) -> Vec<Found> {
        watched.look_at_cores(self.latency).unwrap_or_default()
    }

    /// The metrics of all engines that are there now, which may be none.
    fn now(&self) -> String {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match Watched::find(self.target.as_ref()) {
            Ok(watched) => self.look(&watched),
            Err(_) => Vec::new(),
        };
        text::render(found)
    }
}
