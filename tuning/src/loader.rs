//! Resolves a name to a profile: finds the files, follows `include`, and merges them.

use crate::document::{self, Document, Entry};
use crate::error::{Location, Problem, ProfileError, SHIPPED};
use crate::printable::{abridged, read_bounded};
use crate::profile::{Profile, Source};
use crate::shipped::{self, Shipped, shipped};
use crate::suggest::{did_you_mean, unknown_key};
use spinrpc::config::{ConfigError, Host, Key, RawConfig};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Loads a profile for a host: a shipped one by name, or a file by path.
///
/// A name with a `/`, or one that ends in `.toml`, is a path. Blocks while files are read.
///
/// # Errors
/// All problems in the file and in its includes, with their locations.
pub fn load(name: &str, host: &Host) -> Result<Profile, ProfileError> {
    Loader::new(host).load(name)
}

/// Loads profiles with overrides from the caller.
#[derive(Debug)]
pub struct Loader<'a> {
    host: &'a Host,
    defaults: Vec<String>,
    overrides: Vec<String>,
}

impl<'a> Loader<'a> {
    /// A loader for this host.
    pub fn new(host: &'a Host) -> Self {
        Self { host, defaults: Vec::new(), overrides: Vec::new() }
    }

    /// Adds a default, in the form of [`Loader::set`]: it applies if neither the profile nor `set`
    /// sets the key. The shipped profile `base`, which lists every key with its default, does not
    /// count as setting a key.
    #[must_use]
    pub fn unless_set(mut self, key_and_value: impl Into<String>) -> Self {
        self.defaults.push(key_and_value.into());
        self
    }

    /// Overrides a value of the loaded profile with `KEY=VALUE`, as on a command line:
    /// `poll.mode=busy`. `load` reports invalid overrides.
    #[must_use]
    pub fn set(mut self, key_and_value: impl Into<String>) -> Self {
        self.overrides.push(key_and_value.into());
        self
    }

    /// Loads a profile like [`load`].
    ///
    /// # Errors
    /// All problems in the file, in its includes, and in the overrides.
    pub fn load(&self, name: &str) -> Result<Profile, ProfileError> {
        let general = |message| Problem::new(None, message);
        let origin = Origin::named(name).map_err(general)?;
        let mut layers = Layers::default();
        let description = layers.add(&origin).map_err(general)?;
        for assignment in &self.defaults {
            layers.underlay(assignment);
        }
        for assignment in &self.overrides {
            layers.overlay(assignment);
        }
        let Layers { raw, sources, mut problems, .. } = layers;
        let located = |error| Problem::new(place(&error, &sources).cloned(), error);
        // Each by itself, as one hides the other. With a value left out, others may only seem not to go together.
        let cores = RawConfig { cores: raw.cores.clone(), ..RawConfig::default() };
        let others = RawConfig { cores: RawConfig::default().cores, ..raw.clone() };
        let others = Some(others).filter(|_| problems.is_empty());
        let refused = |part: RawConfig| part.validate_for(self.host).err().map(located);
        problems.extend([Some(cores), others].into_iter().flatten().filter_map(refused));
        if !problems.is_empty() {
            return Err(ProfileError { problems });
        }
        let config = raw.validate_for(self.host).map_err(located)?;
        Ok(Profile { name: name.to_owned(), description, config, sources })
    }
}

/// Location to report: where the key at fault was set, or else the conflicting key that the error
/// names. `None` if one of them is an override and no user file sets the other.
fn place<'a>(
    error: &ConfigError,
    sources: &'a BTreeMap<&'static str, Source>,
) -> Option<&'a Location> {
    let own = |location: &&Location| !location.is_shipped();
    let at_fault = sources.get(error.key).and_then(Source::location);
    let words = || error.expected.split([',', ' ']);
    let others = || words().filter_map(|word| sources.get(word)?.location());
    let is_laid_over = |name| matches!(sources.get(name), Some(Source::Override));
    let is_asked_for = is_laid_over(error.key) || words().any(is_laid_over);
    let shipped = at_fault.filter(|_| !is_asked_for);
    at_fault.filter(own).or_else(|| others().find(own)).or(shipped)
}

#[derive(Clone, Debug)]
struct Origin {
    shown: PathBuf,
    /// The same for each path of a file, and its shown name for a shipped profile.
    identity: PathBuf,
    shipped: Option<&'static Shipped>,
}

impl Origin {
    fn named(name: &str) -> Result<Self, String> {
        if let Some(profile) = shipped::find(name) {
            return Ok(Self::shipped(profile));
        }
        if is_path(name) || Path::new(name).is_file() {
            return Self::file(Path::new(name)).map_err(|error| format!("{name}: {error}"));
        }
        Err(no_such_profile(name))
    }

    fn shipped(profile: &'static Shipped) -> Self {
        let shown = PathBuf::from(format!("{SHIPPED}{}.toml", profile.name));
        Self { identity: shown.clone(), shown, shipped: Some(profile) }
    }

    fn file(path: &Path) -> io::Result<Self> {
        let identity = path.canonicalize()?;
        // Opening a named pipe waits for its other end.
        if !identity.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        Ok(Self { shown: path.to_owned(), identity, shipped: None })
    }

