//! The directory in which a server keeps the key that seals handles, so that clients go on with the
//! handles they have when it is started anew.

use crate::failure::Failure;
use rustix::fs::fsync;
use rustix::rand::{GetRandomFlags, getrandom};
use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Whoever knows the key can make handles of every export.
pub(crate) type Key = [u8; 16];

const NAME: &str = "handle-key";
/// Rights of the owner alone.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const RIGHTS_OF_OTHERS: u32 = 0o077;

/// The directory that was named, or the usual one: of systemd, of root, or of this user.
pub(crate) fn directory(named: Option<PathBuf>) -> Result<PathBuf, String> {
    let variable = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let of_root = || rustix::process::geteuid().is_root().then(|| "/var/lib/spin-nfsd".into());
    let of_user = || {
        let home = || variable("HOME").map(|home| home.join(".local/state"));
        variable("XDG_STATE_HOME").or_else(home).map(|state| state.join("spin-nfsd"))
    };
    let usual = || variable("STATE_DIRECTORY").or_else(of_root).or_else(of_user);
    named.or_else(usual).ok_or_else(|| {
        "no place for the key of handles, as HOME is not set: name one by --state DIR".to_owned()
    })
}

/// The key in this directory; one is made if there is none.
pub(crate) fn key(directory: &Path) -> Result<Key, Failure> {
    let failed = |error: io::Error| {
        let shown = directory.display();
        Failure::Failed(format!(
            "{shown}: {error}: let this user write there, or name another \
                                 directory by --state DIR"
        ))
    };
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory).map_err(failed)?;
    let path = directory.join(NAME);
    match File::open(&path) {
        Ok(file) => read(&path, &file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create(directory, &path).map_err(failed)?;
            read(&path, &File::open(&path).map_err(failed)?)
        }
        Err(error) => Err(failed(error)),
    }
}

fn read(path: &Path, mut file: &File) -> Result<Key, Failure> {
    let wrong = |problem: &str| Failure::Failed(format!("{}: {problem}", path.display()));
    let metadata = file.metadata().map_err(|error| wrong(&error.to_string()))?;
    if metadata.mode() & RIGHTS_OF_OTHERS != 0 {
        return Err(wrong(
            "others may read the key that seals handles: chmod 600, or remove it \
                          (clients then have to mount anew)",
        ));
    }
    let mut key = Key::default();
    let length_is_right = metadata.len() == key.len() as u64;
    if !length_is_right || file.read_exact(&mut key).is_err() {
        return Err(wrong("it is no key of handles: remove it (clients then have to mount anew)"));
    }
    Ok(key)
}

/// A file that is whole, and on the disk, when it gets its name; two servers that begin at a time get
/// one key.
fn create(directory: &Path, path: &Path) -> io::Result<()> {
    let mut key = Key::default();
    getrandom(&mut key, GetRandomFlags::empty())?;
    // Of another name each time, as one that is killed here leaves its draft.
    let mut number = [0; 8];
    getrandom(&mut number, GetRandomFlags::empty())?;
    let draft = directory.join(format!("{NAME}.{:016x}", u64::from_ne_bytes(number)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&draft)?;
    let named = file.write_all(&key).and_then(|()| file.sync_all()).and_then(|()| {
        match fs::hard_link(&draft, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    });
    fs::remove_file(&draft)?;
    named?;
    Ok(fsync(File::open(directory)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A path where nothing is, nor will be when the test is over.
    struct Fresh(PathBuf);

    impl Drop for Fresh {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    fn fresh(name: &str) -> Fresh {
        let path = env::temp_dir().join(format!("spin-nfsd-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        Fresh(path)
    }

    #[test]
    fn a_key_is_made_once_and_is_its_owners_alone() {
        let (place, other) = (fresh("key"), fresh("other-key"));
        let directory = place.0.join("below");
        let made = key(&directory).unwrap();
        assert_eq!(key(&directory).unwrap(), made);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&directory.join(NAME))), (0o700, 0o600));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        assert_ne!(key(&other.0).unwrap(), made);
    }

    #[test]
    fn a_key_that_others_may_read_or_that_is_none_is_refused_with_what_to_do() {
        let place = fresh("bad-key");
        let directory = place.0.as_path();
        key(directory).unwrap();
        let path = directory.join(NAME);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(key(directory).unwrap_err().to_string().contains("chmod 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for wrong in [&b"short"[..], &[0; 17]] {
            fs::write(&path, wrong).unwrap();
            assert!(key(directory).unwrap_err().to_string().contains("remove it"));
        }
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error_with_what_to_do() {
        let error = key(Path::new("/proc/spin-nfsd")).unwrap_err().to_string();
        assert!(error.contains("--state DIR"), "{error}");
    }

    #[test]
    fn what_was_named_counts_most() {
        assert_eq!(directory(Some("/x".into())), Ok("/x".into()));
        assert!(directory(None).unwrap().ends_with("spin-nfsd"));
    }
}
