//! Attempts to connect a client: at first, in the place of a lost connection, and again after a failure
//! ([`Reconnect`](crate::Reconnect)). The dispatch looks at the clock, because the reactor knows no client that has never been up.

use super::Dispatch;
use crate::api::client::LinkState;
use crate::api::client_state::ClientEntry;
use crate::api::errors::ConnectError;
use crate::api::reconnect::Attempt;
use crate::api::service::{ConnectionEvent, ConnectionId};
use crate::sys::journal::event;

impl Dispatch {
    /// Requests a connection, in the place of the lost one if there was one.
    pub(in crate::api) fn request_connection(&mut self, mut entry: ClientEntry) {
        entry.asking = self.asking.clone().filter(|_| entry.bears_asking);
        entry.request = Some((self.requests)(&entry));
        self.connecting.push(entry);
    }

    /// The connection of a client is lost: schedules another attempt, or gives up.
    pub(super) fn retry_or_give_up(&mut self, mut entry: ClientEntry) {
        entry.prepare_attempt();
        let (Some(lost), Some(comeback)) = (entry.conn, &mut entry.comeback) else { return };
        let cause = comeback.cause.clone();
        let Some(next) = comeback.next_attempt(self.ops.time(), &mut self.random) else {
            self.ops.give_up(lost, cause);
            return self.connecting.push(entry);
        };
        let (connection, Attempt { number: attempt, after }) = (ConnectionId(lost), next);
        let event = ConnectionEvent::Reconnecting { connection, cause, attempt, after };
        self.pause(entry, next, &event);
    }

    /// The first connection of a client has failed: schedules another attempt, or notifies the handler.
    #[cold]
    pub(super) fn retry_or_fail(&mut self, mut entry: ClientEntry, error: ConnectError) {
        entry.prepare_attempt();
        let retries = entry.link.state.get() != LinkState::Down && entry.retries_first();
        let comeback = entry.comeback.as_mut().filter(|_| retries);
        let now = self.ops.time();
        let next = comeback.and_then(|comeback| comeback.next_attempt(now, &mut self.random));
        let Some(next) = next else { return entry.fail(error) };
        let Attempt { number: attempt, after } = next;
        event!(DEBUG, address = %entry.address, %error, attempt, "the first connection is tried again");
        *entry.link.failure.borrow_mut() = Some(error.clone());
        entry.link.state.set(LinkState::Pausing);
        (entry.conn, entry.failed_calls) = (None, 0);
        self.pause(entry, next, &ConnectionEvent::Retrying { error, attempt, after });
    }

    fn pause(&mut self, mut entry: ClientEntry, next: Attempt, event: &ConnectionEvent) {
        entry.handler.on_event(event);
        self.wait(entry, next);
    }

    /// Makes the attempt when it is due.
    pub(in crate::api) fn wait(&mut self, mut entry: ClientEntry, next: Attempt) {
        entry.retry_at = Some(self.ops.time().saturating_add(next.after));
        self.connecting.push(entry);
        self.ops.set_alarm(next.after);
    }

    /// Begins the attempts that are due, and ends clients that were closed before they were up.
    #[cold]
    pub(super) fn begin_due_attempts(&mut self) {
        let now = self.ops.time();
        let is_due = |entry: &ClientEntry| {
            let is_closed = entry.link.state.get() == LinkState::Down;
            entry.retry_at.is_some_and(|at| is_closed || at <= now)
        };
        while let Some(index) = self.connecting.iter().position(is_due) {
            let mut entry = self.connecting.swap_remove(index);
            entry.retry_at = None;
            match entry.link.state.get() {
                LinkState::Down => {
                    entry.fail(ConnectError::Closed);
                    continue;
                }
                LinkState::Pausing => entry.link.state.set(LinkState::Connecting),
                _ => {}
            }
            self.request_connection(entry);
        }
        let next = self.connecting.iter().filter_map(|entry| entry.retry_at).min();
        if let Some(at) = next {
            self.ops.set_alarm(at.saturating_sub(now));
        }
    }
}
