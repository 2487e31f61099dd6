//! Two threads write one word without an order. ThreadSanitizer must say so.

static mut WORD: u64 = 0;

fn write() {
    for value in 0..1_000 {
        // SAFETY: there is none; this is the bug to be found.
        unsafe { (&raw mut WORD).write_volatile(value) };
    }
}

fn main() {
    let other = std::thread::spawn(write);
    write();
    drop(other.join());
}
