//! `spinperf metrics`: what running engines have counted, as OpenMetrics text for Prometheus.
//!
//! `top` finds the engines and asks them by their control sockets; `text` says it in OpenMetrics, and `http` to whoever
//! asks by HTTP. `main` is the caller. Nothing is kept between two questions: engines count since their start.

mod http;
mod text;

use crate::cli::MetricsArgs;
use crate::failure::Failure;
use crate::top::{Found, Target, Watched};
use std::io::{self, Write};

/// Prints the metrics once, or serves them until it is ended.
///
/// # Errors
/// There is no such engine, or the address cannot be listened on.
pub(crate) fn run(args: &MetricsArgs) -> Result<(), Failure> {
    if let Some(address) = args.listen {
        return http::serve(address, args.target.clone());
    }
    let found = Watched::find(args.target.as_ref())?.look().unwrap_or_default();
    let text = text::render(&found);
    io::stdout().write_all(text.as_bytes()).map_err(|error| Failure::system("printing", error))
}

/// The metrics of all engines that are there now, which may be none.
fn now(target: Option<&Target>) -> String {
    let found: Vec<Found> = match Watched::find(target) {
        Ok(watched) => watched.look().unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    text::render(&found)
}
