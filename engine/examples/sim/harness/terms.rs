//! Terms that two ends have agreed on by the Connection Configuration Protocol (RFC 5666 section
//! 6), read from the wire: from then on both keep to them.

use super::words::{DONE, ERROR, word};
use spinrpc_proto::config_proto::{CONFIGURE, ConfigReply, ConfigRequest, PROGRAM, VERSION};
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::rpc::{AcceptStatus, CallHeader, ReplyBody, ReplyHeader};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// RDMA Reads that may be active at its peer.
    reads: u32,
    /// RDMA Reads that may be active at itself: with none it offers nothing to be read.
    own_reads: u32,
    message_bytes: usize,
}

#[derive(Default)]
pub(crate) struct Terms {
    asked: Option<(u32, ConfigRequest)>,
    /// The connecting end, and the other one.
    bounds: [Option<Bound>; 2],
}

impl Terms {
    /// A call leaves: the request of the protocol, perhaps.
    pub(crate) fn on_call(&mut self, view: &HeaderView<'_>, message: &[u8]) {
        let Ok((header, at)) = CallHeader::parse(view.payload()) else { return };
        let called = (header.program, header.version, header.procedure);
        if called == (PROGRAM, VERSION, CONFIGURE) {
            let request = ConfigRequest::parse(&view.payload()[at..]).ok();
            self.asked = request.map(|request| (word(message, 0), request));
        }
    }

    /// The reply of the protocol leaves the server (`end` 1) or is taken by the client (`end` 0): it
    /// binds that end from now on. True if it is that reply.
    pub(crate) fn on_reply(
        &mut self,
        end: usize,
        message: &[u8],
        view: Option<&HeaderView<'_>>,
    ) -> bool {
        let Some((xid, request)) = self.asked else { return false };
        let reply = view.filter(|_| word(message, 0) == xid && word(message, 3) != ERROR);
        let Some(reply) = reply.and_then(config_reply) else { return false };
        // The other end's words: how many of its reads, and how long a message, it takes.
        let (theirs, own, bytes) = match end {
            0 => (reply.reads, request.reads, reply.call_bytes),
            _ => (request.reads, reply.reads, request.reply_bytes),
        };
        let message_bytes = bytes as usize;
        self.bounds[end] = Some(Bound { reads: theirs, own_reads: own, message_bytes });
        true
    }

    pub(crate) fn on_reading(&self, end: usize, outstanding: usize) -> Option<String> {
        let reads = self.bounds[end]?.reads as usize;
        (outstanding > reads)
            .then(|| format!("{outstanding} RDMA Reads are outstanding of {reads} agreed"))
    }

    pub(crate) fn on_sent(
        &self,
        end: usize,
        message: &[u8],
        view: &HeaderView<'_>,
    ) -> Option<String> {
        let bound = self.bounds[end]?;
        if message.len() > bound.message_bytes {
            let (sent, agreed) = (message.len(), bound.message_bytes);
            return Some(format!("sent {sent} bytes, where {agreed} are agreed"));
        }
        let has_reads = view.reads().next().is_some() && word(message, 3) != DONE;
        (has_reads && (bound.reads == 0 || bound.own_reads == 0))
            .then(|| "sent a Read chunk, where no RDMA Read may be active".to_owned())
    }
}

fn config_reply(view: &HeaderView<'_>) -> Option<ConfigReply> {
    let (header, at) = ReplyHeader::parse(view.payload()).ok()?;
    let ReplyBody::Accepted { status: AcceptStatus::Success, .. } = header.body else {
        return None;
    };
    ConfigReply::parse(&view.payload()[at..]).ok()
}
