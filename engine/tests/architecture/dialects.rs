//! The dialects of RFC 5666: what only they need stands in folders `rfc5666`, one for each layer.

use crate::paths::paths;
use crate::source::{Source, Violation};

/// Roots of the sources that the rule is about.
const ROOTS: &[&str] = &["engine/proto/src/", "engine/src/reactor/", "engine/src/api/"];

/// Modules of the protocol core that stand in its folder, under the names they have outside.
const EXPORTED: &[&str] = &["alignment", "config_proto", "exports", "reply_pull"];

/// Files outside of these folders that may name what is in them: the common path comes to a dialect
/// here and nowhere else. A file is removed from this list when it names nothing any more.
const GATES: &[&str] = &[
    "engine/proto/src/connection.rs",
    "engine/proto/src/credit.rs",
    "engine/proto/src/pull.rs",
    "engine/proto/src/rdma/header.rs",
    "engine/proto/src/rdma/v1.rs",
    "engine/proto/src/requester.rs",
    "engine/proto/src/responder.rs",
    "engine/proto/src/xdr.rs",
    "engine/src/api/arrived.rs",
    "engine/src/api/asynchronous/incoming.rs",
    "engine/src/api/call.rs",
    "engine/src/api/client.rs",
    "engine/src/api/client_entry.rs",
    "engine/src/api/codec.rs",
    "engine/src/api/dispatch.rs",
    "engine/src/api/once.rs",
    "engine/src/api/opening.rs",
    "engine/src/api/runtime.rs",
    "engine/src/reactor/client/calls.rs",
    "engine/src/reactor/client/whole_replies.rs",
    "engine/src/reactor/pending/deferred.rs",
    "engine/src/reactor/state/connection.rs",
    "engine/src/reactor/state/core.rs",
    "engine/src/reactor/state/lane_memory.rs",
    "engine/src/reactor/words/calls.rs",
    "engine/src/reactor/words/draft.rs",
    "engine/src/reactor/words/message_memory.rs",
    "engine/src/reactor/words/negotiate.rs",
    "engine/src/reactor/words/reply_plan.rs",
];

/// A file outside of the folders names nothing in them, unless it is a gate.
pub(crate) fn dialect_gates(source: &Source) -> Vec<Violation> {
    if GATES.contains(&source.path.as_str()) {
        return Vec::new();
    }
    let found = first_named(source);
    let violation = |(at, name)| {
        let problem = format!("names `{name}`, which only the dialects of RFC 5666 need");
        source.violation(at, problem, "go through a file in GATES of this test")
    };
    found.map(violation).into_iter().collect()
}

/// Every gate is one.
pub(crate) fn idle_gates(sources: &[Source]) -> Vec<Violation> {
    let gates = sources.iter().filter(|source| GATES.contains(&source.path.as_str()));
    let idle = gates.filter(|source| first_named(source).is_none());
    let fix = "remove it from GATES of this test";
    idle.map(|source| source.violation(0, "names no dialect".to_owned(), fix)).collect()
}

/// The first path into a folder of the dialects, in code of a file outside of them.
fn first_named(source: &Source) -> Option<(usize, String)> {
    let is_within = |root: &&str| source.path.starts_with(*root);
    let declares = ["mod.rs", "lib.rs"].iter().any(|name| source.path.ends_with(name));
    if declares || source.path.contains("/rfc5666") || !ROOTS.iter().any(is_within) {
        return None;
    }
    let named = paths(source).into_iter().filter(|path| !source.is_test(path.at));
    let of_dialects = |segments: &[String]| match segments {
        [root, module, ..] if root == "spinrpc_proto" => EXPORTED.contains(&module.as_str()),
        segments => segments.iter().any(|segment| segment == "rfc5666" || segment == "Msgp"),
    };
    let mut found = named.filter(|path| of_dialects(&path.segments));
    found.next().map(|path| (path.at, path.segments.join("::")))
}
