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

/// Lines between fences, in text that has no others.
fn fenced<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut is_code = false;
    let mut code = Vec::new();
    for line in lines {
        match line.trim_start().starts_with("```") {
            true => is_code = !is_code,
            false if is_code => code.push(line),
            false => {}
        }
    }
    code
}

/// Code in the documentation of a source.
fn documented(source: &str) -> String {
    let is_comment = |line: &&str| line.starts_with("///") || line.starts_with("//!");
    let lines = source.lines().map(str::trim_start).filter(is_comment);
    fenced(lines.map(|line| &line[3..])).join("\n")
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

/// Names of the `pub use` declarations of the crate's root.
fn exported(root: &str) -> BTreeSet<&str> {
    let declarations = root.split("pub use ").skip(1).map(|rest| rest.split(';').next().unwrap());
    let names = declarations.flat_map(|path| match path.split_once('{') {
        Some((_, list)) => words(list).collect::<Vec<_>>(),
        None => words(path).last().into_iter().collect(),
    });
    names.filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_exported_name_stands_in_an_example() {
    let root = fs::read_to_string(crate_path("src/lib.rs")).unwrap();
    let mut examples = sources(&crate_path("examples"));
    for folder in ["src", "proto/src"] {
        examples.extend(sources(&crate_path(folder)).iter().map(|source| documented(source)));
    }
    let chapters =
        fs::read_dir(crate_path("src/guide")).unwrap().map(|entry| entry.unwrap().path());
    let pages = chapters.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    for page in pages.chain(["src/guide.md", "../README.md"].map(crate_path)) {
        examples.push(fenced(fs::read_to_string(page).unwrap().lines()).join("\n"));
    }
    let used: BTreeSet<&str> = examples.iter().flat_map(|text| words(text)).collect();
    let exported = exported(&root);
    assert!(exported.len() > 80, "{exported:?}");
    let missing: Vec<_> = exported.difference(&used).collect();
    assert!(missing.is_empty(), "in no example: {missing:?}");
}

#[test]
fn names_in_prose_and_in_code_that_is_no_documentation_do_not_count() {
    let source =
        "/// [`Prose`] of a [`Link`].\n/// ```\n/// let a = Shown;\n/// ```\nfn f() { Private }";
    assert_eq!(documented(source).trim(), "let a = Shown;");
    let root = "pub use a::{B, C,\n    d};\npub use e::F;\nuse g::H;";
    assert_eq!(exported(root), BTreeSet::from(["B", "C", "F", "d"]));
}
