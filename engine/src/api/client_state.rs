//! A client's state on its core: its connection, setup and loss of that connection, and the handler to notify.
//! The dispatch owns all clients of a core.

use super::catch_panic::ContainedHandler;
use super::client::{ClientLink, LinkState, ReplyHandler};
use super::dialing::Request;
use super::errors::ConnectError;
use super::group::Membership;
#[cfg(feature = "gss")]
use super::gss::GssClientState;
use super::reconnect::{ConnectOptions, ReconnectState};
use super::rfc5666::ConfigClient;
use super::service::{ConnectionEvent, ConnectionId};
use super::version_cache::Offer;
use crate::config::Versions;
use crate::fabric::{ConnId, DownCause, Peer};
use crate::mem::Slab;
use crate::reactor::Negotiated;
use crate::reactor::in_flight::mailbox::Requested;
use crate::reactor::types::peer_id::Instance;
use crate::sys::journal::event;
use spinrpc_proto::events::SlotId;
#[cfg(feature = "gss")]
use spinrpc_proto::ids::Xid;
use spinrpc_proto::ids::{Program, Version};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Address to connect to, and program to call there.
pub(super) struct ConnectTo {
    pub(super) address: String,
    pub(super) program: Program,
    pub(super) version: Version,
    pub(super) options: ConnectOptions,
}

/// Calls with which a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetupCall {
    /// That of the Connection Configuration Protocol, before the probe, or under a security context.
    Config { is_protected: bool },
    /// Opens the window, and settles the version.
    Probe,
    /// A token of the mechanism, also while calls go on under the context before.
    #[cfg(feature = "gss")]
    Token,
}

/// One client of one core. Fields that plain replies need come first.
#[repr(C)]
pub(super) struct ClientEntry {
    pub(super) link: Rc<ClientLink>,
    pub(super) handler: ContainedHandler,
    /// Its connection, or the one that was lost.
    pub(super) conn: Option<ConnId>,
    pub(super) request: Option<u64>,
    pub(super) up: Option<(Peer, Negotiated)>,
    /// The call with which the connection begins, until it has ended.
    pub(super) setup_call: Option<(SlotId, SetupCall)>,
    pub(super) failed_calls: usize,
    pub(super) address: String,
    /// Version that its connections begin with.
    pub(super) offer: Offer,
    /// Versions that it may begin with, if not all that are spoken.
    pub(super) versions: Option<Versions>,
    /// Some until the server has answered the Connection Configuration Protocol, or failed to.
    pub(super) config_client: Option<Rc<ConfigClient>>,
    /// The server is not known to fail when it is asked with the Connection Configuration Protocol.
    pub(super) bears_config: bool,
    /// The connection was lost because the server failed when it was asked, or when version two was offered; another
    /// connection is made.
    pub(super) starts_over: bool,
    /// Failure of the first connection, until that has gone; another attempt follows.
    pub(super) passing: Option<ConnectError>,
    /// Core's time of the next attempt to connect.
    pub(super) retry_at: Option<Duration>,
    pub(super) reconnect_state: Option<ReconnectState>,
    /// Versions that the server of the failing connection speaks; none of them is spoken here.
    pub(super) other_versions: Option<(u32, u32)>,
    /// The handler was notified of its end.
    is_gone: bool,
    /// The client makes reverse calls, over an accepted connection.
    is_in_reverse: bool,
    /// The server may make reverse calls on its connection.
    pub(super) takes_reverse: bool,
    /// Slabs that the server may read.
    pub(super) lent: Arc<[Slab]>,
    /// Some if its client has several connections.
    pub(super) membership: Option<Membership>,
    #[cfg(feature = "gss")]
    pub(super) securing: Option<Box<GssClientState>>,
}

impl ClientEntry {
    pub(super) fn new(
        link: Rc<ClientLink>,
        handler: Box<dyn ReplyHandler>,
        address: &str,
        reconnect_state: Option<ReconnectState>,
    ) -> Self {
        Self {
            handler: ContainedHandler::new(Rc::clone(&link), handler),
            link,
            conn: None,
            request: None,
            up: None,
            setup_call: None,
            failed_calls: 0,
            address: address.to_owned(),
            offer: Offer::default(),
            versions: None,
            config_client: None,
            bears_config: true,
            starts_over: false,
            passing: None,
            retry_at: None,
            reconnect_state,
            other_versions: None,
            is_gone: false,
            is_in_reverse: false,
            takes_reverse: false,
            lent: Arc::default(),
            membership: None,
            #[cfg(feature = "gss")]
            securing: None,
        }
    }

    /// Entry of a client that makes reverse calls, on a connection that is already up.
    pub(super) fn in_reverse(
        link: Rc<ClientLink>,
        handler: Box<dyn ReplyHandler>,
        conn: ConnId,
    ) -> Self {
        let entry = Self::new(link, handler, "", None);
        Self { conn: Some(conn), is_in_reverse: true, ..entry }
    }

    pub(super) fn with(self, options: &ConnectOptions) -> Self {
        let &ConnectOptions { takes_reverse, versions, ref lent, .. } = options;
        Self { takes_reverse, versions, lent: lent.as_slice().into(), ..self }
    }

