//! spin-nfsd: serves directories and in-memory trees over NFS version 3, on RDMA and shared memory.
//!
//! The server is in the library of this package. Here are its options (`cli`, `config_file`,
//! `export_spec`, `kerberos`, `setup`), the resources of the host (`state`, `back_ends`, `names`), and a process that
//! starts, reports, reloads and exits (`serve`, `live`, `keeper`, `reload`, `register`, `announce`, `stats`, `socket`, `notify`).

mod announce;
mod back_ends;
mod cli;
mod config_file;
mod export_spec;
mod failure;
mod keeper;
mod kerberos;
mod live;
mod names;
mod notify;
mod register;
mod reload;
mod serve;
mod setup;
mod socket;
mod state;
mod stats;

use cli::{Cli, Command};
use failure::Failure;
use serve::Checked;
use setup::Setup;
use spinrpc::config::Host;
use spinrpc_apps::command_line;
use std::io::{self, Write};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    command_line::run_all(run, Failure::exit_code)
}

fn run(cli: Cli) -> Result<(), Vec<Failure>> {
    log();
    if let Some(Command::Reload(options)) = &cli.command {
        return reload::ask(options);
    }
    let host = Host::current();
    let setup = Setup::of(&cli, &host)?;
    if cli.check { check(&setup) } else { serve::run((cli, host), &setup) }
}

/// Logs to standard error; RUST_LOG is the filter. A line that cannot be written, because its
/// reader has gone, is dropped: reporting that would panic the logging thread.
fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    log.without_time().with_target(false).log_internal_errors(false).init();
}

/// Validates the setup and prints what would be served.
fn check(setup: &Setup) -> Result<(), Vec<Failure>> {
    let Checked { kerberos, names } = serve::check(setup)?;
    let mut lines = announce::exports(&setup.exports, &names);
    lines.extend(kerberos);
    lines.extend(setup.listen.iter().map(|address| format!("would listen on {address}")));
    let written = writeln!(io::stdout(), "{}", lines.join("\n"));
    written.map_err(|error| vec![Failure::failed("standard output", error)])
}
