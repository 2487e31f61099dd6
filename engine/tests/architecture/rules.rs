//! Rules a single file keeps or breaks by itself.

use crate::lexer::{self, Token};
use crate::source::{Source, Violation};

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 800;

/// Places where `unsafe` may stand in shipped code: the modules for memory and the system, those of the
/// bindings to a library, and the interface for C. Tests are held to the same by the lint `unsafe_code`, which a test file lifts
/// by name.
const UNSAFE_HOMES: &[&str] = &[
    "engine/src/sys/",
    "engine/src/sync/",
    "engine/src/mem/",
    "engine/src/fabric/shm/",
    "engine/src/fabric/verbs/",
    "engine/capi/src/",
    "engine/gss/src/library/",
    "apps/nfs/src/sys/",
];

pub(crate) fn function_length(source: &Source) -> Vec<Violation> {
    let tokens = source.tokens();
    let long = |index: usize| {
        let (name, lines) = function(source, &tokens, index)?;
        let problem = format!("fn {name} has {lines} lines, of {FUNCTION_LINES_MAX} allowed");
        let fix = "give a part of it a separate name";
        (lines > FUNCTION_LINES_MAX).then(|| source.violation(tokens[index].at, problem, fix))
    };
    (0..tokens.len()).filter_map(long).collect()
}

/// Name and length, from `fn` to the closing brace, of the function that begins at `index`. A
/// declaration ends at its semicolon; `fn(…)` is a type and has no name.
fn function<'a>(source: &Source, tokens: &[Token<'a>], index: usize) -> Option<(&'a str, usize)> {
    let name = tokens.get(index + 1)?.text;
    if tokens[index].text != "fn" || name == "(" {
        return None;
    }
    let end = lexer::item_end(tokens, index);
    Some((name, source.line(tokens[end].at) - source.line(tokens[index].at) + 1))
}

pub(crate) fn file_length(source: &Source) -> Vec<Violation> {
    let lines = source.text.lines().count();
    let problem = format!("{lines} lines, of {FILE_LINES_MAX} allowed");
    if lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    vec![source.violation(0, problem, "split the file by what its parts are for")]
}

pub(crate) fn unsafe_places(source: &Source) -> Vec<Violation> {
    if !source.is_product() || UNSAFE_HOMES.iter().any(|home| source.path.starts_with(home)) {
        return Vec::new();
    }
    let fix = "put a safe function for it into sys, sync, mem or a driver";
    words(source, "unsafe").map(|at| source.violation(at, "`unsafe`".to_owned(), fix)).collect()
}

pub(crate) fn allocator_in_programs_only(source: &Source) -> Vec<Violation> {
    let is_program = source.path.ends_with("/main.rs") || source.path.contains("/src/bin/");
    if !source.is_product() || is_program {
        return Vec::new();
    }
    let fix = "only a program's main file chooses an allocator";
    let problem = || "`global_allocator` in a library".to_owned();
    words(source, "global_allocator").map(|at| source.violation(at, problem(), fix)).collect()
}

/// Offsets of `word` as a whole word in the code.
fn words<'a>(source: &'a Source, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    source.tokens().into_iter().filter(move |token| token.text == word).map(|token| token.at)
}

/// Notes to finish something later, in comments too, and the macros that stand for it.
pub(crate) fn unfinished(source: &Source) -> Vec<Violation> {
    // Written in two halves, so that this file passes its own rule.
    let notes = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let in_text = notes.iter().flat_map(|note| source.text.match_indices(note));
    let calls = ["todo!", "unimplemented!", "dbg!", "#[ignore"];
    let in_code = calls.iter().flat_map(|call| source.code.match_indices(call));
    let fix = "finish it, or take it out and open an issue";
    in_text
        .chain(in_code)
        .map(|(at, what)| source.violation(at, format!("`{what}`"), fix))
        .collect()
}

/// A file in `src` begins with its purpose.
pub(crate) fn head(source: &Source) -> Vec<Violation> {
    if !source.is_product() || source.text.starts_with("//! ") {
        return Vec::new();
    }
    let fix = "begin with `//!`: what it is for, what it may touch, who calls it";
    vec![source.violation(0, "no head".to_owned(), fix)]
}

/// A library must not end the process: a function that can fail has a type that says so.
pub(crate) fn unwraps(source: &Source) -> Vec<Violation> {
    if !source.is_engine() && !source.path.starts_with("engine/gss/src/") {
        return Vec::new();
    }
    let calls = [".unwrap()", ".expect("];
    let found = calls.iter().flat_map(|call| source.code.match_indices(call));
    let fix = "return an error, or make the state impossible";
    found
        .filter(|(at, _)| !source.is_test(*at))
        .map(|(at, call)| source.violation(at, format!("`{call}` outside tests"), fix))
        .collect()
}
