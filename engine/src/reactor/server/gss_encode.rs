//! Long results under RPCSEC_GSS whose bodies are protected: encoded in the memory that they are sealed in and sent from, so
//! that a turn in which a handler writes a mebibyte does not copy it as well.

use crate::mem::Bulk;
use crate::reactor::in_flight::reply_cache::Ticket;
use crate::reactor::state::core::CoreCell;
use crate::reactor::types::calls::ReplyTarget;
use crate::reactor::types::draft::{Draft, EncodeOnce};
use crate::reactor::types::encode_buffer::{MessageMemory, Written};
use crate::reactor::types::protection::{Protection, take};
use crate::reactor::types::reply_plan::ReplyData;
use spinrpc_proto::rdma::v1::HeaderView;

impl CoreCell {
    /// Memory as long as the Reply chunk of a call, if its results may be long. `None` where the results are copied: they
    /// have items, or are kept, or there is no such memory.
    pub(in crate::reactor) fn place_for_sealed(
        &self,
        to: &ReplyTarget<'_>,
        data: &ReplyData,
        keep: Option<&Ticket>,
    ) -> Option<(Protection, Bulk)> {
        if to.plain || data.count() > 0 || keep.is_some() {
            return None;
        }
        let protection = self.protection_of(to).filter(|own| own.service.protects_body())?;
        let mut reactor = self.reactor();
        let c = reactor.conn(to.conn)?;
        let view = HeaderView::new_checked(to.message, c.lane.proto().limits()).ok()?;
        let offered = usize::try_from(view.reply_chunk()?.total_length()).ok()?;
        let bytes = offered.min(reactor.arena().largest());
        let memory = if reactor.gss_work().is_long(bytes) {
            take(reactor.arena(), bytes)
        } else {
            return None;
        };
        Some((protection, memory.ok()?))
    }

    /// Answers a call with results that are encoded in this memory. Those that do not fit are written to `memory` instead.
    pub(in crate::reactor) fn encode_in_place(
        &self,
        to: &ReplyTarget<'_>,
        data: ReplyData,
        (protection, mut message): (Protection, Bulk),
        (memory, encode): (&mut MessageMemory, EncodeOnce<'_>),
    ) {
        let place = protection.content_place(message.len());
        let room = message.bytes_mut().get_mut(place).unwrap_or_default();
        match memory.encode_to(room, encode) {
            // A short reply must not hold memory as long as the peer likes until it is sent.
            Ok(Written::There(bytes)) if !self.reactor().gss_work().is_long(bytes) => {
                let place = protection.content_place(message.len());
                self.answer_with(to, data, &Draft::plain(&message.bytes()[place][..bytes]));
            }
            Ok(Written::There(bytes)) => {
                let sealed = protection.sealed_bytes(bytes);
                let in_steps = self.takes_steps(to.conn, &protection.context, sealed);
                let laid_out = protection.lay_out_around(message, bytes);
                self.seal_reply(to, &protection, (Ok(laid_out), in_steps), data);
            }
            Ok(Written::Here(draft)) => {
                drop(message);
                self.answer_with(to, data, &draft);
            }
            Err(why) => self.reactor().refuse_undrafted(to, &data, why),
        }
    }
}
