//! The command line. Only the client has workload options: operation and sizes travel in the
//! arguments of each call, so a server needs no matching flags.

mod lists;
mod run;

pub(crate) use run::{Plan, RunArgs};

use crate::compare::CompareArgs;
use crate::cores::CoreList;
use crate::failure::Failure;
use crate::merge::MergeArgs;
use crate::output::OutputArgs;
use crate::profile_args::ProfileArgs;
use crate::top::{Target, TopArgs};
use crate::units::parse_time;
use clap::{Args, Parser, Subcommand};
use spinrpc::fabric::check_address;
use spinrpc_tuning::usage_error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Measure spinrpc: ONC RPC over RDMA between two processes, over shared memory, with this host's
/// own limits next to every result, or over RDMA devices. Without a command, run the whole job on
/// this host in under a minute.
#[derive(Debug, Parser)]
#[command(name = "spinperf", version, args_conflicts_with_subcommands = true)]
#[command(after_help = include_str!("../help/spinperf.txt").trim_ascii_end())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) main_job: MainJobArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer the calls of `spinperf run` until interrupted.
    Serve(ServeArgs),
    /// Measure against a `spinperf serve`: one workload, a sweep, or a soak.
    Run(Box<RunArgs>),
    /// Carry out the runs of a job file.
    Job(JobArgs),
    /// Measure what this machine itself allows: cache line, bare ring, memcpy.
    Floor(FloorArgs),
    /// Compare two reports, and print the differences that exceed noise.
    Compare(CompareArgs),
    /// Add up reports of clients that measured at the same time, such as the ranks of a job.
    Merge(MergeArgs),
    /// Watch running engines: activity, waits and resources of each core and connection.
    Top(TopArgs),
    /// Print the counters of running engines as OpenMetrics text, or serve them to Prometheus.
    Metrics(MetricsArgs),
}

#[derive(Args, Debug)]
pub(crate) struct MainJobArgs {
    /// Address where the job's server listens: iwarp://127.0.0.1:PORT (TCP), or rdma://HOST:PORT, an
    /// address of an RDMA device of this host [default: shared memory]
    #[arg(long, value_parser = parse_address)]
    pub(crate) address: Option<String>,
    /// Core of the client and core of the server, such as 0,1 [default: the last two allowed]
    #[arg(long)]
    pub(crate) cores: Option<CoreList>,
    #[command(flatten)]
    pub(crate) profile: ProfileArgs,
    /// Number of repeats; results are medians [default: 5, fewer if they would take over 30 s
    /// and twice the time that they measure]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(crate) repeats: Option<u32>,
    /// Time per measurement
    #[arg(long, default_value = "300ms", value_parser = parse_time)]
    pub(crate) duration: Duration,
    /// Compare results with the targets that the project spinrpc has for a quiet host with two free
    /// CPUs. A missed one is no error of this host, and one that rests on a disturbed repeat is neither
    /// met nor missed
    #[arg(long)]
    pub(crate) goals: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
#[command(after_help = include_str!("../help/serve.txt").trim_ascii_end())]
pub(crate) struct ServeArgs {
    /// Address to listen at: shm:NAME, or rdma://HOST:PORT over devices, or iwarp://HOST:PORT over TCP
    /// (0.0.0.0 for every address of this host)
    #[arg(long, value_parser = parse_address)]
    pub(crate) address: String,
    /// Cores to poll on, one thread each [default: the profile's]
    #[arg(long)]
    pub(crate) cores: Option<CoreList>,
    #[command(flatten)]
    pub(crate) profile: ProfileArgs,
    /// Write what this end sends and receives to this file, as pcapng for Wireshark
    #[arg(long)]
    pub(crate) capture: Option<PathBuf>,
    /// Reserve no resources for calls in reverse: clients cannot use them, and the round trip of a
    /// plain call is some nanoseconds shorter
    #[arg(long)]
    pub(crate) no_reverse: bool,
    /// Lend clients a slab with the data that is read, for spinperf run --slabs
    #[arg(long)]
    pub(crate) slabs: bool,
    /// Exit when standard input is closed, and with the parent process
    #[arg(long, hide = true)]
    pub(crate) attached: bool,
}

#[derive(Args, Debug)]
#[command(after_help = include_str!("../help/job.txt").trim_ascii_end())]
pub(crate) struct JobArgs {
    /// The job file, in TOML
    pub(crate) file: PathBuf,
    /// Check the file and print the runs as commands, without measuring
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Args, Debug)]
#[command(after_help = include_str!("../help/floor.txt").trim_ascii_end())]
pub(crate) struct FloorArgs {
    /// The two cores, such as 0,1 [default: the last two allowed]
    #[arg(long)]
    pub(crate) cores: Option<CoreList>,
    /// Number of repeats; results are medians
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(crate) repeats: u32,
    /// Time per measurement
    #[arg(long, default_value = "100ms", value_parser = parse_time)]
    pub(crate) duration: Duration,
    /// Only the limits with this in their names, such as "cache line"
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) only: String,
    /// Also write all results to this file, schema spinperf/3; without a file or with -, to standard
    /// output: the table then goes to standard error
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = include_str!("../help/metrics.txt").trim_ascii_end())]
pub(crate) struct MetricsArgs {
    /// Process id, or the address of a listening process, such as shm:NAME [default: every engine
    /// here that this user may inspect]
    #[arg(value_name = "ADDRESS|PID", value_parser = Target::parse)]
    pub(crate) target: Option<Target>,
    /// Serve them over HTTP at this address, path /metrics, until interrupted; anyone who can reach
    /// the port may read them
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Include latency histograms of each called procedure. Engines record latencies from the first
    /// request until 60 seconds after the last
    #[arg(long)]
    pub(crate) latency: bool,
}

