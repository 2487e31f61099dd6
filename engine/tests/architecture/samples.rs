//! The rules at work on small sources: each one refuses the bad code, and accepts code that only
//! looks like it.

use crate::lexer::blank;
use crate::manifest;
use crate::paths::paths;
use crate::rules;
use crate::source::{Manifest, Source, Violation, mark_test_modules};
use crate::{bench, dialects, edges, layers, nfs};

type Rule = fn(&Source) -> Vec<Violation>;

/// Messages of `rule` about `text` at `path`.
fn verdict(rule: Rule, path: &str, text: &str) -> Vec<String> {
    rule(&Source::new(path, text)).iter().map(Violation::to_string).collect()
}

#[track_caller]
fn refused(rule: Rule, path: &str, text: &str, says: &str) {
    let found = verdict(rule, path, text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains(says), "{:?} does not say {says:?}", found[0]);
}

#[track_caller]
fn accepted(rule: Rule, path: &str, text: &str) {
    assert_eq!(verdict(rule, path, text), Vec::<String>::new());
}

#[track_caller]
fn manifest_refused(path: &str, text: &str, says: &str) {
    let manifest = Manifest { path: path.to_owned(), text: text.to_owned() };
    let found: Vec<String> =
        manifest::crate_edges(&manifest).iter().map(Violation::to_string).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains(says), "{:?} does not say {says:?}", found[0]);
}

fn named(path: &str, text: &str) -> Vec<String> {
    paths(&Source::new(path, text)).iter().map(|path| path.segments.join("::")).collect()
}

#[test]
fn comments_strings_and_characters_are_not_code() {
    let kept = ["a /* x /* y */ z */ b", "a // x\nb", "a \"x\\\"y\" b", "a r#\"x\"y\"# b"];
    for text in kept {
        assert_eq!(blank(text).split_whitespace().collect::<Vec<_>>(), ["a", "b"], "{text}");
    }
    for text in ["a '{' b", "a '\\'' b", "a 'ß' b", "a '\\u{7d}' b", "a b\"{\" b", "a br\"\\\" b"]
    {
        assert!(!blank(text).contains(['{', '}', '"', '\\']), "{text}: {}", blank(text));
        assert!(blank(text).ends_with(" b"), "{text}: {}", blank(text));
    }
}

