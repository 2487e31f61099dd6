//! Finding, creating, renaming and removing names, and files outside of the export.

use super::*;
use crate::protocol::{Ftype3, Specdata3};
use crate::server::file_system::DirectoryEntry;
use crate::server::local_fs::create::NewName;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::mem::MaybeUninit;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::atomic::AtomicBool;

#[test]
fn a_directory_that_was_moved_out_of_the_tree_has_no_parent() {
    let (export, outside) = (Export::new(), Export::new());
    let below = export.make_directory("below");
    fs::rename(export.local("below"), outside.local("below")).unwrap();
    assert_eq!(status(export.lookup(&below, "..")), Nfsstat3::Nfs3errStale);
}

#[test]
fn a_symbolic_link_is_never_followed() {
    let (export, outside) = (Export::new(), Export::new());
    let secret = outside.local("secret");
    fs::write(&secret, "secret").unwrap();
    symlink(&secret, export.local("file")).unwrap();
    symlink(&outside.path, export.local("directory")).unwrap();

    let link = export.lookup(&export.root(), "file").unwrap();
    assert_eq!(link.attributes.r#type, Ftype3::Nf3lnk);
    assert_eq!(link.attributes.fileid, inode(&export.local("file")));
    let text = export.directory.read_link(&link.key).unwrap();
    assert_eq!(text, secret.to_str().unwrap().as_bytes());
    let directory = export.key("directory");
    assert_eq!(status(export.lookup(&directory, "secret")), Nfsstat3::Nfs3errNotdir);

    let truncated = Createhow3::Unchecked(Sattr3 { size: Some(0), ..with_mode(0o777) });
    assert_eq!(status(export.create_as(&ROOT, "file", &truncated)), Nfsstat3::Nfs3errExist);
    let size = Sattr3 { size: Some(0), ..Sattr3::default() };
    assert_eq!(status(export.set(&ROOT, &link.key, &size)), Nfsstat3::Nfs3errInval);
    export.set(&ROOT, &link.key, &with_mode(0o777)).unwrap();
    let mut data = export.data();
    assert_eq!(status(data.read_as(&ROOT, &link.key, (0, 8))), Nfsstat3::Nfs3errInval);
    let written = data.write_as(&ROOT, &link.key, (0, b"x"), StableHow::FileSync);
    assert_eq!(status(written), Nfsstat3::Nfs3errInval);
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
    assert_ne!(fs::metadata(&secret).unwrap().mode() & 0o777, 0o777);
}

#[test]
fn a_name_that_becomes_a_symbolic_link_meanwhile_leads_nowhere() {
    let (export, outside) = (Export::new(), Export::new());
    fs::create_dir(export.local("real")).unwrap();
    symlink(&outside.path, export.local("link")).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for (from, to) in
                    [("real", "name"), ("name", "real"), ("link", "name"), ("name", "link")]
                {
                    fs::rename(export.local(from), export.local(to)).unwrap();
                }
            }
        });
        for round in 0..300 {
            let Ok(found) = export.lookup(&export.root(), "name") else { continue };
            let name = format!("file-{round}");
            let how = Createhow3::Unchecked(with_mode(0o600));
            let place = at(&found.key, &name);
            let new = NewFile::Regular(&how);
            let _ = export.directory.make(by(&ROOT, &mut Default::default()), place, new);
            assert_ne!(found.attributes.fileid, inode(&outside.path));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read_dir(&outside.path).unwrap().count(), 0);
}

#[test]
fn what_is_mounted_below_is_not_exported() {
    let options = DirectoryOptions { io: IoMode::Threads, ..DirectoryOptions::default() };
    // Without /proc, directories cannot be exported.
    let directory = match Directory::open(Path::new("/"), &options) {
        Err(error) if error.to_string().starts_with("no lasting handles") => {
            return eprintln!("not tested: {error}");
        }
        opened => opened.unwrap(),
    };
    let found = directory.lookup(&ROOT, at(&directory.root(), "proc"));
    assert_eq!(status(found), Nfsstat3::Nfs3errAcces);
    let from = beginning(directory.root(), true);
    let mut is_named = false;
    directory
        .list(&ROOT, &from, &mut |entry| {
            is_named |= entry.name == b"proc" && entry.found.is_none();
            true
        })
        .unwrap();
    assert!(is_named);
}

