//! Finding, creating, renaming and removing names, and files outside of the export.

use super::*;
use crate::protocol::{Ftype3, Specdata3};
use crate::server::file_system::DirectoryEntry;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::sync::atomic::AtomicBool;

const NOWHERE: ListFrom = ListFrom { cookie: 0, verifier: [0; 8], with_files: false };

#[test]
fn dot_dot_of_the_root_is_the_root() {
    let export = Export::new();
    let below = export.make_directory("below");
    assert_eq!(export.key(".."), export.root());
    assert_eq!(export.key("."), export.root());
    assert_eq!(export.lookup(&below, "..").unwrap().key, export.root());
    assert_eq!(export.lookup(&below, ".").unwrap().key, below);
}

#[test]
fn a_directory_that_was_moved_out_of_the_tree_has_no_parent() {
    let (export, outside) = (Export::new(), Export::new());
    let below = export.make_directory("below");
    fs::rename(export.local("below"), outside.local("below")).unwrap();
    assert_eq!(status(export.lookup(&below, "..")), Nfsstat3::Nfs3errStale);
}

#[test]
fn names_that_are_not_there_or_cannot_be() {
    let export = Export::new();
    let file = export.create("file");
    assert_eq!(status(export.lookup(&export.root(), "none")), Nfsstat3::Nfs3errNoent);
    assert_eq!(status(export.lookup(&file, "none")), Nfsstat3::Nfs3errNotdir);
    let long = "n".repeat(256);
    assert_eq!(status(export.lookup(&export.root(), &long)), Nfsstat3::Nfs3errNametoolong);
    let made = export.create_as(&ROOT, &long, &Createhow3::Guarded(Sattr3::default()));
    assert_eq!(status(made), Nfsstat3::Nfs3errNametoolong);
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
    let text = export.directory.read_link(&ROOT, &link.key).unwrap();
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
            let _ = export.directory.make(
                &ROOT,
                place,
                NewFile::Regular(&how),
                &mut WccData::default(),
            );
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
    let directory = Directory::open(Path::new("/"), &options).unwrap();
    let found = directory.lookup(&ROOT, at(&directory.root(), "proc"));
    assert_eq!(status(found), Nfsstat3::Nfs3errAcces);
    let from = ListFrom { with_files: true, ..NOWHERE };
    let mut is_named = false;
    directory
        .list(&ROOT, &directory.root(), &from, &mut |entry| {
            is_named |= entry.name == b"proc" && entry.found.is_none();
            true
        })
        .unwrap();
    assert!(is_named);
}

/// Runs the test again, in a process with its own mount namespace.
fn in_a_namespace(test: &str) -> Option<std::process::Output> {
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture"]).arg(format!("{}::{test}", module()));
    command.env(IN_A_NAMESPACE, "1").output().ok()
}

/// Path of these tests, without the name of the crate.
fn module() -> &'static str {
    module_path!().split_once("::").unwrap().1
}

const IN_A_NAMESPACE: &str = "SPIN_NFSD_TEST_IN_A_NAMESPACE";

