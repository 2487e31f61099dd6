//! First connections that are tried more than once ([`Reconnect::retry_first`](crate::Reconnect::retry_first)). There are
//! no calls in flight yet, so that the reactor does not know of the pauses between attempts: the dispatch looks at the clock.

use super::Dispatch;
use crate::api::client::LinkState;
use crate::api::client_state::ClientEntry;
use crate::api::errors::ConnectError;
use crate::api::reconnect::{Attempt, Comeback};
use crate::api::service::ConnectionEvent;
use crate::sys::journal::event;

impl Dispatch {
    /// The first connection of a client has failed: schedules another attempt, or notifies the handler.
    #[cold]
    pub(super) fn retry_or_fail(&mut self, mut entry: ClientEntry, error: ConnectError) {
        let now = self.ops.time();
        let retries = |comeback: &&mut Comeback| comeback.policy.retries_first;
        let comeback = entry.comeback.as_mut().filter(retries);
        let comeback = comeback.filter(|_| entry.link.state.get() != LinkState::Down);
        let next = comeback.and_then(|comeback| comeback.next_attempt(now, &mut self.random));
        let Some(Attempt { number: attempt, after }) = next else { return entry.fail(error) };
        event!(DEBUG, address = %entry.address, %error, attempt, "the first connection is tried again");
        *entry.link.failure.borrow_mut() = Some(error.clone());
        entry.link.state.set(LinkState::Pausing);
        entry.retry_at = Some(now.saturating_add(after));
        entry.conn = None;
        entry.handler.on_event(&ConnectionEvent::Retrying { error, attempt, after });
        self.connecting.push(entry);
        self.poll_from_now_on();
    }

    /// Begins the attempts that are due, and ends clients that were closed between two attempts.
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
            if entry.link.state.get() == LinkState::Down {
                entry.fail(ConnectError::Closed);
                continue;
            }
            entry.link.state.set(LinkState::Connecting);
            self.begin_again(entry);
        }
        let next = self.connecting.iter().filter_map(|entry| entry.retry_at).min();
        if let Some(at) = next {
            self.ops.look_after(at.saturating_sub(now));
        }
    }
}
