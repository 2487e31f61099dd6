//! Replies under RPCSEC_GSS: what the slot of a call says of its protection is looked at here, whoever answers,
//! so that no reply leaves without. Called where replies are sent.

use crate::fabric::{ConnId, Peer};
use crate::mem::{Buf, Bulk};
use crate::reactor::pending::gss_work::{Finished, ReplySealing, Work};
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::words::calls::{CallOutcome, ReplyTarget};
use crate::reactor::words::draft::Draft;
use crate::reactor::words::messages::SYSTEM_ERR;
use crate::reactor::words::protection::{Protection, Unprotected, host_number};
use crate::reactor::words::reply_plan::ReplyData;
use spinrpc_gss::BodySealing;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::output::SlotId;
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
        let sent = if self.is_sealed_in_steps(to, protection, &data, draft) {
            protection.begin_sealing(&pool, &data, draft).map(|begun| {
                self.reactor().seal_in_steps(to, protection, data.without_items(), begun);
            })
        } else {
            protection.protect(&pool, data, draft, |data, draft| self.send_reply(to, data, draft))
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
        protection: &Protection,
        data: &ReplyData,
        draft: &Draft<'_>,
    ) -> bool {
        let bytes = draft.stream().len() + data.item_bytes().map(<[u8]>::len).sum::<usize>();
        !to.plain && protection.service.protects_body() && self.reactor().gss_work.is_long(bytes)
    }

    /// A body of which each turn does a part.
    pub(crate) fn push_work(&self, work: Work) {
        self.reactor().gss_work.push(work);
    }

    /// A body of so many bytes takes more than one turn.
    pub(crate) fn is_long_body(&self, bytes: usize) -> bool {
        self.reactor().gss_work.is_long(bytes)
    }

    /// The same of a reply, of which a bounded number may wait.
    pub(crate) fn is_long_reply(&self, bytes: usize) -> bool {
        let reactor = self.reactor();
        reactor.gss_work.is_long(bytes) && reactor.gss_work.takes_reply()
    }

    /// Bodies are not finished.
    pub(crate) fn has_work(&self) -> bool {
        !self.reactor().gss_work.is_empty()
    }

    /// Does a part of one body; gives the body if it was the last. The answers to calls are sent.
    pub(crate) fn step_work(&self) -> Option<Finished> {
        let finished = self.reactor().gss_work.step();
        if let Some(Finished::Seal(sealed, end)) = finished {
            self.send_sealed(&sealed, end);
            return None;
        }
        finished
    }

    /// What is left to do of the first reply of a connection, at once.
    pub(crate) fn finish_work(&self, conn: ConnId) -> Option<Finished> {
        self.reactor().gss_work.finish_reply(conn)
    }

    fn send_sealed(&self, sealed: &ReplySealing, end: Result<(), Unprotected>) {
        let &ReplySealing { conn, slot, ref protection, ref body, ref data, .. } = sealed;
        let message = self.reactor().take_deferred(conn, slot);
        let Some(message) = message else { return };
        let to = ReplyTarget { conn, slot, message: message.bytes(), plain: false };
        match end {
            Ok(()) => protection.behind_header(body.bytes(), |draft| {
                self.send_reply(&to, data.without_items(), draft);
            }),
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
        (body, sealing): (Bulk, BodySealing),
    ) {
        let (conn, slot, protection) = (to.conn, to.slot, protection.clone());
        let Some(c) = self.conns.find(conn) else { return };
        c.serves[usize::from(slot.index)].is_sealing = true;
        let sealed = ReplySealing { conn, slot, protection, body, sealing, data };
        self.gss_work.push(Work::Seal(sealed));
    }

    /// The same of a deferred call that was answered on this core.
    pub(in crate::reactor) fn seal_deferred(
        &mut self,
        (conn, slot, message): (ConnId, SlotId, Buf),
        (mut body, content_bytes): (Bulk, usize),
        data: ReplyData,
    ) {
        let hold = self.conns.find(conn).map(|c| &c.serves[usize::from(slot.index)]);
        let protection = hold.and_then(|hold| hold.protection.clone());
        let begun = protection.and_then(|protection| {
            let sealing = protection.begin_body(&mut body, content_bytes).ok()?;
            Some((protection, sealing))
        });
        let Some((protection, sealing)) = begun else {
            let to = ReplyTarget { conn, slot, message: message.bytes(), plain: false };
            self.refuse(&to, &SYSTEM_ERR);
            return self.repost(conn, message);
        };
        self.finish_plain_call(conn, slot, message, CallOutcome::Deferred);
        let sealed = ReplySealing { conn, slot, protection, body, sealing, data };
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