#[test]
fn lifetimes_raw_names_and_unclosed_literals_are_survived() {
    assert_eq!(blank("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
    assert_eq!(blank("let r#type = 'x'; r"), "let r#type =    ; r");
    for text in ["\"", "'\\", "/* /*", "r##\"x\"#", "'", "\"\\", "r#"] {
        assert_eq!(blank(text).len(), text.len(), "{text}");
    }
}

#[test]
fn blanking_keeps_offsets_and_lines() {
    let text = "\"ä\n\" x // ö\ny";
    assert_eq!((blank(text).len(), blank(text).lines().count()), (text.len(), 3));
}

#[test]
fn use_trees_are_followed_to_their_leaves() {
    let text = "use crate::{mem::{self, Buf as B}, sync::ring::*}; use std::sync::Arc as A;";
    let found = named("engine/src/fabric/wr.rs", text);
    let wanted = ["crate::mem", "crate::mem::Buf", "crate::sync::ring::*", "std::sync::Arc"];
    assert_eq!(found, wanted);
}

#[test]
fn exported_macros_are_at_the_root_and_in_no_layer() {
    assert_eq!(named("engine/src/fabric/wr.rs", "crate::suite!(); crate::mem::f!();").len(), 1);
}

#[test]
fn super_and_self_are_resolved() {
    let text = "use super::wr::X; mod tests { use super::super::shm; } fn f() { self::g::<u8>() }";
    let found = named("engine/src/fabric/sim/mod.rs", text);
    assert_eq!(found, ["crate::fabric::wr::X", "crate::fabric::shm", "crate::fabric::sim::g"]);
}

#[test]
fn an_upward_import_is_refused_however_it_is_written() {
    let path = "engine/src/mem/pool.rs";
    for text in [
        "use crate::fabric::WrId;",
        "use crate::{sync::Ring, fabric::{WrId}};",
        "use super::super::fabric::WrId;",
        "fn f(x: crate::fabric::WrId) {}",
    ] {
        refused(edges::module_edges, path, text, "`mem` names `fabric`");
    }
    accepted(edges::module_edges, path, "use crate::{sys::clock, sync}; use super::budget;");
}

#[test]
fn a_driver_does_not_know_rpc() {
    let text = "use spinrpc_proto::Xid;";
    refused(edges::module_edges, "engine/src/fabric/shm/qp.rs", text, "protocol core");
    accepted(edges::module_edges, "engine/src/reactor/turn.rs", text);
}

#[test]
fn names_at_the_root_and_unknown_modules_are_refused() {
    let text = "use crate::Engine;";
    refused(edges::module_edges, "engine/src/reactor/turn.rs", text, "name the module");
    refused(edges::module_edges, "engine/src/misc.rs", "", "no place among the layers");
    accepted(edges::module_edges, "engine/src/lib.rs", "pub use api::Engine; pub mod api;");
}

#[test]
fn the_reactor_does_not_reach_into_the_api() {
    let text = "use crate::api::Engine;";
    refused(edges::module_edges, "engine/src/reactor/mod.rs", text, "lies above");
}

#[test]
fn a_layer_of_the_reactor_does_not_name_a_higher_one() {
    let file = "engine/src/reactor/state/core.rs";
    accepted(layers::reactor_layers, file, "use crate::reactor::{pending::sinks, words};");
    accepted(layers::reactor_layers, file, "use crate::reactor::state::connection::Conn;");
    accepted(layers::reactor_layers, "engine/src/reactor/turn.rs", "use crate::reactor::client;");
    refused(layers::reactor_layers, file, "use crate::reactor;", "not below it");
    for above in ["client::calls", "turn::Turn", "CallSpec"] {
        let text = format!("use crate::reactor::{above};");
        refused(layers::reactor_layers, file, &text, "not below it");
    }
    let text = "use crate::reactor::server::replies;";
    refused(layers::reactor_layers, "engine/src/reactor/client/calls.rs", text, "not below it");
    let text = "use crate::reactor::words::calls;";
    refused(layers::reactor_layers, "engine/src/reactor/misc/new.rs", "", "no place among");
    accepted(layers::reactor_layers, "engine/src/reactor/server/pulls.rs", text);
}

#[test]
fn a_layer_of_the_reactor_does_not_call_what_a_higher_one_defines() {
    let file = |path: &str, text: &str| Source::new(format!("engine/src/reactor/{path}"), text);
    let method =
        |of: &str, name: &str| format!("\nimpl {of} {{\n    pub(super) fn {name}(&self) {{}}\n}}");
    let files = |caller: &str, text: &str| {
        [
            file("state/core.rs", &method("Reactor", "low")),
            file("client/calls.rs", &method("CoreCell", "high")),
            file("turn.rs", &method("Conn", "top")),
            file("words/other.rs", &method("Other", "unrelated")),
            file(caller, text),
        ]
    };
    let calls = "fn f() { self.low(); reactor.low(); x.high(); self.unrelated() }";
    assert!(layers::reactor_methods(&files("common/sends.rs", calls)).is_empty());
    assert!(
        layers::reactor_methods(&files("client/other.rs", "fn f() { self.high() }")).is_empty()
    );
    assert!(layers::reactor_methods(&files("lane.rs", "fn f() { self.top() }")).is_empty());
    for (caller, call) in [
        ("common/sends.rs", "self.high()"),
        ("server/replies.rs", "self.reactor().high()"),
        ("client/other.rs", "(c.top())"),
        ("state/other.rs", "Self::top()"),
    ] {
        let found = layers::reactor_methods(&files(caller, &format!("fn f() {{ {call}; }}")));
        assert_eq!(found.len(), 1, "{caller} {call}: {found:?}");
    }
}

#[test]
fn three_files_of_the_reactor_in_a_circle_are_refused() {
    let file = |name: &str, next: &str| {
        let path = format!("engine/src/reactor/words/{name}.rs");
        Source::new(path, format!("use super::{next}::Name;"))
    };
    let pair = [file("a", "b"), file("b", "a"), file("c", "a")];
    assert!(layers::reactor_circles(&pair).is_empty());
    let three = [file("a", "b"), file("b", "c"), file("c", "a"), file("d", "a")];
    let found = layers::reactor_circles(&three);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].to_string().contains("3 files import each other"), "{found:?}");
}

