//! Registered memory: data items of arguments and results that are placed directly.

use crate::error::{Failure, Status, guard, guard_or};
use crate::pointers::{Out, borrow, borrow_mut, free, slice, take_back};
use spinrpc::{Bulk, Encoder};

/// Most data items of a call or a reply.
const ITEMS_MAX: usize = 4;

/// A block of registered memory: the bytes of a data item (`opaque<>`) that is placed directly instead of travelling
/// in the message. It comes from a slab, or from the memory of a core, which has mem.arena_mib MiB, so keep no more than needed.
/// One thread at a time may use it.
///
/// A block that is passed with a call or a reply belongs to the library from then on, whatever the function
/// returns. All others are freed with spinrpc_memory_free(), before or after their client and engine.
pub struct RpcMemory(pub(crate) Bulk);

/// A data item of arguments or results, and its place among the other bytes: it stands behind the first `at` of them,
/// as `opaque<>`. Do not write its length word; the library does.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DataItem {
    /// The bytes: those in use (spinrpc_memory_length()). The library takes the block over.
    pub memory: *mut RpcMemory,
    /// A multiple of four, at most the length of the other bytes, and not less than that of the item before.
    pub at: usize,
}

/// Data items that were taken over from the caller, with the stream that they stand in.
pub(crate) struct Message<'a> {
    stream: &'a [u8],
    places: [usize; ITEMS_MAX],
    count: usize,
}

impl<'a> Message<'a> {
    /// Takes the blocks over, and then checks.
    ///
    /// # Safety
    /// `items` points to `count` items whose blocks are not used elsewhere.
    pub(crate) unsafe fn take(
        stream: Result<&'a [u8], Failure>,
        items: *const DataItem,
        count: usize,
    ) -> Result<(Self, Vec<Bulk>), Failure> {
        // SAFETY: the caller's promise.
        let items = unsafe { slice(items, count, "items") }?;
        // SAFETY: the caller's promise.
        let blocks = unsafe { take_blocks(items.iter().map(|item| item.memory)) }?;
        let stream = stream?;
        let mut places = [stream.len(); ITEMS_MAX];
        let mut least = 0;
        for (place, item) in places.iter_mut().zip(items) {
            let at = item.at;
            if !at.is_multiple_of(4) || at < least || at > stream.len() {
                let text = format!("a data item cannot stand behind byte {at}");
                return Err(Failure::argument(text));
            }
            (*place, least) = (at, at);
        }
        Ok((Self { stream, places, count }, blocks))
    }

    pub(crate) fn encode(&self, to: &mut Encoder<'_>) {
        let mut from = 0;
        for at in &self.places[..self.count] {
            to.fixed(&self.stream[from..*at]);
            to.bulk();
            from = *at;
        }
        to.fixed(&self.stream[from..]);
    }
}

/// Takes blocks over from the caller: all that are any, whatever is wrong.
///
/// # Safety
/// Each is null or misaligned, or a block that is not used elsewhere.
pub(crate) unsafe fn take_blocks(
    given: impl ExactSizeIterator<Item = *mut RpcMemory>,
) -> Result<Vec<Bulk>, Failure> {
    let count = given.len();
    let mut pointers: Vec<_> = given.collect();
    let are_blocks = pointers.iter().all(|pointer| !pointer.is_null() && pointer.is_aligned());
    let in_order: Vec<_> = pointers.clone();
    pointers.sort_unstable();
    pointers.dedup();
    let is_whole = pointers.len() == count && are_blocks && count <= ITEMS_MAX;
    let order = if is_whole { in_order } else { pointers };
    // SAFETY: the caller's promise, and each is there once.
    let blocks = order.into_iter().map(|pointer| unsafe { take_back(pointer, "memory") });
    let blocks: Vec<_> = blocks.flat_map(Result::ok).flatten().map(|block| block.0).collect();
    match is_whole {
        true => Ok(blocks),
        false => Err(Failure::argument(
            "data items need a block of memory each, and there may be four at most",
        )),
    }
}

pub(crate) const OF_CORE: &str = "see mem.arena_mib";

