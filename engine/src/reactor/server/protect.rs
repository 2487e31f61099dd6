//! Replies under RPCSEC_GSS: what the slot of a call says of its protection is looked at here, whoever answers,
//! so that no reply leaves without. Called where replies are sent.

use crate::fabric::{ConnId, Peer};
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::words::calls::ReplyTarget;
use crate::reactor::words::draft::Draft;
use crate::reactor::words::messages::SYSTEM_ERR;
use crate::reactor::words::protection::{Protection, host_number};
use crate::reactor::words::reply_plan::ReplyData;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::rpc::AcceptStatus;
use spinrpc_proto::version::TransportVersion;
use std::hash::{DefaultHasher, Hash, Hasher};

impl CoreCell {
    /// The call in this slot is verified: every answer to it is protected from now on.
    pub(crate) fn protect(&self, to: &ReplyTarget<'_>, protection: Protection) {
        if let Some(c) = self.reactor().conns.find(to.conn) {
            c.serves[usize::from(to.slot.index)].protection = Some(protection);
        }
    }

    pub(in crate::reactor) fn protection_of(&self, to: &ReplyTarget<'_>) -> Option<Protection> {
        let mut reactor = self.reactor();
        reactor.conns.find(to.conn)?.serves[usize::from(to.slot.index)].protection.clone()
    }

    /// Answers a call with these results, under what it came under.
    pub(in crate::reactor) fn send_protected(
        &self,
        to: &ReplyTarget<'_>,
        protection: &Protection,
        data: ReplyData,
        draft: &Draft<'_>,
    ) {
        let pool = self.reactor().bulk.clone();
        let sent = protection.protect(&pool, data, draft, |data, draft| {
            self.send_reply(to, data, draft);
        });
        if let Err(why) = sent {
            tracing::debug!(%why, "a reply cannot be protected");
            let mut reactor = self.reactor();
            reactor.stats.no_buffer += 1;
            reactor.refuse(to, &SYSTEM_ERR);
        }
    }

    /// A number for the host at the other end, by which the contexts of one are counted.
    pub(crate) fn host_of(&self, conn: ConnId) -> u64 {
        let mut reactor = self.reactor();
        let peer = reactor.conns.find(conn).and_then(|c| c.peer);
        let mut hasher = DefaultHasher::new();
        match peer {
            Some(Peer::Socket(address)) => return host_number(address.ip()),
            Some(Peer::Process { uid, .. }) => uid.hash(&mut hasher),
            _ => {}
        }
        hasher.finish()
    }
}

impl Reactor {
    /// Answers a verified call with an RPC error: "the verifier of an accepted reply" (RFC 2203 section 5.3.3.2)
    /// is there in errors, too.
    pub(in crate::reactor) fn send_protected_refusal(
        &mut self,
        conn: ConnId,
        xid: Xid,
        version: TransportVersion,
        (protection, status): (&Protection, AcceptStatus),
    ) {
        let mic = protection.sign();
        let header = protection.header(xid, status, &mic);
        self.send_rpc_header(conn, xid, version, &header);
    }
}
