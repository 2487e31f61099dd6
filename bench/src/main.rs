//! spinperf: measures spinrpc between two processes, together with the limits of the host.
//!
//! `cli` parses the command line; `main_job`, `serve`, `run`, `floor_job`, `devices` and `compare`
//! are the commands, as is `top`, which watches other processes; `modes` implements the modes of
//! `run` with several workloads; `load` is the only module that uses the engine; `floor` measures
//! the limits of the machine; `report` renders results for the `output` options. Results go to
//! standard output, progress and errors to standard error.

mod capture;
mod child;
mod cli;
mod compare;
mod cores;
mod devices;
mod env;
mod fabric;
mod failure;
mod floor;
mod floor_job;
mod handles;
mod interrupt;
mod latency;
mod load;
mod main_job;
mod metrics;
mod modes;
mod output;
mod pattern;
mod profile;
mod progress;
mod report;
mod run;
#[cfg(test)]
#[path = "../tests/common/schema.rs"]
mod schema;
mod serve;
mod slabs;
mod top;
mod units;

use cli::{Cli, Command, Parsed};
use failure::Failure;
use signal_hook::consts::SIGXFSZ;
use spinrpc_tuning::text::printable;
use std::process::ExitCode;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Beyond `ulimit -f`, a capture or report fails with EFBIG instead of killing the measurement.
    let handled = signal_hook::flag::register(SIGXFSZ, Arc::default())
        .map_err(|error| Failure::system("handling SIGXFSZ", error));
    match handled.and_then(|_| cli::parse(std::env::args_os())).and_then(obey) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("spinperf: {}", printable(&failure.to_string()));
            failure.exit_code()
        }
    }
}

fn obey(parsed: Parsed) -> Result<(), Failure> {
    let cli: Cli = match parsed {
        Parsed::Run(cli) => *cli,
        Parsed::Text(text) => {
            return output::say(&text);
        }
    };
    match cli.command {
        Some(Command::Compare(args)) => compare::run(&args),
        Some(Command::Devices(args)) => devices::run(&args),
        Some(Command::Floor(args)) => floor_job::run(&args),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Top(args)) => top::run(&args),
        Some(Command::Metrics(args)) => metrics::run(&args),
        None => main_job::run(&cli.main_job),
    }
}
