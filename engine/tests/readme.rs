//! The README's table of limits is that of the code.

use spinrpc::config::{KEYS, Key};

/// Key and default of each row of the table.
fn rows() -> Vec<(&'static str, &'static str)> {
    let cells = |row: &'static str| row.split('|').map(str::trim).collect::<Vec<_>>();
    let rows = include_str!("../../README.md").lines().map(cells);
    rows.filter(|cells| cells.len() == 6)
        .filter_map(|cells| Some((cells[2].strip_prefix('`')?.strip_suffix('`')?, cells[3])))
        .filter(|(key, _)| key.contains('.'))
        .collect()
}

#[test]
fn every_limit_in_the_readme_has_its_default() {
    assert!(rows().len() >= 16, "{:?}", rows());
    for (name, default) in rows() {
        let key = Key::find(name).unwrap_or_else(|| panic!("README names {name}, which is no key"));
        assert_eq!(key.default_value().to_string(), default, "{name} in README");
    }
}

#[test]
fn every_limit_of_calls_and_connections_is_in_the_readme() {
    let limits = KEYS.iter().filter(|key| {
        ["rpc.", "limits."].iter().any(|group| key.name.starts_with(group)) && !key.unit.is_empty()
    });
    for key in limits {
        assert!(rows().iter().any(|(name, _)| *name == key.name), "README lacks {}", key.name);
    }
}
