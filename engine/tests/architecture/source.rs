//! The workspace as the rules see it: source files with their code, their place in the module
//! tree and the parts of them that are tests.

use crate::lexer::{self, Token};
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The condition of code that only tests switch on; the engine's manifest explains it.
const TEST_FEATURE: &str = "feature = \"conformance\"";

/// Every Rust file and every member's manifest.
pub(crate) struct Workspace {
    pub(crate) sources: Vec<Source>,
    pub(crate) manifests: Vec<Manifest>,
}

/// One `Cargo.toml`.
pub(crate) struct Manifest {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// One Rust file.
pub(crate) struct Source {
    /// Relative to the workspace, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// `text` without comments and literals, offset by offset.
    pub(crate) code: String,
    /// Byte ranges which are compiled for tests only.
    pub(crate) tests: Vec<Range<usize>>,
}

/// A violation: the rule, the place, and the remedy.
#[derive(Debug)]
pub(crate) struct Violation {
    path: String,
    line: usize,
    problem: String,
    fix: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}; {}", self.path, self.line, self.problem, self.fix)
    }
}

impl Violation {
    pub(crate) fn in_manifest(manifest: &Manifest, problem: String, fix: &'static str) -> Self {
        Self { path: manifest.path.clone(), line: 1, problem, fix }
    }
}

impl Workspace {
    /// Reads everything below the workspace's root, leaving out files of tools.
    pub(crate) fn load() -> io::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut files = Vec::new();
        collect(&root, &mut files)?;
        files.sort();
        let mut workspace = Self { sources: Vec::new(), manifests: Vec::new() };
        for file in files {
            workspace.add(relative(&root, &file), fs::read_to_string(&file)?);
        }
        mark_test_modules(&mut workspace.sources);
        Ok(workspace)
    }

    fn add(&mut self, path: String, text: String) {
        if path.ends_with(".rs") {
            self.sources.push(Source::new(path, text));
        } else if path != "Cargo.toml" {
            self.manifests.push(Manifest { path, text });
        }
    }
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(&path, files)?;
            }
        } else if name.ends_with(".rs") || name == "Cargo.toml" {
            files.push(path);
        }
    }
    Ok(())
}

fn relative(root: &Path, file: &Path) -> String {
    file.strip_prefix(root).unwrap_or(file).to_string_lossy().replace('\\', "/")
}

impl Source {
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let (path, text) = (path.into(), text.into());
        let code = lexer::blank(&text);
        let mut source = Self { path, text, code, tests: Vec::new() };
        source.tests = source.find_tests();
        source
    }

    /// Part of a crate's library or programs, rather than of its tests or benches.
    pub(crate) fn is_product(&self) -> bool {
        self.path.starts_with("src/") || self.path.contains("/src/")
    }

    /// True for files of the engine or its protocol core, except their tests.
    pub(crate) fn is_engine(&self) -> bool {
        self.path.starts_with("engine/src/") || self.path.starts_with("engine/proto/src/")
    }

    pub(crate) fn tokens(&self) -> Vec<Token<'_>> {
        lexer::tokens(&self.code)
    }

    pub(crate) fn line(&self, at: usize) -> usize {
        1 + self.text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count()
    }

    pub(crate) fn is_test(&self, at: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&at))
    }

    pub(crate) fn violation(&self, at: usize, problem: String, fix: &'static str) -> Violation {
        Violation { path: self.path.clone(), line: self.line(at), problem, fix }
    }

    /// The module this file is, from the crate's root: `engine/src/fabric/shm/ring.rs` is
    /// `fabric`, `shm`, `ring`.
    pub(crate) fn module(&self) -> Vec<&str> {
        let below = self.path.rsplit_once("src/").map_or(self.path.as_str(), |(_, below)| below);
        let below = below.strip_suffix(".rs").unwrap_or(below);
        let mut parts: Vec<&str> = below.split('/').collect();
        if matches!(parts.last(), Some(&("mod" | "lib" | "main"))) {
            parts.pop();
        }
        parts
    }

    fn find_tests(&self) -> Vec<Range<usize>> {
        if !self.is_product() || self.code.contains("#![cfg(test)]") {
            return std::iter::once(0..self.text.len()).collect();
        }
        let tokens = self.tokens();
        let begins = (0..tokens.len()).filter(|&index| self.is_test_attribute(&tokens, index));
        begins.map(|index| self.item_range(&tokens, index)).collect()
    }

    fn item_range(&self, tokens: &[Token<'_>], attribute: usize) -> Range<usize> {
        let end = lexer::item_end(tokens, attribute + 1);
        tokens[attribute].at..tokens[end].at + 1
    }

    /// Names of the child modules which are declared for tests only and live in other files.
    fn test_modules(&self) -> Vec<String> {
        let tokens = self.tokens();
        let declared = tokens.windows(3).filter(|window| {
            window[0].text == "mod" && window[2].text == ";" && self.is_test(window[0].at)
        });
        declared.map(|window| window[1].text.to_owned()).collect()
    }

    /// The path, without extension, where the file of child module `name` lies.
    fn child(&self, name: &str) -> String {
        let stem = self.path.strip_suffix(".rs").unwrap_or(&self.path);
        let (directory, file) = stem.rsplit_once('/').unwrap_or(("", stem));
        let home = if matches!(file, "mod" | "lib" | "main") { directory } else { stem };
        format!("{home}/{name}")
    }

    /// `#[test]`, or a `#[cfg(…)]` that holds for tests only.
    fn is_test_attribute(&self, tokens: &[Token<'_>], index: usize) -> bool {
        let [hash, open, name, ..] = &tokens[index..] else { return false };
        let begins = hash.text == "#" && open.text == "[";
        match name.text {
            "test" => begins,
            "cfg" => begins && self.needs_test(tokens, index + 4),
            _ => false,
        }
    }

    /// True if the condition that begins at `index` cannot hold without `test`: all of an `any` and
    /// one of an `all` require it. A condition within `not` proves nothing.
    fn needs_test(&self, tokens: &[Token<'_>], index: usize) -> bool {
        let Some(token) = tokens.get(index) else { return false };
        let parts = || conditions(tokens, index + 1).into_iter();
        match token.text {
            "test" => true,
            "feature" => self.text[token.at..].starts_with(TEST_FEATURE),
            "all" => parts().any(|part| self.needs_test(tokens, part)),
            "any" => parts().all(|part| self.needs_test(tokens, part)),
            _ => false,
        }
    }
}

/// Start of each condition in the parentheses opened at `open`.
fn conditions(tokens: &[Token<'_>], open: usize) -> Vec<usize> {
    let close = lexer::closing(tokens, open);
    let (mut found, mut index) = (vec![open + 1], open + 1);
    while index < close {
        match tokens[index].text {
            "(" => index = lexer::closing(tokens, index),
            "," => found.push(index + 1),
            _ => {}
        }
        index += 1;
    }
    found.retain(|&begin| begin < close);
    found
}

/// A file whose module is declared under `#[cfg(test)]` is all test.
pub(crate) fn mark_test_modules(sources: &mut [Source]) {
    let declared: Vec<String> =
        sources.iter().filter(|source| source.is_product()).fold(Vec::new(), |mut all, source| {
            all.extend(source.test_modules().iter().map(|name| source.child(name)));
            all
        });
    for source in sources {
        let is_below = |child: &String| {
            source.path == format!("{child}.rs") || source.path.starts_with(&format!("{child}/"))
        };
        if declared.iter().any(is_below) {
            source.tests = std::iter::once(0..source.text.len()).collect();
        }
    }
}