#[test]
fn create_unchecked_does_not_touch_a_file_that_is_mounted_there() {
    let test = "names::create_unchecked_does_not_touch_a_file_that_is_mounted_there";
    if !is_in_a_namespace(test) {
        return;
    }
    let (export, outside) = (Export::new(), Export::new());
    fs::write(outside.local("secret"), "secret").unwrap();
    fs::write(export.local("file"), "").unwrap();
    let mut mount = std::process::Command::new("mount");
    mount.arg("--bind").args([outside.local("secret"), export.local("file")]);
    assert!(mount.status().unwrap().success());
    let cut = Sattr3 { size: Some(0), ..Sattr3::default() };
    let cut = export.create_as(&ROOT, "file", &Createhow3::Unchecked(cut));
    let kept = fs::read(outside.local("secret")).unwrap();
    let mut umount = std::process::Command::new("umount");
    assert!(umount.arg(export.local("file")).status().unwrap().success());
    assert_eq!(status(cut), Nfsstat3::Nfs3errAcces);
    assert_eq!(kept, b"secret");
}

#[test]
fn nothing_is_made_for_an_invalid_owner() {
    let export = Export::new();
    let root = export.root();
    let invalid = Some(u32::MAX);
    for new in
        [Sattr3 { uid: invalid, ..Sattr3::default() }, Sattr3 { gid: invalid, ..Sattr3::default() }]
    {
        let special =
            SpecialFile { kind: Ftype3::Nf3fifo, device: Specdata3::default(), attributes: new };
        let link = NewFile::Link { text: b"text", attributes: &new };
        for made in [
            export.create_as(&ROOT, "file", &Createhow3::Unchecked(new)),
            export.create_as(&ROOT, "file", &Createhow3::Guarded(new)),
            export.make(&ROOT, "directory", NewFile::Directory(&new)),
            export.make(&ROOT, "link", link),
            export.make(&ROOT, "fifo", NewFile::Special(&special)),
        ] {
            assert_eq!(status(made), Nfsstat3::Nfs3errInval);
        }
        assert_eq!(status(export.set(&ROOT, &root, &new)), Nfsstat3::Nfs3errInval);
        assert_eq!(fs::read_dir(&export.path).unwrap().count(), 0);
    }
}

/// Returns what happened to the name while `work` ran, as another process sees it.
fn events_of(export: &Export, name: &str, work: impl FnOnce()) -> Vec<ReadFlags> {
    let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    let looks = WatchFlags::CREATE | WatchFlags::ATTRIB | WatchFlags::MODIFY | WatchFlags::DELETE;
    inotify::add_watch(&events, &export.path, looks).unwrap();
    work();
    let mut memory = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&events, &mut memory);
    let mut seen = Vec::new();
    while let Ok(event) = reader.next() {
        if event.file_name().is_some_and(|of| of.to_bytes() == name.as_bytes()) {
            seen.push(event.events());
        }
    }
    seen
}

/// If the server ended between two of several steps, a part of the file would stay, and the client that repeats an
/// exclusive CREATE would not find its verifier.
#[test]
fn a_file_has_its_attributes_when_it_gets_its_name() {
    let export = Export::new();
    let hows = [
        Createhow3::Exclusive([7; 8]),
        Createhow3::Guarded(Sattr3 { size: Some(3), ..with_mode(0o640) }),
        Createhow3::Unchecked(Sattr3 { uid: Some(7), gid: Some(8), ..with_mode(0o6751) }),
    ];
    for (number, how) in hows.iter().enumerate() {
        let name = format!("file {number}");
        let made = events_of(&export, &name, || {
            let made = export.create_as(&ROOT, &name, how).unwrap();
            assert_eq!(made.key, export.key(&name));
            assert_eq!(made.attributes.nlink, 1);
        });
        assert_eq!(made, [ReadFlags::CREATE], "{how:?}");
    }
    assert_eq!(fs::metadata(export.local("file 1")).unwrap().len(), 3);
    let owned = export.directory.attributes(&export.key("file 2")).unwrap();
    if is_root() {
        assert_eq!((owned.uid, owned.gid, owned.mode), (7, 8, 0o6751));
    }
}

