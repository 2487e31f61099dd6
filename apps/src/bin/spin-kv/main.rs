//! spin-kv: a small in-memory key-value store on spinrpc, and its client.
//!
//! The store and its protocol are in the library of this package; this is only the command line.

use clap::{Parser, Subcommand};
use spinrpc_apps::command_line::{self, Side, Usage, say};
use spinrpc_apps::kv::protocol::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use spinrpc_apps::kv::{self, Client};
use spinrpc_tuning::ProfileArgs;
use spinrpc_tuning::text::printable;
use std::error::Error;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Keep values in the memory of a process for other processes, on this host or over RDMA.
#[derive(Parser)]
#[command(name = "spin-kv", version, arg_required_else_help = false, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    profile: ProfileArgs,
}

const EXAMPLES: &str = "\
Examples:
  spin-kv serve shm:kv
  spin-kv put shm:kv colour blue
  spin-kv serve rdma://0.0.0.0:20049 --profile verbs-mlx5 --set rpc.credits=128
  spin-kv get shm:kv colour --set rpc.protocol=rfc5666

Exit status: 0 success, 1 failure, 2 usage error or invalid profile.";

#[derive(Subcommand)]
enum Command {
    /// Serve an empty store until interrupted.
    Serve {
        /// Address to listen at: shm:NAME or rdma://HOST:PORT
        #[arg(value_parser = command_line::address)]
        address: String,
    },
    /// Write the value of a key to standard output, or to a file.
    Get {
        #[command(flatten)]
        place: Place,
        /// File to write instead; - is standard output
        #[arg(long)]
        file: Option<PathBuf>,
    },
    /// Store a value under a key, replacing an older one.
    Put {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        source: Source,
    },
    /// Delete a key.
    Delete {
        #[command(flatten)]
        place: Place,
    },
    /// Print the length of a key's value, now and after every change, until interrupted.
    Watch {
        #[command(flatten)]
        place: Place,
        /// Number of lines to print before exiting
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        lines: Option<u64>,
    },
    /// List keys in order, with the length and CRC-32 of their values.
    Scan {
        /// Address of the store: shm:NAME or rdma://HOST:PORT
        #[arg(value_parser = command_line::address)]
        address: String,
        /// Prefix of the keys
        #[arg(default_value = "")]
        prefix: String,
    },
}

/// A store and a key.
#[derive(clap::Args)]
struct Place {
    /// Address of the store: shm:NAME or rdma://HOST:PORT
    #[arg(value_parser = command_line::address)]
    address: String,
    /// The key, of 1 to 255 bytes
    #[arg(value_parser = key)]
    key: String,
}

fn key(text: &str) -> Result<String, String> {
    let fits = (1..=KEY_BYTES_MAX).contains(&text.len());
    fits.then(|| text.to_owned()).ok_or_else(|| format!("1 to {KEY_BYTES_MAX} bytes"))
}

/// Source of a value.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// The value, of at most 1 MiB
    value: Option<String>,
    /// File with the value; - is standard input
    #[arg(long)]
    file: Option<PathBuf>,
}

impl Source {
    fn read(self) -> Result<Vec<u8>, String> {
        match self.file {
            Some(path) if path == Path::new("-") => read_stdin(),
            Some(path) => fs::read(&path).map_err(|error| format!("{}: {error}", path.display())),
            None => Ok(self.value.unwrap_or_default().into_bytes()),
        }
    }
}

/// Reads no further than one byte beyond the limit: standard input may have no end.
fn read_stdin() -> Result<Vec<u8>, String> {
    let mut value = Vec::new();
    let read = io::stdin().take(VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut value);
    match read.map_err(|error| format!("standard input: {error}"))? {
        0..=VALUE_BYTES_MAX => Ok(value),
        _ => Err(format!("standard input: expected at most {VALUE_BYTES_MAX} bytes")),
    }
}

fn main() -> ExitCode {
    command_line::run(|Arguments { command, profile }| match command {
        Command::Serve { address } => serve(&profile, &address),
        Command::Get { place, file } => get(&profile, &place, file),
        Command::Put { place, source } => put(&profile, &place, source),
        Command::Delete { place } => delete(&profile, &place),
        Command::Watch { place, lines } => watch(&profile, &place, lines),
        Command::Scan { address, prefix } => scan(&profile, &address, prefix.as_bytes()),
    })
}

/// A single core owns all keys.
fn serve(profile: &ProfileArgs, address: &str) -> Result<(), Box<dyn Error>> {
    let calls = format!("rpc.reverse_calls={}", kv::WATCHES_MAX);
    let config = command_line::config(profile, address, Side::Server, &["cores.max=1", &calls])?;
    match config.cores() {
        1 => kv::serve(address, config),
        cores => {
            let wrong = format!(
                "a store uses one core, but the profile names {cores}: --set cores.list=CPU"
            );
            Err(Usage(wrong).into())
        }
    }
}

fn client(profile: &ProfileArgs, address: &str) -> Result<Client, Box<dyn Error>> {
    let config = command_line::config(profile, address, Side::Client, &[])?;
    Ok(Client::connect_with(config, address)?)
}

fn get(profile: &ProfileArgs, place: &Place, file: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    let mut client = client(profile, &place.address)?;
    client.get(place.key.as_bytes(), |value| match file {
        Some(path) if path != Path::new("-") => fs::write(path, value),
        _ => io::stdout().write_all(value),
    })??;
    Ok(())
}

fn put(profile: &ProfileArgs, place: &Place, source: Source) -> Result<(), Box<dyn Error>> {
    let value = source.read()?;
    Ok(client(profile, &place.address)?.put(place.key.as_bytes(), &value)?)
}

fn delete(profile: &ProfileArgs, place: &Place) -> Result<(), Box<dyn Error>> {
    Ok(client(profile, &place.address)?.delete(place.key.as_bytes())?)
}

fn watch(profile: &ProfileArgs, place: &Place, lines: Option<u64>) -> Result<(), Box<dyn Error>> {
    let own = ["cores.max=1", "rpc.reverse_calls=1"];
    let config = command_line::config(profile, &place.address, Side::Client, &own)?;
    let mut left = lines.unwrap_or(u64::MAX);
    let mut printed = Ok(true);
    kv::watch(config, &place.address, place.key.as_bytes(), |value_bytes| {
        let bytes = value_bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        printed = say(format_args!("{bytes:>8} {}", printable(&place.key)));
        left -= 1;
        left > 0 && matches!(printed, Ok(true))
    })?;
    printed.map(drop).map_err(Into::into)
}

/// Page by page, each after the last key of the previous one.
fn scan(profile: &ProfileArgs, address: &str, prefix: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut client = client(profile, address)?;
    let (mut after, mut more) = (Vec::new(), true);
    while more {
        let page = client.scan(prefix, &after)?;
        for entry in &page.entries {
            let (key, bytes, crc) =
                (entry.key.escape_ascii(), entry.value_bytes, entry.value_crc32);
            if !say(format_args!("{bytes:>8} {crc:08x} {key}"))? {
                return Ok(());
            }
        }
        let last = page.entries.into_iter().last();
        more = page.more && last.is_some();
        after = last.map(|entry| entry.key).unwrap_or_default();
    }
    Ok(())
}