pub(crate) fn lend(
    out: *mut *mut RpcMemory,
    bytes: usize,
    why_none: &str,
    take: impl FnOnce(usize) -> Option<Bulk>,
) -> Result<(), Failure> {
    // SAFETY: memory for a pointer, as the header asks for.
    let out = unsafe { Out::new(out, "memory") }?;
    let none = || {
        let text = format!("no registered memory of {bytes} bytes is free: {why_none}");
        Failure::new(Status::NoMemory, text)
    };
    out.give(RpcMemory(take(bytes).ok_or_else(none)?));
    Ok(())
}

/// Returns the first byte of a block; NULL if `memory` is. The bytes are there until the block is freed or passed on:
/// spinrpc_memory_capacity() many, of which spinrpc_memory_length() are in use. They begin with what their last user
/// left there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_memory_data(memory: *mut RpcMemory) -> *mut u8 {
    guard_or(std::ptr::null_mut(), || {
        // SAFETY: a block that no other thread uses, as the header asks for.
        let bulk = &mut unsafe { borrow_mut(memory, "memory") }?.0;
        let in_use = bulk.len();
        // The pointer is for all bytes.
        bulk.set_len(bulk.capacity());
        let first = bulk.bytes_mut().as_mut_ptr();
        bulk.set_len(in_use);
        Ok(first)
    })
}

/// Returns the number of bytes in use; 0 if `memory` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_memory_length(memory: *const RpcMemory) -> usize {
    // SAFETY: a block that no other thread writes, as the header asks for.
    guard_or(0, || unsafe { Ok(borrow(memory, "memory")?.0.len()) })
}

/// Returns the number of bytes that the block has, at least as many as were asked for; 0 if `memory` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_memory_capacity(memory: *const RpcMemory) -> usize {
    // SAFETY: a block that no other thread writes, as the header asks for.
    guard_or(0, || unsafe { Ok(borrow(memory, "memory")?.0.capacity()) })
}

/// Sets how many bytes are in use: those that are sent, or the room that a result may take.
///
/// Errors: SPINRPC_STATUS_INVALID_ARGUMENT if `length` is beyond the capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_memory_set_length(
    memory: *mut RpcMemory,
    length: usize,
) -> Status {
    guard(|| {
        // SAFETY: a block that no other thread uses, as the header asks for.
        let bulk = &mut unsafe { borrow_mut(memory, "memory") }?.0;
        if length > bulk.capacity() {
            let text = format!("length {length} is beyond the block of {} bytes", bulk.capacity());
            return Err(Failure::argument(text));
        }
        bulk.set_len(length);
        Ok(())
    })
}

/// Gives a block back. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_memory_free(memory: *mut RpcMemory) {
    // SAFETY: null, or a block that is not used any more, as the header asks for.
    unsafe { free(memory, "memory") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(bytes: &[u8]) -> *mut RpcMemory {
        Box::into_raw(Box::new(RpcMemory(Bulk::from_vec(bytes.to_vec()))))
    }

    fn take(items: &[DataItem]) -> Result<usize, String> {
        let stream = Ok(&[0; 8][..]);
        // SAFETY: the items' blocks were made for this.
        let taken = unsafe { Message::take(stream, items.as_ptr(), items.len()) };
        taken.map(|(_, blocks)| blocks.len()).map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn items_have_places_in_order_within_the_stream() {
        let item = |at| DataItem { memory: block(b"data"), at };
        assert_eq!(take(&[item(0), item(4), item(4), item(8)]), Ok(4));
        for bad in [[item(4), item(0)], [item(0), item(12)], [item(2), item(4)]] {
            assert!(take(&bad).unwrap_err().contains("cannot stand"));
        }
    }

    #[test]
    fn blocks_that_are_missing_or_there_twice_are_refused_and_freed_once() {
        let twice = DataItem { memory: block(b"data"), at: 0 };
        assert!(take(&[twice, twice]).unwrap_err().contains("a block of memory each"));
        let none = DataItem { memory: std::ptr::null_mut(), at: 0 };
        let some = DataItem { memory: block(b"data"), at: 0 };
        assert!(take(&[some, none]).unwrap_err().contains("a block of memory each"));
        let odd = DataItem { memory: std::ptr::without_provenance_mut(5), at: 0 };
        let [some, other] = [(); 2].map(|()| DataItem { memory: block(b"data"), at: 0 });
        assert!(take(&[some, odd, other]).unwrap_err().contains("a block of memory each"));
        let five = [(); 5].map(|()| DataItem { memory: block(b"data"), at: 0 });
        assert!(take(&five).unwrap_err().contains("four at most"));
    }
}
