//! A profile that was found, read and checked.

use crate::error::Location;
use spinrpc::config::{Config, CoreList, KEYS, Key, Value};
use std::collections::BTreeMap;
use std::fmt;

/// A valid profile, resolved for one host.
#[derive(Clone, Debug)]
pub struct Profile {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) config: Config,
    pub(crate) sources: BTreeMap<&'static str, Source>,
}

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Default of the engine.
    Default,
    /// The last file that set it.
    File(Location),
    /// [`crate::Loader::set`], as from a command line.
    Override,
}

impl Source {
    /// The location in a file.
    pub fn location(&self) -> Option<&Location> {
        match self {
            Self::File(location) => Some(location),
            Self::Default | Self::Override => None,
        }
    }
}

/// One key of a profile.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Setting<'a> {
    /// The key.
    pub key: &'static Key,
    /// The value as set.
    pub value: Value,
    /// The resolved value on this host, if it differs: for `auto`.
    pub resolved: Option<String>,
    /// Origin of the value.
    pub source: &'a Source,
}

impl Profile {
    /// The name or path that it was loaded by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The description in the file.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// The configuration for the engine.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Every key, in the order of the table of keys.
    pub fn settings(&self) -> impl Iterator<Item = Setting<'_>> {
        KEYS.iter().map(|key| Setting {
            key,
            value: key.value(self.config.raw()),
            resolved: self.resolved(key),
            source: self.sources.get(key.name).unwrap_or(&Source::Default),
        })
    }

    /// Identifies a profile in reports. Profiles with equal values have equal hashes, whatever
    /// their files, on every host and in every build. `auto` is hashed as such, not as its resolved
    /// value.
    pub fn hash(&self) -> u64 {
        let lines =
            KEYS.iter().map(|key| format!("{}={}\n", key.name, key.value(self.config.raw())));
        lines.fold(FNV_OFFSET, |hash, line| fnv1a(hash, line.as_bytes()))
    }

    /// CPUs are known at start; other keys with `auto` are resolved for each connection.
    fn resolved(&self, key: &Key) -> Option<String> {
        let is_auto = key.value(self.config.raw()) == Value::Text("auto".to_owned());
        let is_cores = key.name == "cores.list";
        (is_cores && is_auto).then(|| CoreList::Cpus(self.config.cpus().to_vec()).to_string())
    }
}

/// FNV-1a, because the hashers of the standard library may change between versions.
fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => out.write_str("default"),
            Self::File(location) => write!(out, "{}:{}", location.file, location.line),
            Self::Override => out.write_str("override"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors published with the algorithm.
    #[test]
    fn hash_is_fnv_1a() {
        assert_eq!(fnv1a(FNV_OFFSET, b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(FNV_OFFSET, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(FNV_OFFSET, b"foobar"), 0x8594_4171_f739_67e8);
    }
}
