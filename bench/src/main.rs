//! spinperf: measures spinrpc between two processes, together with the limits of the host.
//!
//! `load` is the only module that measures with the engine. Results go to standard output, progress and errors to
//! standard error.

#![forbid(unsafe_code)]
// Both panic where nothing can be written.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod child;
mod cli;
mod compare;
mod console;
mod cores;
mod default_run;
mod env;
mod fabric;
mod failure;
mod floor;
mod floor_job;
mod interrupt;
mod job;
mod latency;
mod load;
mod merge;
mod metrics;
mod modes;
mod output;
mod pattern;
mod profile;
mod profile_args;
mod progress;
mod ranks;
mod report;
mod run;
#[cfg(test)]
#[path = "../tests/common/schema.rs"]
mod schema;
mod serve;
mod top;
mod units;

use clap::CommandFactory;
use cli::{Cli, Command};
use failure::Failure;
use signal_hook::consts::SIGXFSZ;
use spinrpc_tuning::printable::to_stderr;
use std::process::ExitCode;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if let Some(written) = spinrpc_tuning::manual::requested(<Cli as CommandFactory>::command, 1) {
        return written;
    }
    // Beyond `ulimit -f`, a capture or report fails with EFBIG instead of killing the measurement.
    let handled = signal_hook::flag::register(SIGXFSZ, Arc::default())
        .map_err(|error| Failure::system("handling SIGXFSZ", error));
    match handled.and_then(|_| cli::parse(std::env::args_os())).and_then(obey) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Help(text)) => {
            console::say(&text).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
        Err(failure) => {
            to_stderr(format_args!("spinperf: {failure}"));
            failure.exit_code()
        }
    }
}

fn obey(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Some(Command::Compare(args)) => compare::run(&args),
        Some(Command::Job(args)) => job::run(&args),
        Some(Command::Merge(args)) => merge::run(&args),
        Some(Command::Floor(args)) => floor_job::run(&args),
        Some(Command::Run(args)) => run::run(&args, None),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Top(args)) => top::run(&args),
        Some(Command::Metrics(args)) => metrics::run(&args),
        None => default_run::run(&cli.main_job),
    }
}
