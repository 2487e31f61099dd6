//! `spintune doctor` and `spintune record`, which examine a host.

use crate::report::to_json;
use crate::{Answer, Outcome, at_root};
use spinrpc_tuning::doctor::{CheckInput, Tried, examine, profile_for};
use spinrpc_tuning::host::{HostFacts, Tree};
use spinrpc_tuning::printable::to_stderr;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = include_str!("help/doctor.txt").trim_ascii_end())]
pub(crate) struct DoctorArguments {
    /// Name of a shipped profile, or path of a file, to run on this host
    #[arg(long, default_value = "base", value_name = "PROFILE")]
    profile: String,
    /// Override a value of the profile; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the remedies of notes, too
    #[arg(long, conflicts_with = "json")]
    all: bool,
    /// Treat warnings as failures
    #[arg(long)]
    strict: bool,
    /// Only read, and skip the tests that occupy the poll cores for some seconds
    #[arg(long)]
    passive: bool,
    /// Examine a record or a copy of a host's files instead of this host. Links do not lead out of
    /// DIR
    #[arg(long, value_name = "RECORD|DIR")]
    root: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct RecordArguments {
    /// File to write; - is standard output
    file: PathBuf,
}

pub(crate) fn doctor(arguments: &DoctorArguments) -> Answer {
    let tree = match &arguments.root {
        None => Tree::host(),
        Some(path) => at_root(path, Tree::open(path))?,
    };
    let facts = HostFacts::read(&tree);
    let profile = profile_for(&facts, &arguments.profile, &arguments.overrides)?;
    let tries = tree.is_this_host() && !arguments.passive;
    let allocator = || "mimalloc".to_owned();
    let out = || Tried::out(profile.config(), &mut progress());
    let tried = tries.then(|| Tried { allocator: allocator(), ..out() });
    let report = examine(&CheckInput { facts: &facts, profile: &profile, tried: tried.as_ref() });
    let answer = if arguments.json { to_json(&report) } else { report.render(arguments.all) };
    let status = u8::from(!report.is_good(arguments.strict));
    Ok(Outcome { answer, problems: Vec::new(), status })
}

fn progress() -> impl FnMut(&str) {
    let started = Instant::now();
    move |what| {
        if started.elapsed() >= Duration::from_secs(2) {
            let seconds = started.elapsed().as_secs_f64();
            to_stderr(format_args!("spintune: {seconds:.0} s: {what}"));
        }
    }
}

pub(crate) fn record(arguments: &RecordArguments) -> Answer {
    let record = HostFacts::record(Tree::host()).to_string();
    if arguments.file.as_os_str() == "-" {
        return Ok(Outcome::good(record));
    }
    match fs::write(&arguments.file, record) {
        Ok(()) => Ok(Outcome::good(String::new())),
        Err(error) => Err(Outcome::failed(format!("{}: {error}", arguments.file.display()))),
    }
}
