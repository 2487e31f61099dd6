//! The requests of a control socket.

use super::observer::Observer;
use crate::config::{Choice, IdlePolicy};
use crate::control::{self, CONNECTIONS_SHOWN, CONNECTIONS_SHOWN_MAX, REQUEST_BYTES_MAX};
use crate::sys::line_server::{Answerer, LineServer};
use serde_json::json;
use std::io;
use std::time::Instant;

/// Answers until the result is dropped.
pub(super) fn open(observer: Observer) -> io::Result<LineServer> {
    let (listener, number) = control::listen()?;
    LineServer::start("spinrpc-stats", listener, Requests { number, observer })
}

struct Requests {
    /// Tells engines of one process apart.
    number: u32,
    observer: Observer,
}

impl Answerer for Requests {
    fn answer(&mut self, request: Option<&[u8]>) -> String {
        let Some(request) = request else {
            return refusal(&format!("a request has at most {REQUEST_BYTES_MAX} bytes"));
        };
        let words = std::str::from_utf8(request).unwrap_or_default();
        let words: Vec<&str> = words.split_ascii_whitespace().collect();
        match words[..] {
            ["snapshot"] => self.snapshot(CONNECTIONS_SHOWN),
            ["snapshot", count] => match connections_shown(count) {
                Some(count) => self.snapshot(count),
                None => refusal("allowed is a number of connections: snapshot 20"),
            },
            ["idle", mode] => self.set_idle(mode),
            ["latency"] => self.observer.latency(self.number, Instant::now()) + "\n",
            ["slow"] => self.observer.slow(self.number, Instant::now()) + "\n",
            _ => refusal("no such request; allowed are snapshot, idle, latency and slow"),
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.observer.next_due()
    }

    fn on_time(&mut self, now: Instant) {
        self.observer.on_time(now);
    }
}

impl Requests {
    fn snapshot(&mut self, connections: usize) -> String {
        self.observer.snapshot(self.number, connections) + "\n"
    }

    fn set_idle(&mut self, mode: &str) -> String {
        let mut policy = IdlePolicy::Busy;
        if !policy.set(mode) {
            return refusal(&format!("allowed are idle {}", policy.names().join(", idle ")));
        }
        let cores = self.observer.set_idle(policy);
        json!({ "idle": mode, "cores": cores }).to_string() + "\n"
    }
}

fn connections_shown(count: &str) -> Option<usize> {
    Some(count.parse::<usize>().ok()?.min(CONNECTIONS_SHOWN_MAX))
}

fn refusal(why: &str) -> String {
    json!({ "error": why }).to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_more_connections_than_are_shown_expect_the_most() {
        assert_eq!(connections_shown("1000"), Some(1000));
        assert_eq!(connections_shown("1000000000"), Some(CONNECTIONS_SHOWN_MAX));
    }
}
