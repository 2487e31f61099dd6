//! A part of the pool of places: free ones, those of calls that are being executed, and those with a reply, which make
//! room for others.
//!
//! A new call takes a free place. If there is none, it takes the one whose reply was made or asked for longest ago: of
//! its own kin if that has its part of the places, otherwise of a kin that has more than its part, and if there is no
//! such kin, of anybody. So replies of a busy kin use what is free, go first when others need it, and displace those
//! of others only up to the part of their kin. A place whose call is being executed is in no queue and cannot be
//! displaced: a kin has at most its part of such places. Nothing is allocated after the start, except for a call
//! that is repeated while it is executed: places are linked by their numbers, and their memory comes from the system when
//! it is first used.

use super::results::{PLACE_BYTES, REPLY_BYTES_MAX, Results, Stored};
use super::{CallKey, KIN_PART};
use crate::reactor::in_flight::deferred::Deferred;
use crate::reactor::types::calls::RpcRefusal;
use crate::reactor::types::encoded_stream::EncodedStream;
use crate::reactor::types::header_bytes::SYSTEM_ERR;
use crate::reactor::types::peer_id::PeerId;
use crate::reactor::types::reply_plan::ReplyData;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::lock;
use std::ops::Index;
use std::sync::{Arc, Mutex, MutexGuard};

/// The first place of each hash; written with the lock held, and read without it by those who look for nothing.
type Heads = Arc<[AtomicU32]>;

/// The number of no place.
const NONE: u32 = u32::MAX;

/// See the module.
pub(super) struct Places {
    heads: Heads,
    state: Mutex<State>,
}

/// Holder of a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) client: PeerId,
    /// Hash of its kin.
    pub(super) kin: u64,
    /// Hash of the client.
    pub(super) key: u64,
}

/// One call.
pub(super) struct ReplyPlace {
    pub(super) call: CallKey,
    pub(super) owner: Owner,
    /// Differs for each call that the place had; zero for none.
    pub(super) generation: u64,
    hash: u64,
    /// The next place with this hash, or the next free one.
    next: u32,
    /// A further place, with more of the results.
    more: u32,
    /// Neighbours in the queue of all, and in that of its kin.
    neighbours: [Neighbours; 2],
    content: Content,
}

enum Content {
    /// Free, or more of another place's results.
    Nothing,
    /// The call's handler is running, or will answer later. Calls that repeat it wait for the reply.
    Running(Vec<Deferred>),
    Replied(Results),
    Refused(RpcRefusal),
}

#[derive(Clone, Copy)]
struct Neighbours {
    older: u32,
    newer: u32,
}

/// Places with replies.
#[derive(Clone, Copy)]
struct Queue {
    oldest: u32,
    newest: u32,
}

const APART: Neighbours = Neighbours { older: NONE, newer: NONE };
const EMPTY: Queue = Queue { oldest: NONE, newest: NONE };

/// Index of neighbours.
#[derive(Clone, Copy)]
enum Of {
    All,
    PeerGroup,
}

/// Places of a kin: of all kin with the same hash.
#[derive(Clone, Copy)]
struct PeerGroup {
    held: u32,
    /// Of those, the ones of calls that are being executed.
    running: u32,
    replied: Queue,
}

pub(super) struct State {
    /// Those that have been used so far.
    places: Vec<ReplyPlace>,
    most: usize,
    free: u32,
    replied: Queue,
    kins: Box<[PeerGroup]>,
    /// Numbers of the kins that hold more than their part: fewer than there are parts.
    beyond: Vec<usize>,
    heads: Heads,
    /// Results, [`PLACE_BYTES`] for each place.
    memory: Box<[u8]>,
    /// The results of several places in one piece.
    gathered: Box<[u8]>,
    last_generation: u64,
}

