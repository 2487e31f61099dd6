//! The rules of the house, checked by reading the sources of the whole workspace.
//!
//! Imports between modules, lengths of functions and files, places of `unsafe` and atomics, and
//! heads of source files. There is no list of exceptions: code that breaks a rule is changed, or
//! the rule is changed here, in a commit that gives the reason. The bad samples in
//! `architecture/samples.rs` prove that each rule can fail.

#[path = "architecture/bench.rs"]
mod bench;
#[path = "architecture/dialects.rs"]
mod dialects;
#[path = "architecture/edges.rs"]
mod edges;
#[path = "architecture/layers.rs"]
mod layers;
#[path = "architecture/lexer.rs"]
mod lexer;
#[path = "architecture/manifest.rs"]
mod manifest;
#[path = "architecture/nfs.rs"]
mod nfs;
#[path = "architecture/paths.rs"]
mod paths;
#[path = "architecture/rules.rs"]
mod rules;
#[path = "architecture/samples.rs"]
mod samples;
#[path = "architecture/source.rs"]
mod source;

use source::{Source, Violation, Workspace};
use std::io;

/// Applies `rule` to every source file and fails with all that it finds.
#[track_caller]
fn every_source(rule: impl Fn(&Source) -> Vec<Violation>) -> io::Result<()> {
    let workspace = Workspace::load()?;
    obeyed(workspace.sources.iter().flat_map(rule).collect());
    Ok(())
}

#[track_caller]
fn obeyed(violations: Vec<Violation>) {
    let report: Vec<String> = violations.iter().map(Violation::to_string).collect();
    assert!(report.is_empty(), "{} broken:\n{}", report.len(), report.join("\n"));
}

#[test]
fn the_checker_sees_the_workspace() {
    let workspace = Workspace::load().unwrap();
    for path in [
        "engine/src/lib.rs",
        "engine/proto/src/lib.rs",
        "engine/gss/src/lib.rs",
        "engine/tests/architecture.rs",
        "bench/src/main.rs",
        "bench/src/cli/mod.rs",
    ] {
        assert!(workspace.sources.iter().any(|source| source.path == path), "{path} is missing");
    }
    let crates = "engine, proto, gss, capi, apps, nfs, bench, tuning, fuzz, a peer, xdr, its derive, gen and suite";
    assert_eq!(workspace.manifests.len(), 14, "{crates}");
}

#[test]
fn modules_import_only_what_lies_below_them() -> io::Result<()> {
    every_source(edges::module_edges)
}

#[test]
fn layers_of_the_reactor_import_only_lower_ones() -> io::Result<()> {
    every_source(layers::reactor_layers)
}

#[test]
fn layers_of_the_reactor_call_only_methods_of_lower_ones() {
    let workspace = Workspace::load().unwrap();
    obeyed(layers::reactor_methods(&workspace.sources));
}

#[test]
fn files_of_the_reactor_import_each_other_in_no_large_circle() {
    let workspace = Workspace::load().unwrap();
    obeyed(layers::reactor_circles(&workspace.sources));
}

#[test]
fn modules_of_spinperf_import_only_lower_ones() -> io::Result<()> {
    every_source(bench::bench_layers)
}

#[test]
fn files_of_spinperf_import_each_other_in_no_large_circle() {
    let workspace = Workspace::load().unwrap();
    obeyed(bench::bench_circles(&workspace.sources));
}

#[test]
fn modules_of_nfs_import_only_lower_ones() -> io::Result<()> {
    every_source(nfs::nfs_layers)
}

#[test]
fn files_of_nfs_import_each_other_in_no_large_circle() {
    let workspace = Workspace::load().unwrap();
    obeyed(nfs::nfs_circles(&workspace.sources));
}

#[test]
fn api_names_concrete_drivers_in_one_file_at_most() {
    let workspace = Workspace::load().unwrap();
    obeyed(edges::drivers_in_api(&workspace.sources));
}

#[test]
fn few_files_name_what_only_the_dialects_of_rfc_5666_need() -> io::Result<()> {
    every_source(dialects::dialect_gates)
}

#[test]
fn every_gate_to_the_dialects_is_one() {
    let workspace = Workspace::load().unwrap();
    obeyed(dialects::idle_gates(&workspace.sources));
}

#[test]
fn drivers_do_not_import_each_other() -> io::Result<()> {
    every_source(edges::driver_edges)
}

#[test]
fn proto_uses_core_only() -> io::Result<()> {
    every_source(edges::proto_is_core_only)
}

#[test]
fn gss_has_no_unsafe_code() -> io::Result<()> {
    every_source(edges::gss_forbids_unsafe)
}

#[test]
fn crates_depend_only_on_what_lies_below_them() {
    let workspace = Workspace::load().unwrap();
    obeyed(workspace.manifests.iter().flat_map(manifest::crate_edges).collect());
}

#[test]
fn functions_fit_on_a_screen() -> io::Result<()> {
    every_source(rules::function_length)
}

#[test]
fn files_stay_readable() -> io::Result<()> {
    every_source(rules::file_length)
}

#[test]
fn unsafe_stands_only_where_it_must() -> io::Result<()> {
    every_source(rules::unsafe_places)
}

#[test]
fn atomics_go_through_the_seam() -> io::Result<()> {
    every_source(edges::atomics_by_sync_only)
}

#[test]
fn only_programs_choose_an_allocator() -> io::Result<()> {
    every_source(rules::allocator_in_programs_only)
}

#[test]
fn nothing_is_left_unfinished() -> io::Result<()> {
    every_source(rules::unfinished)
}

#[test]
fn every_source_file_says_what_it_is_for() -> io::Result<()> {
    every_source(rules::head)
}

#[test]
fn the_engine_does_not_unwrap() -> io::Result<()> {
    every_source(rules::unwraps)
}
