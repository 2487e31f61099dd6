//! spin-kv: a small in-memory key-value store on spinrpc, and its client.
//!
//! The store and its protocol are in the library of this package; here is the command line only.

use clap::Parser;
use spinrpc_apps::command_line;
use spinrpc_apps::kv::protocol::KEY_BYTES_MAX;
use spinrpc_apps::kv::{self, Client};
use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Keeps values in the memory of one process for others, of this host or by RDMA.
#[derive(Parser)]
#[command(name = "spin-kv", version, arg_required_else_help = false)]
enum Command {
    /// Serves an empty store until it is interrupted.
    Serve {
        /// Where to listen: shm:NAME or rdma://HOST:PORT
        #[arg(value_parser = command_line::address)]
        address: String,
    },
    /// Writes the value of a key to standard output, or to a file.
    Get {
        #[command(flatten)]
        place: Place,
        /// File to write instead
        #[arg(long)]
        file: Option<PathBuf>,
    },
    /// Stores a value under a key, over an older one.
    Put {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        source: Source,
    },
    /// Forgets the value of a key.
    Delete {
        #[command(flatten)]
        place: Place,
    },
    /// Writes how long the value of a key is, now and whenever it changes, until it is interrupted.
    Watch {
        #[command(flatten)]
        place: Place,
        /// Lines to write before it ends
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        lines: Option<u64>,
    },
    /// Lists keys in order, with length and CRC-32 of their values.
    Scan {
        /// Where the store listens: shm:NAME or rdma://HOST:PORT
        #[arg(value_parser = command_line::address)]
        address: String,
        /// What the keys begin with
        #[arg(default_value = "")]
        prefix: String,
    },
}

/// Which key of which store.
#[derive(clap::Args)]
struct Place {
    /// Where the store listens: shm:NAME or rdma://HOST:PORT
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

/// Where a value comes from.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// The value, of at most 1 MiB
    value: Option<String>,
    /// File that holds it
    #[arg(long)]
    file: Option<PathBuf>,
}

impl Source {
    fn read(self) -> Result<Vec<u8>, String> {
        match self.file {
            Some(path) => fs::read(&path).map_err(|error| format!("{}: {error}", path.display())),
            None => Ok(self.value.unwrap_or_default().into_bytes()),
        }
    }
}

fn main() -> ExitCode {
    command_line::run(|command| match command {
        Command::Serve { address } => kv::serve(&address),
        Command::Get { place, file } => get(&place, file),
        Command::Put { place, source } => put(&place, source),
        Command::Delete { place } => delete(&place),
        Command::Watch { place, lines } => watch(&place, lines),
        Command::Scan { address, prefix } => scan(&address, prefix.as_bytes()),
    })
}

fn get(place: &Place, file: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    let mut client = Client::connect(&place.address)?;
    client.get(place.key.as_bytes(), |value| match file {
        Some(path) => fs::write(path, value),
        None => io::stdout().write_all(value),
    })??;
    Ok(())
}

fn put(place: &Place, source: Source) -> Result<(), Box<dyn Error>> {
    let value = source.read()?;
    Ok(Client::connect(&place.address)?.put(place.key.as_bytes(), &value)?)
}

fn delete(place: &Place) -> Result<(), Box<dyn Error>> {
    Ok(Client::connect(&place.address)?.delete(place.key.as_bytes())?)
}

fn watch(place: &Place, lines: Option<u64>) -> Result<(), Box<dyn Error>> {
    let mut left = lines.unwrap_or(u64::MAX);
    kv::watch(&place.address, place.key.as_bytes(), |value_bytes| {
        match value_bytes {
            Some(bytes) => println!("{bytes:>8} {}", place.key),
            None => println!("       - {}", place.key),
        }
        left -= 1;
        left > 0
    })?;
    Ok(())
}

/// Page by page, each from behind the last key of the one before.
fn scan(address: &str, prefix: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut client = Client::connect(address)?;
    let (mut after, mut more) = (Vec::new(), true);
    while more {
        let page = client.scan(prefix, &after)?;
        for entry in &page.entries {
            let (key, bytes, crc) =
                (entry.key.escape_ascii(), entry.value_bytes, entry.value_crc32);
            println!("{bytes:>8} {crc:08x} {key}");
        }
        let last = page.entries.into_iter().last();
        more = page.more && last.is_some();
        after = last.map(|entry| entry.key).unwrap_or_default();
    }
    Ok(())
}
