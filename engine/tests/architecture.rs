//! Rules of the sources that cargo, rustc and clippy cannot check. Theirs are in `Cargo.toml`, `clippy.toml` and `deny.toml`.
//!
//! Exceptions are not listed: code that breaks a rule is changed, or the rule is changed here, in a commit that gives the
//! reason.

use std::fs;
use std::io;
use std::path::Path;

const FILE_LINES_MAX: usize = 800;

/// Text that does not occur in any file, comments and tests included.
const NEVER: &[&str] = &["#[ignore", "TODO", "FIXME"];

/// A folder, the only part of it that may contain these texts in code, and the texts.
const ONLY_IN: &[(&str, &str, &[&str])] = &[
    // `fabric::AnyFabric` stands for all drivers, except where a core is started.
    ("engine/src/", "engine/src/api/engine.rs", &["fabric::shm", "fabric::sim", "fabric::verbs"]),
    // `boundary.rs` of its tests says why.
    ("engine/proto/src/", "engine/proto/src/lib.rs", &["extern crate"]),
    // It has those of loom in their place where models run.
    ("engine/fabric/src/", "engine/fabric/src/sync/atomic.rs", &["std::sync::atomic"]),
];

/// A folder, its path in the crate, and its modules from the lowest layer to the highest. Those in one line do not name each
/// other. Modules that are not listed are above all.
const LAYERS: &[Layers] = &[
    ("engine/fabric/src/", "crate::", &["sync", "sys", "mem"]),
    // The first layer is the crate of fabrics.
    ("engine/src/", "crate::", &["sync sys mem fabric", "config", "reactor", "control", "api"]),
    (REACTOR, "crate::reactor::", &["types", "in_flight", "state", "common", "server client"]),
    (
        "bench/src/",
        "crate::",
        &[
            "pattern progress units",
            "failure",
            "console cores interrupt latency profile_args ranks",
            "fabric floor top",
            "env",
            "child",
            "load",
            "profile report",
            "compare",
            "output",
            "merge",
            "cli",
            "modes",
            "floor_job metrics run serve",
        ],
    ),
    // The client and the server share the protocol only.
    ("apps/nfs/src/", "crate::", &["protocol sys", "mount3 nfs3", "status", "client server"]),
    (
        "apps/nfs/src/server/",
        "crate::server::",
        &[
            "caller stats throttle",
            "answer file_system",
            "errors",
            "catch_panic exports handle nodes open_syncs unix",
            "rights",
            "client_table tcp threads",
            "cephfs kerberos local_fs memfs mount site",
            "procedures",
            "data",
            "pool",
        ],
    ),
];
type Layers = (&'static str, &'static str, &'static [&'static str]);
const REACTOR: &str = "engine/src/reactor/";

/// Types of the reactor with methods in files of several layers, and text before a call of one.
const SPREAD: &[&str] = &["CoreCell", "Reactor", "Conn"];
const RECEIVERS: &[&str] = &["self.", "Self::", "reactor.", "reactor().", "c."];

struct Source {
    path: String,
    text: String,
    code: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let is_test = path.contains("/tests");
        let code = text.lines().map(|line| until(line, "//")).collect::<Vec<_>>().join("\n");
        let code = if is_test { String::new() } else { until(&code, "mod tests {").to_owned() };
        Self { path: path.to_owned(), text: text.to_owned(), code }
    }

    /// The module of a folder that this file belongs to, and its depth below the folder.
    fn module(&self, folder: &str) -> Option<(&str, usize)> {
        let below = self.path.strip_prefix(folder)?.strip_suffix(".rs")?;
        let below = below.strip_suffix("/mod").unwrap_or(below);
        Some((until(below, "/"), below.split('/').count()))
    }
}

fn until<'a>(text: &'a str, end: &str) -> &'a str {
    text.split(end).next().unwrap_or_default()
}

/// Names that stand in `code` between `before` and `behind`. Those within a longer path do not count, nor those in `pub(in …)`.
fn names<'a>(code: &'a str, before: &'a str, behind: &'a str) -> impl Iterator<Item = &'a str> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    code.match_indices(before).filter_map(move |(at, _)| {
        let (head, rest) = (&code[..at], &code[at + before.len()..]);
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        let is_whole = !head.ends_with(|last| is_part(last) || last == ':');
        let is_named = is_whole && !head.ends_with("pub(in ") && rest[end..].starts_with(behind);
        is_named.then(|| &rest[..end])
    })
}

fn is_below(layers: &[&str], target: &str, own: &str) -> bool {
    let rank = |name| layers.iter().position(|layer| layer.split(' ').any(|module| module == name));
    target == own || rank(own).is_none_or(|own| rank(target).is_some_and(|target| target < own))
}

fn breaches(sources: &[Source]) -> Vec<String> {
    let of_files = sources.iter().flat_map(|source| {
        let layers = LAYERS.iter().flat_map(|row| names_above(source, row));
        too_long(source).into_iter().chain(texts_out_of_place(source)).chain(layers)
    });
    of_files.chain(calls_of_higher_layers(sources)).collect()
}

fn too_long(source: &Source) -> Option<String> {
    let lines = source.text.lines().count();
    (lines > FILE_LINES_MAX).then(|| format!("{}: {lines} lines, of {FILE_LINES_MAX}", source.path))
}

