//! `spinperf top`: watches running engines through their control sockets, and prints their
//! activity.
//!
//! `target` finds engines, `socket` asks them, `snapshot` is their answer, `view` the difference
//! between two answers, and `table` its form for people. Used by `main`, and by the soak, which
//! watches the buffers of its server; no engine runs in the process of `top`.

mod args;
pub(crate) mod snapshot;
mod socket;
mod table;
mod target;
mod view;

pub(crate) use args::TopArgs;
pub(crate) use target::{Found, Target, Watched};
pub(crate) use view::Order;

use crate::failure::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use spinrpc_tuning::text;
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use view::View;

/// Watches until interrupted, until the engines exit, or for the requested number of updates.
///
/// # Errors
/// Nothing can be watched, or the engines exited before the requested number of updates.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let interrupts = interrupts()?;
    let watched = Watched::find(args.target.as_ref())?;
    if let Some(policy) = args.idle {
        watched.set_idle(policy)?;
    }
    let mut screen = Screen::new(args);
    let mut before = watched.look().unwrap_or_default();
    let mut due = Instant::now();
    let mut shown = 0;
    while args.count.is_none_or(|count| shown < count) {
        due = (due + args.interval).max(Instant::now());
        if is_interrupted(&interrupts, due) {
            return Ok(());
        }
        let Some(now) = watched.look() else { return ended(&watched, shown, args.count) };
        if now.is_empty() {
            continue;
        }
        if !screen.show(&before, &now)? {
            return Ok(());
        }
        shown += 1;
        before = now;
    }
    Ok(())
}

/// The exit of the engines is only an error before the requested number of updates.
fn ended(watched: &Watched, shown: u32, count: Option<u32>) -> Result<(), Failure> {
    let who = watched.who();
    match count {
        None => {
            eprintln!("spinperf: {who} has exited");
            Ok(())
        }
        Some(count) => {
            let what = format!("{who} exited after {shown} of {count} intervals");
            Err(Failure::Measurement(what))
        }
    }
}

/// Sends a message on SIGINT and SIGTERM.
fn interrupts() -> Result<Receiver<()>, Failure> {
    let failed = |error| Failure::system("watching for signals", error);
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let (tell, told) = channel();
    let wait = move || {
        signals.forever().next();
        // A closed channel means that the program is exiting.
        let _ = tell.send(());
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(failed)?;
    Ok(told)
}

fn is_interrupted(interrupts: &Receiver<()>, due: Instant) -> bool {
    let left = due.saturating_duration_since(Instant::now());
    interrupts.recv_timeout(left) != Err(RecvTimeoutError::Timeout)
}

/// Standard output: a terminal is redrawn; anything else receives blocks, or lines of JSON, one
/// after the other.
struct Screen<'a> {
    args: &'a TopArgs,
    is_terminal: bool,
}

impl<'a> Screen<'a> {
    fn new(args: &'a TopArgs) -> Self {
        Self { args, is_terminal: io::stdout().is_terminal() }
    }

    /// Returns false if the reader has closed the pipe.
    fn show(&mut self, before: &[Found], now: &[Found]) -> Result<bool, Failure> {
        let view = View::between(before, now, self.args.sort);
        let text = if self.args.json {
            let line = serde_json::to_string(&view);
            let line = line.map_err(|error| Failure::Measurement(format!("not JSON: {error}")))?;
            text::json(&line) + "\n"
        } else {
            self.text(&view)
        };
        let mut output = io::stdout().lock();
        match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::system("writing to standard output", error)),
            Ok(()) => Ok(true),
        }
    }

    fn text(&self, view: &View) -> String {
        let lines = table::lines(view, usize::from(self.args.connections));
        if !self.is_terminal {
            return lines.join("\n") + "\n\n";
        }
        let (rows, columns) = terminal_size();
        let shown = lines.iter().take(rows.saturating_sub(1));
        let cut = shown.map(|line| line.chars().take(columns).collect::<String>() + CLEAR_LINE);
        format!("{HOME}{}\n{CLEAR_BELOW}", cut.collect::<Vec<_>>().join("\n"))
    }
}

const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Rows and columns; defaults if the terminal does not report them.
fn terminal_size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
            (usize::from(size.ws_row), usize::from(size.ws_col))
        }
        _ => (24, 80),
    }
}

/// Minimum time between two updates: engines return the same snapshot for 10 ms.
pub(crate) const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Maximum time between two updates.
pub(crate) const INTERVAL_MAX: Duration = Duration::from_secs(3600);