#[test]
fn a_module_of_spinperf_does_not_name_a_higher_one() {
    let path = "bench/src/report/grid.rs";
    refused(bench::bench_layers, path, "use crate::modes::Trend;", "`report` names `modes`");
    refused(
        bench::bench_layers,
        path,
        "fn f() { crate::output::say() }",
        "`report` names `output`",
    );
    refused(bench::bench_layers, "bench/src/misc.rs", "", "no place among the layers");
    accepted(bench::bench_layers, path, "use super::Row; use crate::{load::Mode, units};");
    accepted(bench::bench_layers, "bench/src/main.rs", "use crate::cli::Cli;");
}

#[test]
fn three_files_of_spinperf_in_a_circle_are_refused() {
    let file = |name: &str, next: &str| {
        Source::new(format!("bench/src/top/{name}.rs"), format!("use super::{next}::Name;"))
    };
    let three = [file("a", "b"), file("b", "c"), file("c", "a")];
    assert_eq!(bench::bench_circles(&three).len(), 1);
    assert!(bench::bench_circles(&three[..2]).is_empty());
}

#[test]
fn a_file_that_is_no_gate_does_not_name_the_dialects() {
    let (rule, path) = (dialects::dialect_gates, "engine/src/reactor/lane.rs");
    let says = "which only the dialects of RFC 5666 need";
    refused(rule, path, "use crate::reactor::words::rfc5666::Padded;", says);
    refused(rule, path, "use spinrpc_proto::{alignment::Alignment, ids::Xid};", says);
    refused(rule, "engine/proto/src/plain.rs", "fn f() { MessageType::Msgp }", says);
    accepted(rule, path, "#[cfg(test)] mod tests { use spinrpc_proto::alignment::Alignment; }");
    accepted(rule, "engine/src/reactor/mod.rs", "mod rfc5666; use rfc5666::Dialect;");
    accepted(rule, "engine/src/config.rs", "use spinrpc_proto::alignment::Alignment;");
    let idle = Source::new("engine/src/api/call.rs", "use super::Padded;");
    assert_eq!(dialects::idle_gates(&[idle]).len(), 1);
}

#[test]
fn a_module_of_nfs_does_not_name_a_higher_one() {
    let path = "apps/nfs/src/server/exports/table.rs";
    refused(nfs::nfs_layers, path, "use crate::client::Nfs;", "`server` names `client`");
    refused(nfs::nfs_layers, path, "use super::super::site::Site;", "`exports` names `site`");
    refused(nfs::nfs_layers, "apps/nfs/src/misc.rs", "", "no place among the layers");
    refused(nfs::nfs_layers, "apps/nfs/src/server/misc.rs", "", "no place among the layers");
    let text =
        "use super::flavor::Flavor; use crate::{protocol::Fattr3, server::file_system::Found};";
    accepted(nfs::nfs_layers, path, text);
    accepted(nfs::nfs_layers, path, "pub(in crate::server) struct Row;");
    accepted(nfs::nfs_layers, path, "#[cfg(test)] mod tests { use crate::server::site::Site; }");
    accepted(nfs::nfs_layers, "apps/nfs/src/server/mod.rs", "pub use service::Server;");
}

#[test]
fn three_files_of_nfs_in_a_circle_are_refused() {
    let file = |name: &str, next: &str| {
        let text = format!("use crate::server::{next}::Name;");
        Source::new(format!("apps/nfs/src/server/{name}.rs"), text)
    };
    let three = [file("a", "b"), file("b", "c"), file("c", "a")];
    assert_eq!(nfs::nfs_circles(&three).len(), 1);
    assert!(nfs::nfs_circles(&three[..2]).is_empty());
}

#[test]
fn drivers_keep_to_themselves() {
    let text = "use crate::fabric::sim::Clock;";
    refused(edges::driver_edges, "engine/src/fabric/shm/ring.rs", text, "driver `sim`");
    refused(edges::driver_edges, "engine/src/reactor/turn.rs", text, "driver `sim`");
    accepted(edges::driver_edges, "engine/src/fabric/sim/net.rs", text);
    accepted(edges::driver_edges, "engine/src/api/start.rs", text);
}

#[test]
fn a_second_file_of_the_api_naming_a_driver_is_refused() {
    let file = |name: &str| Source::new(name, "use crate::fabric::shm::Shm;");
    let one = [file("engine/src/api/start.rs"), file("engine/src/fabric/shm/mod.rs")];
    assert!(edges::drivers_in_api(&one).is_empty());
    let two = [file("engine/src/api/start.rs"), file("engine/src/api/call.rs")];
    assert_eq!(edges::drivers_in_api(&two).len(), 1);
}

