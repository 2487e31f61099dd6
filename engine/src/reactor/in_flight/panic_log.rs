//! Panics of the application's handlers in the log.

use spinrpc_proto::ids::{Procedure, Program, Version};
use std::any::Any;

/// Shortest time between two lines of log about panics: callers can make a handler panic at any rate.
const LOG_INTERVAL_NS: u64 = 1_000_000_000;

/// Bytes of a panic's message that are logged.
const MESSAGE_MAX_BYTES: usize = 256;

/// Handlers of an application.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandlerKind {
    /// [`Service::call`](crate::Service::call), and the encoder of its reply.
    Call,
    /// [`Service::poll`](crate::Service::poll).
    Poll,
    /// `on_event` of a service or a reply handler.
    Event,
    /// [`ReplyHandler::on_reply`](crate::ReplyHandler::on_reply).
    Reply,
}

/// Handler, program and procedure of a panic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanicPlace {
    pub(crate) handler: HandlerKind,
    /// Program that it serves or calls; `None` if not known.
    pub(crate) program: Option<(Program, Version)>,
    /// Procedure it was called for; `None` if not known, and outside of calls.
    pub(crate) procedure: Option<Procedure>,
}

/// Limit on the lines of log about the panics of a core's handlers.
#[derive(Debug, Default)]
pub(in crate::reactor) struct LogLimit {
    logged_at_ns: Option<u64>,
    /// Panics since the last line.
    panics: u64,
}

impl LogLimit {
    /// Counts a panic. Returns the number of panics for the next log line, if one is due.
    pub(in crate::reactor) fn count(&mut self, now_ns: u64) -> Option<u64> {
        self.panics += 1;
        let is_due = |at: u64| now_ns.saturating_sub(at) >= LOG_INTERVAL_NS;
        if !self.logged_at_ns.is_none_or(is_due) {
            return None;
        }
        self.logged_at_ns = Some(now_ns);
        Some(std::mem::take(&mut self.panics))
    }
}

/// The message of a panic.
pub(crate) fn message_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("a value that is not a text");
    let fits = |at: &usize| text.is_char_boundary(*at);
    let end = (0..=MESSAGE_MAX_BYTES.min(text.len())).rfind(fits).unwrap_or_default();
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_logged_once_a_second_and_all_are_counted() {
        let mut limit = LogLimit::default();
        let start = 7 * LOG_INTERVAL_NS;
        assert_eq!(limit.count(start), Some(1));
        assert_eq!((limit.count(start), limit.count(start + LOG_INTERVAL_NS - 1)), (None, None));
        assert_eq!(limit.count(start + LOG_INTERVAL_NS), Some(3));
        assert_eq!(limit.count(start + LOG_INTERVAL_NS), None);
    }

    #[test]
    fn messages_are_read_from_any_payload_and_cut_off_at_a_character() {
        assert_eq!(message_of(&"text"), "text");
        assert_eq!(message_of(&7_u8), "a value that is not a text");
        assert_eq!(message_of(&"ä".repeat(300)).len(), MESSAGE_MAX_BYTES);
        assert_eq!(message_of(&format!("x{}", "ä".repeat(300))).len(), MESSAGE_MAX_BYTES - 1);
    }
}
