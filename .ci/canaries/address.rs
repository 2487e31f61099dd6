//! Reads one byte behind an allocation. AddressSanitizer must say so.

fn main() {
    let buffer = vec![1_u8; std::env::args().count() * 64];
    let byte = std::hint::black_box(buffer.as_ptr());
    // SAFETY: there is none; this is the bug to be found.
    let behind = unsafe { byte.add(buffer.len()).read_volatile() };
    println!("{behind}");
}