impl Places {
    /// A part with as many places.
    pub(super) fn new(most: usize) -> Self {
        let buckets = most.next_power_of_two();
        let heads: Heads = (0..buckets).map(|_| AtomicU32::new(NONE)).collect();
        let state = State {
            places: Vec::with_capacity(most),
            most,
            free: NONE,
            replied: EMPTY,
            kins: vec![PeerGroup { held: 0, running: 0, replied: EMPTY }; buckets].into(),
            beyond: Vec::with_capacity(KIN_PART),
            heads: Arc::clone(&heads),
            memory: vec![0; most * PLACE_BYTES].into(),
            gathered: vec![0; REPLY_BYTES_MAX].into(),
            last_generation: 0,
        };
        Self { heads, state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns false if no call has this hash. Without the lock.
    pub(super) fn has_any(&self, hash: u64) -> bool {
        // Relaxed: whoever may find a place has got its reply, or has called on another connection since.
        self.heads[bucket(&self.heads, hash)].load(Ordering::Relaxed) != NONE
    }
}

/// The number of heads is a power of two.
fn bucket(heads: &Heads, hash: u64) -> usize {
    hash as usize & (heads.len() - 1)
}

impl Index<u32> for State {
    type Output = ReplyPlace;

    fn index(&self, index: u32) -> &ReplyPlace {
        &self.places[index as usize]
    }
}

impl State {
    fn place(&mut self, index: u32) -> &mut ReplyPlace {
        &mut self.places[index as usize]
    }

    /// The place with this hash that is meant.
    pub(super) fn find(&self, hash: u64, is_meant: impl Fn(&ReplyPlace) -> bool) -> Option<u32> {
        let first = self.head(hash);
        let from = |index: u32| (index != NONE).then_some(index);
        let mut places = std::iter::successors(from(first), |index| from(self[*index].next));
        places.find(|index| self[*index].hash == hash && is_meant(&self[*index]))
    }

    fn head(&self, hash: u64) -> u32 {
        self.heads[bucket(&self.heads, hash)].load(Ordering::Relaxed)
    }

    fn set_head(&mut self, hash: u64, index: u32) {
        self.heads[bucket(&self.heads, hash)].store(index, Ordering::Relaxed);
    }

    /// Gives a new call a place, and its generation; `None` if all that may be taken hold calls in progress.
    pub(super) fn begin(&mut self, owner: Owner, hash: u64, call: CallKey) -> Option<(u32, u64)> {
        let kin = self.kin_of(owner);
        if self.kins[kin].running >= self.part() {
            return None;
        }
        let index = self.take(owner)?;
        self.kins[kin].running += 1;
        self.last_generation += 1;
        let (generation, next) = (self.last_generation, self.head(hash));
        let place = self.place(index);
        (place.call, place.generation, place.content) =
            (call, generation, Content::Running(Vec::new()));
        (place.hash, place.next) = (hash, next);
        self.set_head(hash, index);
        Some((index, generation))
    }

    /// Places that a kin has for certain.
    fn part(&self) -> u32 {
        (self.most / KIN_PART).max(1) as u32
    }

    /// A place for this owner that is in no list.
    fn take(&mut self, owner: Owner) -> Option<u32> {
        if self.free == NONE && self.places.len() == self.most {
            self.vacate(self.oldest_for(owner)?);
        }
        self.hold(self.kin_of(owner));
        let place = ReplyPlace::unused(owner);
        if self.free == NONE {
            self.places.push(place);
            return Some(self.places.len() as u32 - 1);
        }
        let index = self.free;
        self.free = self[index].next;
        *self.place(index) = place;
        Some(index)
    }

    /// The place that makes room for this owner when none is free.
    fn oldest_for(&self, owner: Owner) -> Option<u32> {
        let kin = &self.kins[self.kin_of(owner)];
        let mut beyond = self.beyond.iter().map(|kin| self.kins[*kin].replied.oldest);
        let oldest = match kin.held >= self.part() {
            true => kin.replied.oldest,
            false => beyond.find(|oldest| *oldest != NONE).unwrap_or(self.replied.oldest),
        };
        (oldest != NONE).then_some(oldest)
    }

    /// A kin gets a place.
    fn hold(&mut self, kin: usize) {
        self.kins[kin].held += 1;
        if self.kins[kin].held == self.part() + 1 {
            self.beyond.push(kin);
        }
    }

    /// A kin has given a place back.
    fn let_go(&mut self, kin: usize) {
        self.kins[kin].held -= 1;
        if self.kins[kin].held == self.part() {
            self.beyond.retain(|beyond| *beyond != kin);
        }
    }

    /// Takes a call out of its place, which is free then. The caller drops the waiting call without holding the lock.
    pub(super) fn vacate(&mut self, index: u32) -> Vec<Deferred> {
        self.unlink(index);
        let content = std::mem::replace(&mut self.place(index).content, Content::Nothing);
        match content {
            Content::Running(_) => self.kin_at(index).running -= 1,
            _ => self.dequeue(index),
        }
        self.free_from(index);
        match content {
            Content::Running(waiting) => waiting,
            _ => Vec::new(),
        }
    }

    /// Frees a place, and those that its results go on in.
    fn free_from(&mut self, first: u32) {
        let mut index = first;
        while index != NONE {
            self.let_go(self.kin_of(self[index].owner));
            let free = std::mem::replace(&mut self.free, index);
            let place = self.place(index);
            (place.generation, place.next) = (0, free);
            index = std::mem::replace(&mut place.more, NONE);
        }
    }

    /// Takes a place out of the list of its hash.
    fn unlink(&mut self, index: u32) {
        let (hash, next) = (self[index].hash, self[index].next);
        let mut before = self.head(hash);
        if before == index {
            return self.set_head(hash, next);
        }
        while self[before].next != index {
            before = self[before].next;
        }
        self.place(before).next = next;
    }

    /// Number of the kin of an owner: there are as many as hashes.
    fn kin_of(&self, owner: Owner) -> usize {
        owner.kin as usize & (self.kins.len() - 1)
    }

    /// The kin that holds a place.
    fn kin_at(&mut self, index: u32) -> &mut PeerGroup {
        let kin = self.kin_of(self[index].owner);
        &mut self.kins[kin]
    }

    fn queue(&mut self, of: Of, index: u32) -> &mut Queue {
        match of {
            Of::All => &mut self.replied,
            Of::PeerGroup => &mut self.kin_at(index).replied,
        }
    }

    /// Appends a place to both of its queues.
    fn enqueue(&mut self, index: u32) {
        for of in [Of::All, Of::PeerGroup] {
            let older = std::mem::replace(&mut self.queue(of, index).newest, index);
            self.place(index).neighbours[of as usize] = Neighbours { older, newer: NONE };
            match older {
                NONE => self.queue(of, index).oldest = index,
                older => self.place(older).neighbours[of as usize].newer = index,
            }
        }
    }

    /// Takes a place out of both of its queues.
    fn dequeue(&mut self, index: u32) {
        for of in [Of::All, Of::PeerGroup] {
            let Neighbours { older, newer } =
                std::mem::replace(&mut self.place(index).neighbours[of as usize], APART);
            match older {
                NONE => self.queue(of, index).oldest = newer,
                older => self.place(older).neighbours[of as usize].newer = newer,
            }
            match newer {
                NONE => self.queue(of, index).newest = older,
                newer => self.place(newer).neighbours[of as usize].older = older,
            }
        }
    }
}

impl ReplyPlace {
    fn unused(owner: Owner) -> Self {
        let neighbours = [APART; 2];
        let content = Content::Nothing;
        let (next, more) = (NONE, NONE);
        Self { call: CallKey::NONE, owner, generation: 0, hash: 0, next, more, neighbours, content }
    }

    /// Returns true while its call is being executed.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.content, Content::Running(_))
    }
}

/// Replies.
impl State {
    /// Keeps the waiting call of a place that is running, until the reply is there.
    pub(super) fn wait(&mut self, index: u32, call: Deferred) {
        if let Content::Running(waiting) = &mut self.place(index).content {
            waiting.push(call);
        }
    }