fn parse_address(text: &str) -> Result<String, String> {
    check_address(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

pub(crate) fn parse<I, T>(arguments: I) -> Result<Cli, Failure>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    Cli::try_parse_from(arguments).map_err(|error| match error.use_stderr() {
        true => Failure::Usage(usage_error(&error)),
        false => Failure::Help(error.to_string()),
    })
}

pub(crate) fn parse_run(words: Vec<String>) -> Result<Box<RunArgs>, Failure> {
    let words = ["spinperf".to_owned(), "run".to_owned()].into_iter().chain(words);
    match parse(words)?.command {
        Some(Command::Run(args)) => Ok(args),
        _ => Err(Failure::Usage("not a run".to_owned())),
    }
}

pub(crate) fn run_options() -> Vec<String> {
    let command = RunArgs::augment_args(clap::Command::new("run"));
    command.get_arguments().filter_map(|one| one.get_long().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Mode;

    fn args(line: &str) -> Box<RunArgs> {
        parse_run(line.split(' ').skip(1).map(str::to_owned).collect()).unwrap()
    }

    fn run(line: &str) -> Plan {
        Plan::new(&args(line), 2).unwrap()
    }

    fn usage_error(line: &str) -> String {
        let told = match parse(std::iter::once("spinperf").chain(line.split(' '))) {
            Ok(_) if line.starts_with("run") => Plan::new(&args(line), 2).unwrap_err(),
            other => other.map(drop).unwrap_err(),
        };
        match told {
            Failure::Usage(message) => message,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn nothing_means_the_whole_job() {
        let cli = parse(["spinperf"]).unwrap();
        assert!(cli.command.is_none());
        assert_eq!(cli.main_job.repeats, None);
        let by_device = parse(["spinperf", "--address", "rdma://10.8.0.1"]).unwrap();
        assert_eq!(by_device.main_job.address.as_deref(), Some("rdma://10.8.0.1"));
    }

    /// A value of `--json` is taken for a file only where there is no doubt about it.
    #[test]
    fn a_document_goes_to_a_file_or_to_standard_output() {
        let json = |line: &str| {
            let cli = parse(std::iter::once("spinperf").chain(line.split(' '))).unwrap();
            let json = match cli.command {
                None => cli.main_job.output.json,
                Some(Command::Floor(args)) => args.json,
                Some(Command::Compare(args)) => args.json,
                other => panic!("{other:?}"),
            };
            json.map(|path| path.display().to_string())
        };
        for line in ["--json", "--json -", "--json=-", "floor --json --repeats 3"] {
            assert_eq!(json(line).as_deref(), Some("-"), "{line}");
        }
        for line in ["--json r", "--json=r", "floor --json r", "compare --json=r a b"] {
            assert_eq!(json(line).as_deref(), Some("r"), "{line}");
        }
        for line in ["compare --json a b", "compare a b --json --fail-if p99>+1%"] {
            assert_eq!(json(line).as_deref(), Some("-"), "{line}");
        }
    }

    #[test]
    fn a_run_describes_its_workload() {
        let plan = run("run --address shm:x --op echo --size 4k --reply-size 8 --depth 32");
        let workload = plan.workloads[0];
        assert_eq!((workload.call_bytes, workload.reply_bytes), (4096, 8));
        assert_eq!(workload.depth, 32);
        let null = run("run --address shm:x --op null");
        assert_eq!((null.workloads[0].call_bytes, null.mode), (0, Mode::PingPong));
    }

    #[test]
    fn options_tell_the_mode_where_none_is_named() {
        for (options, mode) in [
            ("--depth 4", Mode::Closed),
            ("--rate 10k", Mode::Open),
            ("--rate 10k,20k", Mode::Sweep),
            ("--size 64..256", Mode::Sweep),
        ] {
            assert_eq!(run(&format!("run --address shm:x {options}")).mode, mode, "{options}");
        }
    }

    #[test]
    fn a_sweep_is_the_product_of_its_lists() {
        let plan = run("run --address shm:x --size 64,1k --depth 1,2,4 --core-counts 1,2");
        assert_eq!(plan.workloads.len(), 12);
        let deepest = plan.workloads.iter().filter(|w| w.depth == 4 && w.cores == 2);
        assert_eq!(deepest.map(|w| w.call_bytes).collect::<Vec<_>>(), [64, 1024]);
        assert_eq!(run("run --address shm:x --rate 1k,2k,4k --size 64,128").workloads.len(), 6);
    }

    #[test]
    fn a_mix_has_a_size_for_each_operation() {
        let plan = run("run --address shm:x --op echo:70,read:30 --size read=1MiB,echo=64");
        let shares = plan.workloads[0].shares();
        assert_eq!((shares[0].weight, shares[0].call_bytes), (70, 64));
        assert_eq!((shares[1].weight, shares[1].call_bytes), (30, 1 << 20));
    }

    #[test]
    fn a_run_calls_spinperfs_own_program_or_another() {
        assert!(args("run --address shm:x").calls_spinperf());
        let nfs = "run --address shm:x --op null --program 100003 --version 3";
        assert!(!args(nfs).calls_spinperf());
        assert_eq!(args(nfs).callees()[0].to_string(), "program 100003 version 3");
        let set = args("run --address shm:x --set rpc.version=2 --set rpc.credits=8");
        assert_eq!(set.profile.set, ["rpc.version=2", "rpc.credits=8"]);
    }

    #[test]
    fn wrong_values_get_one_line_that_says_what_is_allowed() {
        for (line, allowed) in [
            ("run --address tcp:x", "shm:NAME"),
            ("serve --address shm:", "shm:NAME"),
            ("serve --address rdma://host:0", "rdma://HOST:PORT"),
            ("--address rdma://", "rdma://HOST:PORT"),
            ("run --address shm:x --op nil", "null"),
            ("run --address shm:x --size 4q", "1MiB"),
            ("run --address shm:x --duration 3", "500ms"),
            ("run --address shm:x --depth 0", "1..=4096"),
            ("run --address shm:x --op read --reply-size 4", "--op echo"),
            ("run --address shm:x --bidir --connections 2", "one connection"),
            ("run --address shm:x --program 100003 --version 3", "--op null"),
            (
                "run --address shm:x --op null --bidir --program 100003 --version 3",
                "without --bidir",
            ),
            ("run --address shm:x --op null --program 100003", "--version"),
            ("run --address shm:x --bidir --rate 10k", "closed"),
            ("run --address shm:x --op null --threads 33 --depth 32", "at most 1024"),
            ("run --address shm:x --op read --bidir --slabs", "without --bidir"),
            ("run --address shm:x --mode open", "--rate"),
            ("run --address shm:x --mode closed --rate 1k", "--mode open"),
            ("run --address shm:x --mode pingpong --depth 2", "--mode closed"),
            ("run --address shm:x --rate 1k --depth 2", "--in-flight-max"),
            ("run --address shm:x --in-flight-max 2", "--rate"),
            ("run --address shm:x --mode soak --size 1,2", "--mode sweep"),
            ("run --address shm:x --mode soak --repeats 2", "--repeats"),
            ("run --address shm:x --window 1s", "--mode soak"),
            ("run --address shm:x --rate fast", "20k"),
            ("run --address shm:x --arrivals often", "poisson"),
            ("run --address shm:x --op echo:70,echo:30", "each operation once"),
            ("run --address shm:x --op echo:1,read:1 --size read=1k", "--size echo="),
            ("run --address shm:x --op echo:1,read:1 --size 1,2", "read=1MiB"),
            ("run --address shm:x --rank 1", "--ranks"),
            ("run --address shm:x --core-counts 3", "2"),
            ("run --address shm:x --duration 0s", "--duration"),
            ("run --address shm:x --mode soak --window 0s", "--window must be more than zero"),
            ("run --address shm:x --warmup 99999999h", "--warmup must be at most 1000h"),
            ("run", "--address"),
            ("floor --cores 1,1", "0,2"),
            ("top unknown", "process id"),
            ("top --interval 1ms", "100ms"),
            ("top --sort age", "in-flight"),
            ("top --idle never", "busy, adaptive, sleep"),
            ("frobnicate", "frobnicate"),
            ("--repeats 0", "1..=99"),
        ] {
            let message = usage_error(line);
            assert!(message.contains(allowed), "{line}: {message}");
            assert!(!message.contains('\n'), "{line}: {message}");
        }
    }

    #[test]
    fn every_help_ends_with_examples_and_exit_codes() {
        for command in ["", "run", "serve", "floor", "compare", "merge", "job", "top", "metrics"] {
            let line = ["spinperf", command, "--help"].into_iter().filter(|word| !word.is_empty());
            let Err(Failure::Help(text)) = parse(line) else { panic!("no text of {command}") };
            let of_run = ["pingpong", "closed", "open", "sweep", "soak", "a mix"];
            let modes = if command == "run" { &of_run[..] } else { &[] };
            for part in ["Examples:", "Exit codes:"].iter().chain(modes) {
                assert!(text.contains(part), "{command}: {part}: {text}");
            }
        }
    }
}
