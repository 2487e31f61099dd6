//! Which crate of the workspace may depend on which, read from the manifests.

use crate::source::{Manifest, Violation};

/// Each crate and the crates of the workspace it may depend on.
const CRATES: &[(&str, &[&str])] = &[
    ("engine/proto/Cargo.toml", &[]),
    ("engine/Cargo.toml", &["spinrpc-proto"]),
    ("tuning/Cargo.toml", &["spinrpc"]),
    ("apps/Cargo.toml", &["spinrpc", "spinrpc-tuning"]),
    ("bench/Cargo.toml", &["spinrpc", "spinrpc-tuning"]),
];

/// Dependencies point downwards only; the protocol core has none; libraries choose no allocator.
pub(crate) fn crate_edges(manifest: &Manifest) -> Vec<Violation> {
    let Some((_, below)) = CRATES.iter().find(|(path, _)| *path == manifest.path) else {
        let problem = "a crate without a place among the layers".to_owned();
        return vec![Violation::in_manifest(
            manifest,
            problem,
            "give it one in CRATES of this test",
        )];
    };
    let refused = dependencies(&manifest.text).into_iter().filter_map(|(section, name)| {
        let (problem, fix) = refusal(&manifest.path, below, &section, &name)?;
        Some(Violation::in_manifest(manifest, problem, fix))
    });
    refused.collect()
}

fn refusal(
    path: &str,
    below: &[&str],
    section: &str,
    name: &str,
) -> Option<(String, &'static str)> {
    let is_dev = section.starts_with("dev-");
    if name.starts_with("spinrpc") && !below.contains(&name) {
        return Some((format!("depends on `{name}`"), "crates depend on those below them only"));
    }
    if path.starts_with("engine/proto/") && !is_dev {
        return Some((format!("depends on `{name}`"), "the protocol core has no dependencies"));
    }
    if path.starts_with("engine/") && name == "mimalloc" {
        return Some((
            format!("depends on `{name}`"),
            "programs choose an allocator, not libraries",
        ));
    }
    None
}

/// Section and name of each dependency. A section is what follows a target's `cfg`, if any.
fn dependencies(text: &str) -> Vec<(String, String)> {
    let (mut section, mut found) = (String::new(), Vec::new());
    for line in text.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            section = header.rsplit_once(").").map_or(header, |(_, last)| last).to_owned();
            section =
                section.rsplit_once("'.").map_or(section.as_str(), |(_, last)| last).to_owned();
        } else if section.ends_with("dependencies") {
            let name: String = line.chars().take_while(|next| !" .=#".contains(*next)).collect();
            found.extend((!name.is_empty()).then(|| (section.clone(), name)));
        }
    }
    found
}
