//! The guide's table of limits matches the code, and the path of a call names functions that exist.

use spinrpc::config::{KEYS, Key};

fn rows() -> Vec<(&'static str, &'static str)> {
    let cells = |row: &'static str| row.split('|').map(str::trim).collect::<Vec<_>>();
    let rows = include_str!("../src/guide/limits.md").lines().map(cells);
    rows.filter(|cells| cells.len() == 6)
        .filter_map(|cells| Some((cells[2].strip_prefix('`')?.strip_suffix('`')?, cells[3])))
        .filter(|(key, _)| key.contains('.'))
        .collect()
}

#[test]
fn every_limit_in_the_guide_has_its_default() {
    assert!(rows().len() >= 16, "{:?}", rows());
    for (name, default) in rows() {
        let key =
            Key::find(name).unwrap_or_else(|| panic!("the guide names {name}, which is not a key"));
        assert_eq!(key.default_value().to_string(), default, "{name} in the guide");
    }
}

#[test]
fn every_limit_of_calls_and_connections_is_in_the_guide() {
    let limits = KEYS.iter().filter(|key| {
        ["rpc.", "limits."].iter().any(|group| key.name.starts_with(group)) && !key.unit.is_empty()
    });
    for key in limits {
        assert!(rows().iter().any(|(name, _)| *name == key.name), "the guide lacks {}", key.name);
    }
}

/// File and function of each pair in the path of a call: a file in backquotes and a colon, then functions
/// in backquotes until the next file.
fn named_functions(text: &str) -> Vec<(String, String)> {
    let mut file = None;
    let mut named = Vec::new();
    // A path that a line break divides is none: lists of the text do not divide them.
    for (index, quoted) in text.split('`').enumerate().filter(|(index, _)| index % 2 == 1) {
        let behind = text.split('`').nth(index + 1).unwrap_or_default();
        if quoted.ends_with(".rs") {
            file = behind.starts_with(':').then(|| quoted.to_owned());
        } else if let Some(file) = file.as_ref().filter(|_| is_name(quoted)) {
            named.push((file.clone(), quoted.to_owned()));
        }
    }
    named
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_')
}

#[test]
fn the_path_of_a_call_names_functions_that_exist() {
    let text = include_str!("../../ARCHITECTURE.md");
    let named = named_functions(text);
    assert!(named.len() > 30, "{named:?}");
    for (file, function) in named {
        let path = match file.split_once('/') {
            Some(("proto", rest)) => format!("proto/src/{rest}"),
            Some(("fabric", rest)) => format!("fabric/src/{rest}"),
            Some(("mem" | "sync" | "sys", _)) => format!("fabric/src/{file}"),
            _ => format!("src/{file}"),
        };
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let source =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        let is_there = [format!("fn {function}("), format!("fn {function}<")];
        assert!(is_there.iter().any(|name| source.contains(name)), "{file} has no fn {function}");
    }
}

#[test]
fn functions_are_found_behind_their_files() {
    let text =
        "`a.rs`: `one` and `two`, then `b/c.rs` as such, `three`; `d.rs`:\n `four_x` or `Not`.";
    let expected = [("a.rs", "one"), ("a.rs", "two"), ("d.rs", "four_x")];
    assert_eq!(named_functions(text), expected.map(|(file, name)| (file.into(), name.into())));
}
