//! A call that leaves, with all that belongs to it until it ends: its terms and data items, the memory that it has lent and the
//! keys to that, its protection, and what it is sent again from.

use crate::fabric::Revoked;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::types::calls::{CallSpec, Resend};
use crate::reactor::types::encoded_stream::EncodedStream;
#[cfg(feature = "gss")]
use crate::reactor::types::protection::protected_reply_bytes;
use crate::reactor::types::resend_source::{Kept, Terms};
use spinrpc_proto::chunking::Encoded;
use spinrpc_proto::limits::ITEMS_MAX;
use std::mem::take;

/// Arguments, results, Reply chunk and the message itself.
const KEYS_PER_CALL_MAX: usize = 2 * ITEMS_MAX + 2;

/// Arguments and results.
pub(in crate::reactor) type Items<'a> = [&'a mut [Option<Bulk>]; 2];

/// See the module. In the slot of its call, but for calls that consist of an inline stream only.
#[derive(Default)]
pub(crate) struct Outgoing {
    terms: Terms,
    pub(crate) arguments: [Option<Bulk>; ITEMS_MAX],
    pub(crate) results: [Option<Bulk>; ITEMS_MAX],
    pub(crate) lent: Lent,
    pub(super) kept: Option<Kept>,
    /// Its body is sealed: its arguments are in that, and its results will be in the reply.
    is_sealed: bool,
    /// The whole message, sealed, until it is sent.
    #[cfg(feature = "gss")]
    sealed: Option<Bulk>,
}

/// Memory that a call has lent to its responder, and the keys under which the peer can reach it.
#[derive(Default)]
pub(crate) struct Lent {
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

impl Lent {
    /// Remembers a key to kill when the call ends.
    pub(crate) fn add_handle(&mut self, handle: u32) {
        self.handles[usize::from(self.handle_count)] = handle;
        self.handle_count += 1;
    }

    /// Remembers the key of a result, and the memory that stands in for it.
    pub(in crate::reactor) fn note_result(&mut self, index: usize, key: u32, copy: Option<Bulk>) {
        (self.result_keys[index], self.result_copies[index]) = (key, copy);
    }

    /// Every key of the call.
    pub(crate) fn handles(&self) -> &[u32] {
        &self.handles[..usize::from(self.handle_count)]
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

    /// One of the keys that are being killed is dead; true if it was the last.
    pub(in crate::reactor) fn key_died(&mut self) -> bool {
        self.dying = self.dying.saturating_sub(1);
        !self.is_dying()
    }

    /// The peer may still reach its memory.
    pub(in crate::reactor) fn is_dying(&self) -> bool {
        self.dying > 0
    }

    /// Contents of the Reply chunk. Empty while the chunk is in memory that the peer can write: then the reply arrived
    /// another way, or the chunk would have been copied.
    fn private_reply(&self) -> &[u8] {
        let reply = self.reply.as_ref().filter(|memory| !memory.is_exposed());
        reply.map_or(&[], Bulk::bytes)
    }
}

impl Outgoing {
    getters! {
        terms: &Terms,
        is_sealed: bool,
    }

    /// Takes the data items of a spec.
    pub(in crate::reactor) fn take_items(&mut self, spec: &mut CallSpec, terms: Terms) {
        self.terms = terms;
        (self.arguments, self.results) = (take(&mut spec.arguments), take(&mut spec.results));
    }

    /// Gives them back where the call was not started; else the spec is that of a call without items.
    pub(in crate::reactor) fn return_items(&mut self, spec: &mut CallSpec, is_started: bool) {
        match is_started {
            true => spec.is_special = spec.resend != Resend::Never,
            false => {
                (spec.arguments, spec.results) =
                    (take(&mut self.arguments), take(&mut self.results));
            }
        }
    }

    /// Takes the place of a call that was denied, with the buffers of its reply.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn hold_denied(
        &mut self,
        kept: Kept,
        (arguments, results): (&mut [Option<Bulk>], &mut [Option<Bulk>]),
    ) {
        self.terms = *kept.terms();
        (self.arguments, self.results) = (take_all(arguments), take_all(results));
        for (result, bytes) in self.results.iter_mut().zip(kept.result_bytes()) {
            if let (Some(result), Some(bytes)) = (result, bytes) {
                result.set_len(*bytes);
            }
        }
        self.kept = Some(kept);
    }

    /// Arguments that go as data items.
    pub(in crate::reactor) fn arguments(&self) -> impl Iterator<Item = &Bulk> {
        self.arguments.iter().flatten().filter(|_| !self.is_sealed)
    }

    /// Results that the responder places.
    pub(in crate::reactor) fn results(&self) -> impl Iterator<Item = &Bulk> {
        self.results.iter().flatten().filter(|_| !self.is_sealed)
    }

