//! An export on the command line: `DIR[:OPTIONS]`, `PATH[:OPTIONS]`, `NAME[:OPTIONS]`.
//!
//! Options begin after the first colon, so a directory with a colon in its name needs the
//! configuration file.

use spinrpc_nfs::server::exports::{ExportOptions, Problem, Settings, Squash, id_of};
use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportSpec {
    pub(crate) what: What,
    pub(crate) settings: Settings,
}

/// An export as written, or everything that is wrong with it: errors of all exports are reported at once.
pub(crate) type Written = Result<ExportSpec, Vec<String>>;

pub(crate) fn directory(text: &str) -> Result<Written, Infallible> {
    Ok(of_option("export", text, |name| What::Directory(name.into())))
}

pub(crate) fn cephfs(text: &str) -> Result<Written, Infallible> {
    Ok(of_option("cephfs", text, What::Cephfs))
}

pub(crate) fn memory(text: &str) -> Result<Written, Infallible> {
    Ok(of_option("memory", text, What::Memory))
}

fn of_option(name: &str, text: &str, what: impl FnOnce(String) -> What) -> Written {
    let named = |problem: String| format!("--{name} {text}: {problem}");
    ExportSpec::parse(text, what).map_err(|problems| problems.into_iter().map(named).collect())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Directory(PathBuf),
    /// A directory of CephFS, by its path there.
    Cephfs(String),
    /// An in-memory tree with this name.
    Memory(String),
}

impl ExportSpec {
    fn parse(text: &str, what: impl FnOnce(String) -> What) -> Written {
        let (name, settings) = split(text)?;
        Self::new(what(name.to_owned()), settings).map_err(|problem| vec![problem])
    }

    pub(crate) fn new(what: What, settings: Settings) -> Result<Self, String> {
        let has_size = settings.bytes_max.is_some() || settings.files_max.is_some();
        check_machine(&settings.options)?;
        match &what {
            What::Directory(_) | What::Cephfs(_) if has_size => {
                Err("bytes and files only apply to exports in memory; a directory has the limits \
                     of its disk"
                    .into())
            }
            What::Cephfs(path) if !path.starts_with('/') => {
                Err("a directory of CephFS needs its path there, which begins with a slash".into())
            }
            What::Directory(path) if path.as_os_str().is_empty() => {
                Err("the directory is missing".into())
            }
            What::Memory(name) if name.is_empty() || name.contains('/') => {
                Err("an in-memory tree needs a name without slashes".into())
            }
            _ => Ok(Self { what, settings }),
        }
    }

    pub(crate) fn path(&self) -> Result<String, String> {
        match (&self.settings.path, &self.what) {
            (Some(path), _) => Ok(path.clone()),
            (None, What::Memory(name)) => Ok(format!("/{name}")),
            (None, What::Cephfs(path)) => path_of(Path::new(path)),
            (None, What::Directory(path)) => path_of(path),
        }
    }

    pub(crate) fn id(&self) -> Result<u32, String> {
        self.settings.id.map_or_else(|| self.path().map(|path| id_of(&path)), Ok)
    }
}

fn check_machine(options: &ExportOptions) -> Result<(), String> {
    match (options.machine_is_root, options.squash) {
        (true, Squash::All) => Err("machine=root and squash=all exclude each other: squash=all \
                                    makes every user anonymous"
            .into()),
        (true, _) if !options.accepts_kerberos() => Err("machine=root needs sec=krb5, krb5i or \
                                                         krb5p: only Kerberos proves hosts"
            .into()),
        _ => Ok(()),
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Cephfs(path) => write!(f, "cephfs {path}"),
            Self::Memory(name) => write!(f, "memory {name}"),
        }
    }
}

fn split(text: &str) -> Result<(&str, Settings), Vec<String>> {
    let (name, options) = match text.split_once(':') {
        Some((name, options)) => (name, Some(options)),
        None => (text, None),
    };
    let all = |errors: Vec<Problem>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    let settings = options.map(Settings::parse).transpose().map_err(all)?;
    Ok((name, settings.unwrap_or_default()))
}

/// The directory as an absolute path, as written: symbolic links are kept.
fn path_of(directory: &Path) -> Result<String, String> {
    let shown = directory.display();
    let absolute = std::path::absolute(directory).map_err(|error| format!("{shown}: {error}"))?;
    let parts: Option<Vec<&str>> = absolute.iter().skip(1).map(|part| part.to_str()).collect();
    let parts = parts.ok_or_else(|| {
        format!("{shown}: its name is not UTF-8; set the path for clients with path=/PATH")
    })?;
    Ok(format!("/{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ExportSpec {
        pub(crate) fn directory(text: &str) -> Written {
            Self::parse(text, |name| What::Directory(name.into()))
        }

        pub(crate) fn cephfs(text: &str) -> Written {
            Self::parse(text, What::Cephfs)
        }

        pub(crate) fn memory(text: &str) -> Written {
            Self::parse(text, What::Memory)
        }
    }

    fn path(text: &str) -> String {
        ExportSpec::directory(text).unwrap().path().unwrap()
    }

    #[test]
    fn clients_mount_the_path_of_the_directory_or_what_is_given() {
        assert_eq!(path("/srv/data"), "/srv/data");
        assert_eq!(path("/srv//data/./:ro"), "/srv/data");
        assert_eq!(path("/"), "/");
        assert_eq!(path("/srv/data:path=/data,ro"), "/data");
        let here = std::env::current_dir().unwrap();
        assert_eq!(path("data"), format!("{}/data", here.display()));
        assert_eq!(ExportSpec::memory("scratch").unwrap().path().unwrap(), "/scratch");
        assert_eq!(ExportSpec::cephfs("/a//b/:ro").unwrap().path().unwrap(), "/a/b");
    }

    #[test]
    fn the_options_begin_behind_the_first_colon() {
        let spec = ExportSpec::directory("/srv:client=2001:db8::/32,anon=1:2").unwrap();
        assert_eq!(spec.settings.options.clients.len(), 1);
        assert_eq!(spec.settings.options.anonymous, (1, 2));
    }

    #[test]
    fn the_id_is_that_of_the_path_unless_it_is_given() {
        let id = |text: &str| ExportSpec::directory(text).unwrap().id().unwrap();
        assert_eq!(id("/srv/data"), id("/srv//data/:ro"));
        assert_ne!(id("/srv/data"), id("/srv/date"));
        assert_eq!(id("/srv/data:id=7"), 7);
    }

    #[test]
    fn what_cannot_be_exported_is_refused() {
        for text in ["", ":ro", "/srv:bytes=1G", "/srv:", "/srv:nonsense"] {
            assert!(ExportSpec::directory(text).is_err(), "{text}");
        }
        for (options, word) in [
            ("machine=root", "needs sec=krb5"),
            ("sec=sys,machine=root", "needs sec=krb5"),
            ("sec=krb5,squash=all,machine=root", "exclude each other"),
        ] {
            let error = ExportSpec::memory(&format!("m:{options}")).unwrap_err().join("; ");
            assert!(error.contains(word), "{options}: {error}");
        }
        ExportSpec::memory("m:sec=sys:krb5,squash=none,machine=root").unwrap();
        for text in ["", ":ro", "a/b", "/a"] {
            assert!(ExportSpec::memory(text).is_err(), "{text}");
        }
        for text in ["", ":ro", "a", "/a:bytes=1G"] {
            assert!(ExportSpec::cephfs(text).is_err(), "{text}");
        }
    }
}
