//! Options of `spinperf run`. `plan` makes the plan from them.

use super::lists::{List, Operations, Sizes, counts, operations, sizes};
use super::modes::{EXAMPLES, ModeArgs};
use super::options::{parse_address, parse_payload};
use crate::cores::CoreList;
use crate::failure::Failure;
use crate::load::Callee;
use crate::output::OutputArgs;
use crate::pattern::Verify;
use crate::profile_args::ProfileArgs;
use crate::ranks::{Given, Rank};
use crate::units::parse_time;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
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
    /// Calls in flight per connection; each reply starts the next call; a list sweeps [default: 1]
    #[arg(long, value_parser = counts)]
    pub(crate) depth: Option<List<usize>>,
    /// Connections per core and server, all of them busy
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) connections: u32,
    /// Further connections per core and server that stay idle
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=16_000))]
    pub(crate) idle_connections: u32,
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

/// Options of processes that measure together.
#[derive(Args, Debug)]
#[command(next_help_heading = "Ranks (processes of a job that start each repeat together)")]
pub(crate) struct RankArgs {
    /// Number of this process, from 0 [default: from srun, mpirun, or PMI]
    #[arg(long, requires = "ranks")]
    pub(crate) rank: Option<u32>,
    /// Number of processes; 1 measures alone [default: from srun, mpirun, or PMI]
    #[arg(long)]
    pub(crate) ranks: Option<u32>,
    /// Name of the job: ranks wait for those of the same job [default: from the launcher]
    #[arg(long, value_name = "NAME")]
    pub(crate) rank_job: Option<String>,
    /// Maximum wait for the other ranks before each repeat
    #[arg(long, default_value = "30s", value_parser = parse_time)]
    pub(crate) rank_wait: Duration,
}

impl RankArgs {
    /// This process among those that measure together, if it is not alone.
    pub(crate) fn find(&self) -> Result<Option<Rank>, Failure> {
        let job = self.rank_job.clone();
        Rank::find(&Given { rank: self.rank, ranks: self.ranks, job })
    }
}

impl RunArgs {
    /// The servers, and the program called there.
    pub(crate) fn callees(&self) -> Vec<Callee<'_>> {
        let callee = |address| match (self.program, self.version) {
            (Some(program), Some(version)) => Callee::other(address, program, version),
            _ => Callee::spinperf(address),
        };
        self.address.iter().map(|address| callee(address)).collect()
    }

    /// Returns whether the servers are spinperf's own.
    pub(crate) fn calls_spinperf(&self) -> bool {
        self.callees().iter().all(Callee::is_spinperf)
    }
}