#[test]
fn proto_with_std_is_refused_outside_its_tests() {
    let path = "engine/proto/src/credit.rs";
    refused(edges::proto_is_core_only, path, "use std::vec::Vec;", "`std::vec::Vec`");
    refused(edges::proto_is_core_only, path, "extern crate alloc;", "`alloc`");
    accepted(edges::proto_is_core_only, path, "#[cfg(test)]\nmod tests { use std::vec::Vec; }");
    accepted(edges::proto_is_core_only, path, "// as std::vec does\nuse core::fmt;");
}

#[test]
fn proto_without_its_attributes_is_refused() {
    let path = "engine/proto/src/lib.rs";
    refused(edges::proto_is_core_only, path, "#![no_std]", "`#![forbid(unsafe_code)]` is missing");
    accepted(edges::proto_is_core_only, path, "#![no_std]\n#![forbid(unsafe_code)]");
}

#[test]
fn gss_without_its_attribute_is_refused() {
    let path = "engine/gss/src/lib.rs";
    let attribute = "#![cfg_attr(not(feature = \"krb5-library\"), forbid(unsafe_code))]";
    refused(edges::gss_forbids_unsafe, path, "//! Tokens.", "forbid(unsafe_code))]` is missing");
    accepted(edges::gss_forbids_unsafe, path, attribute);
}

#[test]
fn atomics_past_the_seam_are_refused() {
    let path = "engine/src/reactor/stats.rs";
    let text = "use std::sync::{Arc, atomic::AtomicU64};";
    refused(edges::atomics_by_sync_only, path, text, "std::sync::atomic::AtomicU64");
    accepted(edges::atomics_by_sync_only, "engine/src/sync/mod.rs", text);
    accepted(edges::atomics_by_sync_only, path, "use std::sync::Arc; use crate::sync::AtomicU64;");
    let tests = format!("#[cfg(all(test, not(loom)))] mod tests {{ {text} }}");
    accepted(edges::atomics_by_sync_only, path, &tests);
}

#[test]
fn crates_point_downwards() {
    manifest_refused(
        "engine/Cargo.toml",
        "[dependencies]\nspinrpc-tuning.workspace = true",
        "tuning",
    );
    manifest_refused("engine/Cargo.toml", "[dev-dependencies]\nspinrpc-apps = \"1\"", "apps");
    manifest_refused(
        "engine/Cargo.toml",
        "[target.'cfg(x)'.dependencies]\nmimalloc = \"1\"",
        "mimalloc",
    );
    manifest_refused("engine/proto/Cargo.toml", "[dependencies]\nlibc = \"1\"", "no dependencies");
    manifest_refused("engine/Cargo.toml", "[dependencies]\nspinrpc = \"1\"", "spinrpc");
    manifest_refused("tuning/Cargo.toml", "[dependencies]\nspinrpc-gss = \"1\"", "spinrpc-gss");
    manifest_refused("engine/gss/Cargo.toml", "[dependencies]\nspinrpc = \"1\"", "spinrpc");
    manifest_refused("extra/Cargo.toml", "", "without a place");
}

/// A function of `lines` lines, with a brace in a string that must not end it.
fn function_of(lines: usize) -> String {
    format!("fn f<'a>() -> [u8; 2] {{ \"}}\";\n{}}}\n", "\n".repeat(lines - 2))
}

#[test]
fn functions_may_have_seventy_lines() {
    accepted(rules::function_length, "bench/src/main.rs", &function_of(70));
    refused(rules::function_length, "bench/src/main.rs", &function_of(71), "fn f has 71 lines");
    let nested = format!("mod tests {{ impl X {{ #[test] {} }} }}", function_of(71));
    refused(rules::function_length, "engine/tests/kill.rs", &nested, "fn f has 71 lines");
}

#[test]
fn declarations_and_function_types_have_no_length() {
    let text = format!("trait T {{ fn f(&self); }} type F = fn(u8);{}fn g() {{}}", "\n".repeat(80));
    accepted(rules::function_length, "engine/src/api/mod.rs", &text);
}

#[test]
fn files_may_have_eight_hundred_lines() {
    accepted(rules::file_length, "apps/src/lib.rs", &"\n".repeat(800));
    refused(rules::file_length, "apps/src/lib.rs", &"\n".repeat(801), "801 lines");
}

