//! Checks of the pointers that a C program passes: null, misaligned and oversized ones become errors. What cannot
//! be seen, such as a pointer to freed memory, is the caller's to avoid.

use crate::error::{Failure, guard};
use std::ffi::{CStr, c_char, c_void};

fn invalid(name: &str, why: &str) -> Failure {
    Failure::argument(format!("{name} {why}"))
}

fn check<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    match pointer {
        _ if pointer.is_null() => Err(invalid(name, "is null")),
        _ if !pointer.is_aligned() => Err(invalid(name, "is misaligned")),
        _ => Ok(()),
    }
}

/// Fields of options that this version does not know: a program that sets one of them expects what it cannot have.
pub(crate) fn unused(reserved: &[u64]) -> Result<(), Failure> {
    match reserved.iter().all(|word| *word == 0) {
        true => Ok(()),
        false => Err(invalid("options.reserved", "is not zero")),
    }
}

/// # Safety
/// If it is neither null nor misaligned, `pointer` points to a `T` that lives as long as `'a` and is not written.
pub(crate) unsafe fn borrow<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    check(pointer, name)?;
    // SAFETY: by the caller's promise, and it is neither null nor misaligned.
    Ok(unsafe { &*pointer })
}

/// # Safety
/// As [`borrow`], and the `T` is not used elsewhere while `'a` lasts.
pub(crate) unsafe fn borrow_mut<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Failure> {
    check(pointer, name)?;
    // SAFETY: by the caller's promise, and it is neither null nor misaligned.
    Ok(unsafe { &mut *pointer })
}

/// An object that [`give`] made; `None` for null. A misaligned pointer is an error, as it is no such object.
///
/// # Safety
/// `pointer` is null or misaligned, or came from [`give`], and is not used any more.
pub(crate) unsafe fn take_back<T>(pointer: *mut T, name: &str) -> Result<Option<Box<T>>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    check(pointer, name)?;
    // SAFETY: by the caller's promise, it is a box that was given away.
    Ok(Some(unsafe { Box::from_raw(pointer) }))
}

/// Frees an object; null is none.
///
/// # Safety
/// As [`take_back`].
pub(crate) unsafe fn free<T>(pointer: *mut T, name: &str) {
    // SAFETY: the caller's promise.
    guard(|| unsafe { take_back(pointer, name) }.map(drop));
}

/// # Safety
/// As [`borrow`].
pub(crate) unsafe fn options<'a, T>(pointer: *const T) -> Result<Option<&'a T>, Failure> {
    match pointer.is_null() {
        true => Ok(None),
        // SAFETY: the caller's promise.
        false => unsafe { borrow(pointer, "options") }.map(Some),
    }
}

/// Target for a result of a function: memory of the caller that need not be initialised.
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// If it is neither null nor misaligned, `pointer` points to memory for a `T` that may be written until the
    /// exported function returns.
    pub(crate) unsafe fn new(pointer: *mut T, name: &str) -> Result<Self, Failure> {
        check(pointer, name).map(|()| Self(pointer))
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: `new` has checked it, and its caller vouches for the memory; a C object has no destructor.
        unsafe { self.0.write(value) };
    }
}

impl<T> Out<*mut T> {
    pub(crate) fn give(self, object: T) {
        self.set(Box::into_raw(Box::new(object)));
    }
}

/// # Safety
/// If it is neither null nor misaligned, `pointer` points to `length` objects that live as long as `'a` and are not
/// written.
pub(crate) unsafe fn slice<'a, T>(
    pointer: *const T,
    length: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    check(pointer, name)?;
    let bytes = length.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
    let end = bytes.and_then(|bytes| pointer.addr().checked_add(bytes));
    end.ok_or_else(|| invalid(name, "is longer than memory"))?;
    // SAFETY: by the caller's promise; it is neither null, misaligned nor longer than an object can be.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// XDR: as [`slice`], of a multiple of four bytes.
///
/// # Safety
/// As [`slice`].
pub(crate) unsafe fn stream<'a>(
    pointer: *const u8,
    length: usize,
    name: &str,
) -> Result<&'a [u8], Failure> {
    if !length.is_multiple_of(4) {
        return Err(invalid(name, "is not XDR: its length is not a multiple of four"));
    }
    // SAFETY: the caller's promise is the same.
    unsafe { slice(pointer, length, name) }
}

/// # Safety
/// `pointer` is null or points to text that ends with a zero byte, lives as long as `'a` and is not written.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    check(pointer, name)?;
    // SAFETY: by the caller's promise, and it is not null.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| invalid(name, "is not UTF-8"))
}

#[derive(Clone, Copy)]
pub(crate) struct UserData(*mut c_void);

impl UserData {
    pub(crate) fn new(pointer: *mut c_void) -> Self {
        Self(pointer)
    }

    /// A method, so that closures capture the whole.
    pub(crate) fn pointer(self) -> *mut c_void {
        self.0
    }
}

// SAFETY: it is only handed back; the header asks applications for data that any thread may use.
unsafe impl Send for UserData {}
// SAFETY: as above.
unsafe impl Sync for UserData {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null, null_mut, without_provenance};

    #[test]
    fn pointers_that_cannot_be_right_are_refused() {
        let text = |failure: Option<Failure>| format!("{:?}", failure.unwrap());
        // SAFETY: none of these pointers is followed, because each is refused.
        unsafe {
            assert!(text(borrow::<u32>(null(), "it").err()).contains("it is null"));
            assert!(text(borrow_mut::<u32>(null_mut(), "it").err()).contains("it is null"));
            let odd = without_provenance::<u32>(5);
            assert!(text(borrow(odd, "it").err()).contains("it is misaligned"));
            assert!(text(slice::<u32>(null(), 1, "it").err()).contains("it is null"));
            let four = without_provenance::<u32>(4);
            assert!(text(slice(four, usize::MAX / 2, "it").err()).contains("longer than memory"));
            assert!(text(stream(null(), 3, "it").err()).contains("multiple of four"));
            assert!(text(self::text(null(), "it").err()).contains("it is null"));
            assert!(text(self::text(c"\xff".as_ptr(), "it").err()).contains("not UTF-8"));
            assert_eq!(slice::<u32>(null(), 0, "it").unwrap(), [0; 0]);
            assert!(take_back::<u32>(null_mut(), "it").unwrap().is_none());
            assert!(text(take_back(odd.cast_mut(), "it").err()).contains("it is misaligned"));
        }
    }
}
