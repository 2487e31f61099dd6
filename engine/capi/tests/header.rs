//! The header is as cbindgen makes it of the sources, and each exported function is in it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Sources in the order of the header.
const SOURCES: [&str; 11] = [
    "error", "log", "engine", "memory", "slab", "decoder", "server", "client", "calls", "queue",
    "nfs",
];
const RENEW: &str = "SPINRPC_RENEW_HEADER=1 cargo test -p spinrpc-capi --test header";

fn crate_path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn source(name: &str) -> String {
    fs::read_to_string(crate_path("src").join(name).with_extension("rs")).unwrap()
}

fn generated() -> String {
    let config = cbindgen::Config::from_file(crate_path("cbindgen.toml")).unwrap();
    let sources = SOURCES.map(|name| crate_path("src").join(name).with_extension("rs"));
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = sources.iter().fold(builder, cbindgen::Builder::with_src);
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn the_header_is_as_generated() {
    let path = crate_path("include/spinrpc.h");
    let generated = generated();
    if env::var_os("SPINRPC_RENEW_HEADER").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    let differs = there.lines().zip(generated.lines()).find(|(there, new)| there != new);
    assert!(there == generated, "the header is out of date at {differs:?}; renew it: {RENEW}");
}

fn exported(text: &str) -> Vec<(String, String)> {
    let parts = text.split("#[unsafe(no_mangle)]").skip(1);
    let function = |part: &str| {
        let (_, from_name) = part.split_once(" fn ").unwrap();
        let name = from_name.split('(').next().unwrap().to_owned();
        let (_, body) = from_name.split_once(" {\n").unwrap();
        (name, body.split("\n}").next().unwrap().to_owned())
    };
    parts.map(function).collect()
}

/// Every function is documented in the header, and catches panics.
#[test]
fn each_exported_function_is_in_the_header_and_catches_panics() {
    let header = fs::read_to_string(crate_path("include/spinrpc.h")).unwrap();
    let lines: Vec<&str> = header.lines().collect();
    let mut count = 0;
    for (name, body) in SOURCES.iter().flat_map(|file| exported(&source(file))) {
        count += 1;
        let at = lines.iter().position(|line| line.contains(&format!("{name}(")) && is_code(line));
        let at = at.unwrap_or_else(|| panic!("{name} is not in the header"));
        assert!(lines[at - 1].starts_with("//"), "{name} is not documented");
        let catches =
            ["guard", "read(", "read_bytes(", "free("].iter().any(|call| body.contains(call));
        assert!(catches || name == "spinrpc_status_name", "{name} lets panics through");
    }
    assert!(count > 30, "{count} functions");
}

fn is_code(line: &str) -> bool {
    !line.starts_with("//") && !line.starts_with(' ')
}
