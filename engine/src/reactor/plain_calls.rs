//! Starting calls that have nothing beside their stream, and whose reply fits inline anywhere: what
//! most calls are. Called by the client half of a core (`calls`), which starts all others.

use super::calls::{NO_CHUNKS, put_xid};
use super::core::{CoreCell, Reactor};
use super::ops::{Backpressure, CallSpec, CallTarget, Encode};
use crate::fabric::{ConnId, Fabric};
use crate::mem::Buf;
use spinrpc_proto::payload::StreamWriter;
use spinrpc_proto::version::TransportVersion;

/// A plain call whose stream is to be written.
struct PlainStage {
    message: Buf,
    /// Longest message, transport header included.
    threshold_bytes: usize,
    version: TransportVersion,
}

impl<F: Fabric> CoreCell<F> {
    /// The common case: no data items, and a reply that fits inline anywhere. `false` when the
    /// arguments do not; then nothing has happened.
    #[inline]
    pub(super) fn start_plain_call(
        &self,
        conn: ConnId,
        target: &CallTarget<'_>,
        spec: &CallSpec,
        encode: Encode<'_>,
    ) -> Result<bool, Backpressure> {
        let stage = self.reactor().stage_plain_call(conn)?;
        match stage.version {
            // In place, where all lengths are constant.
            version @ TransportVersion::One => {
                self.finish_plain_call(conn, target, spec, encode, PlainStage { version, ..stage })
            }
            TransportVersion::Two => {
                self.finish_plain_call_in_two(conn, target, spec, encode, stage)
            }
        }
    }

    #[inline(never)]
    fn finish_plain_call_in_two(
        &self,
        conn: ConnId,
        target: &CallTarget<'_>,
        spec: &CallSpec,
        encode: Encode<'_>,
        stage: PlainStage,
    ) -> Result<bool, Backpressure> {
        let version = TransportVersion::Two;
        self.finish_plain_call(conn, target, spec, encode, PlainStage { version, ..stage })
    }

    #[inline(always)]
    fn finish_plain_call(
        &self,
        conn: ConnId,
        target: &CallTarget<'_>,
        spec: &CallSpec,
        encode: Encode<'_>,
        stage: PlainStage,
    ) -> Result<bool, Backpressure> {
        let PlainStage { mut message, threshold_bytes, version } = stage;
        let header_bytes = version.plain_header_bytes();
        let stream = &mut message.whole_mut()[header_bytes..threshold_bytes];
        let mut writer = StreamWriter::new(stream, &[]);
        target.header.write(target.procedure, &mut writer);
        encode(&mut writer);
        let Some(stream_bytes) = writer.plain_bytes() else { return Ok(false) };
        if version == TransportVersion::One {
            self.note_call(conn, header_bytes + stream_bytes);
        }
        let message = (message, header_bytes);
        self.reactor().send_plain_call(conn, message, stream_bytes, target, spec)?;
        Ok(true)
    }
}

impl<F: Fabric> Reactor<F> {
    #[inline]
    fn stage_plain_call(&mut self, conn: ConnId) -> Result<PlainStage, Backpressure> {
        self.take_send_buffer(conn).map(|(message, c)| {
            let version = c.proto.requester.negotiation().version();
            let threshold_bytes = c.negotiated.plain_bytes_max(version);
            PlainStage { message, threshold_bytes, version }
        })
    }

    #[inline(always)]
    fn send_plain_call(
        &mut self,
        conn: ConnId,
        (mut message, header_bytes): (Buf, usize),
        stream_bytes: usize,
        target: &CallTarget<'_>,
        spec: &CallSpec,
    ) -> Result<(), Backpressure> {
        let deadline = self.deadline(spec);
        let Some(c) = self.conns.find(conn) else { return Err(Backpressure::Down) };
        let (header, stream) = message.whole_mut().split_at_mut(header_bytes);
        let (started, _) = c
            .proto
            .requester
            .start_call(target.token, deadline, &NO_CHUNKS, header)
            .map_err(|refused| self.stats.refuse(refused))?;
        put_xid(stream, started.xid);
        message.set_range(0..header_bytes + stream_bytes);
        self.next_deadline = self.next_deadline.min(deadline);
        self.post_call(conn, message);
        Ok(())
    }
}
