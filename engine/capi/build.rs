//! Gives the shared library its name for the loader, which cargo-c does by itself.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The major version, and the minor one while that is zero: as cargo-c counts.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libspinrpc.so.0.1");
}
