//! Log lines of a thread.

use spinrpc::sync::lock;
use spinrpc::sys::journal;
use std::fmt::Debug;
use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) level: Level,
    fields: Vec<(&'static str, String)>,
}

impl Line {
    pub(crate) fn says(&self, message: &str) -> bool {
        self.field("message") == Some(message)
    }

    /// The value of one of its fields, as it is printed.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let (_, value) = self.fields.iter().find(|(of, _)| *of == name)?;
        Some(value)
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.push((field.name(), format!("{value:?}")));
    }
}

/// Keeps lines, or writes 4 KiB to standard error for each.
#[derive(Clone)]
enum Lines {
    Kept(Arc<Mutex<Vec<Line>>>),
    Printed,
}

/// Has this process log to standard error, with long lines.
pub(crate) fn print_long_lines() {
    tracing::subscriber::set_global_default(Lines::Printed).unwrap();
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let Self::Kept(lines) = self else {
            let _ = std::io::stderr().write_all(&[b'.'; 4096]);
            return;
        };
        let mut line = Line { level: *event.metadata().level(), fields: Vec::new() };
        event.record(&mut line);
        lock(lines).push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Is never told a line. With one subscriber alone, tracing asks only the thread that meets a place first whether to log there:
/// another test, which has none, would answer no for all.
static SECOND: OnceLock<Dispatch> = OnceLock::new();

/// The lines that this thread reports while `run` runs.
pub(crate) fn logged(run: impl FnOnce()) -> Vec<Line> {
    SECOND.get_or_init(|| Dispatch::new(Lines::Kept(Arc::default())));
    let lines = Arc::default();
    tracing::subscriber::with_default(Lines::Kept(Arc::clone(&lines)), run);
    journal::flush(super::LIMIT);
    std::mem::take(&mut lock(&lines))
}
