//! Messages of hostile clients.

use super::super::words::{DONE, ERROR, MSG, MSGP, NOMSG, word};
use super::server::Offers;
use super::{Hostile, chunk_words, pages, read_words, rpc_call};
use spinrpc::fabric::{Access, Fabric, QpId, RemoteSlice};

/// Calls that go out at once when the grant is ignored.
const FLOOD: usize = 20;

/// The Read list of an item: in one segment, in many, in chunks with positions of their own, in order or not, or with
/// three bytes in a chunk in front.
fn item_words(position: u32, slice: RemoteSlice, way: u32) -> Vec<u32> {
    let part = |page: RemoteSlice| {
        read_words(position.wrapping_add(page.offset.wrapping_sub(slice.offset) as u32), page)
    };
    let mut parts = pages(slice, 33);
    match way % 5 {
        0 => parts.into_iter().flat_map(|page| read_words(position, page)).collect(),
        1 => parts.into_iter().flat_map(part).collect(),
        2 => {
            parts.reverse();
            parts.into_iter().flat_map(part).collect()
        }
        3 if slice.length > 3 => {
            let item = RemoteSlice { length: slice.length - 3, ..slice };
            let offset = slice.offset.wrapping_add(u64::from(item.length));
            [part(RemoteSlice { length: 3, offset, ..slice }), part(item)].concat()
        }
        _ => read_words(position, slice),
    }
}

impl Hostile {
    pub(super) fn say_call(&mut self, qp: QpId) {
        match self.rng.below(16) {
            14 | 15 => self.say_done(qp),
            0 | 1 => self.say_null(qp),
            2 => (0..FLOOD).for_each(|_| self.say_null(qp)),
            3 => self.say_type(qp),
            4 => self.say_version(qp),
            5 => self.say_too_much(qp),
            6..=8 => self.say_work(qp),
            9 => self.say_long(qp),
            10 => self.say_invalidate(qp),
            11 => self.touch_nothing(qp),
            12 => self.revoke_some(qp),
            _ if self.rng.chance(300) => {
                self.fabric.close(qp);
                self.qp = None;
            }
            _ => self.say_rubbish(qp),
        }
    }

    fn xid(&mut self) -> u32 {
        // Often one that is in flight.
        self.rng.pick(&[1, 2, 3, 0x8000_0000, 77])
    }

    fn credits(&mut self) -> u32 {
        self.rng.pick(&[0, 1, 8, 32, u32::MAX])
    }

    fn say_null(&mut self, qp: QpId) {
        let xid = self.xid();
        let words = [&[xid, 1, self.credits(), MSG, 0, 0, 0][..], &rpc_call(xid, 0)].concat();
        self.send(qp, &words, None);
    }

    fn say_type(&mut self, qp: QpId) {
        let (xid, kind) = (self.xid(), self.rng.pick(&[MSGP, DONE, ERROR, 5, u32::MAX]));
        let tail: &[u32] = match kind {
            MSGP => &[64, 64, 0, 0, 0],
            ERROR => self.rng.pick(&[&[1, 1, 1][..], &[2], &[99, 1, 2, 3]]),
            _ => &[0, 0, 0],
        };
        let words = [&[xid, 1, self.credits(), kind][..], tail, &rpc_call(xid, 0)].concat();
        self.send(qp, &words, None);
    }

    fn say_version(&mut self, qp: QpId) {
        let (xid, version) = (self.xid(), self.rng.pick(&[0, 2, 3, u32::MAX]));
        let words = [&[xid, version, 8, MSG, 0, 0, 0][..], &rpc_call(xid, 0)].concat();
        self.send(qp, &words, None);
    }

    fn say_too_much(&mut self, qp: QpId) {
        let xid = self.xid();
        let slice = RemoteSlice { handle: 1, length: 4, offset: 0 };
        let huge = RemoteSlice { length: 1 << 31, ..slice };
        let reads = |positions: &[u32]| -> Vec<u32> {
            let list = positions.iter().flat_map(|position| read_words(*position, slice));
            list.chain([0, 0, 0]).collect()
        };
        let many: Vec<u32> = (0..9).map(|at| 40 + 64 * at).collect();
        let lists = match self.rng.below(7) {
            0 => reads(&many),
            1 => reads(&[40; 17]),
            2 => reads(&[42]),
            3 => reads(&[40, 41, 4000]),
            4 => [&[0][..], &chunk_words(&[slice; 17]), &[0, 0]].concat(),
            5 => [&[0][..], &chunk_words(&[slice]).repeat(9), &[0, 0]].concat(),
            _ => [&[0, 0][..], &chunk_words(&[huge])].concat(),
        };
        let kind = self.rng.pick(&[MSG, NOMSG]);
        let words = [&[xid, 1, 8, kind][..], &lists, &rpc_call(xid, 1)].concat();
        self.send(qp, &words, None);
    }