#[test]
fn unsafe_outside_its_homes_is_refused() {
    let text = "fn f() { unsafe { g() } }";
    refused(rules::unsafe_places, "engine/src/reactor/turn.rs", text, "unsafe");
    refused(rules::unsafe_places, "engine/gss/src/library.rs", text, "unsafe");
    accepted(rules::unsafe_places, "engine/gss/src/library/handles.rs", text);
    refused(rules::unsafe_places, "apps/nfs/src/server/directory/node.rs", text, "unsafe");
    accepted(rules::unsafe_places, "apps/nfs/src/sys/file_handle.rs", text);
    accepted(rules::unsafe_places, "engine/src/fabric/shm/ring.rs", text);
    accepted(rules::unsafe_places, "engine/src/api/call.rs", "#![deny(unsafe_code)] // unsafe");
}

#[test]
fn a_library_with_an_allocator_is_refused() {
    let text = "#[global_allocator]\nstatic A: MiMalloc = MiMalloc;";
    refused(rules::allocator_in_programs_only, "tuning/src/lib.rs", text, "in a library");
    accepted(rules::allocator_in_programs_only, "tuning/src/main.rs", text);
    accepted(rules::allocator_in_programs_only, "apps/src/bin/spin-echo/main.rs", text);
}

#[test]
fn unfinished_code_is_refused() {
    let note = concat!("// TO", "DO: later");
    refused(rules::unfinished, "bench/src/main.rs", note, concat!("TO", "DO"));
    for text in ["fn f() { todo!() }", "#[ignore = \"slow\"]", "dbg!(x);", "unimplemented!()"] {
        assert_eq!(verdict(rules::unfinished, "engine/tests/kill.rs", text).len(), 1, "{text}");
    }
    accepted(rules::unfinished, "engine/src/lib.rs", "let text = \"dbg!\"; // says dbg!");
}

#[test]
fn a_file_without_a_head_is_refused() {
    refused(rules::head, "engine/src/mem/pool.rs", "// Pool.\n", "no head");
    accepted(rules::head, "engine/src/mem/pool.rs", "//! Pools by size class.\n");
}

#[test]
fn unwraps_outside_tests_are_refused() {
    let path = "engine/src/mem/pool.rs";
    refused(rules::unwraps, path, "fn f() { x.unwrap() }", "unwrap");
    refused(rules::unwraps, "engine/gss/src/token.rs", "fn f() { x.unwrap() }", "unwrap");
    refused(rules::unwraps, path, "fn f() { x\n  .expect(\"y\") }", "expect");
    accepted(rules::unwraps, path, "fn f() { x.unwrap_or(1) } // .unwrap()");
    accepted(rules::unwraps, path, "#[test]\nfn f() { x.unwrap() }");
    accepted(rules::unwraps, "engine/tests/kill.rs", "fn f() { x.unwrap() }");
    let after = "#[cfg(test)] use a::{b, c};\nfn f() { x.unwrap() }";
    refused(rules::unwraps, path, after, ":2:");
}

#[test]
fn only_conditions_that_need_tests_make_tests() {
    let broken = |condition: &str| {
        let text = format!("#[cfg({condition})]\nfn f() {{ x.unwrap() }}");
        rules::unwraps(&Source::new("engine/src/mem/pool.rs", text)).len()
    };
    let own = "feature = \"conformance\"";
    for condition in ["test", "all(test, not(loom))", "any(test, all(loom, test))", own] {
        assert_eq!(broken(condition), 0, "{condition}");
    }
    for condition in ["not(test)", "any(test, loom)", "feature = \"test\"", "any(not(x), test)"] {
        assert_eq!(broken(condition), 1, "{condition}");
    }
}

#[test]
fn modules_declared_for_tests_are_tests_in_their_own_files_too() {
    let mut sources = [
        Source::new("engine/src/mem/mod.rs", "#[cfg(test)]\nmod oracle;\nmod pool;"),
        Source::new("engine/src/mem/oracle.rs", "fn f() { x.unwrap() }"),
        Source::new("engine/src/mem/pool.rs", "fn f() { x.unwrap() }"),
    ];
    mark_test_modules(&mut sources);
    let broken = |index: usize| rules::unwraps(&sources[index]).len();
    assert_eq!((broken(1), broken(2)), (0, 1));
}
