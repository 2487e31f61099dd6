//! Gives the shared library its name for the loader. cargo-c does that by itself.
#![allow(clippy::expect_used, reason = "a build ends here")]

use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=Cargo.toml");
    if env::var_os("CARGO_FEATURE_CAPI").is_some() {
        return;
    }
    let manifest =
        fs::read_to_string("Cargo.toml").expect("cargo runs this in the package's folder");
    let number = soname_number(&manifest).expect("the manifest has the version of the interface");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libspinrpc.so.{number}");
}

/// The major version of the interface, and the minor one while that is zero: as cargo-c counts.
fn soname_number(manifest: &str) -> Option<String> {
    let (_, section) = manifest.split_once("[package.metadata.capi.library]")?;
    let version = section.lines().find_map(|line| line.strip_prefix("version = \""))?;
    let mut numbers = version.trim_end_matches('"').split('.');
    match numbers.next()? {
        "0" => Some(format!("0.{}", numbers.next()?)),
        major => Some(major.to_owned()),
    }
}
