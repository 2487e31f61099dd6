//! Memory for secrets: core dumps leave it out.

use crate::sync::lock;
use crate::sys::journal::event;
use crate::sys::mmap::{Mapping, PageRequest};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Mutex, Once};

/// Places for values of one type, each in pages of its own. They are mapped as needed. The place of a dropped value is
/// cleared and reused, because unmapping it would interrupt all cores that the process runs on. So there are never more
/// places than there were values at one time.
pub struct UndumpedPool<T> {
    free: Mutex<Vec<Mapping>>,
    values: PhantomData<fn(T) -> T>,
}

/// A value in memory that core dumps leave out (`MADV_DONTDUMP`).
pub struct Undumped<T: 'static> {
    place: ManuallyDrop<Mapping>,
    pool: &'static UndumpedPool<T>,
    value: PhantomData<T>,
}

impl<T> UndumpedPool<T> {
    /// A pool without places.
    #[allow(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Self {
        Self { free: Mutex::new(Vec::new()), values: PhantomData }
    }

    /// Moves a value to such memory. Copies that the move leaves on the stack are the caller's concern.
    ///
    /// # Errors
    /// That of the kernel, if it has no memory; the value is dropped. If it refuses to leave the memory out of dumps, which
    /// some sandboxes do, that is told once.
    pub fn put(&'static self, value: T) -> io::Result<Undumped<T>> {
        // Pages are aligned like this on every system.
        const { assert!(align_of::<T>() <= 4096, "a page has to be aligned for the value") };
        let free = lock(&self.free).pop();
        let place = match free {
            Some(place) => place,
            None => undumped(size_of::<T>().max(1))?,
        };
        let place = ManuallyDrop::new(place);
        // SAFETY: the mapping is writable, as long as the value at least, and aligned. No other handle has it.
        unsafe { place.as_ptr().cast::<T>().write(value) };
        Ok(Undumped { place, pool: self, value: PhantomData })
    }
}

fn undumped(bytes: usize) -> io::Result<Mapping> {
    static REFUSAL: Once = Once::new();
    let mapping = Mapping::anonymous(bytes, PageRequest::default())?;
    if let Err(error) = mapping.keep_from_dumps() {
        REFUSAL.call_once(
            || event!(WARN, %error, "core dumps will have keys: MADV_DONTDUMP is refused"),
        );
    }
    Ok(mapping)
}

impl<T> Undumped<T> {
    fn value(&self) -> NonNull<T> {
        self.place.as_ptr().cast()
    }
}

impl<T> Deref for Undumped<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `put` has written the value, which stays until this is dropped, and nothing has a `&mut` to it.
        unsafe { self.value().as_ref() }
    }
}

impl<T> Drop for Undumped<T> {
    fn drop(&mut self) {
        let value = self.value();
        // SAFETY: the value is there, and is not used again. The bytes, which no value owns then, are within the mapping.
        let place = unsafe {
            value.drop_in_place();
            value.cast::<u8>().write_bytes(0, size_of::<T>());
            ManuallyDrop::take(&mut self.place)
        };
        lock(&self.pool.free).push(place);
    }
}

/// Shows no secret.
impl<T> fmt::Debug for Undumped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Undumped").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn a_place_is_cleared_and_reused_and_its_value_dropped() {
        static POOL: UndumpedPool<[u64; 700]> = UndumpedPool::new();
        let first = POOL.put([7; 700]).unwrap();
        let second = POOL.put([8; 700]).unwrap();
        let at = std::ptr::from_ref(&*first).addr();
        assert_eq!((first[699], second[0]), (7, 8));
        drop(first);
        {
            let free = lock(&POOL.free);
            assert_eq!(free.len(), 1);
            // SAFETY: a free place has initialised bytes, and the lock keeps others from it.
            let bytes = unsafe { free[0].as_ptr().cast::<[u64; 700]>().as_ref() };
            assert_eq!(bytes, &[0; 700]);
        }
        let third = POOL.put([9; 700]).unwrap();
        assert_eq!((std::ptr::from_ref(&*third).addr(), third[0], second[699]), (at, 9, 8));
        assert!(lock(&POOL.free).is_empty());
    }

    #[test]
    fn a_value_is_dropped_once() {
        static POOL: UndumpedPool<Rc<()>> = UndumpedPool::new();
        let value = Rc::new(());
        let kept = POOL.put(Rc::clone(&value)).unwrap();
        assert_eq!(Rc::strong_count(&kept), 2);
        drop(kept);
        assert_eq!(Rc::strong_count(&value), 1);
    }
}
