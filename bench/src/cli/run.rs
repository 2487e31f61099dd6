//! Options of `spinperf run`, and the workload they describe. Used by the command line.

use super::{PROFILE, parse_address, parse_payload};
use crate::cores::CoreList;
use crate::failure::Failure;
use crate::load::{Callee, Operation, Workload};
use crate::pattern::Verify;
use crate::units::parse_time;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Where the server listens: shm:NAME or rdma://HOST:PORT
    #[arg(long, value_parser = parse_address)]
    pub(crate) address: String,
    /// What every call does
    #[arg(long, value_enum, default_value_t = Operation::Echo)]
    pub(crate) op: Operation,
    /// With --op null: the RPC program to call instead of spinperf's own, such as 100003 for NFS.
    /// Any server that has it will do; what its cores do is not known then
    #[arg(long, value_name = "NUMBER", requires = "version")]
    pub(crate) program: Option<u32>,
    /// Version of that program
    #[arg(long, value_name = "NUMBER", requires = "program")]
    pub(crate) version: Option<u32>,
    /// Payload of a call (null has none): bytes echoed, read or written
    #[arg(long, default_value = "64", value_parser = parse_payload)]
    pub(crate) size: usize,
    /// Payload of the reply to an echo [default: that of the call]
    #[arg(long, value_parser = parse_payload)]
    pub(crate) reply_size: Option<usize>,
    /// Calls under way at a time, per connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) depth: u32,
    /// Connections per core, all of them busy
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) connections: u32,
    /// Further connections per core that stay idle
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) idle_connections: u32,
    /// Measured time of one repeat
    #[arg(long, default_value = "3s", value_parser = parse_time)]
    pub(crate) duration: Duration,
    /// Time before it that is not measured
    #[arg(long, default_value = "500ms", value_parser = parse_time)]
    pub(crate) warmup: Duration,
    /// End a repeat after this many calls per core, if that comes first
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) calls: Option<u64>,
    /// How often to measure; results are medians
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(crate) repeats: u32,
    /// Cores to call from, one thread each [default: the profile's]
    #[arg(long)]
    pub(crate) cores: Option<CoreList>,
    /// Profile: a name, or the path of a TOML file
    #[arg(long, default_value = PROFILE)]
    pub(crate) profile: String,
    /// A key of the profile with another value, such as rpc.version=2; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// What of every payload is checked, at both ends
    #[arg(long, value_enum, default_value_t = Verify::Off)]
    pub(crate) verify: Verify,
    /// Measure both directions of one connection at once: the server, which needs --bidir as well,
    /// makes the same calls in reverse
    #[arg(long)]
    pub(crate) bidir: bool,
    /// Write what this end sends and receives to this file, as pcapng for Wireshark
    #[arg(long)]
    pub(crate) capture: Option<PathBuf>,
    /// Also write everything to this file, schema spinperf/1
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
}

impl RunArgs {
    /// The workload these options describe.
    pub(crate) fn workload(&self) -> Workload {
        let call_bytes = if self.op == Operation::Null { 0 } else { self.size };
        Workload {
            reply_bytes: self.reply_size.unwrap_or(call_bytes),
            connections: self.connections as usize,
            idle_connections: self.idle_connections as usize,
            verify: self.verify,
            ..Workload::ping_pong(self.op, call_bytes).at_depth(self.depth as usize)
        }
    }

    /// The server, and what is called there.
    pub(crate) fn callee(&self) -> Callee<'_> {
        match (self.program, self.version) {
            (Some(program), Some(version)) => Callee::other(&self.address, program, version),
            _ => Callee::spinperf(&self.address),
        }
    }

    /// Refuses options that do not go together.
    pub(super) fn check(self) -> Result<Self, Failure> {
        if self.program.is_some() && (self.op != Operation::Null || self.bidir) {
            return Err(Failure::Usage("--program goes with --op null, one way".to_owned()));
        }
        if self.bidir && (self.connections > 1 || self.idle_connections > 0) {
            return Err(Failure::Usage("--bidir goes with one connection".to_owned()));
        }
        let sized = self.op == Operation::Echo || self.reply_size.is_none();
        if sized {
            return Ok(self);
        }
        let op = self.op.name();
        Err(Failure::Usage(format!("--reply-size goes with --op echo only, not with {op}")))
    }
}
