//! The TOML of a profile, and values laid over it. Whatever is refused is refused in words that say
//! where; what is taken comes out the same when it is written down key by key and loaded again.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use spinrpc::config::Host;
use spinrpc_tuning::{Loader, Profile};

static HOST: LazyLock<Host> = LazyLock::new(Host::current);

/// A file of this process; in memory, where that is possible.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared_memory = PathBuf::from("/dev/shm");
    let directory = if shared_memory.is_dir() { shared_memory } else { std::env::temp_dir() };
    directory.join(format!("spinrpc-fuzz-{}.toml", std::process::id()))
});

/// A profile, and behind each zero byte a value to lay over it.
pub fn run(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == 0);
    let profile = parts.next().unwrap_or_default();
    // Other files are not the fuzzer's to open; a file may include what is shipped.
    if profile.contains(&b'/') {
        return;
    }
    let overrides = parts.filter_map(|part| std::str::from_utf8(part).ok());
    match load(profile, overrides) {
        Ok(profile) => check_written_again(&profile),
        Err(message) => assert!(!message.is_empty() && message.len() < 1 << 16, "{message}"),
    }
}

fn load<'a>(toml: &[u8], overrides: impl Iterator<Item = &'a str>) -> Result<Profile, String> {
    fs::write(&*FILE, toml).unwrap();
    let loader = overrides.take(8).fold(Loader::new(&HOST), |loader, value| loader.set(value));
    let loaded = loader.load(FILE.to_str().unwrap()).map_err(|error| error.to_string());
    fs::remove_file(&*FILE).unwrap();
    loaded
}

fn check_written_again(profile: &Profile) {
    let mut toml = "schema = 1\n".to_owned();
    for setting in profile.settings() {
        writeln!(toml, "{} = {}", setting.key.name, setting.value).unwrap();
    }
    let again = load(toml.as_bytes(), std::iter::empty()).unwrap();
    assert_eq!(again.hash(), profile.hash());
}