    /// Keeps the results of a call; returns the calls that wait for them.
    pub(super) fn keep_results(
        &mut self,
        index: u32,
        data: &ReplyData,
        draft: &EncodedStream<'_>,
    ) -> Vec<Deferred> {
        let kept = self.store(index, data, draft);
        self.keep(index, kept.map_or(Content::Refused(SYSTEM_ERR), Content::Replied))
    }

    /// Keeps an RPC error.
    pub(super) fn keep_refusal(&mut self, index: u32, refusal: RpcRefusal) -> Vec<Deferred> {
        self.keep(index, Content::Refused(refusal))
    }

    fn keep(&mut self, index: u32, reply: Content) -> Vec<Deferred> {
        let before = std::mem::replace(&mut self.place(index).content, reply);
        self.kin_at(index).running -= 1;
        self.enqueue(index);
        match before {
            Content::Running(waiting) => waiting,
            _ => Vec::new(),
        }
    }

    /// Writes results into the place, and as many further ones as they need. `None` if they are too long, or all
    /// other places hold calls in progress.
    fn store(
        &mut self,
        index: u32,
        data: &ReplyData,
        draft: &EncodedStream<'_>,
    ) -> Option<Results> {
        let results = Results::of(data, draft)?;
        let bytes = results.bytes();
        if bytes <= PLACE_BYTES {
            let at = index as usize * PLACE_BYTES;
            results.write(&mut self.memory[at..at + bytes], data, draft);
            return Some(results);
        }
        self.extend(index, bytes.div_ceil(PLACE_BYTES) - 1)?;
        results.write(&mut self.gathered[..bytes], data, draft);
        let mut place = index;
        for part in self.gathered[..bytes].chunks(PLACE_BYTES) {
            let at = place as usize * PLACE_BYTES;
            self.memory[at..at + part.len()].copy_from_slice(part);
            place = self.places[place as usize].more;
        }
        Some(results)
    }

