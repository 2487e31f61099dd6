//! spin-nfsd: serves directories and in-memory trees over NFS version 3, on RDMA and shared memory.

#![forbid(unsafe_code)]
// Output may block its thread: events go by `sys::journal`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod announce;
mod back_ends;
mod cli;
mod clients;
mod config_file;
mod export_spec;
mod failure;
mod keeper;
mod kerberos;
#[cfg(feature = "krb5")]
mod keytab;
mod live;
mod metrics;
mod names;
mod notify;
mod register;
mod reload;
mod serve;
mod setup;
mod slow;
mod socket;
mod state;
mod stats;

use cli::{Cli, Command};
use failure::Failure;
use setup::Setup;
use spinrpc::config::Host;
use spinrpc::sys::journal;
use spinrpc_apps::{command_line, log};
use std::io::{self, Write};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let run = |cli| {
        let ended = run(cli);
        journal::flush(journal::FLUSH_MAX);
        ended
    };
    command_line::run_all(run, Failure::exit_code)
}

fn run(cli: Cli) -> Result<(), Vec<Failure>> {
    log::init();
    match &cli.command {
        Some(Command::Reload(server)) => return reload::run(server),
        Some(Command::Clients(options)) => return clients::list(options),
        Some(Command::Disconnect(options)) => return clients::disconnect(options),
        Some(Command::Slow(options)) => return slow::show(options),
        None => {}
    }
    let host = Host::current();
    let setup = Setup::of(&cli, &host)?;
    if cli.check { check(&setup) } else { serve::run((cli, host), &setup) }
}

fn check(setup: &Setup) -> Result<(), Vec<Failure>> {
    let (kerberos, names) = serve::check(setup)?;
    let mut lines = announce::exports(setup, &names);
    lines.extend(kerberos);
    lines.extend(setup.listen.iter().map(|address| format!("would listen on {address}")));
    let written = writeln!(io::stdout(), "{}", lines.join("\n"));
    written.map_err(|error| vec![Failure::failed("standard output", error)])
}