#[test]
fn create_unchecked_does_not_touch_a_file_that_is_mounted_there() {
    if std::env::var_os(IN_A_NAMESPACE).is_none() {
        let name = "create_unchecked_does_not_touch_a_file_that_is_mounted_there";
        let Some(output) = is_root().then(|| in_a_namespace(name)).flatten() else {
            return eprintln!("not tested: it takes root, and unshare(1)");
        };
        let said = String::from_utf8_lossy(&output.stdout);
        if !said.contains("running 1 test") {
            return eprintln!("not tested: {output:?}"); // a container may deny namespaces
        }
        assert!(said.contains("1 passed"), "{output:?}");
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
fn create_unchecked_takes_what_is_there_and_guarded_does_not() {
    let export = Export::new();
    let file = export.create("file");
    fs::write(export.local("file"), "text").unwrap();
    let unchecked = |new| export.create_as(&ROOT, "file", &Createhow3::Unchecked(new));
    assert_eq!(unchecked(with_mode(0o600)).unwrap().key, file);
    assert_eq!(unchecked(with_mode(0o600)).unwrap().attributes.mode, 0o644);
    assert_eq!(fs::read(export.local("file")).unwrap(), b"text");
    let cut = unchecked(Sattr3 { size: Some(2), ..Sattr3::default() }).unwrap();
    assert_eq!((cut.key, cut.attributes.size), (file, 2));
    let guarded = export.create_as(&ROOT, "file", &Createhow3::Guarded(with_mode(0o600)));
    assert_eq!(status(guarded), Nfsstat3::Nfs3errExist);
    export.make_directory("directory");
    let over = export.create_as(&ROOT, "directory", &Createhow3::Unchecked(with_mode(0o600)));
    assert_eq!(status(over), Nfsstat3::Nfs3errExist);
}

#[test]
fn create_has_the_mode_and_size_that_were_asked_for() {
    let export = Export::new();
    let new = Sattr3 { size: Some(3), ..with_mode(0o1775) };
    let found = export.create_as(&ROOT, "file", &Createhow3::Guarded(new)).unwrap();
    assert_eq!((found.attributes.mode, found.attributes.size), (0o1775, 3));
    assert_eq!(found.attributes.fileid, inode(&export.local("file")));
}

#[test]
fn nothing_is_made_for_an_invalid_owner() {
    let export = Export::new();
    let (root, wcc) = (export.root(), &mut WccData::default());
    let invalid = Some(u32::MAX);
    for new in
        [Sattr3 { uid: invalid, ..Sattr3::default() }, Sattr3 { gid: invalid, ..Sattr3::default() }]
    {
        let directory = &export.directory;
        let special =
            SpecialFile { kind: Ftype3::Nf3fifo, device: Specdata3::default(), attributes: new };
        let link = NewFile::Link { text: b"text", attributes: &new };
        for made in [
            export.create_as(&ROOT, "file", &Createhow3::Unchecked(new)),
            export.create_as(&ROOT, "file", &Createhow3::Guarded(new)),
            directory.make(&ROOT, at(&root, "directory"), NewFile::Directory(&new), wcc),
            directory.make(&ROOT, at(&root, "link"), link, wcc),
            directory.make(&ROOT, at(&root, "fifo"), NewFile::Special(&special), wcc),
        ] {
            assert_eq!(status(made), Nfsstat3::Nfs3errInval);
        }
        assert_eq!(fs::read_dir(&export.path).unwrap().count(), 0);
    }
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
fn remove_and_rmdir_take_their_own_kinds() {
    let export = Export::new();
    let (file, directory) = (export.create("file"), export.make_directory("directory"));
    fs::write(export.local("directory/inner"), "").unwrap();
    let root = export.root();
    let rmdir =
        |name| export.directory.remove_directory(&ROOT, at(&root, name), &mut WccData::default());
    assert_eq!(status(export.remove("directory")), Nfsstat3::Nfs3errIsdir);
    assert_eq!(status(rmdir("file")), Nfsstat3::Nfs3errNotdir);
    assert_eq!(status(rmdir("directory")), Nfsstat3::Nfs3errNotempty);
    assert_eq!(status(export.remove("none")), Nfsstat3::Nfs3errNoent);
    fs::remove_file(export.local("directory/inner")).unwrap();
    rmdir("directory").unwrap();
    export.remove("file").unwrap();
    for gone in [file, directory] {
        assert_eq!(status(export.directory.attributes(&gone)), Nfsstat3::Nfs3errStale);
    }
    let inside = export.directory.make(
        &ROOT,
        at(&directory, "late"),
        NewFile::Regular(&Createhow3::Guarded(Sattr3::default())),
        &mut WccData::default(),
    );
    assert_eq!(status(inside), Nfsstat3::Nfs3errStale);
}

#[test]
fn rename_replaces_what_is_compatible() {
    let export = Export::new();
    let root = export.root();
    let (old, new) = (export.create("old"), export.create("new"));
    export.rename(at(&root, "old"), at(&root, "new")).unwrap();
    assert_eq!(export.key("new"), old);
    assert_eq!(status(export.directory.attributes(&new)), Nfsstat3::Nfs3errStale);

    let directory = export.make_directory("directory");
    let refused = |from, to| status(export.rename(from, to));
    assert_eq!(refused(at(&root, "new"), at(&root, "directory")), Nfsstat3::Nfs3errExist);
    assert_eq!(refused(at(&root, "directory"), at(&root, "new")), Nfsstat3::Nfs3errExist);
    assert_eq!(refused(at(&root, "none"), at(&root, "new")), Nfsstat3::Nfs3errNoent);
    assert_eq!(refused(at(&root, "directory"), at(&directory, "self")), Nfsstat3::Nfs3errInval);
    export.rename(at(&root, "new"), at(&directory, "inner")).unwrap();
    export.make_directory("other");
    assert_eq!(refused(at(&root, "other"), at(&root, "directory")), Nfsstat3::Nfs3errNotempty);
    assert_eq!(refused(at(&root, "other"), at(&old, "name")), Nfsstat3::Nfs3errNotdir);
    assert_eq!(export.lookup(&directory, "inner").unwrap().key, old);
}

#[test]
fn rename_tells_of_both_directories() {
    let export = Export::new();
    let file = export.create("file");
    let (root, below) = (export.root(), export.make_directory("below"));
    // Changes within one tick of the file system's clock have the same ctime.
    let ctime = |key| export.directory.attributes(key).unwrap().ctime;
    export.set(&ROOT, &file, &with_mode(0o600)).unwrap();
    while ctime(&file) == ctime(&below) {
        export.set(&ROOT, &file, &with_mode(0o600)).unwrap();
    }
    let mut wccs = Default::default();
    export.directory.rename(&ROOT, at(&root, "file"), at(&below, "file"), &mut wccs).unwrap();
    for (wcc, key) in [(&wccs.0, root), (&wccs.1, below)] {
        let after = export.directory.attributes(&key).unwrap();
        assert!(matches!(&wcc.after, Some(told) if told.ctime == after.ctime));
        assert!(matches!(&wcc.before, Some(told) if told.ctime != after.ctime));
    }
}

#[test]
fn link_gives_one_more_name() {
    let export = Export::new();
    let (file, root) = (export.create("file"), export.root());
    let directory = export.make_directory("directory");
    let link =
        |file, name| export.directory.link(&ROOT, file, at(&root, name), &mut WccData::default());
    link(&file, "name").unwrap();
    assert_eq!(export.key("name"), file);
    assert_eq!(export.directory.attributes(&file).unwrap().nlink, 2);
    assert_eq!(status(link(&file, "name")), Nfsstat3::Nfs3errExist);
    assert_eq!(status(link(&directory, "other")), Nfsstat3::Nfs3errInval);
    export.remove("file").unwrap();
    assert_eq!(export.directory.attributes(&file).unwrap().nlink, 1);
    // A symbolic link itself gets another name.
    symlink("/etc/passwd", export.local("symlink")).unwrap();
    link(&export.key("symlink"), "symlink-2").unwrap();
    assert_eq!(export.key("symlink-2"), export.key("symlink"));
}

#[test]
fn symlinks_and_special_files_are_made() {
    let export = Export::new();
    let root = export.root();
    let wcc = &mut WccData::default();
    let text = b"../../etc/passwd";
    let place = at(&root, "link");
    let new = NewFile::Link { text, attributes: &Sattr3::default() };
    let link = export.directory.make(&ROOT, place, new, wcc).unwrap();
    assert_eq!(export.directory.read_link(&ROOT, &link.key).unwrap(), text);
    let file = export.create("file");
    assert_eq!(status(export.directory.read_link(&ROOT, &file)), Nfsstat3::Nfs3errInval);

    let mut special = |kind, name, specdata1, specdata2| {
        let device = Specdata3 { specdata1, specdata2 };
        let file = SpecialFile { kind, device, attributes: with_mode(0o640) };
        export.directory.make(&ROOT, at(&root, name), NewFile::Special(&file), wcc)
    };
    let fifo = special(Ftype3::Nf3fifo, "fifo", 0, 0).unwrap();
    assert_eq!((fifo.attributes.r#type, fifo.attributes.mode), (Ftype3::Nf3fifo, 0o640));
    assert!(fs::symlink_metadata(export.local("fifo")).unwrap().file_type().is_fifo());
    let socket = special(Ftype3::Nf3sock, "socket", 0, 0).unwrap();
    assert_eq!(socket.attributes.r#type, Ftype3::Nf3sock);
    assert_eq!(status(special(Ftype3::Nf3reg, "file-2", 0, 0)), Nfsstat3::Nfs3errBadtype);
    if is_root() {
        let null = special(Ftype3::Nf3chr, "null", 1, 3).unwrap();
        assert_eq!(null.attributes.rdev, Specdata3 { specdata1: 1, specdata2: 3 });
    }
    // Reading it neither blocks nor fails in another way.
    let read = export.data().read_as(&ROOT, &fifo.key, (0, 1));
    assert_eq!(status(read), Nfsstat3::Nfs3errInval);
    // Neither can be opened for a sync.
    export.set(&ROOT, &fifo.key, &with_mode(0o600)).unwrap();
    assert_eq!(export.directory.attributes(&fifo.key).unwrap().mode, 0o600);
}

#[test]
fn changes_tell_of_the_directory_before_and_after_also_when_they_fail() {
    let export = Export::new();
    let root = export.root();
    let earlier = export.directory.attributes(&root).unwrap();
    let mut wcc = WccData::default();
    let how = Createhow3::Guarded(with_mode(0o644));
    export.directory.make(&ROOT, at(&root, "file"), NewFile::Regular(&how), &mut wcc).unwrap();
    assert!(matches!(&wcc.before, Some(told) if told.ctime == earlier.ctime));
    let after = export.directory.attributes(&root).unwrap();
    assert!(matches!(&wcc.after, Some(told) if told.ctime == after.ctime));

    let mut wcc = WccData::default();
    let failed = export.directory.make(&ROOT, at(&root, "file"), NewFile::Regular(&how), &mut wcc);
    assert_eq!(status(failed), Nfsstat3::Nfs3errExist);
    assert!(wcc.before.is_some() && wcc.after.is_some());
}

#[test]
fn a_listing_goes_on_behind_every_cookie() {
    let export = Export::new();
    for number in 0..50 {
        fs::write(export.local(&format!("file-{number}")), "").unwrap();
    }
    let (all, listed) = export.names(&NOWHERE).unwrap();
    assert!(listed.is_end);
    assert_eq!(all.len(), 52, "with . and ..");

    let (mut names, mut from) = (Vec::new(), NOWHERE);
    loop {
        let (mut taken, begin) = (0, from);
        let listed = export
            .directory
            .list(&ROOT, &export.root(), &begin, &mut |entry| {
                assert_ne!(entry.cookie, 0);
                if taken == 7 {
                    return false;
                }
                taken += 1;
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                from.cookie = entry.cookie;
                true
            })
            .unwrap();
        from.verifier = listed.verifier;
        if listed.is_end {
            break;
        }
    }
    assert_eq!(names, all);
}

#[test]
fn a_cookie_of_another_directory_is_bad() {
    let export = Export::new();
    let other = export.make_directory("other");
    let (_, listed) = export.names(&NOWHERE).unwrap();
    let from = ListFrom { cookie: 1, verifier: listed.verifier, with_files: false };
    let mut none = |_: &DirectoryEntry<'_>| true;
    export.directory.list(&ROOT, &export.root(), &from, &mut none).unwrap();
    let refused = export.directory.list(&ROOT, &other, &from, &mut none);
    assert_eq!(status(refused), Nfsstat3::Nfs3errBadCookie);
    let beyond = ListFrom { cookie: u64::MAX, ..from };
    let refused = export.directory.list(&ROOT, &export.root(), &beyond, &mut none);
    assert_eq!(status(refused), Nfsstat3::Nfs3errBadCookie);
    let file = export.create("file");
    let refused = export.directory.list(&ROOT, &file, &NOWHERE, &mut none);
    assert_eq!(status(refused), Nfsstat3::Nfs3errNotdir);
}

#[test]
fn a_listing_with_files_has_their_keys_and_attributes() {
    let export = Export::new();
    let file = export.create("file");
    let from = ListFrom { with_files: true, ..NOWHERE };
    let mut seen = 0;
    export
        .directory
        .list(&ROOT, &export.root(), &from, &mut |entry| {
            let found = entry.found.expect("it is there");
            let expected = if entry.name == b"file" { file } else { export.root() };
            assert_eq!((found.key, found.attributes.fileid), (expected, entry.fileid));
            seen += 1;
            true
        })
        .unwrap();
    assert_eq!(seen, 3);
}

#[test]
fn space_and_abilities_are_those_of_the_file_system() {
    let export = Export::new();
    let space = export.directory.space(&ROOT).unwrap();
    assert!(space.bytes > 0 && space.bytes_available <= space.bytes_free);
    assert!(space.bytes_free <= space.bytes && space.files_free <= space.files);
    let abilities = export.directory.abilities();
    assert_eq!(abilities.name_bytes_max, 255);
    assert!(abilities.links_max >= 255);
}
