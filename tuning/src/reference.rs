//! Reference of all keys: as a profile to copy and edit, and as a document.

use crate::background::background;
use spinrpc::config::{KEYS, Key};

/// A profile that sets every key to its default and documents its purpose, its allowed values and
/// the reason for the default. The shipped profile `base` is this text.
pub fn reference() -> String {
    let mut text = String::from(HEAD);
    let mut group = "";
    for key in KEYS {
        if key.parts().0 != group {
            group = key.parts().0;
            text.push_str(&format!("\n[{group}]\n"));
        }
        text.push_str(&entry(key));
    }
    text
}

fn entry(key: &Key) -> String {
    let unit = if key.unit.is_empty() { String::new() } else { format!(" ({})", key.unit) };
    let effect = comment(key.effect);
    let allowed = comment(&format!("Takes {}{unit}. {}", key.allowed(), key.reason));
    format!("{effect}{allowed}{} = {}\n", key.parts().1, key.default_value())
}

/// The reference in Markdown: the file `REFERENCE.md` of this package.
pub fn markdown() -> String {
    let mut text = String::from(TITLE);
    let mut group = "";
    for key in KEYS {
        if key.parts().0 != group {
            group = key.parts().0;
            text.push_str(&format!("\n## {group}\n"));
        }
        text.push_str(&section(key));
    }
    text
}

fn section(key: &Key) -> String {
    let unit = if key.unit.is_empty() { String::new() } else { format!(" ({})", key.unit) };
    let background = background(key);
    let link = |name: &&str| format!("[`{name}`](#{})", name.replace('.', ""));
    let related = background.related.iter().map(link).collect::<Vec<_>>().join(", ");
    let rows = [
        ("Takes", format!("{}{unit}", key.allowed())),
        ("Default", format!("`{}`: {}", key.default_value(), lower(key.reason))),
        ("Defined by", background.origin.to_owned()),
        ("See also", related),
    ];
    let told = rows.iter().filter(|(_, what)| !what.is_empty());
    let rows = told.map(|(title, what)| format!("* {title}: {what}\n")).collect::<String>();
    format!("\n### {}\n\n{}\n\n{rows}", key.name, key.effect)
}

/// Lower-cases a sentence that follows a colon; keeps acronyms and names of keys.
fn lower(sentence: &str) -> String {
    let mut letters = sentence.chars();
    match (letters.next(), letters.clone().next()) {
        (Some(first), Some(second)) if !second.is_uppercase() => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => sentence.to_owned(),
    }
}

/// Wraps text into comment lines no wider than the rest of the sources.
pub(crate) fn comment(words: &str) -> String {
    let mut lines = vec![String::from("#")];
    for word in words.split_whitespace() {
        let full = lines.last().is_none_or(|line| line.chars().count() + 1 + word.len() > WIDTH);
        if full {
            lines.push(String::from("#"));
        }
        if let Some(line) = lines.last_mut() {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

const TITLE: &str = "\
# Keys of a profile

Every key with its effect, its allowed values, its default and the reason for the default. This file
is the output of `spintune explain --markdown`, which a test verifies. `spintune explain KEY` explains
one key, and `spintune explain` prints all keys as a profile to edit.

A profile is TOML: `schema = 1`, then `include = [\"NAME\"]` for the profiles it builds on, a
`description`, and keys by group. A key that is not set has the included value, or else the default.
";
const WIDTH: usize = 100;
const HEAD: &str = "\
# Every key with its effect, its allowed values, its default and the reason for the default.
# To make a profile, include this one and set the keys that differ.
schema = 1
description = \"the defaults of every key\"
";
