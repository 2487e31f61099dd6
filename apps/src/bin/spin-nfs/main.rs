//! spin-nfs: shows, reads and writes files of an NFS server over RPC-over-RDMA.

#![forbid(unsafe_code)]
// Both panic where nothing can be written.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod cli;
mod files;
mod listing;
mod ping;
mod progress;
mod show;

use cli::{Cli, Command, Place};
use files::Local;
use signal_hook::consts::{SIGINT, SIGTERM};
use spinrpc_apps::command_line;
use spinrpc_nfs::client::{Error, Mount, Nfs, Root, Target};
use spinrpc_tuning::printable::to_stderr;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    command_line::run_with(run, Error::exit_code)
}

fn run(cli: Cli) -> Result<(), Error> {
    let options = cli.session.options(&cli.command);
    let local = match &cli.command {
        Command::Put { file, .. } => Some(Local::open(file)?),
        _ => None,
    };
    let nfs = Nfs::connect(&cli.command.target().server, options)?;
    let done = obey(&nfs, &cli, local.as_ref());
    if cli.stats {
        to_stderr(show::stats(&nfs));
    }
    done
}

fn obey(nfs: &Nfs, cli: &Cli, local: Option<&Local>) -> Result<(), Error> {
    match &cli.command {
        Command::Null { .. } => nfs.null(|| false).map(drop),
        Command::Ping { target, ping } => ping::run(nfs, &target.server, ping),
        Command::Getattr { target, json } => {
            at(nfs, &cli.place, target, |opened| files::getattr(nfs, opened, *json))
        }
        Command::Ls { target, all, json } => {
            at(nfs, &cli.place, target, |opened| listing::run(nfs, opened, *all, *json))
        }
        Command::Cat { target } => at(nfs, &cli.place, target, |opened| files::cat(nfs, opened)),
        Command::Put { target, .. } => at(nfs, &cli.place, target, |opened| {
            local.map_or(Ok(()), |local| files::put(nfs, opened, local))
        }),
        Command::Bench { operation, target, bench } => {
            let depth = cli.session.bench_depth();
            at(nfs, &cli.place, target, |opened| bench::run(nfs, opened, *operation, depth, bench))
        }
    }
}

/// Runs `work` with a path on the server, between MNT and UMNT.
fn at(
    nfs: &Nfs,
    place: &Place,
    target: &Target,
    work: impl FnOnce(&Opened<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let opened = Opened::at(nfs, place, &target.path)?;
    let done = work(&opened);
    opened.close();
    done
}

struct Opened<'a> {
    path: &'a str,
    root: Root,
    below: String,
    mount: Option<Mount>,
}

impl<'a> Opened<'a> {
    fn at(nfs: &Nfs, place: &Place, path: &'a str) -> Result<Self, Error> {
        if let Some(handle) = place.handle {
            let root = Root::of_handle(handle);
            return Ok(Self { path, root, below: path.to_owned(), mount: None });
        }
        let mut mount = Mount::connect(nfs, place.mount_by())?;
        let (root, below) = mount.root(path, place.export.as_deref())?;
        Ok(Self { path, root, below, mount: Some(mount) })
    }

    /// An error is only a warning: the server forgets the mount in any case, and the work is done.
    fn close(self) {
        if let Some(Err(error)) = self.mount.map(Mount::end) {
            command_line::complain::<Cli>(&format!("cannot unmount the directory: {error}"));
        }
    }
}

/// A flag set by Ctrl-C and SIGTERM; the results so far are still printed.
fn interruption() -> Result<Arc<AtomicBool>, Error> {
    let is_interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register(signal, Arc::clone(&is_interrupted));
        registered.map_err(|error| Error::Local(format!("signal handler: {error}")))?;
    }
    Ok(is_interrupted)
}

fn print(line: &str) -> Result<(), Error> {
    written(writeln!(io::stdout().lock(), "{line}"))
}

fn written(result: io::Result<()>) -> Result<(), Error> {
    result.map_err(|error| Error::file("standard output", &error))
}
