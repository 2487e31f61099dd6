//! Messages of hostile servers.

use super::super::words::{DONE, ERROR, MSG, MSGP, NOMSG, word};
use super::{Hostile, chunk_words, read_words, rpc_call};
use spinrpc::fabric::{Access, Fabric, QpId, RemoteSlice};
use spinrpc_proto::limits::Limits;
use spinrpc_proto::rdma::v1::HeaderView;

/// Offer of a call: its Read segments, its Write chunks, its Reply chunk.
#[derive(Default)]
pub(super) struct Offers {
    pub(super) reads: Vec<RemoteSlice>,
    writes: Vec<Vec<RemoteSlice>>,
    reply: Vec<RemoteSlice>,
    /// It asks for nothing but an answer: a client will not start without one.
    is_null: bool,
}

impl Offers {
    pub(super) fn of(call: &[u8]) -> Self {
        let limits = Limits { payload_bytes_max: u32::MAX, ..Limits::DEFAULT };
        let Ok(view) = HeaderView::new_checked(call, &limits) else { return Self::default() };
        let slice = |s: spinrpc_proto::rdma::Segment| RemoteSlice {
            handle: s.handle,
            length: s.length,
            offset: s.offset,
        };
        Self {
            reads: view.reads().map(|read| slice(read.target)).collect(),
            writes: view.writes().map(|chunk| chunk.segments().map(slice).collect()).collect(),
            reply: view.reply_chunk().into_iter().flat_map(|c| c.segments()).map(slice).collect(),
            is_null: word(view.payload(), 5) == 0,
        }
    }

    fn any(&self) -> Option<RemoteSlice> {
        let writes = self.writes.iter().flatten();
        self.reads.iter().chain(writes).chain(&self.reply).next().copied()
    }
}

impl Hostile {
    pub(super) fn say_reply(&mut self, qp: QpId) {
        if self.kept.is_empty() {
            return self.say_unasked(qp);
        }
        let at = self.rng.below(self.kept.len() as u64) as usize;
        let call = self.kept.remove(at);
        let offers = Offers::of(&call);
        let xid = word(&call, 0);
        if offers.is_null && self.rng.chance(900) {
            return self.answer(qp, xid, &[0, 0, 0], &[], None);
        }
        match self.rng.below(15) {
            13 => self.say_to_fetch(qp, xid),
            14 => self.send(qp, &[xid, 1, 4, DONE, 0, 0, 0], None),
            0 => self.answer(qp, xid, &[0, 0, 0], &[], None),
            1 => {}
            2 => {
                let other = xid ^ 1 << self.rng.below(32);
                self.answer(qp, other, &[0, 0, 0], &[], None);
            }
            3 => (0..2).for_each(|_| self.answer(qp, xid, &[0, 0, 0], &[], None)),
            4 => self.say_error(qp, xid),
            5 => {
                self.answer(qp, xid, &[&read_words(0, SOMEWHERE)[..], &[0; 3]].concat(), &[], None)
            }
            6..=8 => self.echo(qp, xid, &offers),
            9 => self.touch_offered(qp, &offers),
            10 => self.say_invalidating(qp, xid, &offers),
            11 => self.say_backwards(qp, xid),
            _ if self.rng.chance(200) => {
                self.fabric.close(qp);
                self.qp = None;
            }
            _ => self.kept.push(call),
        }
    }

    fn say_unasked(&mut self, qp: QpId) {
        let xid = self.rng.any() as u32;
        match self.rng.below(3) {
            0 => self.answer(qp, xid, &[0, 0, 0], &[], None),
            1 => self.say_backwards(qp, xid),
            _ => self.say_error(qp, xid),
        }
    }

    fn answer(
        &mut self,
        qp: QpId,
        xid: u32,
        lists: &[u32],
        results: &[u32],
        invalidate: Option<u32>,
    ) {
        let credits = self.rng.pick(&[0, 1, 4, 32, u32::MAX]);
        let body = [&[xid, 1, 0, 0, 0, 0][..], results].concat();
        let words = [&[xid, 1, credits, MSG][..], lists, &body].concat();
        self.send(qp, &words, invalidate);
    }

