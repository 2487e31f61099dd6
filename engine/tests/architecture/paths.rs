//! The paths a source file names, in `use` trees and in code, resolved to the crate they are in.

use crate::lexer::{self, Token};
use crate::source::Source;
use std::ops::Range;

/// One path and where it stands. A path within the own crate begins with `crate`; `super` and
/// `self` are resolved. A glob ends with `*`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) segments: Vec<String>,
    pub(crate) at: usize,
}

impl Path {
    /// The part of a path within the own crate below its root; `None` for other crates.
    pub(crate) fn local(&self) -> Option<&[String]> {
        let (root, below) = self.segments.split_first()?;
        (root == "crate").then_some(below)
    }

    pub(crate) fn starts_with(&self, prefix: &[&str]) -> bool {
        self.segments.len() >= prefix.len()
            && self.segments.iter().zip(prefix).all(|(segment, wanted)| segment == wanted)
    }
}

/// Every path of two segments or more, and every crate named by `extern crate`.
pub(crate) fn paths(source: &Source) -> Vec<Path> {
    let tokens = source.tokens();
    let inline = inline_modules(&tokens);
    let (mut found, mut index) = (Vec::new(), 0);
    while index < tokens.len() {
        let mut walker = Walker { tokens: &tokens, at: tokens[index].at, found: Vec::new() };
        index = if is_extern_crate(&tokens, index) {
            walker.leaf(index, &[], text(&tokens, index))
        } else if begins_path(&tokens, index) {
            walker.tree(index, &[])
        } else {
            index + 1
        };
        found.extend(walker.found.into_iter().map(|path| resolve(source, &inline, path)));
    }
    found
}

fn text<'a>(tokens: &[Token<'a>], index: usize) -> &'a str {
    tokens.get(index).map_or("", |token| token.text)
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

fn is_extern_crate(tokens: &[Token<'_>], index: usize) -> bool {
    index >= 2 && text(tokens, index - 2) == "extern" && text(tokens, index - 1) == "crate"
}

/// A name with `::` behind it, and nothing that it continues before it.
fn begins_path(tokens: &[Token<'_>], index: usize) -> bool {
    let continues = index >= 2
        && text(tokens, index - 1) == "::"
        && (is_name(text(tokens, index - 2)) || text(tokens, index - 2) == ">");
    is_name(text(tokens, index)) && text(tokens, index + 1) == "::" && !continues
}

/// Follows one path, or the tree of a `use`.
struct Walker<'t, 'a> {
    tokens: &'t [Token<'a>],
    at: usize,
    found: Vec<Path>,
}

impl Walker<'_, '_> {
    /// Records the paths of the tree at `index`; returns the index of what follows it.
    fn tree(&mut self, index: usize, prefix: &[String]) -> usize {
        match text(self.tokens, index) {
            "{" => self.group(index, prefix),
            "*" => self.leaf(index, prefix, "*"),
            "self" if !prefix.is_empty() => self.record(prefix, index + 1),
            name if is_name(name) => self.name(index, prefix, name),
            _ => self.record(prefix, index), // a turbofish, or punctuation: the path ends before
        }
    }

    fn name(&mut self, index: usize, prefix: &[String], name: &str) -> usize {
        if text(self.tokens, index + 1) != "::" {
            return self.leaf(index, prefix, name);
        }
        let mut longer = prefix.to_vec();
        longer.push(name.to_owned());
        self.tree(index + 2, &longer)
    }

    fn group(&mut self, open: usize, prefix: &[String]) -> usize {
        let close = lexer::closing(self.tokens, open);
        let mut index = open + 1;
        while index < close {
            let next = self.tree(index, prefix);
            index = next.max(index + 1);
            while index < close && text(self.tokens, index - 1) != "," {
                index += 1; // over `as name` and the comma
            }
        }
        close + 1
    }

    fn leaf(&mut self, index: usize, prefix: &[String], name: &str) -> usize {
        // An exported macro lives at the root, wherever it is written.
        if prefix == ["crate"] && text(self.tokens, index + 1) == "!" {
            return index + 1;
        }
        let mut whole = prefix.to_vec();
        whole.push(name.to_owned());
        self.record(&whole, index + 1)
    }

    fn record(&mut self, segments: &[String], next: usize) -> usize {
        self.found.push(Path { segments: segments.to_vec(), at: self.at });
        next
    }
}

/// Byte ranges of `mod name { … }`, with their names.
fn inline_modules(tokens: &[Token<'_>]) -> Vec<(Range<usize>, String)> {
    let opens = (0..tokens.len()).filter(|&index| {
        text(tokens, index) == "mod"
            && is_name(text(tokens, index + 1))
            && text(tokens, index + 2) == "{"
    });
    let range = |index: usize| tokens[index].at..tokens[lexer::closing(tokens, index + 2)].at;
    opens.map(|index| (range(index), text(tokens, index + 1).to_owned())).collect()
}

fn resolve(source: &Source, inline: &[(Range<usize>, String)], path: Path) -> Path {
    let own = matches!(path.segments[0].as_str(), "super" | "self");
    if !own {
        return path;
    }
    let mut home: Vec<String> = source.module().iter().map(|&part| part.to_owned()).collect();
    let inside = inline.iter().filter(|(range, _)| range.contains(&path.at));
    home.extend(inside.map(|(_, name)| name.clone()));
    for segment in &path.segments {
        match segment.as_str() {
            "super" => drop(home.pop()),
            "self" => {}
            name => home.push(name.to_owned()),
        }
    }
    home.insert(0, "crate".to_owned());
    Path { segments: home, at: path.at }
}
