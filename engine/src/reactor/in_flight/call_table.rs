//! The memory of a client's calls, by slot: buffers that each call in flight has lent, and the stored state of calls
//! that may be sent again on another connection. It outlives the connection together with the requester.

use crate::fabric::Revoked;
use crate::mem::{Buf, Bulk};
use crate::reactor::in_flight::box_pool::Spares;
use crate::reactor::in_flight::retransmit_table::Lasting;
use spinrpc_proto::events::{DeliveredReply, SlotId};
use spinrpc_proto::limits::ITEMS_MAX;

/// Arguments, results, Reply chunk and the message itself.
const KEYS_PER_CALL_MAX: usize = 2 * ITEMS_MAX + 2;

/// The memory of one call in flight, and the keys under which the peer can reach it.
#[derive(Default)]
pub(crate) struct CallHold {
    pub(crate) arguments: [Option<Bulk>; ITEMS_MAX],
    pub(crate) results: [Option<Bulk>; ITEMS_MAX],
    /// Memory of the Reply chunk.
    pub(crate) reply: Option<Bulk>,
    /// The call itself, when it travels in a Position-Zero Read chunk.
    pub(crate) message: Option<Bulk>,
    /// Memory of the connection that stands in for arguments and results outside of it.
    pub(crate) argument_copies: [Option<Bulk>; ITEMS_MAX],
    pub(crate) result_copies: [Option<Bulk>; ITEMS_MAX],
    /// Keys of the results.
    result_keys: [u32; ITEMS_MAX],
    /// Bytes of results that were placed directly in their final memory, past their copies.
    home_bytes: [Option<u32>; ITEMS_MAX],
    handles: [u32; KEYS_PER_CALL_MAX],
    handle_count: u8,
    /// Keys that the device has not killed yet.
    dying: u8,
}

impl CallHold {
    /// Remembers a key to kill when the call ends.
    pub(crate) fn add_handle(&mut self, handle: u32) {
        self.handles[usize::from(self.handle_count)] = handle;
        self.handle_count += 1;
    }

    /// Remembers the key of a result, and the memory that stands in for it.
    pub(in crate::reactor) fn note_result(&mut self, index: usize, key: u32, copy: Option<Bulk>) {
        (self.result_keys[index], self.result_copies[index]) = (key, copy);
    }

    /// Revokes its keys, and notes which results were placed directly, past their copies. The copies stay: if the call
    /// is sent again, they show which results are memory of the application.
    pub(in crate::reactor) fn kill_keys(&mut self, mut revoke: impl FnMut(u32) -> Revoked) {
        self.dying = 0;
        self.home_bytes = [None; ITEMS_MAX];
        for handle in &self.handles[..usize::from(self.handle_count)] {
            match revoke(*handle) {
                Revoked::Now => {}
                Revoked::Soon => self.dying += 1,
                Revoked::Fetched(bytes) => {
                    let of_key =
                        |(key, copy): (&u32, &Option<Bulk>)| key == handle && copy.is_some();
                    let result = self.result_keys.iter().zip(&self.result_copies).position(of_key);
                    if let Some(result) = result {
                        self.home_bytes[result] = Some(bytes);
                    }
                }
            }
        }
    }

    /// Sets the lengths of the results, after copying those that were placed in a copy. Returns the number of copied
    /// results; `None` if the reply reports more bytes than were placed.
    pub(in crate::reactor) fn take_results(&mut self, placed: &[u32; ITEMS_MAX]) -> Option<u64> {
        let mut copied = 0;
        let mut lengths = placed.iter();
        let sources = self.result_copies.iter().zip(self.home_bytes);
        for (result, (copy, home_bytes)) in self.results.iter_mut().zip(sources) {
            let Some(result) = result else { continue };
            let length = lengths.next().map_or(0, |length| *length as usize);
            let length = length.min(result.capacity());
            match (copy, home_bytes) {
                (_, Some(bytes)) if length > bytes as usize => return None,
                (Some(copy), None) => {
                    result.set_len(length);
                    result.copy_from_bulk(copy, length.min(copy.len()));
                    copied += 1;
                }
                _ => result.set_len(length),
            }
        }
        Some(copied)
    }

    /// Every key of the call.
    pub(crate) fn handles(&self) -> &[u32] {
        &self.handles[..usize::from(self.handle_count)]
    }

