//! Allowed dependencies between the crates of the workspace, read from the manifests.

use crate::source::{Manifest, Violation};

/// A crate and the crates of the workspace it may depend on.
struct Layer {
    manifest: &'static str,
    name: &'static str,
    below: &'static [&'static str],
}

const CRATES: &[Layer] = &[
    Layer { manifest: "engine/proto/Cargo.toml", name: "spinrpc-proto", below: &[] },
    Layer { manifest: "engine/gss/Cargo.toml", name: "spinrpc-gss", below: &["spinrpc-proto"] },
    Layer {
        manifest: "engine/Cargo.toml",
        name: "spinrpc",
        below: &["spinrpc-proto", "spinrpc-gss"],
    },
    Layer { manifest: "tuning/Cargo.toml", name: "spinrpc-tuning", below: &["spinrpc"] },
    Layer {
        manifest: "engine/capi/Cargo.toml",
        name: "spinrpc-capi",
        below: &["spinrpc", "spinrpc-tuning"],
    },
    Layer { manifest: "xdr/derive/Cargo.toml", name: "spinrpc-xdr-derive", below: &[] },
    Layer { manifest: "xdr/gen/Cargo.toml", name: "spinrpc-xdrgen", below: &[] },
    Layer {
        manifest: "xdr/Cargo.toml",
        name: "spinrpc-xdr",
        below: &["spinrpc", "spinrpc-xdr-derive"],
    },
    Layer {
        manifest: "xdr/suite/Cargo.toml",
        name: "spinrpc-xdr-suite",
        below: &["spinrpc", "spinrpc-xdr", "spinrpc-xdrgen"],
    },
    Layer {
        manifest: "apps/nfs/Cargo.toml",
        name: "spinrpc-nfs",
        below: &["spinrpc", "spinrpc-tuning", "spinrpc-xdr", "spinrpc-xdrgen"],
    },
    Layer {
        manifest: "apps/Cargo.toml",
        name: "spinrpc-apps",
        // spinrpc-gss: its tests are clients that establish contexts themselves.
        below: &[
            "spinrpc",
            "spinrpc-gss",
            "spinrpc-nfs",
            "spinrpc-tuning",
            "spinrpc-xdr",
            "spinrpc-xdrgen",
        ],
    },
    Layer {
        manifest: "bench/Cargo.toml",
        name: "spinrpc-bench",
        below: &["spinrpc", "spinrpc-tuning"],
    },
    // Measured together with spinperf, but not part of it.
    Layer { manifest: "bench/peers/iceoryx2/Cargo.toml", name: "iceoryx2-peer", below: &[] },
    Layer {
        manifest: "fuzz/Cargo.toml",
        name: "spinrpc-fuzz",
        below: &[
            "spinrpc-proto",
            "spinrpc-gss",
            "spinrpc",
            "spinrpc-tuning",
            "spinrpc-nfs",
            "spinrpc-xdr",
            "spinrpc-xdr-suite",
            "spinrpc-xdrgen",
        ],
    },
];

/// Dependencies point downwards only; the protocol core has none; libraries choose no allocator.
pub(crate) fn crate_edges(manifest: &Manifest) -> Vec<Violation> {
    let Some(layer) = CRATES.iter().find(|layer| layer.manifest == manifest.path) else {
        let problem = "a crate without a place among the layers".to_owned();
        return vec![Violation::in_manifest(
            manifest,
            problem,
            "give it one in CRATES of this test",
        )];
    };
    let refused = dependencies(&manifest.text).into_iter().filter_map(|(section, name)| {
        let (problem, fix) = refusal(layer, &section, &name)?;
        Some(Violation::in_manifest(manifest, problem, fix))
    });
    refused.collect()
}

fn refusal(layer: &Layer, section: &str, name: &str) -> Option<(String, &'static str)> {
    let is_dev = section.starts_with("dev-");
    let problem = || format!("depends on `{name}`");
    // A crate's tests may switch on its own features by depending on itself.
    let is_itself = is_dev && name == layer.name;
    if name.starts_with("spinrpc") && !layer.below.contains(&name) && !is_itself {
        return Some((problem(), "crates depend on those below them only"));
    }
    if layer.name == "spinrpc-proto" && !is_dev {
        return Some((problem(), "the protocol core has no dependencies"));
    }
    if layer.manifest.starts_with("engine/") && name == "mimalloc" {
        return Some((problem(), "programs choose an allocator, not libraries"));
    }
    None
}

/// Section and name of each dependency. A section's name is the part after a target's `cfg`, if
/// any.
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
