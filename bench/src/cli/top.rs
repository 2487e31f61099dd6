//! Options of `spinperf top`. Used by the command line.

use crate::top;
use crate::units::parse_time;
use clap::Args;
use spinrpc::config::{Choice, IdlePolicy};
use std::time::Duration;

#[derive(Args, Debug)]
#[command(after_help = TOP_EXAMPLES)]
pub(crate) struct TopArgs {
    /// A process, by its id, or whoever listens at an address such as shm:NAME [default: every
    /// engine here that this user may look at]
    #[arg(value_name = "ADDRESS|PID", value_parser = top::Target::parse)]
    pub(crate) target: Option<top::Target>,
    /// Time between two looks; rates are of that time
    #[arg(long, default_value = "1s", value_parser = parse_interval)]
    pub(crate) interval: Duration,
    /// How often to show; then end [default: until interrupted, or the engines have ended]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: Option<u32>,
    /// One line of JSON each time, schema spinperf-top/1
    #[arg(long)]
    pub(crate) json: bool,
    /// What connections are sorted by
    #[arg(long, value_enum, default_value_t = top::Order::Calls)]
    pub(crate) sort: top::Order,
    /// First have all cores idle like this from now on, in the place of poll.mode
    #[arg(long, value_parser = parse_idle)]
    pub(crate) idle: Option<IdlePolicy>,
    /// Connections shown of each core; JSON has 256, those that have had most calls
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) connections: u16,
}

const TOP_EXAMPLES: &str = "\
Examples:
  spinperf top                         every engine on this host
  spinperf top 4711                    those of a process
  spinperf top shm:storage             whoever listens there
  spinperf top 4711 --json --count 60 >minute.jsonl
  spinperf top 4711 --idle sleep       and let its cores sleep when they have nothing to do

All is per second but for what stands as used/all. served are calls answered, called calls made.
busy is the share of time in turns that did something, empty that of polls that found nothing,
ticks/call the ticks of the time-stamp counter for each call. Calls had to wait as they had no
credit, the queue was full, or there was no buffer; late ones came with their time over. receives
and sends are message buffers held; blocks are those of registered memory held for calls, arguments
that are fetched, replies that are pulled, and replies exported. A core without an answer has been
in one turn for a tenth of a second.

Exit code: 0 it was shown as often as asked, or until the engines ended; 1 there is no such engine,
or it ended before; 2 wrong usage.";

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_time(text).map_err(|error| error.to_string())?;
    let allowed = top::INTERVAL_MIN..=top::INTERVAL_MAX;
    allowed.contains(&interval).then_some(interval).ok_or_else(|| "from 100ms to 60m".to_owned())
}

fn parse_idle(text: &str) -> Result<IdlePolicy, String> {
    let mut policy = IdlePolicy::Busy;
    let names = policy.names().join(", ");
    policy.set(text).then_some(policy).ok_or_else(|| format!("one of {names}"))
}
