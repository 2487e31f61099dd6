//! The log of the library, for programs that have one of their own.

use crate::error::{Failure, InCallback, Status, guard};
use crate::pointers::UserData;
use spinrpc::sys::journal::tracing;
use std::ffi::{c_char, c_void};
use std::fmt::{self, Write};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Bytes of a target or of a message, with the zero at the end; longer ones are cut.
const LINE_BYTES: usize = 1024;

/// How much a line of the log matters.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Something failed that should not.
    Error = 1,
    /// Something that may need attention.
    Warn = 2,
    /// Events of operation, such as a connection that cannot be made.
    Info = 3,
    /// Details, for looking into a problem.
    Debug = 4,
}

/// Takes a line of the log: its level, the part of the library that it comes from, and its text, which are valid until it
/// returns. Texts are of at most 1,023 bytes, of one line each. It runs on any thread but those of cores, maybe on several at
/// a time. A thread of the library that waits for it delays further lines, of which up to 1024 are kept, and the end of an
/// engine by a second at most; it delays no core. It must not leave by longjmp() or by an exception.
pub type LogCallback = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        level: LogLevel,
        target: *const c_char,
        text: *const c_char,
    ),
>;

/// Has `callback` get the lines of the log, of all engines of the process, up to `level` (a spinrpc_log_level): what matters
/// less is left out. It gets them until the process ends, with `user_data`. Without this function the library logs nothing.
/// Best before the first engine is made.
///
/// Errors: SPINRPC_STATUS_INVALID_STATE if the process has a log already; SPINRPC_STATUS_INVALID_ARGUMENT if `callback` is
/// NULL or `level` is not a level.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_set_log(
    callback: LogCallback,
    user_data: *mut c_void,
    level: u32,
) -> Status {
    guard(|| {
        let callback = callback.ok_or_else(|| Failure::argument("callback is null"))?;
        let wrong = || Failure::argument("level is not a spinrpc_log_level");
        let most = filter(level).ok_or_else(wrong)?;
        let log = Log { callback, user_data: UserData::new(user_data), most };
        let taken = |_| Failure::new(Status::InvalidState, "the process has a log already");
        tracing::subscriber::set_global_default(log).map_err(taken)
    })
}

const LEVELS: [(LogLevel, Level); 4] = [
    (LogLevel::Error, Level::ERROR),
    (LogLevel::Warn, Level::WARN),
    (LogLevel::Info, Level::INFO),
    (LogLevel::Debug, Level::DEBUG),
];

fn filter(level: u32) -> Option<LevelFilter> {
    let known = LEVELS.iter().find(|(known, _)| *known as u32 == level)?;
    Some(LevelFilter::from_level(known.1))
}

fn level_of(level: Level) -> LogLevel {
    let known = LEVELS.iter().find(|(_, known)| *known == level);
    known.map_or(LogLevel::Debug, |(level, _)| *level)
}

/// Passes events on. There are no spans.
struct Log {
    callback: unsafe extern "C" fn(*mut c_void, LogLevel, *const c_char, *const c_char),
    user_data: UserData,
    most: LevelFilter,
}

impl Subscriber for Log {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        *of.level() <= self.most
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.most)
    }

    fn event(&self, event: &Event<'_>) {
        let (mut target, mut text) = (Line::new(), Line::new());
        target.push(event.metadata().target());
        for is_message in [true, false] {
            event.record(&mut Fields { line: &mut text, is_message });
        }
        let level = level_of(*event.metadata().level());
        let _inside = InCallback::enter();
        // SAFETY: a function of this type, as the header asks for; both texts end with a zero and live until it returns.
        unsafe {
            (self.callback)(self.user_data.pointer(), level, target.as_ptr(), text.as_ptr());
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Fields<'a> {
    line: &'a mut Line,
    is_message: bool,
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A line that is full takes no more, and never fails.
        let _ = match (field.name() == "message", self.is_message) {
            (true, true) => write!(self.line, "{value:?}"),
            (false, false) => write!(self.line, " {}={value:?}", field.name()),
            _ => Ok(()),
        };
    }
}

/// Text of one line, with zeros behind it.
struct Line {
    bytes: [u8; LINE_BYTES],
    length: usize,
}

impl Line {
    fn new() -> Self {
        Self { bytes: [0; LINE_BYTES], length: 0 }
    }

    /// Appends what there is room for. Names of peers may have control characters, which could feign further lines.
    fn push(&mut self, text: &str) {
        for letter in text.chars().map(|letter| if letter.is_control() { '?' } else { letter }) {
            let end = self.length + letter.len_utf8();
            if end >= LINE_BYTES {
                // Nothing after a gap.
                self.bytes[self.length..].fill(0);
                self.length = LINE_BYTES - 1;
                return;
            }
            letter.encode_utf8(&mut self.bytes[self.length..end]);
            self.length = end;
        }
    }

    fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn text(line: &Line) -> &str {
        CStr::from_bytes_until_nul(&line.bytes).unwrap().to_str().unwrap()
    }

    #[test]
    fn a_line_is_cut_between_characters_and_has_no_control_characters() {
        let mut line = Line::new();
        line.push("a\nb\0c\u{85}");
        assert_eq!(text(&line), "a?b?c?");
        line.push(&"é".repeat(LINE_BYTES));
        line.push("x");
        assert_eq!(text(&line), format!("a?b?c?{}", "é".repeat((LINE_BYTES - 7) / 2)));
    }

    #[test]
    fn levels_are_those_of_the_header() {
        let filters = [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug];
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG];
        for (level, of_tracing) in filters.into_iter().zip(levels) {
            assert_eq!(filter(level as u32), Some(LevelFilter::from_level(of_tracing)));
            assert_eq!(level_of(of_tracing), level);
        }
        assert_eq!([0, 5].map(filter), [None; 2]);
    }
}
