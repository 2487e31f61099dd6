//! Clients between two connections, with their requesters and calls.

use crate::fabric::{ConnId, DownCause};
use crate::reactor::in_flight::call_table::CallTable;
use crate::reactor::types::peer_id::PeerId;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::requester::{CallSlot, Requester};

/// A client between two connections.
pub(crate) struct DetachedClient {
    pub(in crate::reactor) lost: ConnId,
    pub(in crate::reactor) requester: Requester<Box<[CallSlot]>>,
    pub(in crate::reactor) calls: CallTable,
    /// The server of the lost connection.
    pub(in crate::reactor) server: PeerId,
    /// Cause of the loss.
    pub(in crate::reactor) cause: DownCause,
    /// The api has given it up.
    pub(in crate::reactor) is_given_up: bool,
}

impl DetachedClient {
    pub(in crate::reactor) fn give_up(&mut self, cause: DownCause) {
        (self.cause, self.is_given_up) = (cause, true);
    }
}

/// The clients of a core between two connections, and those that send their calls again.
#[derive(Default)]
pub(crate) struct DetachedClients {
    /// Time at which the api has to look after its clients.
    pub(in crate::reactor) alarm: Option<Instant>,
    suspended: Vec<DetachedClient>,
    /// Connections whose held calls are being sent again.
    pub(in crate::reactor) resending: Vec<ConnId>,
}

impl DetachedClients {
    /// Earliest time at which one of them has work to do.
    pub(in crate::reactor) fn next_deadline(&self, pause_ends: Instant) -> Instant {
        let of = |client: &DetachedClient| match client.is_given_up {
            true => Instant(0),
            false => client.requester.next_deadline(),
        };
        let earliest = self.suspended.iter().map(of).chain(self.alarm).min();
        let earliest = earliest.unwrap_or(Instant(u64::MAX));
        if self.resending.is_empty() { earliest } else { earliest.min(pause_ends) }
    }

    pub(in crate::reactor) fn push(&mut self, client: DetachedClient) {
        self.end_resending(client.lost);
        self.suspended.push(client);
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
        let index = self.suspended.iter().position(is_meant)?;
        Some(self.suspended.swap_remove(index))
    }

    /// Gives all clients up; returns true if there are any.
    pub(in crate::reactor) fn give_up_all(&mut self) -> bool {
        self.suspended.iter_mut().for_each(|client| client.give_up(DownCause::Local));
        !self.suspended.is_empty()
    }

    pub(in crate::reactor) fn begin_resending(&mut self, conn: ConnId) {
        if !self.resending.contains(&conn) {
            self.resending.push(conn);
        }
    }

    pub(in crate::reactor) fn end_resending(&mut self, conn: ConnId) {
        self.resending.retain(|other| *other != conn);
    }

    pub(in crate::reactor) fn find(&mut self, lost: ConnId) -> Option<&mut DetachedClient> {
        self.suspended.iter_mut().find(|client| client.lost == lost)
    }

    /// The calls of every suspended client.
    pub(in crate::reactor) fn all(
        &mut self,
    ) -> impl Iterator<Item = (ConnId, &mut Requester<Box<[CallSlot]>>, &mut CallTable)> {
        self.suspended
            .iter_mut()
            .map(|client| (client.lost, &mut client.requester, &mut client.calls))
    }

    /// The calls of one of them.
    pub(in crate::reactor) fn calls_of(
        &mut self,
        lost: ConnId,
    ) -> Option<(&mut Requester<Box<[CallSlot]>>, &mut CallTable)> {
        self.find(lost).map(|client| (&mut client.requester, &mut client.calls))
    }
}
