//! Every name that the crate exports stands in an example: code of the documentation, of the guide, of the README, or
//! a program in `examples`.
#![allow(clippy::unwrap_used, reason = "a test ends here")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn crate_path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// Rust sources below a folder.
fn sources(folder: &Path) -> Vec<String> {
    let mut sources = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources.extend(self::sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(fs::read_to_string(path).unwrap());
        }
    }
    sources
}

/// Pieces of code between fences, in text that has no others.
fn fenced<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut piece: Option<String> = None;
    for line in lines {
        match (line.trim_start().starts_with("```"), &mut piece) {
            (true, Some(_)) => pieces.extend(piece.take()),
            (true, None) => piece = Some(String::new()),
            (false, Some(piece)) => *piece += &format!("{line}\n"),
            (false, None) => {}
        }
    }
    pieces
}

/// Pieces of code in the documentation of a source.
fn documented(source: &str) -> Vec<String> {
    let is_comment = |line: &&str| line.starts_with("///") || line.starts_with("//!");
    let lines = source.lines().map(str::trim_start).filter(is_comment);
    fenced(lines.map(|line| &line[3..]))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

/// Names of the `pub use` declarations of the crate's root, except those of modules.
fn exported(root: &str) -> BTreeSet<&str> {
    let declarations = root.split("pub use ").skip(1).map(|rest| rest.split(';').next().unwrap());
    let declarations = declarations.filter(|path| !path.starts_with("spinrpc_fabric::"));
    let names = declarations.flat_map(|path| match path.split_once('{') {
        Some((_, list)) => words(list).collect::<Vec<_>>(),
        None => words(path).last().into_iter().collect(),
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// Names that a piece of code uses and has from `spinrpc`, or from `spinrpc_fabric`, whose names it exports: imported by
/// a `use`, which is no use by itself, or written with
/// their path.
fn used(code: &str) -> BTreeSet<&str> {
    let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let is_use = |text: &str| ["use ", "pub use "].iter().any(|word| text.starts_with(word));
    let (mut imported, mut others, mut in_use) = (Vec::new(), Vec::new(), None);
    for line in code {
        let text = line.trim_start().trim_start_matches("# ").trim_start();
        let is_of_us = match in_use {
            Some(is_of_us) => is_of_us,
            None if is_use(text) => {
                let path = text.split_once("use ").unwrap().1;
                path.starts_with("spinrpc::") || path.starts_with("spinrpc_fabric::")
            }
            None => {
                others.push(text);
                continue;
            }
        };
        if is_of_us {
            let path = ["use", "pub", "spinrpc", "spinrpc_fabric"];
            imported.extend(words(text).filter(|word| !path.contains(word)));
        }
        in_use = (!text.contains(';')).then_some(is_of_us);
    }
    let bare = others.iter().flat_map(|line| words(line)).filter(|word| imported.contains(word));
    let paths = others.iter().flat_map(|line| line.split("spinrpc::").skip(1));
    let qualified = paths.flat_map(|path| {
        let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
        let end = path.find(|letter| !is_path(letter)).unwrap_or(path.len());
        words(&path[..end])
    });
    bare.chain(qualified).filter(|word| !word.is_empty()).collect()
}

#[test]
fn every_exported_name_stands_in_an_example() {
    let root = fs::read_to_string(crate_path("src/lib.rs")).unwrap();
    let mut examples = sources(&crate_path("examples"));
    for folder in ["src", "fabric/src", "proto/src"] {
        examples.extend(sources(&crate_path(folder)).iter().flat_map(|source| documented(source)));
    }
    let chapters =
        fs::read_dir(crate_path("src/guide")).unwrap().map(|entry| entry.unwrap().path());
    let pages = chapters.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    for page in pages.chain(["src/guide.md", "../README.md"].map(crate_path)) {
        examples.extend(fenced(fs::read_to_string(page).unwrap().lines()));
    }
    let used: BTreeSet<&str> = examples.iter().flat_map(|code| used(code)).collect();
    let exported = exported(&root);
    assert!(exported.len() > 80, "{exported:?}");
    let missing: Vec<_> = exported.difference(&used).collect();
    assert!(missing.is_empty(), "in no example: {missing:?}");
}

#[test]
fn only_names_of_the_crate_that_code_uses_count() {
    let code = "# use spinrpc::{A, B,\n    c::D};\nuse other::E;\n// B\nlet a: A = E(spinrpc::f::G::new(H));\nD";
    assert_eq!(used(code), BTreeSet::from(["A", "D", "G", "f", "new"]));
}

#[test]
fn names_in_prose_and_in_code_that_is_no_documentation_do_not_count() {
    let source =
        "/// [`Prose`] of a [`Link`].\n/// ```\n/// let a = Shown;\n/// ```\nfn f() { Private }";
    assert_eq!(documented(source), [" let a = Shown;\n"]);
    let root = "pub use a::{B, C,\n    d};\npub use e::F;\nuse g::H;";
    assert_eq!(exported(root), BTreeSet::from(["B", "C", "F", "d"]));
}