    /// Number of blocks of registered memory that it holds.
    pub(in crate::reactor) fn blocks(&self) -> usize {
        let items = self.arguments.iter().chain(&self.results);
        let copies = self.argument_copies.iter().chain(&self.result_copies);
        let streams = [&self.reply, &self.message];
        items.chain(copies).chain(streams).filter(|block| block.is_some()).count()
    }

    /// One of the keys that are being killed is dead; true if it was the last.
    pub(in crate::reactor) fn key_died(&mut self) -> bool {
        self.dying = self.dying.saturating_sub(1);
        !self.is_dying()
    }

    /// The peer may still reach its memory.
    pub(in crate::reactor) fn is_dying(&self) -> bool {
        self.dying > 0
    }

    /// Removes all memory that the lost connection's peer could reach, except the arguments, which it could only
    /// read. The results, which a reply may have filled, get their original lengths again. Returns the lengths of the
    /// removed results.
    pub(in crate::reactor) fn detach(
        &mut self,
        result_bytes: &[usize; ITEMS_MAX],
    ) -> [Option<usize>; ITEMS_MAX] {
        let mut rooms = [None; ITEMS_MAX];
        for (index, room) in rooms.iter_mut().enumerate() {
            if self.result_copies[index].is_none() {
                *room = self.results[index].take().map(|_| result_bytes[index]);
            } else if let Some(result) = &mut self.results[index] {
                result.set_len(result_bytes[index]);
            }
        }
        let arguments = std::mem::take(&mut self.arguments);
        let results = std::mem::take(&mut self.results);
        *self = Self { arguments, results, ..Self::default() };
        rooms
    }
}

/// A reply that has arrived while keys of its call are being killed.
pub(crate) struct FencedReply {
    pub(in crate::reactor) message: Buf,
    pub(in crate::reactor) reply: DeliveredReply,
    pub(in crate::reactor) hold: Box<CallHold>,
    /// The key that the peer invalidated with it.
    pub(in crate::reactor) invalidated: Option<u32>,
    /// It has a Read list: there is more to fetch.
    pub(in crate::reactor) is_partial: bool,
}

/// Contents of a Reply chunk. Empty while the chunk is in memory that the peer can write: then the reply arrived
/// another way, or the chunk would have been copied.
pub(in crate::reactor) fn private_bytes(reply: Option<&Bulk>) -> &[u8] {
    reply.filter(|memory| !memory.is_exposed()).map_or(&[], Bulk::bytes)
}

/// See the module.
pub(crate) struct CallTable {
    holds: Box<[Option<Box<CallHold>>]>,
    /// Boxes for the calls that need them.
    spare: Spares<CallHold>,
    /// Stored state, if the client's calls may outlive the connection.
    pub(in crate::reactor) lasting: Option<Box<Lasting>>,
    /// Ended calls whose responders may still use their memory.
    #[cfg(feature = "canary")]
    pub(in crate::reactor) canary: Vec<SlotId>,
}

