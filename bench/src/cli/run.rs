//! Options of `spinperf run`. `plan` makes the plan from them.

use super::lists::{List, Operations, Sizes, counts, operations, parse_payload, sizes};
use super::modes::ModeArgs;
use super::parse_address;
use crate::cores::CoreList;
use crate::load::Callee;
use crate::output::OutputArgs;
use crate::pattern::Verify;
use crate::profile_args::ProfileArgs;
use crate::ranks::RankArgs;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = include_str!("../help/run.txt").trim_ascii_end())]
pub(crate) struct RunArgs {
    /// Address of the server: shm:NAME or rdma://HOST:PORT. Repeat it to drive several servers, with
    /// --connections to each
    #[arg(long, required = true, value_parser = parse_address)]
    pub(crate) address: Vec<String>,
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
    /// read=1MiB,echo=64. Percentages are a distribution: 64:80%,4KiB:20%
    #[arg(long, default_value = "64", value_parser = sizes)]
    pub(crate) size: Sizes,
    /// Payload of the reply to an echo [default: that of the call]
    #[arg(long, value_parser = parse_payload)]
    pub(crate) reply_size: Option<usize>,
    /// Calls in flight per connection; each reply starts the next call; a list sweeps. Calls beyond the
    /// credits of both ends (rpc.credits) wait in order, and their latency includes that [default: 1]
    #[arg(long, value_parser = counts)]
    pub(crate) depth: Option<List<usize>>,
    /// Connections per core and server, all of them busy
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) connections: u32,
    /// Further connections per core and server that stay idle
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=16_000))]
    pub(crate) idle_connections: u32,
    /// Call from this many threads per core, each with --depth null calls in flight (1024 in all at
    /// most), instead of the core itself
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=256))]
    pub(crate) threads: u32,
    /// Keep the data of reads and writes in a slab that is lent to the server; with spinperf serve
    /// --slabs the other way round as well
    #[arg(long)]
    pub(crate) slabs: bool,
    /// Cores to call from, one thread each [default: the profile's]
    #[arg(long)]
    pub(crate) cores: Option<CoreList>,
    #[command(flatten)]
    pub(crate) profile: ProfileArgs,
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
    pub(crate) ranks: RankArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl RunArgs {
    pub(crate) fn callees(&self) -> Vec<Callee<'_>> {
        let callee = |address| match (self.program, self.version) {
            (Some(program), Some(version)) => Callee::other(address, program, version),
            _ => Callee::spinperf(address),
        };
        self.address.iter().map(|address| callee(address)).collect()
    }

    pub(crate) fn calls_spinperf(&self) -> bool {
        self.callees().iter().all(|callee| callee.is_asked)
    }
}
