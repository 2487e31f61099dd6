//! Accepting: from a connection request to an endpoint in the hands of its core.

use super::super::super::{Acceptor, Endpoint, FabricError, LimitScope, Peer};
use super::super::cm::{CmEvent, CmId};
use super::super::connector::Environment;
use super::super::link::Side;
use super::super::reads::Reads;
use super::connection::{Connection, asking_peer};
use super::machine::{Failure, State, Step};
use super::{Control, ControlThread, ended};
use crate::connector_common::{Guarded, HostPlace, is_crowded};
use crate::sync::next_number;
use crate::sys::journal::event;
use rdma_sys::rdma_cm_event_type::{
    RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_DEVICE_REMOVAL, Type as RawKind,
};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Message to refused peers: see `failure`, which shows it to people.
const FULL: &[u8] = b"no room for more connections";
const BUSY: &[u8] = b"too many handshakes at once";
const HOST_FULL: &[u8] = b"no room for more connections of one host";
const STRANGER: &[u8] = b"not a client of this service";
const UNABLE: &[u8] = b"no resources for the connection";
const WRONG_DEVICE: &[u8] = b"not served on this device";

const RETRY: Duration = Duration::from_secs(1);

pub(super) struct Listener {
    op: String,
    address: SocketAddr,
    private_data: Box<[u8]>,
    acceptor: Guarded,
    /// `None` while the address's device is away.
    id: Option<CmId>,
    /// Time to look whether it is back.
    pub(super) retry_at: Option<Instant>,
}

/// Waits until the control thread accepts there, which it does until the result is dropped.
pub(in super::super) fn listen(
    control: &Arc<Control>,
    op: String,
    address: SocketAddr,
    private_data: Box<[u8]>,
    acceptor: Box<dyn Acceptor>,
) -> Result<Box<dyn Send>, FabricError> {
    let (number, named) = (next_number(), op.clone());
    let acceptor = Guarded::new(&op, acceptor);
    let (reply, wait) = mpsc::channel();
    control.mailbox.leave(move |thread| {
        let bound = thread.bind(number, address).map(|id| {
            let (id, retry_at) = (Some(id), None);
            let listener = Listener { op, address, private_data, acceptor, id, retry_at };
            thread.listeners.insert(number, listener);
        });
        let _ = reply.send(bound);
    });
    // The thread lives as long as its handle, which is here; that it panicked is the first error.
    let bound = wait.recv().map_err(|_| ended("listen"))?;
    bound.map_err(|error| cannot_listen(named, address, error))?;
    Ok(Box::new(control.guard(number, |thread, number| drop(thread.listeners.remove(&number)))))
}

impl ControlThread {
    fn bind(&self, number: u64, address: SocketAddr) -> io::Result<CmId> {
        let id = CmId::new(&self.channel, number)?;
        id.bind(address)?;
        id.listen()?;
        Ok(id)
    }

    /// The listener's device goes: so must its id, until the device is back. Or its address moves to another device, as
    /// with a bond of IP over InfiniBand: the id stays with the one where nothing arrives any more.
    pub(super) fn on_listener_event(&mut self, number: u64, kind: RawKind) {
        let Some(wait) = wait_to_listen_again(kind) else { return };
        let Some(listener) = self.listeners.get_mut(&number) else { return };
        listener.id = None;
        listener.retry_at = Some(Instant::now() + wait);
        let (op, address) = (&listener.op, listener.address);
        if wait.is_zero() {
            event!(WARN, %address, ?op, "the address of a listener has moved");
            return;
        }
        event!(ERROR, %address, ?op, "the device of a listener was removed; waiting for it");
        self.devices.note_listener_removal();
    }

    pub(super) fn listen_again(&mut self, now: Instant) {
        let due = |listener: &Listener| listener.retry_at.is_some_and(|at| at <= now);
        let waiting = self.listeners.iter().filter(|(_, listener)| due(listener));
        let waiting: Vec<_> =
            waiting.map(|(number, listener)| (*number, listener.address)).collect();
        for (number, address) in waiting {
            let id = self.bind(number, address).ok();
            if let Some(listener) = self.listeners.get_mut(&number) {
                listener.retry_at = id.is_none().then_some(now + RETRY);
                listener.id = id;
            }
        }
    }

    pub(super) fn on_request(&mut self, event: &mut CmEvent) {
        let Some(id) = event.request.take() else { return };
        // Taken off the table, as the acceptor is called with the rest of it.
        let Some(mut listener) = self.listeners.remove(&event.number) else { return };
        self.welcome(id, event, &mut listener);
        self.listeners.insert(event.number, listener);
    }

