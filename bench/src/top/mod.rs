//! `spinperf top`: watches running engines through their control sockets. No engine runs in its process.

pub(crate) mod snapshot;
mod socket;
mod table;
mod target;
mod view;

pub(crate) use socket::{Budget, Detail, Owner};
pub(crate) use target::{Found, Target, Watched};
pub(crate) use view::Order;

use crate::failure::Failure;
use crate::interrupt;
use crate::units::{joined, parse_time};
use clap::Args;
use serde_json::Value;
use spinrpc::config::{Choice, IdlePolicy};
use spinrpc_tuning::{printable, slow_calls};
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

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
    /// Show the slowest calls of the last minutes instead: where each spent its time. JSON has schema spinperf-slow/1
    #[arg(long, conflicts_with_all = ["sort"])]
    pub(crate) slow: bool,
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

/// Watches until interrupted, until the engines exit, or for the requested number of updates.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    interrupt::catch()?;
    let watched = Watched::find(args.target.as_ref())?;
    if let Some(policy) = args.idle {
        watched.set_idle(policy)?;
    }
    if args.slow {
        return run_slow(args, &watched);
    }
    let look = || watched.look(Detail::Connections, false);
    let mut before = look().unwrap_or_default();
    let mut due = Instant::now();
    let mut shown = 0;
    while args.count.is_none_or(|count| shown < count) {
        due = (due + args.interval).max(Instant::now());
        if is_interrupted(due) {
            return Ok(());
        }
        let Some(now) = look() else { return ended(&watched, shown, args.count) };
        if now.is_empty() {
            continue;
        }
        let view = view::between(&before, &now, args.sort);
        if !print(args, &view, || table::lines(&view, usize::from(args.connections)))? {
            return Ok(());
        }
        shown += 1;
        before = now;
    }
    Ok(())
}

/// Shows the slowest calls at once, and again after each interval.
fn run_slow(args: &TopArgs, watched: &Watched) -> Result<(), Failure> {
    let mut shown = 0;
    loop {
        let due = Instant::now() + args.interval;
        let Some(found) = watched.slow_calls() else { return ended(watched, shown, args.count) };
        let document = slow_calls::document(SLOW_SCHEMA, &found, |_| None);
        let lines = || slow_calls::lines(&document);
        shown += 1;
        let is_over = args.count.is_some_and(|count| shown >= count);
        if !print(args, &document, lines)? || is_over || is_interrupted(due) {
            return Ok(());
        }
    }
}

/// The exit of the engines is only an error before the requested number of updates.
fn ended(watched: &Watched, shown: u32, count: Option<u32>) -> Result<(), Failure> {
    let who = watched.who();
    let Some(count) = count else {
        printable::to_stderr(format_args!("spinperf: {who} has exited"));
        return Ok(());
    };
    Err(Failure::Measurement(format!("{who} exited after {shown} of {count} intervals")))
}

/// Waits until then; returns true at once after SIGINT or SIGTERM.
fn is_interrupted(due: Instant) -> bool {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        match interrupt::signal() {
            Some(_) => return true,
            None if left.is_zero() => return false,
            None => {}
        }
        thread::sleep(left.min(LOOK));
    }
}

/// A terminal is redrawn. Returns false if the reader has closed the pipe.
fn print(
    args: &TopArgs,
    document: &Value,
    lines: impl Fn() -> Vec<String>,
) -> Result<bool, Failure> {
    let text = if args.json {
        printable::json(&serde_json::to_string(document)?) + "\n"
    } else if io::stdout().is_terminal() {
        redrawn(&lines())
    } else {
        lines().join("\n") + "\n\n"
    };
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::system("standard output", error)),
        Ok(()) => Ok(true),
    }
}

fn redrawn(lines: &[String]) -> String {
    let (rows, columns) = terminal_size();
    let shown = lines.iter().take(rows.saturating_sub(1));
    let cut = shown.map(|line| line.chars().take(columns).collect::<String>() + CLEAR_LINE);
    format!("{HOME}{}\n{CLEAR_BELOW}", joined(cut, "\n"))
}

const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

fn terminal_size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
            (usize::from(size.ws_row), usize::from(size.ws_col))
        }
        _ => (24, 80),
    }
}

const SLOW_SCHEMA: &str = "spinperf-slow/1";
/// Time between two looks for a signal.
const LOOK: Duration = Duration::from_millis(50);
/// Minimum time between two updates: engines return the same snapshot for 10 ms.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;
    use serde_json::json;
    use spinrpc_tuning::slow_calls::EngineCalls;

    #[test]
    fn a_document_of_slow_calls_has_what_its_schema_describes() {
        let call = json!({"ago_ns": 1, "role": "server", "xid": 31, "total_ns": 9, "stages": {"queue": 9}});
        let mut named = call.clone();
        (named["program"], named["version"]) = (100_003.into(), 3.into());
        (named["procedure"], named["peer"]) = (7.into(), "192.0.2.1:700".into());
        let calls = json!({"schema": "spinrpc-slow/1", "engine": 0, "minutes": 5, "cores": [
            {"index": 0, "running": true, "answered": true, "calls": [call, named]},
            {"index": 1, "running": true, "answered": false, "calls": []},
        ]});
        let calls = serde_json::from_value(calls).unwrap();
        let engines = [EngineCalls { pid: 4711, program: "program".to_owned(), calls }];
        let document = slow_calls::document(SLOW_SCHEMA, &engines, |_| None);
        let described = include_str!("../../schema/spinperf-slow-1.schema.json");
        assert_eq!(schema::violations(&document, described), [""; 0]);
    }
}
