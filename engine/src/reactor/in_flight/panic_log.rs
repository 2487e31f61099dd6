//! Panics of the application's handlers, counted by place.

use crate::sync::lock;
use spinrpc_proto::ids::{Procedure, Program, Version};
use std::any::Any;
use std::sync::Mutex;

/// Places whose panics are counted separately; panics at further places only count in the statistics
/// (`handler_panics`).
const PLACES_MAX: usize = 64;

/// Shortest time between two lines of log about one place: callers can make a handler panic at any rate.
const LOG_INTERVAL_NS: u64 = 1_000_000_000;

/// Bytes of a panic's message that are kept.
const MESSAGE_MAX_BYTES: usize = 256;

/// Panics of one handler, for one program and procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerPanic {
    /// Handler that panicked.
    pub handler: HandlerKind,
    /// Program that it serves or calls; `None` if not known.
    pub program: Option<(Program, Version)>,
    /// Procedure it was called for; `None` if not known, and outside of calls.
    pub procedure: Option<Procedure>,
    /// Number of panics.
    pub count: u64,
    /// Message of the last one, cut off after 256 bytes.
    pub message: String,
}

/// Handlers of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandlerKind {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PanicPlace {
    pub(crate) handler: HandlerKind,
    pub(crate) program: Option<(Program, Version)>,
    pub(crate) procedure: Option<Procedure>,
}

/// The panics of all cores of an engine.
#[derive(Debug, Default)]
pub(crate) struct PanicLog(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    places: Vec<(HandlerPanic, LogLimit)>,
    /// For all further places together.
    others: LogLimit,
}

/// Limit on the lines of log about one place.
#[derive(Debug, Default)]
struct LogLimit {
    logged_at_ns: Option<u64>,
    /// Panics since the last line.
    panics: u64,
}

impl LogLimit {
    /// Counts a panic. Returns the number of panics for the next log line, if one is due.
    fn count(&mut self, now_ns: u64) -> Option<u64> {
        self.panics += 1;
        // Cores' clocks may differ: an earlier time counts as within the interval.
        let is_due =
            |at: u64| now_ns.checked_sub(at).is_some_and(|passed| passed >= LOG_INTERVAL_NS);
        if !self.logged_at_ns.is_none_or(is_due) {
            return None;
        }
        self.logged_at_ns = Some(now_ns);
        Some(std::mem::take(&mut self.panics))
    }
}

impl PanicLog {
    pub(crate) fn all(&self) -> Vec<HandlerPanic> {
        lock(&self.0).places.iter().map(|(panic, _)| panic.clone()).collect()
    }

    /// Counts a panic. Returns the number of panics since the last line of log, if there is to be another.
    pub(in crate::reactor) fn add(
        &self,
        place: PanicPlace,
        message: &str,
        now_ns: u64,
    ) -> Option<u64> {
        let PanicPlace { handler, program, procedure } = place;
        let mut counted = lock(&self.0);
        let same = |(panic, _): &&mut (HandlerPanic, LogLimit)| {
            (panic.handler, panic.program, panic.procedure) == (handler, program, procedure)
        };
        if let Some((panic, limit)) = counted.places.iter_mut().find(same) {
            panic.count += 1;
            message.clone_into(&mut panic.message);
            return limit.count(now_ns);
        }
        if counted.places.len() == PLACES_MAX {
            return counted.others.count(now_ns);
        }
        let message = message.to_owned();
        let panic = HandlerPanic { handler, program, procedure, count: 1, message };
        let mut limit = LogLimit::default();
        let due = limit.count(now_ns);
        counted.places.push((panic, limit));
        due
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

    const PLACE: PanicPlace =
        PanicPlace { handler: HandlerKind::Poll, program: None, procedure: None };

    #[test]
    fn panics_are_counted_by_place_and_places_are_bounded() {
        let log = PanicLog::default();
        for number in 0..2 * PLACES_MAX as u32 {
            log.add(PanicPlace { procedure: Some(Procedure(number)), ..PLACE }, "first", 0);
        }
        log.add(PanicPlace { procedure: Some(Procedure(0)), ..PLACE }, "second", 0);
        let all = log.all();
        assert_eq!(all.len(), PLACES_MAX);
        assert_eq!((all[0].count, all[0].message.as_str()), (2, "second"));
        assert_eq!((all[1].count, all[1].message.as_str()), (1, "first"));
    }

    #[test]
    fn each_place_is_logged_once_a_second_and_further_places_together() {
        let log = PanicLog::default();
        let add = |procedure, now_ns| {
            log.add(PanicPlace { procedure: Some(Procedure(procedure)), ..PLACE }, "", now_ns)
        };
        let start = 7 * LOG_INTERVAL_NS;
        let places = PLACES_MAX as u32;
        assert!((0..places).all(|procedure| add(procedure, start) == Some(1)));
        assert_eq!((add(0, start), add(0, start + LOG_INTERVAL_NS - 1)), (None, None));
        // The clock of another core.
        assert_eq!(add(0, start - 1), None);
        assert_eq!((add(places, start), add(places + 1, start)), (Some(1), None));
        let later = start + LOG_INTERVAL_NS;
        assert_eq!((add(0, later), add(0, later), add(1, later)), (Some(4), None, Some(1)));
        assert_eq!((add(places + 2, later), log.all()[0].count), (Some(2), 6));
    }

    #[test]
    fn messages_are_read_from_any_payload_and_cut_off_at_a_character() {
        assert_eq!(message_of(&"text"), "text");
        assert_eq!(message_of(&7_u8), "a value that is not a text");
        assert_eq!(message_of(&"ä".repeat(300)).len(), MESSAGE_MAX_BYTES);
        assert_eq!(message_of(&format!("x{}", "ä".repeat(300))).len(), MESSAGE_MAX_BYTES - 1);
    }
}
