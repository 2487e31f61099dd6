//! The directory of the key that seals handles, so that handles stay valid when the server
//! restarts.

use crate::failure::Failure;
use rustix::fs::{Mode, OFlags, Uid, fsync, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Knowing the key allows making handles for every export.
pub(crate) type Key = [u8; 16];

const NAME: &str = "handle-key";
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const RIGHTS_OF_OTHERS: u32 = 0o077;
const REMOVE: &str = "remove it (clients must then mount again)";

/// The given directory, or the default one: systemd's, root's, or this user's.
pub(crate) fn directory(named: Option<PathBuf>) -> Result<PathBuf, String> {
    let variable = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let of_root = || geteuid().is_root().then(|| "/var/lib/spin-nfsd".into());
    let of_user = || {
        let home = || variable("HOME").map(|home| home.join(".local/state"));
        variable("XDG_STATE_HOME").or_else(home).map(|state| state.join("spin-nfsd"))
    };
    let usual = || variable("STATE_DIRECTORY").or_else(of_root).or_else(of_user);
    named.or_else(usual).ok_or_else(|| {
        "no directory for the key of handles, because HOME is not set: set one with --state DIR"
            .to_owned()
    })
}

pub(crate) fn key(directory: &Path) -> Result<Key, Failure> {
    if let Some(key) = present(directory)? {
        return Ok(key);
    }
    make(directory).map_err(|error| failed(directory, &error))?;
    let vanished = || failed(directory, &io::ErrorKind::NotFound.into());
    present(directory)?.ok_or_else(vanished)
}

/// Returns the key in this directory, if it exists. Creates nothing.
pub(crate) fn present(directory: &Path) -> Result<Option<Key>, Failure> {
    known_to_alone(geteuid(), directory)
}

/// Reads the key if only `user` can have read or written it. Does not follow a link, whose creator
/// may have chosen its target, and does not block on other file types.
fn known_to_alone(user: Uid, directory: &Path) -> Result<Option<Key>, Failure> {
    let path = directory.join(NAME);
    let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let key = match open(&path, how, Mode::empty()) {
        Ok(file) => read(&file.into(), user).map(Some),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP) => Err(format!("it is a symbolic link: {REMOVE}")),
        Err(error) => return Err(failed(directory, &error.into())),
    };
    key.map_err(|problem| Failure::failed(path.display(), problem))
}

fn failed(directory: &Path, error: &io::Error) -> Failure {
    let what_to_do = match error.kind() {
        io::ErrorKind::NotADirectory => "set another directory with --state DIR",
        _ => "let this user write there, or set another directory with --state DIR",
    };
    Failure::Failed(format!("{}: {error}: {what_to_do}", directory.display()))
}

fn read(mut file: &File, user: Uid) -> Result<Key, String> {
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if metadata.uid() != user.as_raw() {
        let owner = metadata.uid();
        return Err(format!("user {owner} owns the key that seals handles: chown it, or {REMOVE}"));
    }
    if metadata.mode() & RIGHTS_OF_OTHERS != 0 {
        return Err(format!("others may read the key that seals handles: chmod 600, or {REMOVE}"));
    }
    let mut key = Key::default();
    let length_is_right = metadata.is_file() && metadata.len() == key.len() as u64;
    if !length_is_right || file.read_exact(&mut key).is_err() {
        return Err(format!("it is not a key of handles: {REMOVE}"));
    }
    Ok(key)
}

fn make(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)?;
    create(directory, &directory.join(NAME))
}

/// The file is complete when it gets its name; two servers that start at the same time get one key.
fn create(directory: &Path, path: &Path) -> io::Result<()> {
    let mut key = Key::default();
    getrandom(&mut key, GetRandomFlags::empty())?;
    // A new name each time, because a process killed here leaves its draft.
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
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// An unused path, cleaned up after the test.
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
    fn a_key_that_another_user_owns_is_refused_with_what_to_do() {
        let place = fresh("owner");
        key(&place.0).unwrap();
        assert!(known_to_alone(geteuid(), &place.0).unwrap().is_some());
        let other = Uid::from_raw(geteuid().as_raw() + 1);
        let error = known_to_alone(other, &place.0).unwrap_err().to_string();
        let owner = format!("user {} owns", geteuid());
        assert!(error.contains(&owner) && error.contains("chown"), "{error}");
    }

    #[test]
    fn a_key_that_is_a_link_or_no_file_is_refused_with_what_to_do() {
        let (place, other) = (fresh("link"), fresh("linked"));
        key(&other.0).unwrap();
        let path = place.0.join(NAME);
        fs::create_dir(&place.0).unwrap();
        for linked in [other.0.join(NAME), other.0.join("nothing")] {
            symlink(&linked, &path).unwrap();
            let error = key(&place.0).unwrap_err().to_string();
            assert!(error.contains("symbolic link") && error.contains("remove it"), "{error}");
            assert_eq!(fs::read_link(&path).unwrap(), linked);
            fs::remove_file(&path).unwrap();
        }
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let error = key(&place.0).unwrap_err().to_string();
        assert!(error.contains("not a key of handles"), "{error}");
    }

    #[test]
    fn looking_for_a_key_makes_none() {
        let place = fresh("look");
        assert_eq!(present(&place.0).unwrap(), None);
        assert!(!place.0.exists());
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
