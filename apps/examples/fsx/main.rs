//! fsx: reads, writes and truncates a file at random, and compares it with its expected content.
//!
//! Does the same job as the program of this name that has tested file systems since 1991: a
//! sequence of operations that depends only on a seed, each checked against a model of the file in
//! memory. Independent of NFS; run it on a file of a mounted export. `exercise` has the operations
//! and the model, `file` the real file.

mod exercise;
mod file;
mod random;

use clap::Parser;
use exercise::{Exercise, Limits};
use file::RealFile;
use spinrpc_apps::command_line;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Read, write and truncate FILE at random, and compare it with its expected content.
///
/// Exits with code 1 at the first difference, after printing the last operations and the command
/// that repeats them. FILE is created or truncated; it is removed at the end, unless there was a
/// difference.
#[derive(Parser)]
#[command(
    name = "fsx",
    after_help = "\
Examples:
  fsx /mnt/file --seconds 600
  fsx /mnt/file --seed 7 --operations 5000 --direct"
)]
struct Cli {
    /// File to use; its directory must exist
    file: PathBuf,
    /// Duration in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Number of operations, instead of a duration
    #[arg(long, conflicts_with = "seconds")]
    operations: Option<u64>,
    /// Seed, to repeat a run [default: different each time]
    #[arg(long)]
    seed: Option<u64>,
    /// Maximum length of the file, in bytes
    #[arg(long, default_value_t = 256 << 10, value_parser = clap::value_parser!(u32).range(1..))]
    length: u32,
    /// Maximum length of a read or write, in bytes
    #[arg(long, default_value_t = 64 << 10, value_parser = clap::value_parser!(u32).range(1..))]
    block: u32,
    /// Bypass the page cache (O_DIRECT), on a file system without alignment requirements
    #[arg(long)]
    direct: bool,
}

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(cli: Cli) -> Result<(), Box<dyn Error>> {
    let seed = cli.seed.unwrap_or_else(some_seed);
    let path = cli.file.display();
    println!(
        "fsx: {path}, seed {seed}{}",
        if cli.direct { ", bypassing the page cache" } else { "" }
    );
    let file =
        RealFile::create(&cli.file, cli.direct).map_err(|error| format!("{path}: {error}"))?;
    let limits = Limits { file_bytes: cli.length as usize, block_bytes: cli.block as usize };
    let mut exercise = Exercise::new(file, seed, limits);
    let began = Instant::now();
    let last = Duration::from_secs(cli.seconds);
    let is_over = |done| match cli.operations {
        Some(operations) => done >= operations,
        None => began.elapsed() >= last,
    };
    let done = exercise.run(is_over).map_err(|found| {
        let again = format!(
            "fsx FILE --seed {seed} --length {} --block {}{} --operations {}",
            cli.length,
            cli.block,
            if cli.direct { " --direct" } else { "" },
            found.operations
        );
        format!("{path}: {found}\nto repeat: {again}")
    })?;
    std::fs::remove_file(&cli.file)?;
    println!("fsx: {done} operations, no difference");
    Ok(())
}

/// A seed that differs between runs.
fn some_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64 ^ u64::from(std::process::id()) << 40
}
