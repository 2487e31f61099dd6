//! Connections that are moved to another core: the client hears that no call in flight was executed, and connects again, to a
//! core that the listener chooses. Asked for by a letter ([`Engine::move_connections`](crate::Engine::move_connections)).
//!
//! Only clients of this library that come back are moved, and only while none of their calls is in progress. What still arrives
//! on a connection until it is down is left for the next one.

use crate::fabric::{DownCause, Fabric};
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::Reactor;
use crate::reactor::words::instance::Instance;
use spinrpc_proto::connection::Side;

impl Reactor {
    /// Moves up to `count` connections; a later letter goes on behind the last of them.
    #[cold]
    pub(in crate::reactor) fn move_connections(&mut self, count: usize) {
        let places = self.conns.places();
        let first = self.moving.next_place;
        let mut left = count;
        for place in (first..places).chain(0..first.min(places)) {
            if left == 0 || self.leaving.is_some() {
                return;
            }
            let Some(c) = self.conns.at(place).filter(|c| c.is_movable()) else { continue };
            let id = c.id;
            // The message would wait for others, and be lost with the connection.
            if self.fabric.has_unsent(id) {
                continue;
            }
            self.say_goodbye(id);
            if self.conns.find(id).is_some_and(|c| c.goodbye.is_sent) {
                self.moving.conns.push(id);
                self.moving.next_place = place + 1;
                self.stats.connections_moved += 1;
                left -= 1;
                self.begin_close(id, DownCause::Local);
            }
        }
    }
}

impl Conn {
    /// Its client comes back, waits for no reply, and has none to fetch.
    fn is_movable(&self) -> bool {
        let (is_of_client, in_progress) = {
            let proto = self.lane.proto();
            let is_of_client = proto.side() == Side::Server && !proto.is_two_way();
            (is_of_client, proto.responder.in_progress())
        };
        let comes_back = matches!(self.negotiated.peer().instance, Instance::Lasting(_));
        let is_idle = in_progress == 0 && self.replies_held() == 0 && self.sends_promised == 0;
        let may_end = self.closing.is_none() && !self.goodbye.is_sent && !self.goodbye.is_false;
        is_of_client && comes_back && is_idle && may_end
    }
}
