//! The protocol core stays `no_std`, without allocation and without dependencies.
//!
//! In a `no_std` crate the only way to reach `std` or `alloc` is a dependency or an `extern crate` item, which
//! `engine/tests/architecture.rs` refuses in other files. So this is proof enough where no bare target can be built for.

#[test]
fn only_tests_link_another_crate() {
    let root = include_str!("../../src/lib.rs");
    assert!(root.contains("\n#![no_std]\n"));
    assert!(root.contains("#[cfg(test)]\nextern crate std;"));
    assert_eq!(root.matches("extern crate").count(), 1);
    let manifest = include_str!("../../Cargo.toml");
    let sections = manifest.lines().filter(|line| line.contains("dependencies"));
    assert_eq!(sections.collect::<Vec<_>>(), ["[dev-dependencies]"]);
}
