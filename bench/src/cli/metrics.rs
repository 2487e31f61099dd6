//! Options of `spinperf metrics`.

use crate::top;
use clap::Args;
use std::net::SocketAddr;

#[derive(Args, Debug)]
#[command(after_help = METRICS_EXAMPLES)]
pub(crate) struct MetricsArgs {
    /// Process id, or the address of a listening process, such as shm:NAME [default: every engine
    /// here that this user may inspect]
    #[arg(value_name = "ADDRESS|PID", value_parser = top::Target::parse)]
    pub(crate) target: Option<top::Target>,
    /// Serve them over HTTP at this address, path /metrics, until interrupted; anyone who can reach
    /// the port may read them
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Include latency histograms of each called procedure. Engines record latencies from the first
    /// request until 60 seconds after the last
    #[arg(long)]
    pub(crate) latency: bool,
}

const METRICS_EXAMPLES: &str = "\
Examples:
  spinperf metrics                               every engine on this host, once
  spinperf metrics 4711                          the engines of a process
  spinperf metrics --listen 127.0.0.1:9469       for Prometheus
  spinperf metrics --latency                     run twice within a minute: includes latencies

  # prometheus.yml
  scrape_configs:
    - job_name: spinrpc
      static_configs: [{targets: ['127.0.0.1:9469']}]

The text is OpenMetrics 1.0. Counters start with each engine; connections are summed for each core.
Engines may come and go while it serves; without any, the answer has no values. Only engines of this
user are queried, or of all users if run as root.

With --latency there is spinrpc_call_duration_seconds: the time that services take to answer, by
rpc_program, rpc_version and rpc_procedure (from 64 on: other), not the time that callers wait.
Measuring costs each call two clock reads. It ends 60 seconds after the last request; counters are
kept, and grow again after the next request. An engine shows 1024 histograms of each core.

Exit codes: 0 success, 1 no such engine or the port is not available, 2 usage error";