    fn say_error(&mut self, qp: QpId, xid: u32) {
        let tail: &[u32] = self.rng.pick(&[&[1, 1, 1][..], &[1, 5, 2], &[2], &[77], &[]]);
        let version = self.rng.pick(&[1, 1, 2]);
        self.send(qp, &[&[xid, version, 4, ERROR][..], tail].concat(), None);
    }

    /// The call's lists come back, with lengths that were placed or not.
    fn echo(&mut self, qp: QpId, xid: u32, offers: &Offers) {
        let mut lists = vec![0];
        // Some servers return what they have used, and nothing behind that.
        let returned = if xid % 8 == 1 { 1 } else { usize::MAX };
        for chunk in offers.writes.iter().take(returned) {
            let chunk = self.fill(qp, chunk);
            lists.extend(chunk_words(used(&chunk, xid)));
        }
        if self.rng.chance(100) {
            lists.extend(chunk_words(&[SOMEWHERE]));
        }
        lists.push(0);
        if offers.reply.is_empty() || self.rng.chance(300) {
            lists.push(0);
            return self.answer(qp, xid, &lists, &[0, 1, 2], None);
        }
        let reply = self.fill(qp, &offers.reply);
        lists.extend(chunk_words(used(&reply, xid)));
        let words = [&[xid, 1, 4, self.rng.pick(&[NOMSG, NOMSG, MSG])][..], &lists].concat();
        self.send(qp, &words, None);
    }

    /// A reply that the client has to fetch, or cannot.
    fn say_to_fetch(&mut self, qp: QpId, xid: u32) {
        let length = self.rng.pick(&[4, 24, 64, 2000]);
        let slice = self.expose(qp, length, Access::RemoteRead);
        let slice = self.twist(slice);
        let position = self.rng.pick(&[0, 0, 24, 28, 36, 4000]);
        let kind = if position == 0 { NOMSG } else { MSG };
        let body: &[u32] = if position == 0 { &[] } else { &[xid, 1, 0, 0, 0, 0, 0, 1, 0] };
        let reads = read_words(position, slice);
        self.send(qp, &[&[xid, 1, 4, kind][..], &reads, &[0; 3], body].concat(), None);
    }

    /// Places bytes in the segments of a chunk, or says so.
    fn fill(&mut self, qp: QpId, chunk: &[RemoteSlice]) -> Vec<RemoteSlice> {
        let mut filled = chunk.to_vec();
        for slice in &mut filled {
            if self.rng.chance(500) {
                let target = self.twist(*slice);
                self.touch(qp, target);
            }
            match self.rng.below(6) {
                0 => slice.length = 0,
                1 => slice.length += 1,
                2 => slice.length = u32::MAX,
                3 => *slice = self.twist(*slice),
                4 => slice.length /= 2,
                _ => {}
            }
        }
        if self.rng.chance(100) {
            filled.pop();
        }
        filled
    }

    fn touch_offered(&mut self, qp: QpId, offers: &Offers) {
        if let Some(slice) = offers.any() {
            let target = self.twist(slice);
            self.touch(qp, target);
        }
    }

    /// Invalidates a key of the call, or any other.
    fn say_invalidating(&mut self, qp: QpId, xid: u32, offers: &Offers) {
        let other = self.kept.first().and_then(|call| Offers::of(call).any());
        let own = offers.any();
        let key = if self.rng.chance(500) { own } else { other }.map(|slice| slice.handle);
        self.answer(qp, xid, &[0, 0, 0], &[], key);
    }

    /// Messages that only the other direction sends.
    fn say_backwards(&mut self, qp: QpId, xid: u32) {
        let kind = self.rng.pick(&[MSG, MSG, MSGP, DONE]);
        let words = [&[xid, 1, 4, kind, 0, 0, 0][..], &rpc_call(xid, 0)].concat();
        self.send(qp, &words, None);
    }
}

/// The segments that a server returns: all, or those up to the last one that is used.
fn used(chunk: &[RemoteSlice], xid: u32) -> &[RemoteSlice] {
    let last = chunk.iter().rposition(|slice| slice.length > 0).map_or(0, |last| last + 1);
    if xid.is_multiple_of(2) { &chunk[..last] } else { chunk }
}

const SOMEWHERE: RemoteSlice = RemoteSlice { handle: 7, length: 64, offset: 0 };
