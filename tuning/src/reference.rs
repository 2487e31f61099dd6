//! Reference of all keys: as a profile to copy and edit, and as a document.

use spinrpc::config::{KEYS, Key};

/// A profile that sets every key to its default and documents its purpose, its allowed values and
/// the reason for the default. The shipped profile `base` is this text.
pub fn reference() -> String {
    by_group(HEAD, |group| format!("\n[{group}]\n"), entry)
}

fn entry(key: &Key) -> String {
    let effect = comment(key.effect);
    let allowed = comment(&format!("Takes {}{}. {}", key.allowed(), unit(key), key.reason));
    format!("{effect}{allowed}{} = {}\n", key.parts().1, key.default_value())
}

/// The reference in Markdown: the file `REFERENCE.md` of this package.
pub fn markdown() -> String {
    by_group(TITLE, |group| format!("\n## {group}\n"), section)
}

fn section(key: &Key) -> String {
    let link = |name: &&str| format!("[`{name}`](#{})", name.replace('.', ""));
    let rows = [
        ("Takes", format!("{}{}", key.allowed(), unit(key))),
        ("Default", format!("`{}`: {}", key.default_value(), lower(key.reason))),
        ("Defined by", key.origin.to_owned()),
        ("See also", key.related.iter().map(link).collect::<Vec<_>>().join(", ")),
    ];
    let told = rows.iter().filter(|(_, what)| !what.is_empty());
    let rows = told.map(|(title, what)| format!("* {title}: {what}\n")).collect::<String>();
    format!("\n### {}\n\n{}\n\n{rows}", key.name, key.effect)
}

fn by_group(head: &str, title: fn(&str) -> String, entry: fn(&Key) -> String) -> String {
    let groups = KEYS.chunk_by(|one, next| one.parts().0 == next.parts().0);
    let texts = groups.flat_map(|keys| {
        let title = keys.first().map(|key| title(key.parts().0));
        title.into_iter().chain(keys.iter().map(entry))
    });
    std::iter::once(head.to_owned()).chain(texts).collect()
}

fn unit(key: &Key) -> String {
    if key.unit.is_empty() { String::new() } else { format!(" ({})", key.unit) }
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
fn comment(words: &str) -> String {
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
