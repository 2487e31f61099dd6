//! Options of `spinperf run`. `plan` makes the plan from them.

use super::lists::{List, Operations, Sizes, counts, operations, sizes};
use super::modes::{EXAMPLES, ModeArgs};
use super::{PROFILE, parse_address, parse_payload};
use crate::cores::CoreList;
use crate::load::Callee;
use crate::output::OutputArgs;
use crate::pattern::Verify;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// Address of the server: shm:NAME or rdma://HOST:PORT
    #[arg(long, value_parser = parse_address)]
    pub(crate) address: String,
    /// Operation of the calls: null, echo, read or write, or several with weights, such as
    /// echo:70,read:20,write:10
    #[arg(long, default_value = "echo", value_parser = operations)]
    pub(crate) op: Operations,
    /// With --op null: the RPC program to call instead of spinperf's own, such as 100003 for NFS.
    /// Any server that has it will do; the activity of its cores is then unknown
    #[arg(long, value_name = "NUMBER", requires = "version")]
    pub(crate) program: Option<u32>,
    /// Version of that program
    #[arg(long, value_name = "NUMBER", requires = "program")]
    pub(crate) version: Option<u32>,
    /// Payload of a call (null has none): bytes echoed, read or written. A list such as
    /// 64,4KiB,1MiB or a range such as 64..1MiB sweeps; a mix has one for each operation:
    /// read=1MiB,echo=64
    #[arg(long, default_value = "64", value_parser = sizes)]
    pub(crate) size: Sizes,
    /// Payload of the reply to an echo [default: that of the call]
    #[arg(long, value_parser = parse_payload)]
    pub(crate) reply_size: Option<usize>,
    /// Calls in flight per connection; each reply starts the next call; a list sweeps [default: 1]
    #[arg(long, value_parser = counts)]
    pub(crate) depth: Option<List<usize>>,
    /// Connections per core, all of them busy
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) connections: u32,
    /// Further connections per core that stay idle
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) idle_connections: u32,
    /// Cores to call from, one thread each [default: the profile's]
    #[arg(long)]
    pub(crate) cores: Option<CoreList>,
    /// Profile: a name, or the path of a TOML file
    #[arg(long, default_value = PROFILE)]
    pub(crate) profile: String,
    /// Override a key of the profile, such as rpc.version=2; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Part of every payload to verify, at both ends
    #[arg(long, value_enum, default_value_t = Verify::Off)]
    pub(crate) verify: Verify,
    /// Measure both directions of one connection at once: the server makes the same calls in
    /// reverse
    #[arg(long)]
    pub(crate) bidir: bool,
    /// Write what this end sends and receives to this file, as pcapng for Wireshark
    #[arg(long)]
    pub(crate) capture: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) modes: ModeArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl RunArgs {
    /// The server, and the program called there.
    pub(crate) fn callee(&self) -> Callee<'_> {
        match (self.program, self.version) {
            (Some(program), Some(version)) => Callee::other(&self.address, program, version),
            _ => Callee::spinperf(&self.address),
        }
    }
}
