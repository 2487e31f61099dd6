//! Letters to a core, and the connections that come by them. Called by the turn.

use crate::fabric::{ConnId, DownCause, Endpoint, FabricError, Peer};
use crate::reactor::in_flight::mailbox::{Mail, Requested};
use crate::reactor::in_flight::roles::Roles;
use crate::reactor::in_flight::upcalls::{CoreEvent, Upcalls};
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::negotiate::Negotiated;
use crate::sys::journal::event;
use spinrpc_proto::connection::Side;

impl CoreCell {
    /// Handles all letters; returns their number.
    pub(super) fn read_mail(&self, up: &mut impl Upcalls) -> usize {
        let mut letters = 0;
        loop {
            // In a separate statement: a letter is copied with all its bytes otherwise.
            let mail = self.inbox().take();
            let Some(mail) = mail else { return letters };
            letters += 1;
            match mail {
                Mail::Connected { request, result } => self.on_connected(request, result, up),
                Mail::Accepted(endpoint) => self.on_accepted(*endpoint, up),
                Mail::Reply(reply) => self.reactor().finish_deferred(reply),
                Mail::Orders => up.on_event(CoreEvent::Orders),
                #[cfg(feature = "gss")]
                Mail::GssResult => up.on_event(CoreEvent::Context),
                Mail::Observe(observation) => self.reactor().observe(observation),
                Mail::Leave(request) => {
                    up.on_event(CoreEvent::Leave);
                    self.reactor().leave(request);
                }
                Mail::Close(conn) => self.reactor().begin_close(conn, DownCause::Local),
                Mail::Shutdown => {
                    #[cfg(feature = "gss")]
                    self.finish_seals(None);
                    self.reactor().close_all();
                    self.reactor().give_up_all();
                }
            }
        }
    }

    fn on_connected(
        &self,
        request: Requested,
        result: Result<Box<Endpoint>, FabricError>,
        up: &mut impl Upcalls,
    ) {
        // Calls that have ended, and clients, still refer to the lost connection.
        self.report_ended_calls(up);
        self.end_given_up_clients(up);
        let Requested { number, takes_reverse, lost } = request;
        let roles = Roles::requested(self.reactor().config(), takes_reverse);
        let open = |endpoint: Box<Endpoint>| self.reactor().accept(*endpoint, roles, lost);
        match result.and_then(open) {
            Ok((conn, peer, negotiated)) => {
                up.on_event(CoreEvent::Connected(number, Ok(conn)));
                up.on_event(CoreEvent::Up(conn, peer, negotiated));
            }
            Err(error) => up.on_event(CoreEvent::Connected(number, Err(error))),
        }
    }

    fn on_accepted(&self, endpoint: Endpoint, up: &mut impl Upcalls) {
        let roles = Roles::accepted(self.reactor().config());
        let opened = self.reactor().accept(endpoint, roles, None);
        match opened {
            Ok((conn, peer, negotiated)) => up.on_event(CoreEvent::Up(conn, peer, negotiated)),
            Err(error) => event!(WARN, %error, "an accepted connection could not be opened"),
        }
    }
}

impl Reactor {
    /// Takes over a new connection (slow path: allocates), perhaps in the place of a lost one.
    fn accept(
        &mut self,
        endpoint: Endpoint,
        roles: Roles,
        lost: Option<ConnId>,
    ) -> Result<(ConnId, Peer, Negotiated), FabricError> {
        let peer = endpoint.peer;
        if self.refuses(roles.side) {
            let op = format!("take a connection of {peer}");
            return Err(FabricError { op, reason: "the engine is shut down".into(), source: None });
        }
        let mut conn = self.open(endpoint, roles)?;
        let (id, agreed) = (conn.id, conn.negotiated);
        conn.post_receives(self.fabric_mut());
        self.conns().insert(conn);
        if let Some(lost) = lost {
            self.take_over(lost, id);
        }
        let is_ours = roles.side == Side::Client;
        event!(INFO, %peer, connection = ?id, is_ours, "a connection is open");
        Ok((id, peer, agreed))
    }
}
