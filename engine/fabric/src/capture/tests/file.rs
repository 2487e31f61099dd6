//! Files that a capture goes to, and files that it does not.

use crate::capture::file::create;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

/// An empty folder.
fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("spinrpc-capture-{name}-{}", std::process::id()));
    drop(fs::remove_dir_all(&path));
    fs::create_dir(&path).unwrap();
    path
}

#[test]
fn a_capture_is_its_owners_alone_and_overwrites_an_earlier_one() {
    let folder = folder("own");
    let path = folder.join("calls.pcapng");
    create(&path).unwrap().write_all(b"old").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    create(&path).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.len()), (0o600, 0));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn files_that_another_user_may_have_chosen_are_refused_and_left_as_they_are() {
    let folder = folder("refused");
    let victim = folder.join("victim");
    fs::write(&victim, "precious").unwrap();
    let link = folder.join("link");
    symlink(&victim, &link).unwrap();
    let dangling = folder.join("dangling");
    symlink(folder.join("nothing"), &dangling).unwrap();
    let pipe = folder.join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for (path, why) in [(&link, "link"), (&dangling, "link"), (&pipe, "regular")] {
        let error = create(path).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("name a new file"), "{path:?}: {error}");
    }
    let other_name = folder.join("other-name");
    fs::hard_link(&victim, &other_name).unwrap();
    assert!(create(&other_name).unwrap_err().to_string().contains("several names"));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(!folder.join("nothing").exists());
    fs::remove_dir_all(folder).unwrap();
}
