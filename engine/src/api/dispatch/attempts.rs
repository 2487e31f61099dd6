//! Attempts to connect a client: at first, in the place of a lost connection, and again after a failure
//! ([`Reconnect`](crate::Reconnect)). The dispatch looks at the clock, because the reactor knows no client that has never been up.

use super::Dispatch;
use crate::api::client::LinkState;
use crate::api::client_state::ClientEntry;
use crate::api::errors::ConnectError;
use crate::api::group::Membership;
use crate::api::reconnect::Attempt;
use crate::api::service::{ConnectionEvent, ConnectionId};
use crate::sys::journal::event;
use std::time::Duration;

impl Dispatch {
    /// Requests a connection, in the place of the lost one if there was one.
    pub(in crate::api) fn request_connection(&mut self, mut entry: ClientEntry) {
        entry.config_client = self.config_client.clone().filter(|_| entry.bears_config);
        entry.request = Some((self.requests)(&entry));
        if let Some(membership) = &entry.membership {
            membership.set_dialing(true);
        }
        self.connecting.push(entry);
    }

    /// The connection of a client is lost: schedules another attempt, or gives up.
    pub(super) fn retry_or_give_up(&mut self, mut entry: ClientEntry) {
        entry.prepare_attempt();
        let (Some(lost), Some(state)) = (entry.conn, &mut entry.reconnect_state) else {
            return;
        };
        let cause = state.cause.clone();
        let Some(next) = state.next_attempt(self.ops.time(), &mut self.random) else {
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
        entry.membership.iter().for_each(Membership::note_failure);
        let retries = entry.link.state.get() != LinkState::Down && entry.retries_first();
        let state = entry.reconnect_state.as_mut().filter(|_| retries);
        let now = self.ops.time();
        let next = state.and_then(|state| state.next_attempt(now, &mut self.random));
        let Some(next) = next else { return entry.fail(error) };
        let Attempt { number: attempt, after } = next;
        event!(DEBUG, address = %entry.address, %error, attempt, "the first connection is tried again");
        *entry.link.failure.borrow_mut() = Some(error.clone());
        entry.link.state.set(LinkState::Pausing);
        (entry.conn, entry.other_versions, entry.failed_calls) = (None, None, 0);
        self.pause(entry, next, &ConnectionEvent::Retrying { error, attempt, after });
    }

    fn pause(&mut self, mut entry: ClientEntry, next: Attempt, event: &ConnectionEvent) {
        entry.handler.on_event(event);
        self.wait(entry, next.after);
    }

    /// Makes the attempt when it is due.
    pub(in crate::api) fn wait(&mut self, mut entry: ClientEntry, after: Duration) {
        entry.retry_at = Some(self.ops.time().saturating_add(after));
        self.connecting.push(entry);
        self.ops.set_alarm(after);
    }

    /// Begins the attempts that are due, and ends clients that were closed before they were up.
    #[cold]
    pub(super) fn begin_due_attempts(&mut self) {
        let now = self.ops.time();
        self.revive();
        self.connecting.iter_mut().for_each(|entry| entry.aim_again(now));
        while let Some(index) = self.next_due(now) {
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
        let later = self.connecting.iter().filter_map(|entry| entry.retry_at);
        if let Some(at) = later.filter(|at| *at > now).min() {
            self.ops.set_alarm(at.saturating_sub(now));
        }
    }

    fn next_due(&self, now: Duration) -> Option<usize> {
        self.connecting.iter().position(|entry| {
            let is_closed = entry.link.state.get() == LinkState::Down;
            let is_preceded = || entry.membership.as_ref().is_some_and(Membership::is_preceded);
            entry.retry_at.is_some_and(|at| is_closed || at <= now && !is_preceded())
        })
    }
}
