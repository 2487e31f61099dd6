//! Holds `CONFORMANCE.md` to the code: every known rule has one row, in order, and every row names
//! code and tests that are there.
#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests")]

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Rules by the prefix of their names, and how many there are of each kind.
const RULES: &[(&str, usize)] = &[
    ("R5666", 73),
    ("D5666", 27),
    ("D00", 10),
    ("D03", 9),
    ("V2", 31),
    ("R8166", 44),
    ("R8167", 15),
    ("R8797", 10),
    ("R2203", 20),
    ("R4121", 10),
];

/// Cells of a row, and which of them name code and tests.
const CELLS: usize = 7;
const CODE: usize = 5;
const TESTS: usize = 6;

struct Row {
    id: String,
    cells: Vec<String>,
}

impl Row {
    fn parse(line: &str) -> Option<Self> {
        let cells = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let cells: Vec<String> = cells.split(" | ").map(|cell| cell.trim().to_owned()).collect();
        let (kind, number) = cells[0].split_once('-')?;
        let known = RULES.iter().any(|(known, _)| *known == kind) && number.parse::<u8>().is_ok();
        known.then(|| Self { id: cells[0].clone(), cells })
    }

    /// Path and item of each line of a cell.
    fn references(&self, cell: usize) -> Vec<(String, String)> {
        let lines = self.cells[cell].split("<br>");
        lines.map(|line| self.reference(line)).collect()
    }

    fn reference(&self, line: &str) -> (String, String) {
        let named = line.strip_prefix('`').and_then(|line| line.strip_suffix('`'));
        let parts = named.and_then(|named| named.split_once("::"));
        let Some((path, item)) = parts else { panic!("{}: `{line}` is not a path::item", self.id) };
        (path.to_owned(), item.to_owned())
    }
}

fn rows() -> Vec<Row> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("CONFORMANCE.md");
    fs::read_to_string(file).unwrap().lines().filter_map(Row::parse).collect()
}

#[derive(Default)]
struct Sources(HashMap<String, String>);

impl Sources {
    /// A file that is not there is empty.
    fn text(&mut self, path: &str) -> &str {
        self.0.entry(path.to_owned()).or_insert_with(|| {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
            fs::read_to_string(file).unwrap_or_default()
        })
    }

    fn define(&mut self, path: &str, item: &str) -> bool {
        is_defined(self.text(path), item)
    }

    fn test(&mut self, path: &str, name: &str) -> bool {
        // The functions of this suite become tests by a macro, which lists them.
        match path.split_once("/conformance/") {
            Some((suite, _)) => {
                let list = self.text(&format!("{suite}/conformance.rs"));
                list.contains(&format!(" {name},")) && self.define(path, name)
            }
            None => is_test(self.text(path), name),
        }
    }
}

#[test]
fn every_rule_has_one_row_in_order() {
    let expected: Vec<String> = RULES
        .iter()
        .flat_map(|(kind, count)| (1..=*count).map(move |number| format!("{kind}-{number}")))
        .collect();
    let found: Vec<String> = rows().into_iter().map(|row| row.id).collect();
    assert_eq!(found, expected);
}

#[test]
fn no_cell_is_empty() {
    for row in rows() {
        assert_eq!(row.cells.len(), CELLS, "{}", row.id);
        assert!(row.cells.iter().all(|cell| !cell.is_empty()), "{}", row.id);
        assert!(["Q", "R", "B", "U", "P", "-"].contains(&&row.cells[2][..]), "{}", row.id);
    }
}

#[test]
fn the_code_that_is_named_exists() {
    let mut sources = Sources::default();
    for row in rows() {
        for (path, item) in row.references(CODE) {
            assert!(sources.define(&path, &item), "{}: no {item} in {path}", row.id);
        }
    }
}

#[test]
fn the_tests_that_are_named_exist() {
    let mut sources = Sources::default();
    for row in rows() {
        for (path, name) in row.references(TESTS) {
            assert!(sources.test(&path, &name), "{}: no test {name} in {path}", row.id);
        }
    }
}

fn is_defined(text: &str, item: &str) -> bool {
    let (owner, name) = item.rsplit_once("::").unwrap_or(("", item));
    let has_owner = owner.is_empty()
        || text.lines().any(|line| is_item(line) && words(line).any(|word| word == owner));
    has_owner && text.lines().any(|line| defines(line, name))
}

fn is_item(line: &str) -> bool {
    words(line).any(|word| ["impl", "struct", "enum", "trait"].contains(&word))
}

fn defines(line: &str, name: &str) -> bool {
    const KEYWORDS: [&str; 7] = ["fn", "struct", "enum", "trait", "const", "static", "type"];
    let code = line.split("//").next().unwrap_or_default();
    let before = words(code).zip(words(code).skip(1));
    before.into_iter().any(|(keyword, word)| KEYWORDS.contains(&keyword) && word == name)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|next: char| !next.is_alphanumeric() && next != '_').filter(|word| !word.is_empty())
}

/// True if a function of that name follows `#[test]`, with only other attributes between them.
fn is_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let starts = |line: &str| line.starts_with(&format!("fn {name}("));
    let Some(at) = lines.iter().position(|line| starts(line)) else { return false };
    lines[..at]
        .iter()
        .rev()
        .take_while(|line| line.starts_with("#["))
        .any(|line| *line == "#[test]")
}
