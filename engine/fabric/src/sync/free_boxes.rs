//! A free list of boxes that stay where they are: any thread takes and gives, by one atomic exchange each.
#![allow(unsafe_code)]

use super::free_list::FreeList;
use std::marker::PhantomData;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Mutex;

/// Boxes that are lent out. They are numbered from zero on, and their holders know the number.
pub struct FreeBoxes<T> {
    free: FreeList,
    /// The address of each, also of those that are lent out: never written, so that all CPUs keep these lines.
    addresses: Box<[usize]>,
    /// Marks ownership of boxes: threads share them if they can be sent.
    owned: PhantomData<Mutex<Box<T>>>,
}

impl<T> FreeBoxes<T> {
    /// All of them free, the first one on top.
    pub fn new(boxes: impl Iterator<Item = Box<T>>) -> Self {
        const { assert!(size_of::<T>() > 0, "a box of nothing has no address of its own") };
        let addresses: Box<[_]> = boxes.map(|one| Box::into_raw(one).expose_provenance()).collect();
        Self { free: FreeList::full(0, addresses.len() as u32), addresses, owned: PhantomData }
    }

    /// Takes a box; `None` when all are lent out, or closed.
    #[inline]
    pub fn take(&self) -> Option<Box<T>> {
        self.free.take().map(|number| self.free_box(number))
    }

    /// Takes the box back whose number this is; else, or when closed, the caller keeps it.
    #[inline]
    pub fn give(&self, number: u32, one: Box<T>) -> Result<(), Box<T>> {
        let address = std::ptr::from_ref(&*one).addr();
        if self.addresses.get(number as usize) != Some(&address) {
            return Err(one);
        }
        // As long as a caller holds a box with this address, that of its number is not free.
        let pointer = Box::into_raw(one);
        pointer.expose_provenance();
        match self.free.give(number) {
            true => Ok(()),
            // SAFETY: it is the box that was taken apart above, and nothing else has it.
            false => Err(unsafe { Box::from_raw(pointer) }),
        }
    }

    /// Drops all boxes that are free, and takes none back from now on.
    pub fn close(&self) {
        self.free.close(|number| drop(self.free_box(number)));
    }

    /// The box with a number that was just taken from the list.
    fn free_box(&self, number: u32) -> Box<T> {
        let pointer = with_exposed_provenance_mut(self.addresses[number as usize]);
        // SAFETY: the number was free, and is now this thread's alone: `new` or `give` took the box at its address apart, and
        // nothing has used it since. The list orders what its last holder wrote before this.
        unsafe { Box::from_raw(pointer) }
    }
}

impl<T> Drop for FreeBoxes<T> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn boxes_that_are_lent_come_back_by_their_numbers_alone() {
        let boxes = FreeBoxes::new((0..2).map(Box::new));
        let (zero, one) = (boxes.take().unwrap(), boxes.take().unwrap());
        assert_eq!((*zero, *one, boxes.take()), (0, 1, None));
        let one = boxes.give(0, one).unwrap_err();
        assert_eq!(boxes.give(2, one).map_err(|one| boxes.give(1, one)), Err(Ok(())));
        assert_eq!(boxes.give(0, Box::new(7)), Err(Box::new(7)));
        assert_eq!(boxes.give(0, zero), Ok(()));
        assert_eq!([boxes.take(), boxes.take()], [Some(Box::new(0)), Some(Box::new(1))]);
    }

    #[test]
    fn a_list_is_closed_expect_each_box_dropped() {
        let value = Arc::new(0_u64);
        let boxes = FreeBoxes::new((0..3).map(|_| Box::new(Arc::clone(&value))));
        let lent = boxes.take().unwrap();
        boxes.close();
        assert_eq!(Arc::strong_count(&value), 2);
        drop(boxes.give(0, lent).unwrap_err());
        assert!(boxes.take().is_none());
        drop(boxes);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
