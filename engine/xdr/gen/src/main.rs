//! `spinrpc-xdrgen`: prints the Rust of a description.

#![forbid(unsafe_code)]

use clap::Parser;
use spinrpc_xdrgen::Generator;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Generate Rust for spinrpc-xdr from an XDR or ONC RPC description.
///
/// Runs the C preprocessor (cpp) if a line of the file begins with `#`, with RPC_HDR defined. `%#include "other.h"` brings in
/// other.x, if there is one beside the file.
///
/// Exit status: 0 success, 1 the description has a mistake or a file cannot be read or written, 2 usage error.
#[derive(Parser)]
#[command(name = "spinrpc-xdrgen", version)]
#[command(after_help = include_str!("help.txt").trim_ascii_end())]
struct Arguments {
    /// Description to read.
    description: PathBuf,
    /// File to write instead of standard output.
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Define a macro for the C preprocessor, such as a constant of a C header (repeatable).
    #[arg(short = 'D', long, value_name = "NAME[=VALUE]")]
    define: Vec<String>,
    /// Make this `opaque<>` eligible for direct placement (repeatable).
    #[arg(long, value_name = "TYPE.FIELD|TYPEDEF")]
    ddp: Vec<String>,
    /// Allow this `string<>` bytes that are not UTF-8 (repeatable).
    #[arg(long, value_name = "TYPE.FIELD|TYPEDEF")]
    bytes: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spinrpc-xdrgen: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let generator = Generator::new();
    let generator = arguments.ddp.iter().fold(generator, |generator, name| generator.ddp(name));
    let generator = arguments.bytes.iter().fold(generator, |generator, name| generator.bytes(name));
    let generator =
        arguments.define.iter().fold(generator, |generator, name| generator.define(name));
    let rust = generator.file(&arguments.description)?;
    match &arguments.output {
        Some(path) => {
            std::fs::write(path, rust).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        None => std::io::stdout().write_all(rust.as_bytes())?,
    }
    Ok(())
}
