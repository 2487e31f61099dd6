//! Profile options shared by the command lines of all programs in this workspace.

use crate::error::ProfileError;
use crate::loader::Loader;
use crate::printable::abridged;
use crate::profile::Profile;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spinrpc::config::{Choice, Driver};

/// Options `--profile` and `--set` for clap.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ProfileArgs {
    /// Profile of the engine: a name, or the path of a TOML file [default: base]
    #[arg(long, value_name = "NAME|FILE", global = true)]
    pub profile: Option<String>,
    /// Override a key of the profile, such as rpc.version=2; may be repeated
    #[arg(long, value_name = "KEY=VALUE", global = true)]
    pub set: Vec<String>,
}

impl ProfileArgs {
    /// Loads the profile, as [`load_for_program`].
    ///
    /// # Errors
    /// One line that describes the problem of the profile or a value.
    pub fn load(&self, loader: Loader<'_>, driver: Driver) -> Result<Profile, String> {
        let name = self.profile.as_deref().unwrap_or(DEFAULT_PROFILE);
        load_for_program(name, &self.set, loader, driver)
    }
}

/// Raises the limit of descriptors to the hard limit, as connections and open files need some each.
pub fn raise_descriptor_limit() {
    raise_to_hard(Resource::Nofile);
}

pub(crate) fn raise_to_hard(resource: Resource) {
    let hard = getrlimit(resource).maximum;
    // A failure shows later, as a connection that cannot be made, or memory that cannot be registered.
    let _ = setrlimit(resource, Rlimit { current: hard, maximum: hard });
}

/// A usage error of clap on one line: its first paragraph, without `error: `.
pub fn usage_error(error: &clap::Error) -> String {
    let text = error.to_string();
    let kept = text.lines().take_while(|line| !line.starts_with("Usage:"));
    let kept = kept.filter(|line| !line.starts_with("For more"));
    let words: Vec<&str> = kept.flat_map(str::split_whitespace).collect();
    let message = words.join(" ");
    abridged(message.strip_prefix("error: ").unwrap_or(&message))
}

/// Profile of a program when none is given: the defaults of every key.
pub const DEFAULT_PROFILE: &str = "base";

/// Loads the profile that a command line names. Precedence, from lowest: the program's own values
/// in `loader`, `set` (`KEY=VALUE`), and the driver of the program's address. Blocks while files
/// are read.
///
/// # Errors
/// One line that describes the problem of the profile or a value.
pub fn load_for_program(
    name: &str,
    set: &[String],
    loader: Loader<'_>,
    driver: Driver,
) -> Result<Profile, String> {
    let loader = set.iter().fold(loader, |loader, one| loader.set(one.as_str()));
    let loader = loader.set(format!("fabric.driver={}", driver.name()));
    let unusable = |error: ProfileError| error.to_string().replace('\n', "; ");
    loader.load(name).map_err(|error| format!("profile {name}: {}", unusable(error)))
}
