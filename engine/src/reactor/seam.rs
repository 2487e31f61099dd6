//! Where the driver's type ends: a core's operations as the api calls them.

use super::core::CoreCell;
use super::negotiate::Negotiated;
use super::ops::{
    Backpressure, CallSpec, CallTarget, CoreOps, DeferTicket, Encode, ReplyTarget, RpcRefusal,
};
use super::replies::SYSTEM_ERR;
use super::reply_plan::ReplyData;
use crate::fabric::{ConnId, DownCause, Fabric};
use crate::mem::{Bulk, BulkPool};
use spinrpc_proto::config_proto::{ConfigReply, ConfigRequest};
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

    fn cancel(&self, conn: ConnId, token: u64) -> bool {
        self.cancel_call(conn, token)
    }

    fn conn_bulk(&self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        self.application_bulk(conn, bytes)
    }

    fn pool(&self) -> BulkPool {
        self.reactor().bulk.clone()
    }

    fn in_flight(&self, conn: ConnId) -> Option<usize> {
        let mut reactor = self.reactor();
        let conn = reactor.conns.find(conn)?;
        Some(conn.proto.requester.credits().in_flight() as usize)
    }

    fn close(&self, conn: ConnId) {
        self.reactor().begin_close(conn, DownCause::Local);
    }

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

    fn connect(&self, address: &str, timeout: Duration) -> u64 {
        (self.connect)(address, timeout)
    }
}
