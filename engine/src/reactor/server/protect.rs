//! Replies under RPCSEC_GSS: what the slot of a call says of its protection is looked at here, whoever answers,
//! so that no reply leaves without. Called where replies are sent.

use crate::fabric::{ConnId, Peer};
use crate::mem::{Buf, Bulk};
use crate::reactor::pending::gss_work::{Finished, ReplySealing, Work};
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::words::calls::{CallOutcome, ReplyTarget};
use crate::reactor::words::draft::Draft;
use crate::reactor::words::messages::SYSTEM_ERR;
use crate::reactor::words::protection::{
    LaidOut, Protection, Unprotected, finish_sealing, host_number,
};
use crate::reactor::words::reply_plan::ReplyData;
use spinrpc_gss::BodySealing;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::output::SlotId;
use spinrpc_proto::payload::Encoded;
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
        if !protection.service.protects_body() {
            return protection.behind_header(draft, |draft| self.send_reply(to, data, draft));
        }
        let pool = self.reactor().bulk.clone();
        let sent = if self.is_sealed_in_steps(to, &data, draft) {
            let begun = protection.lay_out(&pool, &data, draft).and_then(|mut reply| {
                let sealing = protection.begin_sealing(&mut reply)?;
                Ok((reply, sealing))
            });
            begun.map(|begun| {
                self.reactor().seal_in_steps(to, protection, data.without_items(), begun);
            })
        } else {
            protection.seal(&pool, &data, draft).map(|sealed| {
                self.reactor().post_sealed(to, sealed, data.without_items());
            })
        };
        if let Err(why) = sent {
            tracing::debug!(%why, "a reply cannot be protected");
            let mut reactor = self.reactor();
            reactor.stats.no_buffer += 1;
            reactor.refuse(to, &SYSTEM_ERR);
        }
    }

    /// Results too long to be sealed in one turn. A call without chunks has none: its reply is inline.
    fn is_sealed_in_steps(
        &self,
        to: &ReplyTarget<'_>,
        data: &ReplyData,
        draft: &Draft<'_>,
    ) -> bool {
        let bytes = draft.stream().len() + data.item_bytes().map(<[u8]>::len).sum::<usize>();
        !to.plain && self.takes_steps(to.conn, bytes)
    }

    /// A body of which each turn does a part.
    pub(crate) fn push_work(&self, work: Work) {
        self.reactor().gss_work.push(work);
    }

    /// A body of so many bytes takes more than one turn, and the connection has not as many as it may have.
    pub(crate) fn takes_steps(&self, conn: ConnId, bytes: usize) -> bool {
        let reactor = self.reactor();
        reactor.gss_work.is_long(bytes) && reactor.gss_work.has_room(conn)
    }

    /// Bodies are not finished.
    pub(crate) fn has_bodies(&self) -> bool {
        !self.reactor().gss_work.is_empty()
    }

    /// Each turn has something to do, or to look at: calls that were denied end by their time.
    pub(crate) fn has_work(&self) -> bool {
        let reactor = self.reactor();
        reactor.gss_work.denied || !reactor.gss_work.is_empty()
    }

    /// Does a part of one body; gives the body if it was the last. The answers to calls are sent.
    pub(crate) fn step_work(&self) -> Option<Finished> {
        let finished = self.reactor().gss_work.step();
        if let Some(Finished::Seal(sealed, end)) = finished {
            self.send_sealed(sealed, end);
            return None;
        }
        finished
    }

    /// What is left to do of the first reply of a connection, at once.
    pub(crate) fn finish_work(&self, conn: ConnId) -> Option<Finished> {
        self.reactor().gss_work.finish_reply(conn)
    }

    /// Replies of a connection that its handler has asked to be closed leave before that.
    #[cold]
    pub(in crate::reactor) fn finish_seals(&self, conn: ConnId) {
        loop {
            let finished = self.reactor().gss_work.finish_seal(conn);
            let Some(Finished::Seal(sealed, end)) = finished else { return };
            self.send_sealed(sealed, end);
        }
    }

    fn send_sealed(&self, sealed: ReplySealing, end: Result<(), Unprotected>) {
        let ReplySealing { conn, slot, reply, data, .. } = sealed;
        let message = self.reactor().take_deferred(conn, slot);
        let Some(message) = message else { return };
        let to = ReplyTarget { conn, slot, message: message.bytes(), plain: false };
        match end {
            Ok(()) => self.reactor().post_sealed(&to, reply.message, data),
            Err(_) => self.reactor().refuse(&to, &SYSTEM_ERR),
        }
        self.reactor().repost(conn, message);
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
    /// The answer to this call is sent when its body is sealed.
    fn seal_in_steps(
        &mut self,
        to: &ReplyTarget<'_>,
        protection: &Protection,
        data: ReplyData,
        (reply, sealing): (LaidOut, BodySealing),
    ) {
        let (conn, slot, protection) = (to.conn, to.slot, protection.clone());
        let Some(c) = self.conns.find(conn) else { return };
        c.serves[usize::from(slot.index)].is_sealing = true;
        let sealed = ReplySealing { conn, slot, protection, reply, sealing, data };
        self.gss_work.push(Work::Seal(sealed));
    }

    /// Sends a reply from where it was sealed.
    fn post_sealed(&mut self, to: &ReplyTarget<'_>, reply: Bulk, data: ReplyData) {
        let encoded = Encoded::plain(reply.len());
        self.post_deferred(to, reply, encoded, data);
    }

    /// The same of a deferred call that was answered on this core.
    pub(in crate::reactor) fn seal_deferred(
        &mut self,
        (conn, slot, message): (ConnId, SlotId, Buf),
        mut reply: LaidOut,
        data: ReplyData,
    ) {
        let hold = self.conns.find(conn).map(|c| &c.serves[usize::from(slot.index)]);
        let protection = hold.and_then(|hold| hold.protection.clone());
        let begun = protection.and_then(|protection| {
            let mut sealing = protection.begin_sealing(&mut reply).ok()?;
            let has_room = self.gss_work.has_room(conn);
            if !has_room {
                let body = &mut reply.message.bytes_mut()[reply.at..];
                finish_sealing(&protection.context, &mut sealing, body).ok()?;
            }
            Some((protection, sealing, has_room))
        });
        let Some((protection, sealing, true)) = begun else {
            let to = ReplyTarget { conn, slot, message: message.bytes(), plain: false };
            match begun {
                Some(_) => self.post_sealed(&to, reply.message, data),
                None => self.refuse(&to, &SYSTEM_ERR),
            }
            return self.repost(conn, message);
        };
        self.finish_plain_call(conn, slot, message, CallOutcome::Deferred);
        let sealed = ReplySealing { conn, slot, protection, reply, sealing, data };
        self.gss_work.push(Work::Seal(sealed));
    }

    /// The message of a call that is answered now, if it is still there.
    pub(in crate::reactor) fn take_deferred(&mut self, conn: ConnId, slot: SlotId) -> Option<Buf> {
        let message = self.conns.find(conn).and_then(|c| c.take_deferred(slot));
        self.stats.stale += u64::from(message.is_none());
        message
    }

    /// A call whose reply is being sealed is as one that is answered later.
    pub(in crate::reactor) fn outcome_of(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        outcome: CallOutcome,
    ) -> CallOutcome {
        let hold = self.conns.find(conn).map(|c| &mut c.serves[usize::from(slot.index)]);
        match hold.is_some_and(|hold| std::mem::take(&mut hold.is_sealing)) {
            true => CallOutcome::Deferred,
            false => outcome,
        }
    }

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
