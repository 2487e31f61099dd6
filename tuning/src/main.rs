//! spintune: shows, checks and explains profiles, and applies them to hosts.
//!
//! Answers go to standard output, problems to standard error, one per line.

#![forbid(unsafe_code)]
// Both panic where nothing can be written.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod apply;
mod diagnose;
mod report;
mod show;

use clap::{CommandFactory, Parser, Subcommand};
use spinrpc::config::{CoreList, Host};
use spinrpc_tuning::fit::FitError;
use spinrpc_tuning::printable::{printable_lines, to_stderr};
use spinrpc_tuning::{Loader, Profile, ProfileError, manual, usage_error};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Show, check and explain the profiles of spinrpc programs, and tune hosts for them
#[derive(Parser)]
#[command(name = "spintune", version, arg_required_else_help = false)]
#[command(after_help = include_str!("help/spintune.txt").trim_ascii_end())]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print every key of a profile with its value, unit and origin
    #[command(after_help = include_str!("help/show.txt").trim_ascii_end())]
    Show(show::ShowArguments),
    /// Print the names of the shipped profiles
    #[command(after_help = include_str!("help/list.txt").trim_ascii_end())]
    List(show::ListArguments),
    /// Check profiles; print problems with their locations, and settings without effect
    #[command(after_help = include_str!("help/check.txt").trim_ascii_end())]
    Check(show::CheckArguments),
    /// Print what a key does, its allowed values and its default; without KEY, all keys as a
    /// profile
    #[command(after_help = include_str!("help/explain.txt").trim_ascii_end())]
    Explain(show::ExplainArguments),
    /// Check whether this host suits a profile, and print problems with remedies
    Doctor(diagnose::DoctorArguments),
    /// Print a script that applies a profile to this host; changes nothing
    #[command(after_help = include_str!("help/plan.txt").trim_ascii_end())]
    Plan(apply::PlanArguments),
    /// Apply a profile to this host until the next boot (root); keeps the previous values
    #[command(after_help = include_str!("help/apply.txt").trim_ascii_end())]
    Apply(apply::ApplyArguments),
    /// Undo the changes of apply (root)
    #[command(after_help = include_str!("help/revert.txt").trim_ascii_end())]
    Revert(apply::Place),
    /// Save what this host reports in sysfs and procfs, for analysis elsewhere
    ///
    /// The record is a text file with exactly what doctor reads. It contains names and addresses of
    /// RDMA devices and of the host: review it before you share it.
    #[command(after_help = include_str!("help/record.txt").trim_ascii_end())]
    Record(diagnose::RecordArguments),
}

/// Overrides and host that a profile is resolved for.
#[derive(clap::Args)]
struct Target {
    /// Override a value of the profile; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Resolve for a host with these CPUs instead of this host
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    cpus: Option<Cpus>,
}

#[derive(Clone)]
struct Cpus(Vec<usize>);

fn parse_cpus(text: &str) -> Result<Cpus, String> {
    match text.parse() {
        Ok(CoreList::Cpus(mut cpus)) => {
            cpus.sort_unstable();
            Ok(Cpus(cpus))
        }
        _ => Err("expected a list of CPUs such as 0-7,9".to_owned()),
    }
}

impl Target {
    fn load(&self, profile: &str) -> Result<Profile, ProfileError> {
        self.load_on(profile, Host::current)
    }

    /// Resolves for this other host, unless the command line names its CPUs.
    fn load_on(&self, profile: &str, host: impl FnOnce() -> Host) -> Result<Profile, ProfileError> {
        let host = match &self.cpus {
            Some(Cpus(cpus)) => Host { allowed: cpus.clone(), ..Host::default() },
            None => host(),
        };
        let loader = Loader::new(&host);
        self.overrides.iter().fold(loader, Loader::set).load(profile)
    }
}

struct Outcome {
    answer: String,
    problems: Vec<String>,
    status: u8,
}

/// Result of a command. The error is that of one that could not be carried out.
type Answer = Result<Outcome, Outcome>;

impl Outcome {
    fn good(answer: String) -> Self {
        Self { answer, problems: Vec::new(), status: 0 }
    }

    fn usage(problem: String) -> Self {
        Self { status: USAGE, ..Self::failed(problem) }
    }

    fn failed(problem: impl ToString) -> Self {
        Self { answer: String::new(), problems: vec![problem.to_string()], status: INVALID }
    }
}

impl From<ProfileError> for Outcome {
    fn from(error: ProfileError) -> Self {
        let problems = error.problems().iter().map(ToString::to_string).collect();
        Self { answer: String::new(), problems, status: status_of(&error) }
    }
}

impl From<FitError> for Outcome {
    fn from(error: FitError) -> Self {
        Self::failed(error)
    }
}

fn at_root<T>(root: &Path, opened: io::Result<T>) -> Result<T, Outcome> {
    opened.map_err(|error| Outcome::usage(format!("--root {}: {error}", root.display())))
}

const INVALID: u8 = 1;
const USAGE: u8 = 2;

fn main() -> ExitCode {
    if let Some(written) = manual::requested(Arguments::command, 1) {
        return written;
    }
    let (Ok(outcome) | Err(outcome)) = match Arguments::try_parse() {
        Ok(arguments) => run(arguments.command),
        Err(error) if !error.use_stderr() => Ok(Outcome::good(error.to_string())),
        Err(error) => Ok(Outcome::usage(format!("{} (see spintune --help)", usage_error(&error)))),
    };
    for problem in &outcome.problems {
        to_stderr(format_args!("spintune: {problem}"));
    }
    // A reader that closes the pipe early (`spintune explain | head`) is not a failure.
    let written = io::stdout().write_all(printable_lines(&outcome.answer).as_bytes());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            to_stderr(format_args!("spintune: standard output: {error}"));
            ExitCode::from(INVALID)
        }
        _ => ExitCode::from(outcome.status),
    }
}

fn run(command: Command) -> Answer {
    match command {
        Command::Show(arguments) => show::show(&arguments),
        Command::List(arguments) => show::list(&arguments),
        Command::Check(arguments) => show::check(&arguments),
        Command::Explain(arguments) => show::explain(&arguments),
        Command::Doctor(arguments) => diagnose::doctor(&arguments),
        Command::Plan(arguments) => apply::plan(&arguments),
        Command::Apply(arguments) => apply::apply(&arguments),
        Command::Revert(arguments) => apply::revert(&arguments),
        Command::Record(arguments) => diagnose::record(&arguments),
    }
}

fn status_of(error: &ProfileError) -> u8 {
    if error.is_usage() { USAGE } else { INVALID }
}