/// As on file systems that have no files without names.
#[test]
fn a_file_that_cannot_be_completed_is_removed() {
    let export = Export::new();
    let (tree, root) = (&export.directory.tree, export.root());
    let directory = tree.node(&root).unwrap();
    let (directory, at) = (&*directory, at(&root, "file"));
    let name = NewName { tree, caller: &ROOT, directory, at };
    let huge = Sattr3 { size: Some(1 << 62), ..with_mode(0o600) };
    if name.create_named(&huge, &huge).is_ok() {
        return eprintln!("not tested, as the file system has files of any size");
    }
    assert_eq!(fs::read_dir(&export.path).unwrap().count(), 0);
    let small = Sattr3 { size: Some(5), ..huge };
    name.create_named(&small, &small).unwrap();
    assert_eq!(fs::metadata(export.local("file")).unwrap().len(), 5);
}

#[test]
fn create_exclusive_is_repeatable_even_behind_a_restart() {
    let mut export = Export::new();
    let how = Createhow3::Exclusive([0xff; 8]);
    let first = export.create_as(&ROOT, "file", &how).unwrap();
    assert_eq!(export.create_as(&ROOT, "file", &how).unwrap().key, first.key);
    export.restart();
    assert_eq!(export.create_as(&ROOT, "file", &how).unwrap().key, first.key);
    let other = Createhow3::Exclusive([7; 8]);
    assert_eq!(status(export.create_as(&ROOT, "file", &other)), Nfsstat3::Nfs3errExist);
    fs::write(export.local("file"), "in use").unwrap();
    assert_eq!(status(export.create_as(&ROOT, "file", &how)), Nfsstat3::Nfs3errExist);
}

#[test]
fn a_symbolic_link_itself_gets_another_name() {
    let export = Export::new();
    let root = export.root();
    symlink("/etc/passwd", export.local("link")).unwrap();
    let link = export.key("link");
    export.directory.link(by(&ROOT, &mut Default::default()), &link, at(&root, "name")).unwrap();
    assert_eq!(export.key("name"), link);
}

/// Reading a FIFO would block, and it cannot be opened for a sync.
#[test]
fn a_fifo_is_not_opened() {
    let export = Export::new();
    let attributes = with_mode(0o640);
    let fifo = SpecialFile { kind: Ftype3::Nf3fifo, device: Specdata3::default(), attributes };
    let fifo = export.make(&ROOT, "fifo", NewFile::Special(&fifo));
    let fifo = fifo.unwrap().key;
    assert_eq!(status(export.data().read_as(&ROOT, &fifo, (0, 1))), Nfsstat3::Nfs3errInval);
    export.set(&ROOT, &fifo, &with_mode(0o600)).unwrap();
    assert_eq!(export.directory.attributes(&fifo).unwrap().mode, 0o600);
}

#[test]
fn a_cookie_of_another_directory_is_bad() {
    let export = Export::new();
    let other = export.make_directory("other");
    let (_, listed) = export.names().unwrap();
    let verifier = listed.verifier;
    let from = ListFrom { cookie: 1, verifier, ..beginning(export.root(), false) };
    let mut none = |_: &DirectoryEntry<'_>| true;
    export.directory.list(&ROOT, &from, &mut none).unwrap();
    let refused = export.directory.list(&ROOT, &ListFrom { directory: other, ..from }, &mut none);
    assert_eq!(status(refused), Nfsstat3::Nfs3errBadCookie);
    let beyond = ListFrom { cookie: u64::MAX, ..from };
    let refused = export.directory.list(&ROOT, &beyond, &mut none);
    assert_eq!(status(refused), Nfsstat3::Nfs3errBadCookie);
    let file = export.create("file");
    let refused = export.directory.list(&ROOT, &beginning(file, false), &mut none);
    assert_eq!(status(refused), Nfsstat3::Nfs3errNotdir);
}