    /// Request for a connection, in the place of the lost one if there was one.
    pub(super) fn connection_request(&self, core: usize, number: u64) -> Request {
        let wanted = Requested { number, takes_reverse: self.takes_reverse, lost: self.conn };
        let (address, lent) = (self.address.clone(), Arc::clone(&self.lent));
        Request { core, wanted, address, instance: self.instance(), lent }
    }

    /// Calls arrive on its connection, so that services are notified of it.
    pub(super) fn is_served(&self) -> bool {
        self.is_in_reverse || self.takes_reverse
    }

    /// This is the reply to a setup call without protection.
    #[cfg(feature = "gss")]
    pub(super) fn awaits(&self, xid: Xid) -> bool {
        !self.awaits_config(xid) && self.setup_call.is_some_and(|(slot, _)| slot.xid() == xid)
    }

    /// A security context is being established for this connection, or will be.
    #[cfg(feature = "gss")]
    pub(super) fn awaits_context(&self, conn: ConnId) -> bool {
        match self.link.state.get() {
            LinkState::Probing(own) => own == conn,
            // Calls go on under the context before.
            LinkState::Up(own) | LinkState::Resending(own) => {
                own == conn && self.securing.as_ref().is_some_and(|securing| securing.is_behind())
            }
            _ => false,
        }
    }

    /// This is the reply of the Connection Configuration Protocol, under a security context.
    #[cfg(feature = "gss")]
    pub(super) fn awaits_config(&self, xid: Xid) -> bool {
        let is_secured = |call| call == SetupCall::Config { is_protected: true };
        self.setup_call.is_some_and(|(slot, call)| slot.xid() == xid && is_secured(call))
    }

    /// Its calls have more protection than a verifier.
    #[cfg(feature = "gss")]
    pub(super) fn protects_bodies(&self) -> bool {
        self.securing.as_ref().is_some_and(|securing| securing.protects_bodies())
    }

    /// The call that destroys its context, or its previous context, has this XID.
    #[cfg(feature = "gss")]
    pub(super) fn destroys_context(&self, xid: Xid) -> bool {
        let last_words = self.securing.as_ref().and_then(|securing| securing.last_words());
        last_words == Some(xid) || self.link.destroying.get() == Some(xid)
    }

    fn instance(&self) -> Instance {
        self.reconnect_state.as_ref().map_or(Instance::Passing, |state| state.instance)
    }

    /// Tells the handler that the connection is gone for good.
    pub(super) fn end(&mut self, connection: ConnectionId, cause: &DownCause) {
        self.is_gone = true;
        let (cause, in_flight) = (cause.clone(), self.failed_calls);
        self.handler.on_event(&ConnectionEvent::Down { connection, cause, in_flight });
    }

    /// Cause of the loss of its connection, given the driver's cause.
    pub(super) fn cause_of(&mut self, cause: &DownCause) -> DownCause {
        match self.other_versions.take() {
            Some((low, high)) => DownCause::NoCommonVersion { low, high },
            None => cause.clone(),
        }
    }

    /// True if the client has been up, and would reconnect after a loss.
    pub(super) fn wants_another(&self) -> bool {
        let link = &self.link;
        let comes_back = self.reconnect_state.is_some() && link.was_up.get();
        comes_back && !link.is_closed.get() && link.state.get() != LinkState::Down
    }

    /// Marks the connection as up; calls are accepted from now on.
    pub(super) fn go_up(&mut self, conn: ConnId) {
        self.link.go_up(conn);
        self.failed_calls = 0;
        if let Some(state) = &mut self.reconnect_state {
            state.succeed();
        }
        let Some((peer, negotiated)) = self.up.take() else { return };
        let connection = ConnectionId(conn);
        self.handler.on_event(&ConnectionEvent::Up { connection, peer, negotiated });
    }

    /// The first call of the first connection failed, or its security context. If another attempt may end otherwise, it
    /// follows when the connection has gone.
    pub(super) fn fail_first(&mut self, error: ConnectError) {
        self.membership.iter().for_each(Membership::note_failure);
        if !self.is_passing(&error) {
            return self.fail(error);
        }
        self.link.state.set(LinkState::Connecting);
        self.passing = Some(error);
    }

    /// The first connection is tried again after this error. A security context counts: the server, or its key distribution
    /// center, may not be ready. While the client has another connection any error does: it is that of one address.
    pub(super) fn is_passing(&self, error: &ConnectError) -> bool {
        let is_passing = match error {
            ConnectError::FirstCall(failure) => failure.is_retryable(),
            ConnectError::Security(_) => true,
            _ => self.membership.as_ref().is_some_and(Membership::is_group_up),
        };
        is_passing && self.retries_first() && !self.link.is_closed.get()
    }

    /// The first connection has failed, and is tried again: as the policy says, or while its client has others.
    pub(super) fn retries_first(&self) -> bool {
        let goes_on = self.membership.as_ref().is_some_and(Membership::retries_after_failure);
        self.reconnect_state.as_ref().is_some_and(|state| state.policy.retries_first || goes_on)
    }

    pub(super) fn fail(&mut self, error: ConnectError) {
        if self.is_gone {
            return;
        }
        self.link.state.set(LinkState::Down);
        event!(INFO, address = %self.address, %error, "a connection cannot be made");
        *self.link.failure.borrow_mut() = Some(error.clone());
        if let Some(membership) = &self.membership {
            membership.fail();
        }
        self.handler.on_event(&ConnectionEvent::ConnectFailed { error });
    }
}