    /// Longest results without those that are placed. A reply that is sealed has all data in it, and a frame around it.
    pub(in crate::reactor) fn reply_bytes_max(&self) -> usize {
        #[cfg(feature = "gss")]
        if self.is_sealed {
            return protected_reply_bytes(self.terms.reply_bytes_max(), &self.results);
        }
        self.terms.reply_bytes_max()
    }

    /// Number of its data items that are in the message.
    pub(in crate::reactor) fn inlined_items(&self, encoded: &Encoded) -> u64 {
        let reduced = if self.lent.message.is_some() { 0 } else { encoded.reduced().len() };
        self.arguments().count().saturating_sub(reduced) as u64
    }

    /// Sets the lengths of the results, after copying those that were placed in a copy. Returns the number of copied
    /// results; `None` if the reply reports more bytes than were placed.
    pub(in crate::reactor) fn take_results(&mut self, placed: &[u32; ITEMS_MAX]) -> Option<u64> {
        let mut copied = 0;
        let mut lengths = placed.iter();
        let sources = self.lent.result_copies.iter().zip(self.lent.home_bytes);
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

    /// Number of blocks of registered memory that it holds.
    pub(in crate::reactor) fn blocks(&self) -> usize {
        let items = self.arguments.iter().chain(&self.results);
        let copies = self.lent.argument_copies.iter().chain(&self.lent.result_copies);
        let streams = [&self.lent.reply, &self.lent.message];
        items.chain(copies).chain(streams).filter(|block| block.is_some()).count()
    }

    /// Its connection is lost: takes back what was lent there. Returns true if it may be sent again.
    pub(in crate::reactor) fn lose(&mut self, is_unsent: bool, resends_max: u8) -> bool {
        let Some(kept) = &mut self.kept else { return false };
        let was_sent = kept.note_loss(is_unsent);
        let may_resend = kept.may_resend(resends_max, was_sent);
        let is_denied = kept.is_denied();
        if was_sent && may_resend {
            self.detach();
        }
        if is_denied {
            // It has lent nothing, but its results may be memory that the lost peer has mapped.
            for result in &mut self.results {
                result.take_if(|result| result.is_exposed());
            }
        }
        may_resend
    }

    /// Removes all memory that the lost connection's peer could reach, except the arguments, which it could only
    /// read. The results, which a reply may have filled, get their original lengths again.
    fn detach(&mut self) {
        let Some(kept) = &self.kept else { return };
        let bytes = kept.result_bytes();
        for ((result, copy), bytes) in
            self.results.iter_mut().zip(&self.lent.result_copies).zip(bytes)
        {
            // Those of a sealed call were lent to nobody.
            result.take_if(|_| copy.is_none() && !self.is_sealed);
            if let (Some(result), Some(bytes)) = (result, bytes) {
                result.set_len(*bytes);
            }
        }
        self.lent = Lent::default();
        #[cfg(feature = "gss")]
        drop(self.sealed.take());
    }

    /// The contents of its Reply chunk, its arguments and results, and what it is sent again from.
    pub(crate) fn answered(&mut self) -> (&[u8], Items<'_>, &mut Option<Kept>) {
        let Self { lent, arguments, results, kept, .. } = self;
        (lent.private_reply(), [arguments, results], kept)
    }

    /// Lengths of the results that were removed with a lost connection.
    pub(in crate::reactor) fn missing_results(&self) -> [Option<usize>; ITEMS_MAX] {
        let mut missing = [None; ITEMS_MAX];
        let Some(kept) = &self.kept else { return missing };
        for ((missing, bytes), result) in
            missing.iter_mut().zip(kept.result_bytes()).zip(&self.results)
        {
            *missing = bytes.filter(|_| result.is_none());
        }
        missing
    }
}

/// What it is sent again from.
impl Outgoing {
    /// Keeps its stream in memory of `pool`. Returns false if that has no block for it.
    pub(crate) fn keep(&mut self, pool: &BulkPool, draft: &EncodedStream<'_>, order: u64) -> bool {
        self.kept = Kept::new(pool, draft, order, self.terms, &self.results);
        self.kept.is_some()
    }

    pub(in crate::reactor) fn take_kept(&mut self) -> Option<Kept> {
        self.kept.take()
    }

    /// The end of an attempt to send it from `kept` again. If it is not sent, the results that were `missing` are again.
    pub(crate) fn end_resend(&mut self, kept: Kept, missing: &[Option<usize>], is_sent: bool) {
        let kept = self.kept.insert(kept);
        if is_sent {
            return kept.count_resend();
        }
        for (result, bytes) in self.results.iter_mut().zip(missing) {
            result.take_if(|_| bytes.is_some());
        }
    }
}

/// Protection of its body.
#[cfg(feature = "gss")]
impl Outgoing {
    /// Its body goes with all its data in it, sealed, or else in the clear.
    pub(in crate::reactor) fn seal(&mut self, is_sealed: bool) {
        self.is_sealed = is_sealed;
    }

