//! From options to a setup: fills in every default, and rejects options that do not fit.

use crate::cli::{Cli, MountAt, Options, Register};
use crate::config_file;
use crate::export_spec::{ExportSpec, Written};
use crate::failure::{Failure, Failures};
use crate::kerberos::Kerberos;
use crate::state;
use spinrpc::config::{Driver, Host};
use spinrpc::{Config, driver_of};
use spinrpc_tuning::{DEFAULT_PROFILE, Loader, load_for_program};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Memory for cached replies, in MiB, if the profile has no reply cache: NFS has procedures that must not be executed
/// twice (RFC 1813 section 4.7). A kernel's client then has 2048 replies, for as many calls as 16 connections
/// (`nconnect`) have in flight with 128 credits each.
const REPLY_CACHE_MIB: u64 = 64;
const THREADS: u16 = 4;

#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) exports: Vec<ExportSpec>,
    /// At least one; all on the same fabric.
    pub(crate) listen: Vec<String>,
    pub(crate) mount: MountAt,
    pub(crate) register: Register,
    /// If an export accepts it.
    pub(crate) kerberos: Option<Kerberos>,
    pub(crate) config: Config,
    pub(crate) threads: usize,
    pub(crate) state: PathBuf,
    pub(crate) stats: Option<Duration>,
    /// As given, for comparison with those of a reload.
    pub(crate) options: Options,
}

impl Setup {
    /// Reads the files named on the command line. Returns everything that is wrong. `host` is as the process has found it: threads
    /// of a server that runs may use fewer CPUs than its cores do.
    pub(crate) fn of(cli: &Cli, host: &Host) -> Result<Self, Vec<Failure>> {
        let mut failures = Failures::default();
        let file = cli.config.as_deref().map(config_file::read).transpose();
        let (file, problems) =
            file.map_err(|problem| vec![Failure::Usage(problem)])?.unwrap_or_default();
        let options = cli.options.clone().over(file);
        let exports = exports(&options, cli.config.as_deref(), &mut failures);
        // Without an address because of another error, there is nothing to say about it.
        let has_address = problems.is_empty() || !options.listen.is_empty();
        let driver = has_address.then(|| driver(&options.listen));
        let driver = driver.and_then(|driver| failures.keep_usage(driver));
        failures.add_usage(problems);
        let of = |driver| of_driver(host, &options, &exports, driver, &mut failures);
        let of_driver = driver.and_then(of);
        let state = failures.keep_usage(state::directory(options.state.clone()));
        let setup = of_driver.zip(state).map(|((config, kerberos, usual), state)| Self {
            exports,
            listen: options.listen.clone(),
            mount: options.mount.unwrap_or(usual),
            register: options.register.clone().unwrap_or_default(),
            kerberos,
            config,
            threads: options.threads.unwrap_or(THREADS).into(),
            state,
            stats: options.stats,
            options,
        });
        failures.or(setup)
    }
}

fn exports(options: &Options, file: Option<&Path>, failures: &mut Failures) -> Vec<ExportSpec> {
    let all: Vec<&Written> =
        options.export.iter().chain(&options.cephfs).chain(&options.memory).collect();
    if all.is_empty() {
        let file = file.map(|file| format!("{}: ", file.display())).unwrap_or_default();
        failures.add_usage([format!(
            "{file}nothing to serve: name a directory with --export DIR, or use --memory NAME"
        )]);
    }
    failures.add_usage(all.iter().filter_map(|written| written.as_ref().err()).flatten().cloned());
    all.into_iter().filter_map(|written| written.as_ref().ok()).cloned().collect()
}

fn of_driver(
    host: &Host,
    options: &Options,
    exports: &[ExportSpec],
    driver: Driver,
    failures: &mut Failures,
) -> Option<(Config, Option<Kerberos>, MountAt)> {
    let config = failures.keep_usage(config(host, options, driver));
    let kerberos = failures.keep_usage(Kerberos::of(options, exports, driver));
    let usual = if driver == Driver::Shm { MountAt::Nowhere } else { MountAt::USUAL };
    Some((config?, kerberos?, usual))
}

/// The fabric of all addresses: an engine has one.
fn driver(listen: &[String]) -> Result<Driver, String> {
    let of = |address: &String| driver_of(address).map_err(|error| error.to_string());
    let drivers = listen.iter().map(of).collect::<Result<Vec<_>, _>>()?;
    match &drivers[..] {
        [] => {
            Err("no address to listen at: use --listen rdma://0.0.0.0:20049 (devices), --listen \
                 iwarp://0.0.0.0:20049 (TCP), or --listen shm:NAME"
                .to_owned())
        }
        [first, others @ ..] if others.iter().all(|other| other == first) => Ok(*first),
        _ => {
            Err("all addresses of --listen must be of one kind, rdma:, iwarp: or shm: (start a server for \
                  each)"
                .to_owned())
        }
    }
}

fn config(host: &Host, options: &Options, driver: Driver) -> Result<Config, String> {
    let name = options.profile.as_deref().unwrap_or(DEFAULT_PROFILE);
    let own = Loader::new(host);
    let own = match &options.cores {
        Some(cores) => own.set(format!("cores.list={cores}")),
        None => own,
    };
    let profile = load_for_program(name, &options.set, own, driver)?;
    let mut raw = profile.config().raw().clone();
    if raw.rpc.reply_cache_mib == 0 {
        raw.rpc.reply_cache_mib = REPLY_CACHE_MIB;
    }
    raw.validate_for(host).map_err(|error| format!("profile {name}: {error}"))
}