    fn welcome(&mut self, mut id: CmId, event: &mut CmEvent, listener: &mut Listener) {
        let environment = Arc::clone(&self.environment);
        let peer = Peer::Socket(asking_peer(&id));
        if !listener.acceptor.admits(&peer) {
            return id.reject(STRANGER);
        }
        let place = match self.place_of(LimitScope::of(asking_peer(&id).ip())) {
            Ok(place) => place,
            Err(reason) => return id.reject(reason),
        };
        let Some(index) = listener.acceptor.pick_core(&[]) else { return id.reject(FULL) };
        let Ok(core) = environment.core(index) else { return id.reject(UNABLE) };
        let number = next_number();
        id.set_number(number);
        let deadline = Instant::now() + environment.config.handshake_timeout;
        let private_data = listener.private_data.clone();
        let state = (State::AwaitingReceives, Side::Accepting);
        let peer = asking_peer(&id);
        let mut connection = Connection::new(number, id, state, peer, core, private_data, deadline);
        connection.place = Some(place);
        connection.take_answer(event);
        let prepared = self.prepare_answer(&environment, &mut connection, event.peer_reads);
        let endpoint = match prepared {
            Ok(endpoint) => endpoint,
            Err(failure) => return self.refuse(connection, failure),
        };
        self.connections.insert(number, connection);
        listener.acceptor.accepted(index, endpoint);
    }

    fn place_of(&self, host: LimitScope) -> Result<HostPlace, &'static [u8]> {
        let config = &self.environment.config;
        let place = self.hosts.take(host, config.host_conns_max).ok_or(HOST_FULL)?;
        let handshakes = self.connections.values().filter(|one| one.is_handshake());
        let mut hosts = handshakes.filter_map(|one| one.place.as_deref().copied());
        if is_crowded(&mut hosts, host, config.handshakes_max) { Err(BUSY) } else { Ok(place) }
    }

    fn prepare_answer(
        &mut self,
        environment: &Environment,
        connection: &mut Connection,
        peer: Reads,
    ) -> Result<Endpoint, Failure> {
        let caps = self.attach(connection)?;
        // Over iWARP the address is that of a TCP connection. Over InfiniBand it is a claim.
        if !caps.is_iwarp && connection.id.is_ethernet() {
            let (claimed, path) = (connection.peer, connection.id.path_to_peer());
            if !is_of_path(claimed, path) {
                let reason = format!("the peer claims to be {}, and is at {path:?}", claimed.ip());
                return Err(Failure::Own { reason, errno: None });
            }
        }
        connection.reads = Reads::offered(&environment.config, &caps).accepted(peer);
        self.make_parts(connection)?;
        let endpoint = connection.endpoint(self.control.upgrade());
        endpoint.ok_or_else(|| Failure::of(Step::Connect, 0))
    }

    fn refuse(&mut self, connection: Connection, failure: Failure) {
        let peer = connection.peer;
        let error = failure.into_error("accept", peer);
        event!(WARN, %peer, %error, "a connection request is refused");
        let wrong_device = connection.device.is_none();
        connection.id.reject(if wrong_device { WRONG_DEVICE } else { UNABLE });
        // Refused already: nothing more is said.
        self.free(connection, State::Over);
    }
}

fn wait_to_listen_again(kind: RawKind) -> Option<Duration> {
    match kind {
        RDMA_CM_EVENT_DEVICE_REMOVAL => Some(RETRY),
        RDMA_CM_EVENT_ADDR_CHANGE => Some(Duration::ZERO),
        _ => None,
    }
}

/// Whether the address that the peer claims in its request is that of the path to it, which the answer takes.
fn is_of_path(claimed: SocketAddr, path: Option<Ipv6Addr>) -> bool {
    let claimed = match claimed.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    path == Some(claimed)
}

fn cannot_listen(op: String, address: SocketAddr, error: io::Error) -> FabricError {
    let ip = address.ip();
    let reason = match error.raw_os_error() {
        Some(libc::EADDRINUSE) => "another server listens there already".into(),
        Some(libc::EADDRNOTAVAIL | libc::ENODEV | libc::ENOENT) => format!(
            "{ip} belongs to no RDMA device of this host; use the address of a network interface \
             that has one (rdma link), or 0.0.0.0 for all of them"
        ),
        Some(libc::EACCES) => "ports below 1024 are for root".into(),
        _ => format!("the address cannot be bound: {error}"),
    };
    FabricError { op, reason, source: Some(error) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rdma_sys::rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED;

    #[test]
    fn a_listener_whose_address_moves_binds_it_again_at_once() {
        assert_eq!(wait_to_listen_again(RDMA_CM_EVENT_ADDR_CHANGE), Some(Duration::ZERO));
        assert_eq!(wait_to_listen_again(RDMA_CM_EVENT_DEVICE_REMOVAL), Some(RETRY));
        assert_eq!(wait_to_listen_again(RDMA_CM_EVENT_ESTABLISHED), None);
    }

    /// Claim addresses over RoCE. Expect the one that answers go to, and no other.
    #[test]
    fn a_peer_cannot_claim_an_address_that_it_is_not_at() {
        let is_of =
            |claimed: &str, path: &str| is_of_path(claimed.parse().unwrap(), path.parse().ok());
        assert!(is_of("10.9.0.1:7", "::ffff:10.9.0.1"));
        assert!(is_of("[fe80::1]:7", "fe80::1"));
        assert!(!is_of("10.9.0.1:7", "::ffff:10.9.0.2"));
        assert!(!is_of("[2001:db8::1]:7", "fe80::1"));
        assert!(!is_of("10.9.0.1:7", "no path"));
        assert!(!is_of("0.0.0.0:0", "::"));
    }
}