    /// A file in the same folder, or else a shipped profile.
    fn included(&self, name: &str) -> Result<Self, String> {
        if self.shipped.is_none() {
            let mut path = self.shown.with_file_name(name);
            if path.extension().is_none_or(|extension| extension != "toml") {
                path.as_mut_os_string().push(".toml");
            }
            match Self::file(&path) {
                Ok(file) => return Ok(file),
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        && (!is_path(name) || shipped::find(name).is_some()) => {}
                Err(error) => return Err(format!("{}: {error}", path.display())),
            }
        }
        shipped::find(name).map(Self::shipped).ok_or_else(|| no_such_profile(name))
    }

    fn is(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    fn shown(&self) -> String {
        self.shown.display().to_string()
    }

    fn text(&self) -> io::Result<String> {
        match self.shipped {
            Some(profile) => Ok(profile.toml.to_owned()),
            None => read_bounded(File::open(&self.shown)?, FILE_BYTES_MAX),
        }
    }
}

const FILE_BYTES_MAX: u64 = 1 << 20;
const INCLUDE_DEPTH_MAX: usize = 16;

fn is_path(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

fn no_such_profile(name: &str) -> String {
    let names: Vec<_> = shipped().iter().map(|profile| profile.name).collect();
    let otherwise = format!("shipped profiles are {}; use a path for a file", names.join(", "));
    format!(
        "no profile {:?}{}",
        abridged(name),
        did_you_mean(name, names.iter().copied(), &otherwise)
    )
}

/// Documents merged over the defaults, each over its includes.
#[derive(Default)]
struct Layers {
    raw: RawConfig,
    sources: BTreeMap<&'static str, Source>,
    problems: Vec<Problem>,
    /// The chain of documents whose includes are being read, outermost first.
    open: Vec<Origin>,
    done: Vec<Origin>,
}

impl Layers {
    /// Merges the includes of a document, then the document itself; returns its description.
    fn add(&mut self, origin: &Origin) -> Result<Option<String>, String> {
        let file = Arc::from(origin.shown());
        let text = origin.text().map_err(|error| format!("{file}: {error}"))?;
        let document = document::parse(&file, &text, &mut self.problems);
        self.open.push(origin.clone());
        self.include_all(origin, &document);
        self.open.pop();
        for entry in document.entries {
            self.lay(entry);
        }
        self.done.push(origin.clone());
        Ok(document.description)
    }

    fn include_all(&mut self, origin: &Origin, document: &Document) {
        for (name, location) in &document.includes {
            let added = origin.included(name).and_then(|included| self.include(&included));
            if let Err(message) = added {
                self.problems
                    .push(Problem::new(Some(location.clone()), format!("include: {message}")));
            }
        }
    }

    /// Only at its first place: the second time, it would undo changes made in between.
    fn include(&mut self, included: &Origin) -> Result<(), String> {
        if self.done.iter().any(|done| done.is(included)) {
            return Ok(());
        }
        if let Some(start) = self.open.iter().position(|open| open.is(included)) {
            let cycle = self.open[start..].iter().chain([included]).map(Origin::shown);
            return Err(format!("cycle: {}", cycle.collect::<Vec<_>>().join(" -> ")));
        }
        if self.open.len() >= INCLUDE_DEPTH_MAX {
            return Err(format!("nested deeper than {INCLUDE_DEPTH_MAX} files"));
        }
        self.add(included).map(drop)
    }

    fn lay(&mut self, entry: Entry) {
        match entry.key.set(&mut self.raw, &entry.value) {
            Ok(()) => drop(self.sources.insert(entry.key.name, Source::File(entry.location))),
            Err(error) => self.problems.push(Problem::new(Some(entry.location), error)),
        }
    }

    /// Must come before any `overlay`.
    fn underlay(&mut self, assignment: &str) {
        let base = |location: &Location| *location.file == *format!("{SHIPPED}base.toml");
        let key = assignment.split('=').next().unwrap_or_default().trim();
        let said = self.sources.get(key).and_then(Source::location);
        if said.is_none_or(base) {
            self.overlay(assignment);
        }
    }

    fn overlay(&mut self, assignment: &str) {
        if let Err(message) = self.try_overlay(assignment) {
            self.problems.push(Problem::new(None, message));
        }
    }

    fn try_overlay(&mut self, assignment: &str) -> Result<(), String> {
        let Some((name, written)) = assignment.split_once('=') else {
            return Err(format!("{assignment:?}: expected KEY=VALUE, such as poll.mode=busy"));
        };
        let (name, written) = (name.trim(), written.trim());
        let key = Key::find(name).ok_or_else(|| unknown_key(name))?;
        let taken = document::parse_value(written)
            .is_some_and(|value| key.set(&mut self.raw, &value).is_ok());
        if !taken {
            return Err(key.refuse(written).to_string());
        }
        self.sources.insert(key.name, Source::Override);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_program_give_way_to_the_profile_and_to_what_is_set() {
        let host = Host { allowed: vec![0, 1], ..Host::default() };
        let credits = |loader: Loader<'_>, name: &str| {
            let loaded = loader.unless_set("rpc.credits=40").unless_set("poll.mode=sleep");
            let profile = loaded.load(name).unwrap();
            (profile.config().credits(), profile.config().idle_policy())
        };
        let loader = || Loader::new(&host);
        assert_eq!(credits(loader(), "base"), (40, spinrpc::IdlePolicy::Sleep));
        assert_eq!(credits(loader(), "latency").1, spinrpc::IdlePolicy::Busy);
        assert_eq!(credits(loader().set("rpc.credits=50"), "base").0, 50);
    }
}
