//! Clients between two connections, with their requesters and calls.

use crate::fabric::{ConnId, DownCause};
use crate::reactor::in_flight::call_table::{CallTable, ConnRequester};
use crate::reactor::types::calls::{CallEnd, SlotToken};
use crate::reactor::types::peer_id::PeerId;
use spinrpc_proto::ids::Instant;
use std::mem::swap;

/// A client between two connections.
pub(crate) struct DetachedClient {
    lost: ConnId,
    requester: ConnRequester,
    calls: CallTable,
    /// The server of the lost connection.
    server: PeerId,
    /// Cause of the loss.
    cause: DownCause,
    /// The api has given it up.
    is_given_up: bool,
}

impl DetachedClient {
    getters! {
        lost: ConnId,
        cause: &DownCause,
    }

    /// Moves its calls to a connection with this server. Returns false if that cannot know which calls the previous one has
    /// executed.
    pub(in crate::reactor) fn move_to(
        &mut self,
        server: PeerId,
        (requester, calls): (&mut ConnRequester, &mut CallTable),
    ) -> bool {
        swap(requester, &mut self.requester);
        swap(calls, &mut self.calls);
        self.server.remembers_for(server)
    }

    pub(in crate::reactor) fn end_calls(&mut self, mut ended: impl FnMut(SlotToken, CallEnd)) {
        let Self { requester, calls, cause, .. } = self;
        requester.on_down(|slot, token| {
            if let Some(token) = token {
                ended(SlotToken { slot, token }, calls.end_of(slot, false, cause));
            }
        });
    }

    fn give_up(&mut self, cause: DownCause) {
        (self.cause, self.is_given_up) = (cause, true);
    }
}

/// The clients of a core between two connections, and those that send their calls again.
#[derive(Default)]
pub(crate) struct DetachedClients {
    /// Time at which the api has to look after its clients.
    alarm: Option<Instant>,
    clients: Vec<DetachedClient>,
    /// Connections whose held calls are being sent again.
    resending: Vec<ConnId>,
}

impl DetachedClients {
    getters! {
        resending: &Vec<ConnId>,
    }

    /// The api has to look after its clients at this time, or earlier.
    pub(in crate::reactor) fn set_alarm(&mut self, at: Instant) {
        self.alarm = Some(self.alarm.map_or(at, |earlier| earlier.min(at)));
    }

    /// Returns true if it has to do that now.
    pub(in crate::reactor) fn take_alarm(&mut self, now: Instant) -> bool {
        self.alarm.take_if(|at| *at <= now).is_some()
    }

    /// Earliest time at which one of them has work to do.
    pub(in crate::reactor) fn next_deadline(&self, pause_ends: Instant) -> Instant {
        let of = |client: &DetachedClient| match client.is_given_up {
            true => Instant(0),
            false => client.requester.next_deadline(),
        };
        let earliest = self.clients.iter().map(of).chain(self.alarm).min();
        let earliest = earliest.unwrap_or(Instant(u64::MAX));
        if self.resending.is_empty() { earliest } else { earliest.min(pause_ends) }
    }

    pub(in crate::reactor) fn push(
        &mut self,
        (lost, cause): (ConnId, DownCause),
        server: PeerId,
        (requester, mut calls): (ConnRequester, CallTable),
    ) {
        calls.note_loss(&cause);
        self.end_resending(lost);
        let is_given_up = false;
        self.clients.push(DetachedClient { lost, requester, calls, server, cause, is_given_up });
    }

    /// The client that lost this connection.
    pub(in crate::reactor) fn take(&mut self, lost: ConnId) -> Option<DetachedClient> {
        self.take_first(|client| client.lost == lost && !client.is_given_up)
    }

    pub(in crate::reactor) fn take_given_up(&mut self) -> Option<DetachedClient> {
        self.take_first(|client| client.is_given_up)
    }

    fn take_first(
        &mut self,
        is_meant: impl FnMut(&DetachedClient) -> bool,
    ) -> Option<DetachedClient> {
        let index = self.clients.iter().position(is_meant)?;
        Some(self.clients.swap_remove(index))
    }

    /// Gives the client up that lost this connection; returns true if there is one.
    pub(in crate::reactor) fn give_up(&mut self, lost: ConnId, cause: DownCause) -> bool {
        let mut clients = self.clients.iter_mut();
        clients.find(|client| client.lost == lost).map(|client| client.give_up(cause)).is_some()
    }

    /// Gives all clients up; returns true if there are any.
    pub(in crate::reactor) fn give_up_all(&mut self) -> bool {
        self.clients.iter_mut().for_each(|client| client.give_up(DownCause::Local));
        !self.clients.is_empty()
    }

    pub(in crate::reactor) fn begin_resending(&mut self, conn: ConnId) {
        if !self.resending.contains(&conn) {
            self.resending.push(conn);
        }
    }

    pub(in crate::reactor) fn end_resending(&mut self, conn: ConnId) {
        self.resending.retain(|other| *other != conn);
    }

    /// The calls of every suspended client.
    pub(in crate::reactor) fn all(
        &mut self,
    ) -> impl Iterator<Item = (ConnId, &mut ConnRequester, &mut CallTable)> {
        self.clients
            .iter_mut()
            .map(|client| (client.lost, &mut client.requester, &mut client.calls))
    }
}