fn texts_out_of_place(Source { path, text, code }: &Source) -> Vec<String> {
    let is_other = path != "engine/tests/architecture.rs";
    let never = NEVER.iter().filter(|never| is_other && text.contains(**never));
    let mut found: Vec<String> = never.map(|never| format!("{path}: {never}")).collect();
    for (folder, only, texts) in ONLY_IN {
        let is_elsewhere = path.starts_with(folder) && !path.starts_with(only);
        let named = texts.iter().filter(|text| is_elsewhere && code.contains(**text));
        found.extend(named.map(|text| format!("{path}: {text}, which is for {only} only")));
    }
    found
}

/// Modules of a layer that a file names although they are not below its own.
fn names_above(source: &Source, (folder, root, layers): &Layers) -> Vec<String> {
    let Some((own, depth)) = source.module(folder) else { return Vec::new() };
    let parents = "super::".repeat(depth);
    let named = names(&source.code, root, "").chain(names(&source.code, &parents, ""));
    let above = named.filter(|target| !is_below(layers, target, own));
    above.map(|target| format!("{}: {root}{target} is not below {own}", source.path)).collect()
}

/// Calls of methods of a core or a connection that only layers define which are not below that of the caller.
fn calls_of_higher_layers(sources: &[Source]) -> Vec<String> {
    let layers = LAYERS.iter().find(|(folder, ..)| *folder == REACTOR).map_or(&[][..], |row| row.2);
    let files = || sources.iter().filter_map(|source| Some((source, source.module(REACTOR)?.0)));
    let methods = files().flat_map(|(source, module)| {
        let blocks = source.code.split("\nimpl ").skip(1);
        let spread = |block: &&str| SPREAD.iter().any(|name| until(block, " {").ends_with(name));
        let names = blocks.filter(spread).flat_map(|block| names(until(block, "\n}"), "fn ", ""));
        names.map(move |name| (name, module))
    });
    let methods: Vec<(&str, &str)> = methods.collect();
    let above = files().flat_map(|(source, own)| {
        let calls = RECEIVERS.iter().flat_map(|before| names(&source.code, before, "("));
        // A type of this file may have a method of the same name.
        let of_others = calls.filter(|name| !source.code.contains(&format!("fn {name}(")));
        let is_above = |name: &&str| {
            let mut definers = methods.iter().filter(|method| method.0 == *name).peekable();
            definers.peek().is_some() && !definers.any(|method| is_below(layers, method.1, own))
        };
        let breach = |name| format!("{}: {name} is defined above {own}", source.path);
        of_others.filter(is_above).map(breach).collect::<Vec<_>>()
    });
    above.collect()
}

fn collect(folder: &Path, root: &Path, sources: &mut Vec<Source>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&path, root, sources)?;
        } else if name.ends_with(".rs") {
            let below = path.strip_prefix(root).map_err(io::Error::other)?.to_string_lossy();
            sources.push(Source::new(&below, &fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

#[test]
fn sources_keep_the_rules() -> io::Result<()> {
    let (root, mut sources) = (Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), Vec::new());
    collect(&root, &root, &mut sources)?;
    let found = breaches(&sources);
    assert!(found.is_empty(), "{} broken:\n{}", found.len(), found.join("\n"));
    // A row whose folder has moved would find nothing.
    for (folder, _, layers) in LAYERS {
        let is_listed = |name| layers.iter().any(|layer| layer.split(' ').any(|own| own == name));
        let files = sources.iter().filter_map(|source| source.module(folder));
        assert!(files.filter(|(name, _)| is_listed(*name)).count() > 1, "{folder}");
    }
    Ok(())
}

#[test]
fn a_breach_of_each_rule_is_found() {
    let calls = Source::new(
        "engine/src/reactor/client/place.rs",
        "\nimpl CoreCell {\n    fn high(&self) {}\n}",
    );
    let core = "engine/src/reactor/state/core.rs";
    for (path, text, breach) in [
        ("engine/fuzz/src/lib.rs", &*"\n".repeat(FILE_LINES_MAX + 1), "801 lines"),
        ("engine/tests/kill.rs", "#[ignore = \"slow\"]", "#[ignore"),
        ("engine/src/reactor/turn.rs", "use crate::fabric::shm::Shm;", "fabric::shm"),
        ("engine/fabric/src/sync/ring.rs", "use std::sync::atomic::AtomicU8;", "std::sync::atomic"),
        (core, "use crate::api::Engine;", "crate::api is not below reactor"),
        (core, "use super::super::turn;", "crate::reactor::turn is not below state"),
        (core, "use crate::reactor::{client, types};", "crate::reactor:: is not below state"),
        (core, "fn f() { self.reactor().high() }", "high is defined above state"),
        (
            "engine/src/reactor/server/pulls.rs",
            "fn f() { c.high() }",
            "high is defined above server",
        ),
    ] {
        let found = breaches(&[Source::new(path, text), Source::new(&calls.path, &calls.text)]);
        assert!(found.len() == 1 && found[0].contains(breach), "{text}: {found:?}");
    }
    let sound =
        "use super::ring; // crate::api\nuse crate::reactor::types;\nmod tests { use crate::api; }";
    assert_eq!(breaches(&[Source::new(core, sound)]), [""; 0]);
}