    /// Adds further places, or none if there are not so many.
    fn extend(&mut self, index: u32, count: usize) -> Option<()> {
        for _ in 0..count {
            let Some(further) = self.take(self[index].owner) else {
                let further = std::mem::replace(&mut self.place(index).more, NONE);
                self.free_from(further);
                return None;
            };
            self.place(further).more = std::mem::replace(&mut self.place(index).more, further);
        }
        Some(())
    }

    /// The reply, which is now the newest one; `None` while its call is being executed.
    pub(super) fn stored(&mut self, index: u32) -> Option<Stored<'_>> {
        if self[index].is_running() {
            return None;
        }
        self.dequeue(index);
        self.enqueue(index);
        if self[index].more != NONE {
            self.gather(index);
        }
        let Self { places, memory, gathered, .. } = self;
        Some(match &places[index as usize].content {
            Content::Replied(results) => {
                let bytes = match places[index as usize].more {
                    NONE => &memory[index as usize * PLACE_BYTES..],
                    _ => &gathered[..],
                };
                Stored::Results(bytes, results)
            }
            Content::Refused(refusal) => Stored::Refusal(*refusal),
            Content::Nothing | Content::Running(_) => Stored::Refusal(SYSTEM_ERR),
        })
    }

    /// Copies the results of a place, and those of all places that they go on in, into one piece.
    fn gather(&mut self, index: u32) {
        let Self { places, memory, gathered, .. } = self;
        let mut place = index;
        for part in gathered.chunks_mut(PLACE_BYTES) {
            let Some(ReplyPlace { more, .. }) = places.get(place as usize) else { return };
            let at = place as usize * PLACE_BYTES;
            part.copy_from_slice(&memory[at..at + PLACE_BYTES]);
            place = *more;
        }
    }

    /// Encodes the stored reply for the calls that have waited.
    pub(super) fn answer_for(&mut self, index: u32, waiting: &mut [Deferred]) {
        if !waiting.is_empty()
            && let Some(stored) = self.stored(index)
        {
            waiting.iter_mut().for_each(|call| call.set_answer(&stored));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::in_flight::reply_cache::BYTES_PER_PLACE;

    /// Heads and kins are at most twice as many as places.
    #[test]
    fn a_place_takes_no_more_memory_than_is_said() {
        let lists = 2 * (size_of::<AtomicU32>() + size_of::<PeerGroup>());
        let bytes = size_of::<ReplyPlace>() + PLACE_BYTES + lists;
        assert!(bytes <= BYTES_PER_PLACE, "{bytes}");
    }
}
