//! Allowed imports between modules.
//!
//! ```text
//! proto <- reactor <- control <- api <- rpcbind          sys, sync <- mem <- fabric <- reactor
//! ```

use crate::paths::{Path, paths};
use crate::source::{Source, Violation};

/// Each top-level module of the engine and the modules it may name besides itself.
const LAYERS: &[(&str, &[&str])] = &[
    ("sys", &["sync"]),
    ("sync", &["sys"]),
    ("mem", &["sys", "sync"]),
    ("fabric", &["mem", "sys", "sync"]),
    ("config", &["mem", "sys", "sync"]),
    ("reactor", &["config", "fabric", "mem", "sys", "sync"]),
    ("control", &["config", "mem", "reactor", "sys"]),
    ("api", &["config", "control", "reactor", "fabric", "mem", "sys", "sync"]),
    ("fuzz", &["reactor", "fabric"]),
    ("guide", &[]),
    ("rpcbind", &["api", "config", "fabric"]),
];

/// Modules which may name the protocol core. The ones below do not know RPC.
const KNOW_PROTO: &[&str] = &["config", "reactor", "api", "rpcbind"];

/// Modules of `fabric` which move the bytes; only the place that starts a core names one.
const DRIVERS: &[&str] = &["shm", "sim", "verbs"];

/// Imports within the engine point downwards only.
pub(crate) fn module_edges(source: &Source) -> Vec<Violation> {
    let Some(layer) = engine_layer(source) else { return Vec::new() };
    let Some((_, below)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
        let problem = format!("module `{layer}` has no place among the layers");
        return vec![source.violation(0, problem, "give it one in LAYERS of this test")];
    };
    let named = paths(source);
    named.iter().filter_map(|path| edge_violation(source, layer, below, path)).collect()
}

/// The top-level module of the engine which a file belongs to; none for `lib.rs`.
fn engine_layer(source: &Source) -> Option<&str> {
    let in_engine = source.path.starts_with("engine/src/");
    in_engine.then(|| source.module().first().copied()).flatten()
}

fn edge_violation(source: &Source, layer: &str, below: &[&str], path: &Path) -> Option<Violation> {
    if path.segments[0] == "spinrpc_proto" && !KNOW_PROTO.contains(&layer) {
        let problem = format!("`{layer}` names the protocol core");
        return Some(source.violation(path.at, problem, "move what knows RPC to reactor"));
    }
    let target = path.local()?.first()?.as_str();
    if target == layer || below.contains(&target) {
        return None;
    }
    let known = LAYERS.iter().any(|(name, _)| *name == target);
    let (problem, fix) = if known {
        (format!("`{layer}` names `{target}`, which lies above"), "turn the dependency round")
    } else {
        (format!("`crate::{target}` is a name at the root"), "name the module it lives in")
    };
    Some(source.violation(path.at, problem, fix))
}

/// The api names concrete drivers in one file: that with the `match` which starts a core.
pub(crate) fn drivers_in_api(sources: &[Source]) -> Vec<Violation> {
    let in_api = sources.iter().filter(|source| engine_layer(source) == Some("api"));
    let mut naming: Vec<Violation> = in_api.filter_map(first_driver).collect();
    if naming.len() < 2 { Vec::new() } else { naming.split_off(1) }
}

fn first_driver(source: &Source) -> Option<Violation> {
    let named = paths(source);
    let (path, driver) = named.iter().find_map(|path| Some((path, driver_of(path)?)))?;
    let problem = format!("names the driver `{driver}`, as another file of `api` does");
    Some(source.violation(path.at, problem, "keep drivers in the one file that starts a core"))
}

fn driver_of(path: &Path) -> Option<&str> {
    match path.local()? {
        [fabric, driver, ..] if fabric == "fabric" => {
            DRIVERS.contains(&driver.as_str()).then_some(driver)
        }
        _ => None,
    }
}

/// A driver names no other driver, and the reactor names none: `fabric::AnyFabric` stands for all of them.
pub(crate) fn driver_edges(source: &Source) -> Vec<Violation> {
    let own = match (engine_layer(source), source.module().as_slice()) {
        (Some("reactor" | "mem" | "sys" | "sync" | "config"), _) => "",
        (Some("fabric"), ["fabric", driver, ..]) if DRIVERS.contains(driver) => driver,
        _ => return Vec::new(),
    };
    let other =
        |path: &Path| Some((path.at, driver_of(path).filter(|name| *name != own)?.to_owned()));
    let named = paths(source);
    named
        .iter()
        .filter_map(other)
        .map(|(at, driver)| {
            let problem = format!("names the driver `{driver}`");
            source.violation(at, problem, "go through the traits of `fabric`")
        })
        .collect()
}

/// The protocol core is `no_std`, without even an allocator, outside its tests.
pub(crate) fn proto_is_core_only(source: &Source) -> Vec<Violation> {
    if !source.path.starts_with("engine/proto/src/") {
        return Vec::new();
    }
    let mut found = missing_attributes(source);
    let named = paths(source);
    let foreign = named.iter().filter(|path| {
        let root = path.segments[0].as_str();
        matches!(root, "std" | "alloc" | "spinrpc" | "libc") && !source.is_test(path.at)
    });
    found.extend(foreign.map(|path| {
        let problem = format!("proto names `{}`", path.segments.join("::"));
        source.violation(path.at, problem, "use `core`, or take it as an argument")
    }));
    found
}

/// The crate forbids `unsafe`, unless it is built with the binding to a library.
pub(crate) fn gss_forbids_unsafe(source: &Source) -> Vec<Violation> {
    let attribute = "#![cfg_attr(not(feature = \"krb5-library\"), forbid(unsafe_code))]";
    if source.path != "engine/gss/src/lib.rs" || source.text.contains(attribute) {
        return Vec::new();
    }
    vec![source.violation(0, format!("`{attribute}` is missing"), "put it back below the head")]
}

fn missing_attributes(source: &Source) -> Vec<Violation> {
    match source.path.as_str() {
        "engine/proto/src/lib.rs" => missing(source, &["#![no_std]", "#![forbid(unsafe_code)]"]),
        _ => Vec::new(),
    }
}

fn missing(source: &Source, wanted: &[&str]) -> Vec<Violation> {
    let missing = wanted.iter().filter(|attribute| !source.code.contains(**attribute));
    missing
        .map(|attribute| {
            source.violation(0, format!("`{attribute}` is missing"), "put it back below the head")
        })
        .collect()
}

/// Atomics come from `sync`, which the models replace; a bypass would not be modelled.
pub(crate) fn atomics_by_sync_only(source: &Source) -> Vec<Violation> {
    if !source.is_engine() || source.path.starts_with("engine/src/sync/") {
        return Vec::new();
    }
    let named = paths(source);
    let bypasses = named.iter().filter(|path| {
        let atomic = ["std", "core"].iter().any(|root| path.starts_with(&[root, "sync", "atomic"]));
        atomic && !source.is_test(path.at)
    });
    bypasses
        .map(|path| {
            let problem = format!("names `{}`", path.segments.join("::"));
            source.violation(path.at, problem, "take atomics from `crate::sync`")
        })
        .collect()
}
