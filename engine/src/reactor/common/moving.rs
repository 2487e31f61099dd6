//! Connections that are moved to another core: the client hears that no call in flight was executed, and connects again, to a
//! core that the listener chooses. Asked for by a letter ([`Engine::move_connections`](crate::Engine::move_connections)).
//!
//! Only clients of this library that come back are moved, and only while none of their calls is in progress. What still arrives
//! on a connection until it is down is left for the next one.

use crate::fabric::{ConnId, DownCause, Fabric};
use crate::reactor::common::leaving::LOOK_EVERY;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::Reactor;
use crate::reactor::words::instance::Instance;
use spinrpc_proto::connection::Side;
use spinrpc_proto::ids::Instant;
use std::mem::take;

impl Reactor {
    /// Begins to move as many connections as were asked for, if there are so many; each time behind the last of them.
    #[cold]
    pub(in crate::reactor) fn begin_moves(&mut self) {
        let mut wanted = self.inbox.take_moves();
        let places = self.conns.places();
        let first = self.moving.next_place;
        for place in (first..places).chain(0..first.min(places)) {
            if wanted == 0 || self.leaving.is_some() {
                return;
            }
            let Some(c) = self.conns.at(place).filter(|c| c.is_movable()) else { continue };
            let id = c.id;
            self.say_goodbye(id);
            let Some(c) = self.conns.find(id).filter(|c| c.goodbye.is_sent) else { continue };
            c.goodbye.is_moving = true;
            self.moving.left += 1;
            self.moving.unsent.push(id);
            self.moving.next_place = place + 1;
            wanted -= 1;
        }
    }

    /// Closes the connections whose last message has left.
    #[cold]
    pub(in crate::reactor) fn go_on_moving(&mut self) {
        if self.moving.unsent.is_empty() {
            return;
        }
        self.fabric.flush();
        let mut unsent = take(&mut self.moving.unsent);
        unsent.retain(|id| !self.has_left(*id));
        if !unsent.is_empty() {
            let look_at = self.read_clock().0.saturating_add(self.clock.from_duration(LOOK_EVERY));
            self.next_deadline = self.next_deadline.min(Instant(look_at));
        }
        self.moving.unsent = unsent;
    }

    /// Closes a connection whose last message has left. Returns true if it is closed.
    fn has_left(&mut self, conn: ConnId) -> bool {
        if self.conns.find(conn).is_none_or(|c| c.closing.is_some()) {
            return true;
        }
        if self.fabric.has_unsent(conn) {
            return false;
        }
        self.stats.connections_moved += 1;
        self.begin_close(conn, DownCause::Local);
        true
    }
}

impl Conn {
    /// Its client comes back, waits for no reply, has none to fetch, and is called by nothing here.
    fn is_movable(&self) -> bool {
        let (is_of_client, in_progress) = {
            let proto = self.lane.proto();
            (proto.side() == Side::Server, proto.responder.in_progress())
        };
        let comes_back = matches!(self.negotiated.peer().instance, Instance::Lasting(_));
        let is_idle = in_progress == 0 && self.replies_held() == 0 && self.sends_promised == 0;
        let may_end = self.closing.is_none() && !self.goodbye.is_sent && !self.goodbye.is_false;
        is_of_client && comes_back && is_idle && may_end && !self.reverse.has_client
    }
}
