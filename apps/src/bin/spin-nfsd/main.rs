//! spin-nfsd: serves directories and in-memory trees by NFS version 3, over RDMA and shared memory.
//!
//! The server is in the library of this package; here is what a person says of it (`cli`,
//! `config_file`, `export_spec`, `setup`), what the host gives (`state`, `back_ends`), and a process
//! that starts, is watched and ends (`serve`, `register`, `announce`, `stats`, `notify`).

mod announce;
mod back_ends;
mod cli;
mod config_file;
mod export_spec;
mod failure;
mod notify;
mod register;
mod serve;
mod setup;
mod state;
mod stats;

use cli::Cli;
use failure::Failure;
use setup::Setup;
use spinrpc_apps::command_line;
use std::io::{self, Write};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    command_line::run_with(run, Failure::exit_code)
}

fn run(cli: Cli) -> Result<(), Failure> {
    log();
    let only_check = cli.check;
    let setup = Setup::of(cli)?;
    if only_check { check(&setup) } else { serve::run(&setup) }
}

/// Logs to standard error; RUST_LOG chooses what. A line that cannot be written, as its
/// reader has gone, is lost: the complaint about that would be a panic of the thread that logs.
fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    log.without_time().with_target(false).log_internal_errors(false).init();
}

/// Makes ready what would serve, and says what that would be.
fn check(setup: &Setup) -> Result<(), Failure> {
    serve::check(setup)?;
    let mut lines = announce::exports(setup);
    lines.extend(setup.listen.iter().map(|address| format!("would listen on {address}")));
    let written = writeln!(io::stdout(), "{}", lines.join("\n"));
    written.map_err(|error| Failure::failed("standard output", error))
}
