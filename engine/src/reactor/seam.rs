//! Where the driver's type ends: a core's operations as the api calls them.

use super::core::CoreCell;
use super::deferred::DeferTicket;
use super::instance::Instance;
use super::negotiate::Negotiated;
use super::ops::{
    Backpressure, CallSpec, CallTarget, CoreOps, Encode, ReplyOps, ReplyTarget, RpcRefusal, Settled,
};
use super::options::OptionMessage;
use super::panics::PanicPlace;
use super::replies::SYSTEM_ERR;
use super::reply_plan::ReplyData;
use super::reverse::NoReverse;
use crate::fabric::{ConnId, DownCause, Fabric};
use crate::mem::{Bulk, BulkPool, ExposedBulk};
use spinrpc_proto::config_proto::{ConfigReply, ConfigRequest};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::output::SlotId;
use spinrpc_proto::version::Negotiation;
use std::any::Any;
use std::time::Duration;

impl<F: Fabric> CoreOps for CoreCell<F> {
    fn call(
        &self,
        conn: ConnId,
        target: &CallTarget<'_>,
        spec: &mut CallSpec,
        encode: Encode<'_>,
    ) -> Result<(), Backpressure> {
        self.start_call(conn, target, spec, encode)
    }

    fn call_option(
        &self,
        conn: ConnId,
        token: u64,
        option: &OptionMessage<'_>,
    ) -> Result<(), Backpressure> {
        self.reactor().call_option(conn, token, option)
    }

    fn reply_option(
        &self,
        to: &ReplyTarget<'_>,
        option: &OptionMessage<'_>,
    ) -> Result<(), Backpressure> {
        self.reactor().reply_option(to, option)
    }

    fn defer_option(&self) {
        self.reactor().options_deferred += 1;
    }

    fn finish_option(
        &self,
        conn: ConnId,
        slot: SlotId,
        xid: Xid,
        answer: Option<&OptionMessage<'_>>,
    ) -> Result<(), Backpressure> {
        self.reactor().finish_option(conn, slot, xid, answer)
    }

    fn refuse_option(&self, to: &ReplyTarget<'_>) {
        self.reactor().refuse_option(to);
    }

    fn take_panic(&self, place: PanicPlace, payload: Box<dyn Any + Send>) {
        self.take_panic(place, payload);
    }

    fn fail_call(&self, to: &ReplyTarget<'_>) {
        self.reactor().fail_call(to);
    }

    fn cancel(&self, conn: ConnId, token: u64) -> bool {
        self.cancel_call(conn, token)
    }

    fn conn_bulk(&self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        self.application_bulk(conn, bytes)
    }

    fn exposed_bulk(&self, conn: ConnId, bytes: usize) -> Option<ExposedBulk> {
        self.exposed_bulk(conn, bytes)
    }

    fn pool(&self) -> BulkPool {
        self.reactor().bulk.clone()
    }

    fn in_flight(&self, conn: ConnId) -> Option<usize> {
        let mut reactor = self.reactor();
        let reactor = &mut *reactor;
        let requester = match reactor.conns.find(conn) {
            Some(c) => &mut c.proto.requester,
            None => reactor.interrupted.calls_of(conn)?.0,
        };
        Some(requester.credits().in_flight() as usize + requester.held().count())
    }

    fn leave_call(&self, to: &ReplyTarget<'_>) {
        self.reactor().leave_call(to);
    }

    fn close(&self, conn: ConnId) {
        self.reactor().begin_close(conn, DownCause::Local);
    }

    fn connect(&self, address: &str, timeout: Duration, instance: Instance) -> u64 {
        (self.connect)(address, timeout, instance)
    }

    fn take_reverse_calls(&self, request: u64) {
        self.reactor().take_reverse_calls(request);
    }

    fn begin_reverse(&self, conn: ConnId, is_inline: bool) -> Result<(), NoReverse> {
        self.reactor().begin_reverse(conn, is_inline)
    }

    fn configure(&self, conn: ConnId, request: &ConfigRequest) -> ConfigReply {
        let mut reactor = self.reactor();
        if let Some(c) = reactor.conns.find(conn) {
            c.configure(request);
        }
        reactor.config.ccp_reply()
    }

    fn config_request(&self) -> ConfigRequest {
        self.reactor().config.ccp_request()
    }

    fn take_config(&self, conn: ConnId, reply: &ConfigReply) -> Option<Negotiated> {
        Some(self.reactor().conns.find(conn)?.take_config(reply))
    }

    fn negotiate(&self, conn: ConnId, negotiation: Negotiation) {
        self.reactor().negotiate(conn, negotiation);
    }

    fn settle(&self, conn: ConnId) -> Option<Settled> {
        self.reactor().settle(conn)
    }

    fn make_lasting(&self, conn: ConnId, resends_max: u8) {
        self.reactor().make_lasting(conn, resends_max);
    }

    fn retry_after(&self, lost: ConnId, after: Duration) {
        self.reactor().retry_after(lost, after);
    }

    fn reconnect(&self, lost: ConnId, address: &str, timeout: Duration, instance: Instance) -> u64 {
        let request = (self.connect)(address, timeout, instance);
        self.reactor().note_request(lost, request);
        request
    }

    fn resume(&self, conn: ConnId) -> bool {
        self.resend_held(conn)
    }

    fn give_up(&self, lost: ConnId, cause: DownCause) {
        self.reactor().give_up(lost, cause);
    }

    fn time(&self) -> Duration {
        let reactor = self.reactor();
        Duration::from_nanos(reactor.clock.to_ns(reactor.time().0))
    }
}

impl<F: Fabric> ReplyOps for CoreCell<F> {
    fn reply(&self, to: &ReplyTarget<'_>, encode: Encode<'_>) {
        if to.plain {
            self.send_plain_reply(to, encode);
        } else {
            self.send_reply(to, ReplyData::new(), encode);
        }
    }

    fn reply_with(&self, to: &ReplyTarget<'_>, data: ReplyData, encode: Encode<'_>) {
        self.send_reply(to, data, encode);
    }

    fn drop_call(&self, to: &ReplyTarget<'_>) {
        let mut reactor = self.reactor();
        reactor.stats.calls_dropped += 1;
        reactor.refuse(to, &SYSTEM_ERR);
    }

    fn reject(&self, to: &ReplyTarget<'_>, answer: &RpcRefusal) {
        self.reactor().refuse(to, answer);
    }

    fn defer(&self, to: &ReplyTarget<'_>) -> Option<DeferTicket> {
        self.reactor().defer_call(to)
    }

    fn count_replay(&self) {
        self.reactor().stats.replies_replayed += 1;
    }

    fn remaining(&self, to: &ReplyTarget<'_>) -> Option<Duration> {
        self.reactor().remaining(to)
    }
}
