//! Which keytab a server uses: the one of its option `--keytab`, or that of the variable `KRB5_KTNAME`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Keytab of a host, unless a program is told another one.
pub(crate) const USUAL: &str = "/etc/krb5.keytab";

const VARIABLE: &str = "KRB5_KTNAME";
/// Kinds of keytabs in that variable that are files.
const FILES: [&[u8]; 2] = [b"FILE", b"WRFILE"];

/// A name that is not that of a file. Its text has the name as it was given, which is not safe to print.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoFile {
    /// A kind of keytab that is not a file, such as `MEMORY:x`.
    #[error("{0}: this kind of keytab is not supported, name a file")]
    Kind(String),
    /// No path, or none after the kind.
    #[error("{0:?}: not a file, the path is empty")]
    Empty(String),
}

/// The keytab that is named by this option or, without one, by the environment of this process; `None` if neither names one:
/// it is [`USUAL`]. An absolute path, so that MIT's library does not take its beginning for a kind.
pub(crate) fn named(option: Option<&Path>) -> Result<Option<PathBuf>, NoFile> {
    choose(option, std::env::var_os(VARIABLE).as_deref())
}

/// As [`named`], with this value of the variable `KRB5_KTNAME`. The option is a path, and the variable is what MIT's library takes
/// for a name: `FILE:PATH`, `WRFILE:PATH` or `PATH`. An empty variable is none.
fn choose(option: Option<&Path>, variable: Option<&OsStr>) -> Result<Option<PathBuf>, NoFile> {
    let (name, path) = match (option, variable.filter(|name| !name.is_empty())) {
        (Some(path), _) => (path.as_os_str(), path.as_os_str()),
        (None, Some(name)) => (name, path_in(name)?),
        (None, None) => return Ok(None),
    };
    if path.is_empty() {
        return Err(NoFile::Empty(shown(name)));
    }
    // Without a working directory, opening it says so.
    Ok(Some(std::path::absolute(path).unwrap_or_else(|_| path.into())))
}

/// The path in a name. The library takes what is before a colon for the kind, unless it begins with a slash or is one letter.
fn path_in(name: &OsStr) -> Result<&OsStr, NoFile> {
    let bytes = name.as_bytes();
    match bytes.iter().position(|byte| *byte == b':') {
        Some(end) if FILES.contains(&&bytes[..end]) => Ok(OsStr::from_bytes(&bytes[end + 1..])),
        Some(end) if end != 1 && bytes[0] != b'/' => Err(NoFile::Kind(shown(name))),
        _ => Ok(name),
    }
}

fn shown(name: &OsStr) -> String {
    OsString::from(name).to_string_lossy().into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_a_path_and_the_variable_a_name_of_the_library() {
        let here = std::env::current_dir().unwrap();
        let of = |option: Option<&str>, variable: Option<&str>| {
            choose(option.map(Path::new), variable.map(OsStr::new))
        };
        for (option, variable, expected) in [
            (None, Some("/x"), PathBuf::from("/x")),
            (None, Some("FILE:/x"), "/x".into()),
            (None, Some("WRFILE:/x"), "/x".into()),
            (None, Some("/a:b"), "/a:b".into()),
            (None, Some("FILE:rel.keytab"), here.join("rel.keytab")),
            (None, Some("rel.keytab"), here.join("rel.keytab")),
            (None, Some("FILE:FILE:x"), here.join("FILE:x")),
            (None, Some("C:x"), here.join("C:x")),
            (Some("/x"), Some("MEMORY:y"), "/x".into()),
            (Some("FILE:/x"), None, here.join("FILE:/x")),
            (Some("MEMORY:x"), None, here.join("MEMORY:x")),
            (Some("x"), Some("FILE:/y"), here.join("x")),
        ] {
            assert_eq!(of(option, variable), Ok(Some(expected)), "{option:?} {variable:?}");
        }
        assert_eq!(of(None, None), Ok(None));
        assert_eq!(of(None, Some("")), Ok(None), "an empty variable is none");
    }

    #[test]
    fn what_is_no_file_is_refused_with_the_name_as_given() {
        let of = |name: &str| choose(None, Some(OsStr::new(name))).unwrap_err();
        for name in ["MEMORY:x", "KEYRING:x", "SRVTAB:/x", "file:/x", "ANY:FILE:/x", "a/b:c", ":x"]
        {
            assert_eq!(of(name), NoFile::Kind(name.into()));
            assert!(of(name).to_string().starts_with(&format!("{name}: this kind of keytab")));
        }
        for name in ["FILE:", "WRFILE:"] {
            assert_eq!(of(name), NoFile::Empty(name.into()));
        }
        assert_eq!(choose(Some(Path::new("")), None), Err(NoFile::Empty(String::new())));
    }
}
