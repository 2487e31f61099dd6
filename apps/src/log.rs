//! The log of a daemon on standard error: lines with time and level, or, in the journal of systemd, with a priority.
//!
//! Called by the `main` of spin-nfsd. The engine's journal thread writes the lines, so the time is that of the writing.

use spinrpc::sys::journal::tracing::{Event, Level, Subscriber};
use spinrpc::sys::journal::{FLUSH_MAX, event, flush};
use std::os::fd::AsFd;
use std::panic::{self, PanicHookInfo};
use std::{env, fmt, io, thread};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Begins to log; RUST_LOG is the filter, `info` by default. Once per process. A line that cannot be written, because its
/// reader has gone, is dropped: reporting that would panic the logging thread.
pub fn init() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = Lines { is_journal: is_journal() };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    log.log_internal_errors(false).event_format(lines).init();
    log_panics();
}

/// Panics of threads other than this one go to the log: the usual report blocks its thread while standard error is not read. The
/// last one waits for the log, but no longer than the end of an engine does.
fn log_panics() {
    let (main, usual) = (thread::current().id(), panic::take_hook());
    panic::set_hook(Box::new(move |report| {
        if thread::current().id() == main {
            return usual(report);
        }
        let is_last = is_last(report);
        let report = report.to_string();
        if is_last {
            event!(ERROR, ?report, "a thread panicked; the process aborts");
            return flush(FLUSH_MAX);
        }
        event!(ERROR, ?report, "a thread panicked");
    }));
}

/// Returns whether the process aborts when this panic has been reported, so that the log has to be written before. The standard
/// library raises panics that cannot unwind in a file of its own: that of a panic in a destructor while another one unwinds.
fn is_last(report: &PanicHookInfo<'_>) -> bool {
    let raised_in = report.location().map(panic::Location::file);
    cfg!(panic = "abort") || raised_in.is_some_and(|file| file.ends_with("core/src/panicking.rs"))
}

/// Prefix of a line about an error that ends the program: its priority, if standard error is systemd's journal.
pub(crate) fn error_prefix() -> &'static str {
    if is_journal() { priority(Level::ERROR) } else { "" }
}

/// The variable remains in processes whose standard error is elsewhere (systemd.exec(5), JOURNAL_STREAM).
fn is_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    let file = rustix::fs::fstat(io::stderr().as_fd());
    file.is_ok_and(|file| stream == format!("{}:{}", file.st_dev, file.st_ino))
}

/// Prefix by which the journal learns the priority of a line (sd-daemon(3)).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

struct Lines {
    is_journal: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        if self.is_journal {
            line.write_str(priority(level))?;
        } else {
            // UTC, as in RFC 3339, with microseconds.
            SystemTime.format_time(&mut line)?;
            write!(line, " {level:>5} ")?;
        }
        context.format_fields(line.by_ref(), event)?;
        writeln!(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{self, Command};

    /// Set in the process that panics.
    const CHILD: &str = "SPINRPC_TEST_ABORTS";

    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }

    /// A core panics, and so does a destructor while that unwinds, which aborts the process. Expect both reports in the log.
    #[test]
    fn panics_that_abort_the_process_are_in_the_log() {
        if env::var_os(CHILD).is_some() {
            init();
            spinrpc::sys::journal::start(|run| thread::Builder::new().spawn(run)).unwrap();
            let panics = thread::spawn(|| {
                let _value = PanicsWhenDropped;
                panic!("of a core");
            });
            let _ = panics.join();
            process::exit(0);
        }
        let name = "log::tests::panics_that_abort_the_process_are_in_the_log";
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", name]).env(CHILD, "1").env_remove("RUST_LOG");
        let output = child.output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), None, "{log}");
        // The last one is that of the standard library.
        let reports = log.lines().filter(|line| line.contains("ERROR")).count();
        let has = |words| log.lines().any(|line| line.contains("ERROR") && line.contains(words));
        assert!(reports == 3 && has("of a core") && has("in a destructor"), "{log}");
    }
}
