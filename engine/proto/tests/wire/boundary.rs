//! The protocol core stays `no_std`, without allocation and without dependencies.
//!
//! In a `no_std` crate the only way to reach `std` or `alloc` is an `extern crate` item or a
//! dependency, so that looking for those two is proof enough where no bare target can be built for.

use std::fs;
use std::path::{Path, PathBuf};

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[test]
fn only_tests_link_std() {
    let root = fs::read_to_string(package().join("src/lib.rs")).unwrap();
    assert!(root.contains("\n#![no_std]\n"));
    assert!(root.contains("\n#![forbid(unsafe_code)]\n"));
    for path in sources(&package().join("src")) {
        let text = fs::read_to_string(&path).unwrap();
        let links = text.replace("#[cfg(test)]\nextern crate std;", "");
        assert!(!links.contains("extern crate"), "{} links another crate", path.display());
    }
}

#[test]
fn there_are_no_dependencies() {
    let manifest = fs::read_to_string(package().join("Cargo.toml")).unwrap();
    let sections: Vec<&str> =
        manifest.lines().filter(|line| line.contains("dependencies")).collect();
    assert_eq!(sections, ["[dev-dependencies]"]);
}