    /// A call for work that makes sense, but for its chunks.
    fn say_work(&mut self, qp: QpId) {
        let xid = self.xid();
        let length = self.rng.pick(&[1, 5, 64, 1000, 4000]);
        let (answer, ns) = (self.rng.below(16) as u32, self.rng.below(100_000) as u32);
        let has_reads = self.rng.chance(500);
        let mut arguments = vec![0, self.rng.any() as u32, u32::from(has_reads)];
        let mut reads = Vec::new();
        if has_reads {
            arguments.push(length as u32);
            let slice = self.expose(qp, length, Access::RemoteRead);
            reads = item_words(40 + 16, self.twist(slice), xid ^ arguments[1]);
        }
        arguments.extend([0, 1, length as u32, 8, answer, ns]);
        let writes = self.room(qp, length);
        let reply = self.room(qp, 2000);
        let head = [&[xid, 1, 8, MSG][..], &reads, &[0], &writes, &[0], &reply].concat();
        let head = if reply.is_empty() { [&head[..], &[0]].concat() } else { head };
        self.send(qp, &[&head[..], &rpc_call(xid, 1), &arguments].concat(), None);
    }

    /// Room for results, right or wrong, or none.
    fn room(&mut self, qp: QpId, length: usize) -> Vec<u32> {
        if self.rng.chance(400) {
            return Vec::new();
        }
        let access = if self.rng.chance(900) { Access::RemoteWrite } else { Access::RemoteRead };
        let slice = self.expose(qp, length, access);
        let slice = self.twist(slice);
        match slice.handle % 3 {
            0 => chunk_words(&pages(slice, 100)),
            _ => chunk_words(&[slice]),
        }
    }

    /// A call in a Position-Zero chunk, whose bytes are what was there.
    fn say_long(&mut self, qp: QpId) {
        let xid = self.xid();
        let length = self.rng.pick(&[4, 40, 64, 2000]);
        let slice = self.expose(qp, length, Access::RemoteRead);
        let reads = read_words(0, self.twist(slice));
        let words = [&[xid, 1, 8, NOMSG][..], &reads, &[0, 0, 0]].concat();
        self.send(qp, &words, None);
    }

    /// Fetches a reply, or not, and says that it has, or not, or twice, or of another one.
    fn say_done(&mut self, qp: QpId) {
        if self.kept.is_empty() {
            return;
        }
        let reply = self.kept.remove(0);
        let slice = Offers::of(&reply).reads.first().copied();
        if let (Some(slice), true) = (slice, self.rng.chance(500)) {
            let target = self.twist(slice);
            self.touch(qp, target);
        }
        let xid = word(&reply, 0);
        let xid = if self.rng.chance(200) { xid ^ 1 << self.rng.below(32) } else { xid };
        for _ in 0..self.rng.pick(&[0, 1, 1, 1, 2]) {
            let credits = self.credits();
            self.send(qp, &[xid, 1, credits, DONE, 0, 0, 0], None);
        }
    }

    fn say_invalidate(&mut self, qp: QpId) {
        let (xid, key) = (self.xid(), self.rng.any() as u32);
        let words = [&[xid, 1, 8, MSG, 0, 0, 0][..], &rpc_call(xid, 0)].concat();
        self.send(qp, &words, Some(key));
    }

    /// A server exposes nothing.
    fn touch_nothing(&mut self, qp: QpId) {
        let handle = self.rng.any() as u32;
        let offset = self.rng.pick(&[0, 4096, u64::MAX - 64]);
        self.touch(qp, RemoteSlice { handle, length: 64, offset });
    }

    fn say_rubbish(&mut self, qp: QpId) {
        let words: Vec<u32> = (0..self.rng.below(64)).map(|_| self.rng.any() as u32).collect();
        self.send(qp, &words, None);
    }
}
