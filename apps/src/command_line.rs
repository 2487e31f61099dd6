//! Command lines that are refused in one line, saying what is wrong and what is allowed.
//!
//! Called by the `main` of each program.

use clap::Parser;
use clap::error::ErrorKind;
use signal_hook::consts::SIGXFSZ;
use spinrpc::config::Host;
use spinrpc::fabric::check_address;
use spinrpc::{Config, driver_of};
use spinrpc_tuning::text::printable;
use spinrpc_tuning::{Loader, ProfileArgs};
use std::error::Error;
use std::fmt::Display;
use std::io::{self, ErrorKind as IoErrorKind, Write};
use std::process::ExitCode;
use std::sync::Arc;

/// A command line that cannot be obeyed, as shows only after it was parsed: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Parses the command line and runs the program on it.
///
/// The exit code is 0 when all went well, 1 when the program failed, 2 when the command line is
/// wrong; a failure prints one line on standard error.
pub fn run<C: Parser>(program: impl FnOnce(C) -> Result<(), Box<dyn Error>>) -> ExitCode {
    run_with(program, |error| if error.is::<Usage>() { 2 } else { 1 })
}

/// As [`run`], for a program whose failures have exit codes of their own.
pub fn run_with<C: Parser, E: Display>(
    program: impl FnOnce(C) -> Result<(), E>,
    code: impl FnOnce(&E) -> u8,
) -> ExitCode {
    if let Err(error) = outlive_file_size_limit() {
        return refuse::<C>(&format!("signal handler: {error}"), 1);
    }
    match C::try_parse() {
        Ok(command) => match program(command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => refuse::<C>(&error.to_string(), code(&error)),
        },
        Err(error) if is_answer(error.kind()) => {
            // A reader that has gone, as `head` does, has read what it wanted.
            drop(write!(io::stdout(), "{error}"));
            ExitCode::SUCCESS
        }
        Err(error) => refuse::<C>(&explain::<C>(&error), 2),
    }
}

/// Beyond the limit of file sizes (`ulimit -f`), writes fail with EFBIG, of which a server tells its
/// client. Without a handler of SIGXFSZ the process would end, also by memory of a connection that is
/// longer than the limit.
fn outlive_file_size_limit() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// `--help` and `--version` come as errors, but are what was asked for.
fn is_answer(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

fn refuse<C: Parser>(message: &str, code: u8) -> ExitCode {
    // It may hold what a server or a file says. Without a reader the exit code says it.
    drop(writeln!(io::stderr(), "{}", printable(&prefixed::<C>(message))));
    ExitCode::from(code)
}

/// A message with the name of the program that says it.
fn prefixed<C: Parser>(message: &str) -> String {
    let program = C::command();
    let name = program.get_name();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    match message.strip_prefix(name).is_some_and(|rest| rest.starts_with(": ")) {
        true => message.to_owned(),
        false => format!("{name}: {message}"),
    }
}

/// Prints a line; `false` when its reader has gone, as `head` does.
///
/// # Errors
/// Why it could not be written otherwise.
pub fn say(line: impl Display) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == IoErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Side of a connection that a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Polls on the next best core, unless the profile says which, so that a server of the same host
    /// keeps its own.
    Client,
    /// Polls on the best core.
    Server,
}

/// Configuration of an engine for `address`, by the profile that the command line names. `own` values
/// (`KEY=VALUE`) are those of the program, where the profile and `--set` say nothing of the key.
///
/// # Errors
/// [`Usage`]: the profile, or a value, cannot be used.
pub fn config(
    profile: &ProfileArgs,
    address: &str,
    side: Side,
    own: &[&str],
) -> Result<Config, Usage> {
    let host = Host::current();
    let driver = driver_of(address).map_err(|error| Usage(error.to_string()))?;
    let skip = if side == Side::Client { Some("cores.skip=1") } else { None };
    let loader = Loader::new(&host);
    let loader = own.iter().copied().chain(skip).fold(loader, Loader::unless_set);
    let loaded = profile.load(loader, driver).map_err(Usage)?;
    Ok(loaded.config().clone())
}

/// What is wrong and what is allowed. For an unknown command clap says the first part only.
fn explain<C: Parser>(error: &clap::Error) -> String {
    let wrong = one_line(&error.to_string());
    if error.kind() != ErrorKind::InvalidSubcommand {
        return wrong;
    }
    let program = C::command();
    let commands: Vec<&str> = program.get_subcommands().map(clap::Command::get_name).collect();
    format!("{wrong}: commands are {}", commands.join(", "))
}

/// The first paragraph of a message, on one line.
fn one_line(message: &str) -> String {
    let paragraph = message.split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks that `text` is an address as the engine understands it.
///
/// # Errors
/// What is allowed, when it is not.
pub fn address(text: &str) -> Result<String, String> {
    check_address(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn a_refusal_is_one_line_with_what_is_allowed() {
        let clap = "error: invalid value 'x'\n  [possible values: a, b]\n\nFor more, try --help";
        assert_eq!(one_line(clap), "error: invalid value 'x' [possible values: a, b]");
    }

    #[derive(Debug, Parser)]
    #[command(arg_required_else_help = false)]
    enum Sample {
        Serve,
        Call { text: String },
    }

    #[test]
    fn a_wrong_or_missing_command_is_answered_with_those_there_are() {
        for line in [&["sample"][..], &["sample", "bogus"]] {
            let explained = explain::<Sample>(&Sample::try_parse_from(line).unwrap_err());
            assert_eq!(explained.lines().count(), 1, "{explained}");
            assert!(explained.contains("serve, call"), "{explained}");
        }
    }

    #[test]
    fn messages_begin_with_the_name_of_the_program_once() {
        let named = format!("{}: no such key", Sample::command().get_name());
        for message in ["no such key", "error: no such key", &named] {
            assert_eq!(prefixed::<Sample>(message), named);
        }
    }

    #[test]
    fn a_missing_argument_is_named() {
        let error = Sample::try_parse_from(["sample", "call"]).unwrap_err();
        assert!(explain::<Sample>(&error).contains("<TEXT>"), "{error}");
    }

    #[test]
    fn an_address_names_its_fabric() {
        assert_eq!(address("shm:demo").as_deref(), Ok("shm:demo"));
        assert_eq!(address("rdma://host").as_deref(), Ok("rdma://host"));
        for wrong in ["demo", "shm:", "tcp:1", "shm:a b"] {
            assert!(address(wrong).unwrap_err().contains("shm:NAME"), "{wrong}");
        }
        for wrong in ["demo", "rdma://", "rdma://host:0", "rdma://host/path"] {
            assert!(address(wrong).unwrap_err().contains("rdma://HOST:PORT"), "{wrong}");
        }
    }
}