impl CallTable {
    /// Creates a table for `slots` calls (slow path: allocates).
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            holds: (0..slots).map(|_| None).collect(),
            // One for each call in flight, and one for a reply whose handler starts the next call.
            spare: Spares::new(slots + slots.min(1)),
            lasting: None,
            #[cfg(feature = "canary")]
            canary: Vec::new(),
        }
    }

    /// Calls may outlive the connection from now on, and be sent again so often.
    pub(in crate::reactor) fn make_lasting(&mut self, resends_max: u8) {
        let slots = self.slots();
        self.lasting.get_or_insert_with(|| Lasting::new(slots)).resends_max = resends_max;
    }

    /// Returns true if the call in this slot may be sent again; removes the resources of the lost connection.
    pub(in crate::reactor) fn detach(&mut self, slot: SlotId) -> bool {
        let Self { holds, lasting, .. } = self;
        let Some(lasting) = lasting.as_deref_mut().filter(|lasting| lasting.may_resend(slot))
        else {
            return false;
        };
        let Some(kept) = lasting.kept_mut(slot) else { return false };
        if !kept.is_in_flight() {
            return true;
        }
        let hold = holds.get_mut(usize::from(slot.index)).and_then(|hold| hold.as_deref_mut());
        let rooms = hold.map(|hold| hold.detach(kept.result_bytes()));
        rooms.map(|rooms| kept.detach(rooms)).is_some()
    }

    /// Number of calls that fit.
    pub(in crate::reactor) fn slots(&self) -> usize {
        self.holds.len()
    }

    /// Blocks of registered memory that calls in flight hold.
    pub(in crate::reactor) fn blocks(&self) -> usize {
        self.holds.iter().flatten().map(|hold| hold.blocks()).sum()
    }

    /// An empty box for a call that needs one.
    pub(in crate::reactor) fn spare(&mut self) -> Option<Box<CallHold>> {
        self.spare.take()
    }

    /// The emptied box goes back, for a later call.
    pub(crate) fn recycle(&mut self, mut hold: Box<CallHold>) {
        *hold = CallHold::default();
        self.spare.give(hold);
    }

    /// Gives a call its memory.
    pub(in crate::reactor) fn put(&mut self, slot: SlotId, hold: Box<CallHold>) {
        self.holds[usize::from(slot.index)] = Some(hold);
    }

    /// Takes the memory of an ended call and drops its stored state. `None` for a call that had neither.
    #[inline(always)]
    pub(crate) fn take(&mut self, slot: SlotId) -> Option<Box<CallHold>> {
        let hold = self.take_hold(slot)?;
        self.forget(slot);
        Some(hold)
    }

    /// Takes the memory of a call whose reply has to be fetched. The stored state of the call stays until it has
    /// ended.
    #[inline(always)]
    pub(crate) fn take_hold(&mut self, slot: SlotId) -> Option<Box<CallHold>> {
        self.holds.get_mut(usize::from(slot.index))?.take()
    }

    /// Drops the stored state of an ended call.
    #[inline(never)]
    pub(crate) fn forget(&mut self, slot: SlotId) {
        if let Some(lasting) = &mut self.lasting {
            lasting.forget(slot);
        }
    }

    /// Returns true if a call has lent any memory.
    #[inline(always)]
    pub(in crate::reactor) fn has_hold(&self, index: u16) -> bool {
        self.holds.get(usize::from(index)).is_some_and(Option::is_some)
    }

    /// The memory of a call, which stays there.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn hold(&mut self, slot: SlotId) -> Option<&mut CallHold> {
        self.holds.get_mut(usize::from(slot.index))?.as_deref_mut()
    }

    /// Frees the memory of an ended call that no peer can reach.
    pub(crate) fn free(&mut self, slot: SlotId) {
        if let Some(hold) = self.take_hold(slot) {
            self.recycle(hold);
        }
        self.forget(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u32 = 7;

    /// A call with a result of eight bytes, which is memory of the application, and `home_bytes` of it came home.
    fn call(home_bytes: Option<u32>) -> CallHold {
        let mut hold = CallHold::default();
        hold.results[0] = Some(Bulk::from_vec(vec![1; 8]));
        hold.result_copies[0] = Some(Bulk::from_vec(vec![2; 8]));
        hold.result_keys[0] = KEY;
        hold.add_handle(KEY);
        hold.kill_keys(|_| home_bytes.map_or(Revoked::Now, Revoked::Fetched));
        assert!(!hold.is_dying());
        hold
    }

    fn placed(bytes: u32) -> [u32; ITEMS_MAX] {
        let mut placed = [0; ITEMS_MAX];
        placed[0] = bytes;
        placed
    }

    #[test]
    fn results_that_came_home_are_not_copied_and_others_are() {
        for (home_bytes, copies, byte) in [(Some(8), 0, 1), (None, 1, 2)] {
            let mut hold = call(home_bytes);
            assert_eq!(hold.take_results(&placed(6)), Some(copies));
            assert_eq!(hold.results[0].as_ref().map(Bulk::bytes), Some(&[byte; 6][..]));
        }
    }

    #[test]
    fn a_reply_that_places_more_than_came_home_is_refused() {
        for (bytes, home_bytes) in [(8, 7), (1, 0), (u32::MAX, 7)] {
            assert_eq!(call(Some(home_bytes)).take_results(&placed(bytes)), None);
        }
        assert_eq!(call(Some(0)).take_results(&placed(0)), Some(0));
    }

    /// A reply whose rest is still to be fetched when the connection is lost.
    #[test]
    fn a_result_that_came_home_stays_for_when_the_call_is_sent_again() {
        let mut hold = call(Some(8));
        assert_eq!(hold.take_results(&placed(6)), Some(0));
        let mut lengths = [0; ITEMS_MAX];
        lengths[0] = 8;
        assert_eq!(hold.detach(&lengths), [None; ITEMS_MAX]);
        assert_eq!(hold.results[0].as_ref().map(Bulk::len), Some(8));
    }
}