    pub(in crate::reactor) fn sealed(&self) -> Option<&Bulk> {
        self.sealed.as_ref()
    }

    /// The whole message, sealed, waits here. Returns the one before.
    pub(in crate::reactor) fn set_sealed(&mut self, message: Option<Bulk>) -> Option<Bulk> {
        std::mem::replace(&mut self.sealed, message)
    }
}

/// Takes the buffers of a call.
#[cfg(feature = "gss")]
pub(crate) fn take_all(buffers: &mut [Option<Bulk>]) -> [Option<Bulk>; ITEMS_MAX] {
    std::array::from_fn(|index| buffers.get_mut(index).and_then(Option::take))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{BulkClass, Region};
    #[cfg(feature = "gss")]
    use crate::sys::mmap::SharedMemory;
    #[cfg(feature = "gss")]
    use spinrpc_proto::events::SlotId;
    use spinrpc_proto::ids::Instant;

    const KEY: u32 = 7;

    /// A call with a result of eight bytes, which is memory of the application, and `home_bytes` of it came home.
    fn call(home_bytes: Option<u32>) -> Outgoing {
        let mut call = Outgoing::default();
        call.results[0] = Some(Bulk::from_vec(vec![1; 8]));
        call.lent.result_copies[0] = Some(Bulk::from_vec(vec![2; 8]));
        call.lent.result_keys[0] = KEY;
        call.lent.add_handle(KEY);
        call.lent.kill_keys(|_| home_bytes.map_or(Revoked::Now, Revoked::Fetched));
        assert!(!call.lent.is_dying());
        call
    }

    fn placed(bytes: u32) -> [u32; ITEMS_MAX] {
        let mut placed = [0; ITEMS_MAX];
        placed[0] = bytes;
        placed
    }

    #[test]
    fn results_that_came_home_are_not_copied_and_others_are() {
        for (home_bytes, copies, byte) in [(Some(8), 0, 1), (None, 1, 2)] {
            let mut call = call(home_bytes);
            assert_eq!(call.take_results(&placed(6)), Some(copies));
            assert_eq!(call.results[0].as_ref().map(Bulk::bytes), Some(&[byte; 6][..]));
        }
    }

    #[test]
    fn a_reply_that_places_more_than_came_home_is_refused() {
        for (bytes, home_bytes) in [(8, 7), (1, 0), (u32::MAX, 7)] {
            assert_eq!(call(Some(home_bytes)).take_results(&placed(bytes)), None);
        }
        assert_eq!(call(Some(0)).take_results(&placed(0)), Some(0));
    }

    fn pool(region: Region) -> BulkPool {
        BulkPool::new(region, &[BulkClass { block_bytes: 4096, count: 1 }]).unwrap()
    }

    /// Keeps a call that may be sent again.
    fn keep(call: &mut Outgoing) {
        let pool = pool(Region::from_boxed(vec![0; 8192].into()));
        let spec = CallSpec { resend: Resend::AtLeastOnce, ..CallSpec::short() };
        call.terms = Terms::of(&spec, Instant(0), 0);
        assert!(call.keep(&pool, &EncodedStream::without_items(&[0; 40]), 0));
    }

    /// A reply whose rest is still to be fetched when the connection is lost.
    #[test]
    fn a_result_that_came_home_stays_for_when_the_call_is_sent_again() {
        let mut call = call(Some(8));
        keep(&mut call);
        assert_eq!(call.take_results(&placed(6)), Some(0));
        assert!(call.lose(false, 1) && call.kept.as_ref().unwrap().is_unknown());
        assert_eq!(call.missing_results(), [None; ITEMS_MAX]);
        assert_eq!(call.results[0].as_ref().map(Bulk::len), Some(8));
    }

    /// Only what was lent to the peer of the lost connection gets new memory.
    #[test]
    fn a_result_that_was_lent_is_missing_and_that_of_a_sealed_call_stays() {
        for (is_sealed, missing) in [(false, Some(8)), (true, None)] {
            let mut call = call(None);
            (call.is_sealed, call.lent) = (is_sealed, Lent::default());
            keep(&mut call);
            assert!(call.lose(false, 1));
            assert_eq!(call.missing_results()[0], missing);
        }
    }

    /// Its results may be memory that the peer of the lost connection has mapped.
    #[cfg(feature = "gss")]
    #[test]
    fn exposed_results_of_a_denied_call_are_missing_and_others_stay() {
        let memory = std::sync::Arc::new(SharedMemory::create("test", 8192).unwrap().0);
        let slot = SlotId { index: 0, generation: 0 };
        let mut call = call(None);
        call.results[1] = pool(Region::from_shared(memory)).take(8);
        keep(&mut call);
        call.kept = call.kept.take().map(|kept| kept.denied(slot, slot));
        assert!(call.lose(false, 1));
        assert_eq!(call.missing_results()[..2], [None, Some(8)]);
    }
}
