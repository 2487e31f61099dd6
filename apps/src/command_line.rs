//! Command lines that are rejected in one line, with the problem and the allowed values.

use crate::log;
use clap::Parser;
use clap::error::ErrorKind;
use signal_hook::consts::SIGXFSZ;
use spinrpc::config::Host;
use spinrpc::fabric::check_address;
use spinrpc::{Config, driver_of};
use spinrpc_tuning::printable::{abridged, to_stderr};
use spinrpc_tuning::{Loader, ProfileArgs, manual};
use std::error::Error;
use std::fmt::Display;
use std::io::{self, ErrorKind as IoErrorKind, Write};
use std::process::ExitCode;
use std::sync::Arc;

/// A usage error that is only found after parsing: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Parses the command line and runs the program.
///
/// The exit code is 0 for success, 1 for a failure, 2 for a usage error; a failure prints one line
/// on standard error.
pub fn run<C: Parser>(program: impl FnOnce(C) -> Result<(), Box<dyn Error>>) -> ExitCode {
    run_with(program, |error| if error.is::<Usage>() { 2 } else { 1 })
}

/// Like [`run`], for a program whose failures have their own exit codes.
pub fn run_with<C: Parser, E: Display>(
    program: impl FnOnce(C) -> Result<(), E>,
    code: impl Fn(&E) -> u8,
) -> ExitCode {
    run_all(|command| program(command).map_err(|error| vec![error]), code)
}

/// Like [`run_with`], for a program that reports several failures at once, a line each. The exit code is the highest of
/// theirs.
pub fn run_all<C: Parser, E: Display>(
    program: impl FnOnce(C) -> Result<(), Vec<E>>,
    code: impl Fn(&E) -> u8,
) -> ExitCode {
    if let Some(written) = manual::requested(C::command, section::<C>()) {
        return written;
    }
    // Beyond the limit of file sizes (`ulimit -f`), writes fail with EFBIG, which a server reports to
    // its client. Without a handler for SIGXFSZ the process would be killed, also by connection memory
    // longer than the limit.
    if let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::default()) {
        return refuse::<C>(&format!("signal handler: {error}"), 1);
    }
    match C::try_parse() {
        Ok(command) => match program(command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(errors) => {
                errors.iter().for_each(|error| complain::<C>(&error.to_string()));
                ExitCode::from(errors.iter().map(code).max().unwrap_or(1))
            }
        },
        Err(error) if !error.use_stderr() => {
            // A closed pipe, as from `head`, is not an error.
            drop(write!(io::stdout(), "{error}"));
            ExitCode::SUCCESS
        }
        Err(error) => refuse::<C>(&explain::<C>(&error), 2),
    }
}

/// Section of the manual: 8 is for daemons.
fn section<C: Parser>() -> u8 {
    if C::command().get_name() == "spin-nfsd" { 8 } else { 1 }
}

fn refuse<C: Parser>(message: &str, code: u8) -> ExitCode {
    complain::<C>(message);
    ExitCode::from(code)
}

/// Prints a message on standard error, with the name of the program. It may contain text from a server or a file.
pub fn complain<C: Parser>(message: &str) {
    to_stderr(format_args!("{}{}", log::error_prefix(), prefixed::<C>(message)));
}

fn prefixed<C: Parser>(message: &str) -> String {
    let program = C::command();
    let name = program.get_name();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    match message.strip_prefix(name).is_some_and(|rest| rest.starts_with(": ")) {
        true => message.to_owned(),
        false => format!("{name}: {message}"),
    }
}

/// Prints a line. A reader that has gone, as `head` does, is not a failure.
///
/// # Errors
/// The line cannot be written for another reason.
pub fn say(line: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == IoErrorKind::BrokenPipe => Ok(()),
        said => said,
    }
}

/// Configuration of an engine for `address`, from the profile on the command line.
///
/// # Errors
/// [`Usage`]: the profile or a value is invalid.
pub fn config(profile: &ProfileArgs, address: &str) -> Result<Config, Usage> {
    let host = Host::current();
    let driver = driver_of(address).map_err(|error| Usage(error.to_string()))?;
    let loader = Loader::new(&host);
    let loaded = profile.load(loader, driver).map_err(Usage)?;
    Ok(loaded.config().clone())
}

/// The problem and the allowed values. For an unknown command, clap only reports the problem.
fn explain<C: Parser>(error: &clap::Error) -> String {
    let wrong = abridged(&one_line(&error.to_string()));
    if error.kind() != ErrorKind::InvalidSubcommand {
        return wrong;
    }
    let program = C::command();
    let commands: Vec<&str> = program.get_subcommands().map(clap::Command::get_name).collect();
    format!("{wrong}: commands are {}", commands.join(", "))
}

/// The first paragraph, on one line.
pub fn one_line(message: &str) -> String {
    let paragraph = message.split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks that `text` is an address that the engine accepts.
///
/// # Errors
/// The allowed forms, if it is not.
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
    fn a_long_argument_is_not_repeated_whole() {
        let error = Sample::try_parse_from(["sample", "call", "x", &"long".repeat(1000)]);
        assert!(explain::<Sample>(&error.unwrap_err()).len() < 1000);
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
