//! The program that the hosts call: it counts executions, so that each has another answer.

use super::record::{Shared, lock};
use spinrpc::{AcceptStatus, Call, ConnectionId, DecodeError, Encoder, Service};

pub(super) struct Counter {
    record: Shared,
}

pub(super) fn encode(stamp: u32, bytes: u32, results: &mut Encoder<'_>) {
    results.u32(stamp);
    results.opaque(&vec![stamp as u8; bytes as usize]);
}

impl Counter {
    pub(super) fn new(record: Shared) -> Self {
        Self { record }
    }

    fn read(call: &mut Call<'_>) -> Result<(u32, u32), DecodeError> {
        let mut args = call.args();
        let read = (args.u32()?, args.u32()?);
        args.finish()?;
        Ok(read)
    }
}

impl Service for Counter {
    fn call(&mut self, mut call: Call<'_>) {
        let Ok((token, after_ns)) = Self::read(&mut call) else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        let mut record = lock(&self.record);
        record.execute(token);
        if after_ns > 0 {
            match call.defer() {
                Some(deferred) => record.deferred.push((after_ns.into(), deferred, token)),
                None => record.refuse(token),
            }
            return;
        }
        let (stamp, bytes) = record.reply(token);
        drop(record);
        call.reply(|results| encode(stamp, bytes, results));
    }

    /// Asked about each call that arrives, before it gets a place or a reply.
    fn keeps_replies_for(&mut self, _: ConnectionId) -> bool {
        lock(&self.record).arrive();
        true
    }
}
