//! spin-echo: a minimal server and client on spinrpc, meant to be copied.
//!
//! `serve.rs` is the server, `call.rs` the client, `rpcbind.rs` the part of both for `--rpcbind`.
//! Definitions common to both are here.

#![forbid(unsafe_code)]
// Both panic where nothing can be written.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod call;
mod rpcbind;
mod serve;

use clap::{Parser, Subcommand};
use spinrpc::rpcbind::Daemon;
use spinrpc::{Procedure, Program, Version};
use spinrpc_apps::command_line;
use spinrpc_tuning::ProfileArgs;
use std::process::ExitCode;

/// Numbers from 0x20000000 to 0x3fffffff are user-defined (RFC 5531 section 13.3).
const PROGRAM: Program = Program(0x2000_ec40);
const VERSION: Version = Version(1);
/// Does nothing, like procedure 0 of every program (RFC 5531 section 12.1).
const NULL: Procedure = Procedure(0);
/// Returns its argument, a string.
const ECHO: Procedure = Procedure(1);
/// Maximum length of the text, in bytes. It is sent inline in both directions.
const TEXT_BYTES_MAX: usize = 512;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Send a text to another process and back over RPC-over-RDMA.
#[derive(Parser)]
#[command(name = "spin-echo", version, arg_required_else_help = false)]
#[command(after_help = include_str!("help.txt").trim_ascii_end())]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    profile: ProfileArgs,
}

#[derive(Subcommand)]
enum Command {
    /// Echo texts until interrupted.
    Serve {
        /// Address to listen at: shm:NAME, rdma://HOST:PORT (devices) or iwarp://HOST:PORT (TCP)
        #[arg(value_parser = command_line::address)]
        address: String,
        /// Register with rpcbind while serving: local (the default), unix:/path or IP:PORT
        #[arg(long, value_name = "DAEMON", num_args = 0..=1, require_equals = true,
            default_missing_value = "local")]
        rpcbind: Option<Daemon>,
    },
    /// Send a text and print the reply.
    #[command(allow_missing_positional = true)]
    Call {
        /// Address of the server: shm:NAME, rdma://HOST:PORT, iwarp://HOST:PORT or any://HOST:PORT
        #[arg(value_parser = command_line::address, required_unless_present = "rpcbind")]
        address: Option<String>,
        /// The text, of at most 512 bytes
        #[arg(value_parser = text)]
        text: String,
        /// Ask rpcbind for the address: local (the default), unix:/path or IP:PORT
        #[arg(long, value_name = "DAEMON", num_args = 0..=1, require_equals = true,
            default_missing_value = "local", conflicts_with = "address")]
        rpcbind: Option<Daemon>,
    },
}

fn text(text: &str) -> Result<String, String> {
    let fits = text.len() <= TEXT_BYTES_MAX;
    fits.then(|| text.to_owned()).ok_or_else(|| format!("at most {TEXT_BYTES_MAX} bytes"))
}

fn main() -> ExitCode {
    command_line::run(|Arguments { command, profile }| match command {
        Command::Serve { address, rpcbind: daemon } => {
            let config = command_line::config(&profile, &address)?;
            serve::run(config, &address, daemon.as_ref())
        }
        Command::Call { address, text, rpcbind: daemon } => {
            let address = address.map_or_else(|| rpcbind::find(&daemon.unwrap_or_default()), Ok)?;
            let config = command_line::config(&profile, &address)?;
            call::run(config, &address, &text)
        }
    })
}
