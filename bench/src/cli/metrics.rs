//! Options of `spinperf metrics`. Used by the command line.

use crate::top;
use clap::Args;
use std::net::SocketAddr;

#[derive(Args, Debug)]
#[command(after_help = METRICS_EXAMPLES)]
pub(crate) struct MetricsArgs {
    /// A process, by its id, or the one that listens at an address such as shm:NAME [default: every
    /// engine here that this user may look at]
    #[arg(value_name = "ADDRESS|PID", value_parser = top::Target::parse)]
    pub(crate) target: Option<top::Target>,
    /// Serve them by HTTP there, at /metrics, until ended; anyone who can reach the port may ask
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// With latency histograms of each procedure that was called: engines measure from the first
    /// time they are asked, and for 60 seconds after the last
    #[arg(long)]
    pub(crate) latency: bool,
}

const METRICS_EXAMPLES: &str = "\
Examples:
  spinperf metrics                               once, of every engine on this host
  spinperf metrics 4711                          those of a process
  spinperf metrics --listen 127.0.0.1:9469       for Prometheus
  spinperf metrics --latency                     twice within a minute: with the latencies between

  # prometheus.yml
  scrape_configs:
    - job_name: spinrpc
      static_configs: [{targets: ['127.0.0.1:9469']}]

The text is OpenMetrics 1.0. Counts are since the start of each engine; connections are summed up for
each core. Engines come and go while it serves; without one the answer has no values. Only engines of
this user are asked, and of all users if this is root.

With --latency there is spinrpc_call_duration_seconds: how long services take to answer, by
rpc_program, rpc_version and rpc_procedure (from 64 on: other), and not what callers wait for.
Measuring costs each call two readings of the clock. It ends 60 seconds after the last request;
counts are kept, and grow again when somebody asks. An engine shows 1024 histograms of each core.

Exit code: 0 it was printed, 1 there is no such engine or the port cannot be had, 2 wrong usage.";
