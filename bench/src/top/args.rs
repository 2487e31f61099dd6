//! Options of `spinperf top`.

use super::{INTERVAL_MAX, INTERVAL_MIN, Order, Target};
use crate::units::parse_time;
use clap::Args;
use spinrpc::config::{Choice, IdlePolicy};
use std::time::Duration;

#[derive(Args, Debug)]
#[command(after_help = include_str!("../help/top.txt").trim_ascii_end())]
pub(crate) struct TopArgs {
    /// Process id, or the address of a listening process, such as shm:NAME [default: every engine
    /// here that this user may inspect]
    #[arg(value_name = "ADDRESS|PID", value_parser = Target::parse)]
    pub(crate) target: Option<Target>,
    /// Time between two updates; rates refer to it
    #[arg(long, default_value = "1s", value_parser = parse_interval)]
    pub(crate) interval: Duration,
    /// Number of updates [default: until interrupted, or until the engines exit]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: Option<u32>,
    /// Print one line of JSON per update, schema spinperf-top/1
    #[arg(long)]
    pub(crate) json: bool,
    /// Sort order of connections
    #[arg(long, value_enum, default_value_t = Order::Calls)]
    pub(crate) sort: Order,
    /// Switch all cores to this idle policy first, instead of poll.mode
    #[arg(long, value_parser = parse_idle)]
    pub(crate) idle: Option<IdlePolicy>,
    /// Number of connections shown for each core; JSON has the 256 with most calls
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) connections: u16,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_time(text).map_err(|error| error.to_string())?;
    let allowed = INTERVAL_MIN..=INTERVAL_MAX;
    allowed.contains(&interval).then_some(interval).ok_or_else(|| "from 100ms to 60m".to_owned())
}

fn parse_idle(text: &str) -> Result<IdlePolicy, String> {
    let mut policy = IdlePolicy::Busy;
    let names = policy.names().join(", ");
    policy.set(text).then_some(policy).ok_or_else(|| format!("one of {names}"))
}
