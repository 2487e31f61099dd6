//! A connection on its way from the control plane to the core that adopts it.

use super::super::{Endpoint, Peer};
use super::wire::Agreed;
use crate::connector_common::{HostPlace, PrivateData, identity_of};
use crate::mem::RegionId;
use std::net::{SocketAddr, TcpStream};

/// Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: TcpStream,
    pub(super) agreed: Agreed,
    /// This side asked for the connection, and so sends first.
    pub(super) is_connecting: bool,
    /// Memory of the application that the connection may expose.
    pub(super) lent: Box<[RegionId]>,
    /// Of a connection that was accepted.
    #[expect(dead_code, reason = "held to be dropped")]
    pub(super) place: Option<HostPlace>,
}

impl Link {
    pub(super) fn into_endpoint(self, peer: SocketAddr, private_data: PrivateData) -> Endpoint {
        Endpoint {
            peer_private_data: private_data.into(),
            peer: Peer::Socket(peer),
            peer_identity: identity_of(peer),
            reads_max: self.agreed.ord,
            link: Box::new(self),
        }
    }
}
