//! Letters to a core, and the connections that come by them. Called by the turn.

use crate::fabric::{ConnId, DownCause, Endpoint, FabricError, Peer};
use crate::reactor::pending::deferred::Caller;
use crate::reactor::pending::drain::Leaving;
use crate::reactor::pending::mailbox::Mail;
use crate::reactor::pending::roles::Roles;
use crate::reactor::pending::upcalls::Upcalls;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::words::memory::message_bytes;
use crate::reactor::words::negotiate::{Negotiated, Terms};
use crate::sys::journal::event;
use spinrpc_proto::connection::Side;
use spinrpc_proto::ids::Instant;
use std::sync::Arc;

impl CoreCell {
    /// Handles all letters; returns their number.
    pub(super) fn read_mail(&self, up: &mut impl Upcalls) -> usize {
        let mut letters = 0;
        loop {
            // In a separate statement: the borrow must end before a handler runs.
            let mail = self.reactor().inbox.take();
            let Some(mail) = mail else { return letters };
            letters += 1;
            match mail {
                Mail::Connected { request, result } => self.on_connected(request, result, up),
                Mail::Accepted(endpoint) => self.on_accepted(endpoint, up),
                #[cfg(feature = "gss")]
                Mail::Reply(reply) => {
                    self.finish_deferred_in_budget(reply);
                    if self.has_work() {
                        up.on_context();
                    }
                }
                #[cfg(not(feature = "gss"))]
                Mail::Reply(reply) => self.reactor().finish_deferred(reply),
                Mail::Orders => up.on_orders(),
                #[cfg(feature = "gss")]
                Mail::Context => up.on_context(),
                Mail::Observe(observation) => self.reactor().observe(observation),
                Mail::Measure(latencies) => {
                    let is_on = self.reactor().measure(&latencies);
                    up.on_measure(is_on);
                    latencies.set_on(is_on);
                }
                Mail::Leave(request) => {
                    up.on_leave();
                    self.reactor().leaving = Some(Leaving::new(request));
                }
                Mail::Close(conn) => self.reactor().begin_close(conn, DownCause::Local),
                Mail::Shutdown => {
                    #[cfg(feature = "gss")]
                    self.finish_all_seals();
                    self.reactor().shut_down();
                }
            }
        }
    }

    fn on_connected(
        &self,
        request: u64,
        result: Result<Endpoint, FabricError>,
        up: &mut impl Upcalls,
    ) {
        // Calls that have ended, and clients, still refer to the lost connection.
        self.end_given_up(up);
        self.end_given_up_clients(up);
        let roles = self.reactor().roles_of(request);
        let open = |endpoint| self.reactor().open(endpoint, roles, Some(request));
        match result.and_then(open) {
            Ok((conn, peer, negotiated)) => {
                up.on_connected(request, Ok(conn));
                up.on_up(conn, peer, negotiated);
            }
            Err(error) => up.on_connected(request, Err(error)),
        }
    }

    fn on_accepted(&self, endpoint: Endpoint, up: &mut impl Upcalls) {
        let roles = Roles::accepted(&self.reactor().config);
        let opened = self.reactor().open(endpoint, roles, None);
        match opened {
            Ok((conn, peer, negotiated)) => up.on_up(conn, peer, negotiated),
            Err(error) => event!(WARN, %error, "an accepted connection could not be opened"),
        }
    }
}

impl Reactor {
    /// Takes over a new connection (slow path: allocates), perhaps in the place of a lost one.
    fn open(
        &mut self,
        endpoint: Endpoint,
        roles: Roles,
        request: Option<u64>,
    ) -> Result<(ConnId, Peer, Negotiated), FabricError> {
        let is_late = roles.side == Side::Server && self.leaving.is_some();
        if self.is_shut_down || is_late {
            let op = format!("take a connection of {}", endpoint.peer);
            return Err(FabricError { op, reason: "the engine is shut down".into(), source: None });
        }
        let reads_max = self.fabric.caps().reads_max.min(endpoint.reads_max);
        let terms = Terms::new(&self.offer, &endpoint.peer_private_data, reads_max, &self.config)
            .with_peer(endpoint.peer_identity);
        let peer = endpoint.peer;
        let id = self.fabric.adopt(endpoint)?;
        self.xid_seed = self.xid_seed.wrapping_mul(0x9e37_79b9).wrapping_add(0x7f4a_7c15);
        let (chained, xid_seed) = (self.dialect.chained, self.xid_seed);
        let memory = self.fabric.message_memory(id, message_bytes(&self.config));
        let parts = (self.fabric.ends(id), memory);
        let opened = Conn::open(id, roles, &self.config, terms, chained, xid_seed, parts);
        let mut conn = opened.inspect_err(|_| self.fabric.close(id))?;
        conn.peer = Some(peer);
        (conn.origin, conn.share) = self.origins.admit(&peer);
        conn.caller = Some(Caller::new(Arc::clone(&self.inbox)));
        if let Some(request) = request {
            self.take_over(request, &mut conn);
        }
        conn.post_receives(&mut self.fabric);
        self.conns.insert(conn);
        let look = self.stalls.begin(Instant(self.read_clock().0));
        self.next_deadline = self.next_deadline.min(look);
        self.stats.connections_opened += 1;
        let is_ours = roles.side == Side::Client;
        event!(INFO, %peer, connection = ?id, is_ours, "a connection is open");
        Ok((id, peer, terms.agreed()))
    }
}
