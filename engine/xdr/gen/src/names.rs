//! Rust names of the names in a description. Used by the resolver.

use std::collections::BTreeSet;

/// A type or variant: `READ3args` becomes `Read3args`, `diropargs3` `Diropargs3`, `cb_client4`
/// `CbClient4`, `sattrguard3_obj` `Sattrguard3Obj`.
pub(crate) fn camel(name: &str) -> String {
    let words = words(name).into_iter().map(|word| {
        let mut letters = word.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        first.into_iter().chain(letters.map(|letter| letter.to_ascii_lowercase())).collect()
    });
    let name: String = words.collect::<Vec<String>>().concat();
    match name.as_str() {
        "Self" => "Self_".to_owned(),
        _ if name.starts_with(|first: char| first.is_ascii_alphabetic()) => name,
        _ => format!("X{name}"),
    }
}

/// A field, function or module: `fileAttributes` becomes `file_attributes`; a keyword of Rust is written
/// as a raw identifier.
pub(crate) fn snake(name: &str) -> String {
    let name = words(name).join("_").to_ascii_lowercase();
    match name.as_str() {
        "self" | "super" | "crate" => format!("{name}_"),
        keyword if KEYWORDS.split(' ').any(|word| word == keyword) => format!("r#{keyword}"),
        _ if name.starts_with(|first: char| first.is_ascii_alphabetic()) => name,
        _ => format!("x{name}"),
    }
}

pub(crate) fn screaming(name: &str) -> String {
    let name = words(name).join("_").to_ascii_uppercase();
    match name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        true => name,
        false => format!("X{name}"),
    }
}

#[derive(Default)]
pub(crate) struct Scope(BTreeSet<String>);

impl Scope {
    /// A scope in which these, between spaces, are taken.
    pub(crate) fn new(taken: &str) -> Self {
        Self(taken.split(' ').map(str::to_owned).collect())
    }

    /// Takes `name`, with as many underscores behind it as distinguish it from those taken before.
    pub(crate) fn take(&mut self, mut name: String) -> String {
        while !self.0.insert(name.clone()) {
            name.push('_');
        }
        name
    }
}

/// Parts between underscores, and between a small letter and a capital.
fn words(name: &str) -> Vec<&str> {
    name.split('_').flat_map(humps).filter(|word| !word.is_empty()).collect()
}

fn humps(word: &str) -> Vec<&str> {
    let bytes = word.as_bytes();
    let ends = (1..bytes.len())
        .filter(|&at| bytes[at - 1].is_ascii_lowercase() && bytes[at].is_ascii_uppercase());
    let mut parts = Vec::new();
    let mut start = 0;
    for end in ends.chain([bytes.len()]) {
        parts.push(&word[start..end]);
        start = end;
    }
    parts
}

/// Keywords of Rust, edition 2024, that can be raw identifiers.
const KEYWORDS: &str = "abstract as async await become box break const continue do dyn else enum \
    extern false final fn for gen if impl in let loop macro match mod move mut override priv pub \
    ref return static struct trait true try type typeof unsafe unsized use virtual where while \
    yield";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions_of_rust() {
        let camels = [
            ("READ3args", "Read3args"),
            ("nfs_fh4", "NfsFh4"),
            ("NFS3ERR_NOT_SYNC", "Nfs3errNotSync"),
            ("fooBarURL", "FooBarUrl"),
            ("_x", "X"),
            ("_9", "X9"),
            ("self", "Self_"),
        ];
        assert_eq!(camels.map(|(name, _)| camel(name)), camels.map(|(_, name)| name.to_owned()));
        let snakes =
            [("type", "r#type"), ("self", "self_"), ("fooBar", "foo_bar"), ("NFS_V3", "nfs_v3")];
        assert_eq!(snakes.map(|(name, _)| snake(name)), snakes.map(|(_, name)| name.to_owned()));
        assert_eq!(screaming("nfsMax_len"), "NFS_MAX_LEN");
        assert_eq!(screaming("_1"), "X1");
    }

    #[test]
    fn a_name_that_is_taken_is_changed() {
        let mut scope = Scope::new("Option");
        let names = ["Option", "A", "A", "A", "r#type"].map(|name| scope.take(name.to_owned()));
        assert_eq!(names, ["Option_", "A", "A_", "A__", "r#type"]);
    }
}
