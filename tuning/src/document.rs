//! Parses one file: TOML text -> located entries, each checked by itself. Relations between entries
//! are checked elsewhere.

use crate::error::{Location, Problem};
use crate::suggest::unknown_key;
use spinrpc::config::{KEYS, Key, RawConfig, Value};
use std::ops::Range;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

#[derive(Debug, Default)]
pub(crate) struct Document {
    pub(crate) description: Option<String>,
    pub(crate) includes: Vec<(String, Location)>,
    pub(crate) entries: Vec<Entry>,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: &'static Key,
    pub(crate) value: Value,
    pub(crate) location: Location,
}

/// Parses a document; `file` is its name in messages. Adds all problems to `problems`.
pub(crate) fn parse(file: &Arc<str>, text: &str, problems: &mut Vec<Problem>) -> Document {
    let mut reader = Reader { file, text, problems, document: Document::default() };
    match DeTable::parse(text) {
        Ok(root) => reader.root(root.get_ref()),
        Err(error) => {
            let offset = error.span().unwrap_or_default().start;
            reader.problem(offset, error.message());
        }
    }
    reader.document
}

struct Reader<'a> {
    file: &'a Arc<str>,
    text: &'a str,
    problems: &'a mut Vec<Problem>,
    document: Document,
}

type Node<'a> = Spanned<DeValue<'a>>;

impl Reader<'_> {
    fn root(&mut self, root: &DeTable<'_>) {
        if !root.contains_key("schema") {
            self.problem(0, "schema is missing: write \"schema = 1\" at the top");
        }
        for (name, node) in in_order(root) {
            match name.get_ref().as_ref() {
                "schema" => self.schema(node),
                "include" => self.include(node),
                "description" => self.description(node),
                group => self.group(group, name, node),
            }
        }
    }

    fn schema(&mut self, node: &Node<'_>) {
        if integer(node.get_ref()) != Some(1) {
            let written = self.written(node.span());
            self.problem(node.span().start, format!("schema = {written}: expected 1"));
        }
    }

    fn description(&mut self, node: &Node<'_>) {
        match node.get_ref().as_str() {
            Some(text) => self.document.description = Some(text.to_owned()),
            None => self.problem(node.span().start, "description: expected a string"),
        }
    }

    fn include(&mut self, node: &Node<'_>) {
        let expected = "include: expected a list of profiles such as [\"base\"]";
        let Some(list) = node.get_ref().as_array() else {
            return self.problem(node.span().start, expected);
        };
        for item in list.iter() {
            match item.get_ref().as_str().filter(|name| !name.is_empty()) {
                Some(name) => {
                    let location = self.location(item.span().start);
                    self.document.includes.push((name.to_owned(), location));
                }
                None => self.problem(item.span().start, expected),
            }
        }
    }

    /// A table is a group of keys; a dot joins the names of group and key.
    fn group(&mut self, path: &str, name: &Spanned<DeString<'_>>, node: &Node<'_>) {
        match node.get_ref().as_table() {
            Some(table) if !table.is_empty() && Key::find(path).is_none() => {
                for (name, node) in in_order(table) {
                    self.group(&format!("{path}.{}", name.get_ref()), name, node);
                }
            }
            Some(table) if table.is_empty() && KEYS.iter().any(|key| key.parts().0 == path) => {}
            _ => self.entry(path, name, node),
        }
    }

    fn entry(&mut self, path: &str, name: &Spanned<DeString<'_>>, node: &Node<'_>) {
        let Some(key) = Key::find(path) else {
            return self.problem(name.span().start, unknown_key(path));
        };
        let value = to_value(node.get_ref());
        match value.filter(|value| key.set(&mut RawConfig::default(), value).is_ok()) {
            Some(value) => {
                let location = self.location(name.span().start);
                self.document.entries.push(Entry { key, value, location });
            }
            None => {
                let refused = key.refuse(&self.written(node.span()));
                self.problem(node.span().start, refused);
            }
        }
    }

    fn problem(&mut self, offset: usize, message: impl std::fmt::Display) {
        let location = self.location(offset);
        self.problems.push(Problem::new(Some(location), message));
    }

    fn location(&self, offset: usize) -> Location {
        Location::of(self.file, self.text, offset)
    }

    /// A value as written in the file, truncated to keep messages readable.
    fn written(&self, span: Range<usize>) -> String {
        let written = self.text.get(span).unwrap_or_default();
        match written.char_indices().nth(WRITTEN_CHARS_MAX) {
            Some((cut, _)) => format!("{}...", &written[..cut]),
            None => written.to_owned(),
        }
    }
}

const WRITTEN_CHARS_MAX: usize = 40;

fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<(&'a Spanned<DeString<'i>>, &'a Node<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    entries
}

fn to_value(value: &DeValue<'_>) -> Option<Value> {
    let number = || integer(value).map(Value::Integer);
    let flag = || value.as_bool().map(Value::Flag);
    let text = || value.as_str().map(|text| Value::Text(text.to_owned()));
    number().or_else(flag).or_else(text)
}

fn integer(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// Reads the value of an override: TOML, or else a bare word such as `busy` or `2-5`.
pub(crate) fn parse_value(written: &str) -> Option<Value> {
    match DeValue::parse(written) {
        Ok(value) => to_value(value.get_ref()),
        Err(_) => Some(Value::Text(written.to_owned())),
    }
}
