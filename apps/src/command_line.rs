//! Command lines that are refused in one line, saying what is wrong and what is allowed.
//!
//! Called by the `main` of each program.

use clap::Parser;
use clap::error::ErrorKind;
use spinrpc::fabric::check_address;
use std::error::Error;
use std::fmt::Display;
use std::process::ExitCode;

/// Parses the command line and runs the program on it.
///
/// The exit code is 0 when all went well, 1 when the program failed, 2 when the command line is
/// wrong; a failure prints one line on standard error.
pub fn run<C: Parser>(program: impl FnOnce(C) -> Result<(), Box<dyn Error>>) -> ExitCode {
    run_with(program, |_| 1)
}

/// As [`run`], for a program whose failures have exit codes of their own.
pub fn run_with<C: Parser, E: Display>(
    program: impl FnOnce(C) -> Result<(), E>,
    code: impl FnOnce(&E) -> u8,
) -> ExitCode {
    match C::try_parse() {
        Ok(command) => match program(command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => refuse(&error.to_string(), code(&error)),
        },
        Err(error) if is_answer(error.kind()) => {
            print!("{error}");
            ExitCode::SUCCESS
        }
        Err(error) => refuse(&explain::<C>(&error), 2),
    }
}

/// `--help` and `--version` come as errors, but are what was asked for.
fn is_answer(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

fn refuse(message: &str, code: u8) -> ExitCode {
    eprintln!("{message}");
    ExitCode::from(code)
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
