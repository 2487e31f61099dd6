//! LOOKUP, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR and LINK (RFC 1813 sections 3.3.3,
//! 3.3.5, 3.3.8 to 3.3.13 and 3.3.15).

use crate::*;
use spinrpc_nfs::nfs3::READLINK_RESULT_BYTES_MAX;

pub(crate) fn lookup_finds(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let directory = session.mkdir(&root, "directory");
    let file = session.create(&directory, "file");
    let found = session.lookup(&directory, "file").unwrap();
    assert_eq!(found.object, file);
    assert_eq!(some(found.obj_attributes).type_, ftype3::NF3REG);
    assert_eq!(some(found.dir_attributes).type_, ftype3::NF3DIR);
    assert_eq!(session.lookup(&directory, ".").unwrap().object, directory);
    assert_eq!(session.lookup(&directory, "..").unwrap().object, root);
    // There is no way out of an export.
    assert_eq!(session.lookup(&root, "..").unwrap().object, root);
    let Err((nfsstat3::NFS3ERR_NOENT, attributes)) = session.lookup(&root, "none") else {
        panic!("found what is not there");
    };
    some(attributes);
    assert_eq!(status(session.lookup(&file, "x")), nfsstat3::NFS3ERR_NOTDIR);
}

pub(crate) fn names_that_are_none(host: &Host) {
    let (session, root, file) = host.session_root_and_file();
    session.mkdir(&root, "directory");
    let (long, longer) = ("x".repeat(256), "x".repeat(1000));
    let inval = nfsstat3::NFS3ERR_INVAL;
    let too_long = nfsstat3::NFS3ERR_NAMETOOLONG;
    let wrong = [
        ("", inval),
        ("/", inval),
        ("a/b", inval),
        ("../file", inval),
        ("directory/../../x", inval),
        ("a\0b", inval),
        (&long, too_long),
        (&longer, too_long),
    ];
    for (name, expected) in wrong {
        assert_eq!(status(session.lookup(&root, name)), expected, "{name:?}");
        let how = createhow3::UNCHECKED(sattr3::default());
        assert_eq!(status(session.create_as(&root, name, how)), expected, "{name:?}");
        assert_eq!(status(session.try_mkdir(&root, name)), expected, "{name:?}");
        assert_eq!(status(session.symlink(&root, name, "x")), expected, "{name:?}");
        let fifo = mknoddata3::NF3FIFO(sattr3::default());
        assert_eq!(status(session.mknod(&root, name, fifo)), expected, "{name:?}");
        assert_eq!(status(session.link(&file, &root, name)), expected, "{name:?}");
        assert_eq!(status(session.remove(&root, name)), expected, "{name:?}");
        assert_eq!(status(session.rmdir(&root, name)), expected, "{name:?}");
    }
    for dots in [".", ".."] {
        let exist = nfsstat3::NFS3ERR_EXIST;
        assert_eq!(status(session.try_mkdir(&root, dots)), exist);
        assert_eq!(status(session.link(&file, &root, dots)), exist);
        assert_eq!(status(session.remove(&root, dots)), inval);
    }
    assert_eq!(status(session.rmdir(&root, ".")), inval);
    assert_eq!(status(session.rmdir(&root, "..")), nfsstat3::NFS3ERR_EXIST);
    session.create(&root, &"y".repeat(255));
    // Bytes that are not UTF-8 are a valid name.
    let name = diropargs3 { dir: root.clone(), name: (&b"\xff\xfe\n "[..]).into() };
    let found: crate::session::Res<LOOKUP3resok, post_op_attr> =
        session.call(NFS_PROGRAM::NFSPROC3_LOOKUP, &LOOKUP3args { what: name });
    assert_eq!(status(found), nfsstat3::NFS3ERR_NOENT);
}

pub(crate) fn create_unchecked(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let new = || createhow3::UNCHECKED(mode(0o600));
    let results = session.create_as(&root, "file", new()).unwrap();
    let attributes = some(results.obj_attributes);
    assert_eq!((attributes.type_, attributes.mode, attributes.size), (ftype3::NF3REG, 0o600, 0));
    let file = some(results.obj);
    session.write(&file, 0, b"content");
    assert_eq!(made(session.create_as(&root, "file", new())), file, "the same file");
    assert_eq!(session.getattr(&file).unwrap().size, 7);
    let empty = sattr3 { size: Nfs3Option::Some(0), ..mode(0o600) };
    session.create_as(&root, "file", createhow3::UNCHECKED(empty)).unwrap();
    assert_eq!(session.getattr(&file).unwrap().size, 0);
    session.mkdir(&root, "directory");
    let refused = status(session.create_as(&root, "directory", new()));
    assert!(matches!(refused, nfsstat3::NFS3ERR_EXIST | nfsstat3::NFS3ERR_ISDIR), "{refused}");
}

pub(crate) fn create_guarded(host: &Host) {
    let (session, root, file) = host.session_root_and_file();
    session.write(&file, 0, b"content");
    let empty = sattr3 { size: Nfs3Option::Some(0), ..sattr3::default() };
    let again = session.create_as(&root, "file", createhow3::GUARDED(empty));
    let Err((nfsstat3::NFS3ERR_EXIST, wcc)) = again else { panic!("made twice") };
    some(wcc.after);
    assert_eq!(session.getattr(&file).unwrap().size, 7);
    session.symlink(&root, "link", "nowhere").unwrap();
    let onto_link = session.create_as(&root, "link", createhow3::GUARDED(mode(0o600)));
    assert_eq!(status(onto_link), nfsstat3::NFS3ERR_EXIST, "links are not followed");
}

/// "EXCLUSIVE specifies that the server is to follow exclusive creation semantics, using the verifier
/// to ensure exclusive creation of the target" (section 3.3.8).
pub(crate) fn create_exclusive(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let exclusive = |byte| createhow3::EXCLUSIVE(createverf3([byte; 8]));
    let file = made(session.create_as(&root, "file", exclusive(1)));
    assert_eq!(made(session.create_as(&root, "file", exclusive(1))), file, "sent again");
    assert_eq!(status(session.create_as(&root, "file", exclusive(2))), nfsstat3::NFS3ERR_EXIST);
    session.create(&root, "other");
    assert_eq!(status(session.create_as(&root, "other", exclusive(1))), nfsstat3::NFS3ERR_EXIST);
    session.setattr(&file, mode(0o640), None).unwrap();
    assert_eq!(session.write(&file, 0, b"x"), nfsstat3::NFS3_OK);
    assert_eq!(session.getattr(&file).unwrap().mode, 0o640);
    let later = session.create_as(&root, "file", exclusive(1));
    assert_eq!(status(later), nfsstat3::NFS3ERR_EXIST, "it is in use");
}

/// A size beyond that of the file system is refused, if it is, before there is a file. CREATE does not have NFS3ERR_FBIG.
pub(crate) fn a_create_that_fails_makes_nothing(host: &Host) {
    let (session, root) = (host.session(), host.root());
    for huge in crate::attributes::HUGE {
        let new = createhow3::UNCHECKED(crate::attributes::size(huge));
        let made = status(session.create_as(&root, "file", new));
        let is_found = session.lookup(&root, "file").is_ok();
        let expected = if is_found { nfsstat3::NFS3_OK } else { nfsstat3::NFS3ERR_INVAL };
        assert_eq!(made, expected, "{huge}");
    }
}

/// A client that gives no mode has not allowed others anything.
pub(crate) fn without_a_mode_a_new_file_is_for_its_owner(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let none = sattr3::default;
    let mkdir = MKDIR3args { where_: at(&root, "directory"), attributes: none() };
    for (made, mode) in [
        (session.create_as(&root, "file", createhow3::UNCHECKED(none())), 0o600),
        (session.mknod(&root, "fifo", mknoddata3::NF3FIFO(none())), 0o600),
        (session.call(NFS_PROGRAM::NFSPROC3_MKDIR, &mkdir), 0o700),
    ] {
        assert_eq!(some(made.unwrap().obj_attributes).mode, mode);
    }
}

pub(crate) fn directories(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let links = session.getattr(&root).unwrap().nlink;
    let results = session.try_mkdir(&root, "directory").unwrap();
    let attributes = some(results.obj_attributes);
    assert_eq!((attributes.type_, attributes.mode & 0o777), (ftype3::NF3DIR, 0o755));
    assert_eq!(attributes.nlink, 2);
    assert_eq!(session.getattr(&root).unwrap().nlink, links + 1);
    let exist = nfsstat3::NFS3ERR_EXIST;
    assert_eq!(status(session.try_mkdir(&root, "directory")), exist);
    let directory = some(results.obj);
    session.create(&directory, "file");
    assert_eq!(status(session.rmdir(&root, "directory")), nfsstat3::NFS3ERR_NOTEMPTY);
    session.remove(&directory, "file").unwrap();
    session.rmdir(&root, "directory").unwrap();
    assert_eq!(session.getattr(&root).unwrap().nlink, links);
    let noent = nfsstat3::NFS3ERR_NOENT;
    assert_eq!(status(session.rmdir(&root, "directory")), noent);
    session.create(&root, "file");
    assert_eq!(status(session.rmdir(&root, "file")), nfsstat3::NFS3ERR_NOTDIR);
}

pub(crate) fn symbolic_links(host: &Host) {
    let (session, root) = (host.session(), host.root());
    // Wherever it leads: the server neither follows nor checks it.
    for (name, text) in
        [("a", "file"), ("b", "/etc/passwd"), ("c", "../../.."), ("d", &"x/".repeat(2000))]
    {
        let results = session.symlink(&root, name, text).unwrap();
        assert_eq!(some(results.obj_attributes).type_, ftype3::NF3LNK);
        let link = some(results.obj);
        assert_eq!(session.getattr(&link).unwrap().size, text.len() as u64);
        assert_eq!(session.readlink(&link).unwrap(), text.as_bytes());
        // The text uses a Write chunk if there is one (RFC 8267 section 2).
        let chunk = session.client.bulk(4096).unwrap();
        let spec = CallSpec::new().reply_bytes_max(READLINK_RESULT_BYTES_MAX).result_into(chunk);
        assert_eq!(session.readlink_with(&link, spec).unwrap(), text.as_bytes());
        assert_eq!(status(session.lookup(&link, "x")), nfsstat3::NFS3ERR_NOTDIR);
        assert_eq!(status(session.symlink(&root, name, "x")), nfsstat3::NFS3ERR_EXIST);
    }
    let link = symlink_by_chunk(&session, &root, "chunk", &[b'x'; 4095]);
    assert_eq!(session.readlink(&link).unwrap(), [b'x'; 4095]);
    for text in ["", "a\0b"] {
        assert_eq!(status(session.symlink(&root, "none", text)), nfsstat3::NFS3ERR_INVAL);
    }
    let file = session.create(&root, "file");
    assert_eq!(status(session.readlink(&file)), nfsstat3::NFS3ERR_INVAL);
}

/// The text comes in its own Read chunk (RFC 8267 section 2).
fn symlink_by_chunk(session: &Session, root: &nfs_fh3, name: &str, text: &[u8]) -> nfs_fh3 {
    let mut bulk = session.client.bulk(text.len()).unwrap();
    bulk.bytes_mut().copy_from_slice(text);
    let spec = CallSpec::new().reply_bytes_max(512).argument(bulk);
    let encode = |to: &mut Encoder<'_>| {
        at(root, name).encode(to);
        sattr3::default().encode(to);
        to.bulk();
    };
    let procedure = NFS_PROGRAM::NFSPROC3_SYMLINK as u32;
    let answered = session.raw(procedure, spec, encode, only_status).unwrap();
    assert_eq!(answered, nfsstat3::NFS3_OK);
    session.lookup(root, name).unwrap().object
}

pub(crate) fn special_files(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let fifo = session.mknod(&root, "fifo", mknoddata3::NF3FIFO(mode(0o640))).unwrap();
    let attributes = some(fifo.obj_attributes);
    assert_eq!((attributes.type_, attributes.mode), (ftype3::NF3FIFO, 0o640));
    let socket = session.mknod(&root, "socket", mknoddata3::NF3SOCK(mode(0o600))).unwrap();
    assert_eq!(some(socket.obj_attributes).type_, ftype3::NF3SOCK);
    let spec = specdata3 { specdata1: 1, specdata2: 3 };
    let device = || devicedata3 { dev_attributes: mode(0o600), spec: spec.clone() };
    // Only root creates devices, and not in every directory.
    match session.mknod(&root, "device", mknoddata3::NF3CHR(device())) {
        Ok(made) => {
            let attributes = some(made.obj_attributes);
            assert_eq!((attributes.type_, attributes.rdev), (ftype3::NF3CHR, spec.clone()));
        }
        Err((refused, _)) => assert_eq!(refused, nfsstat3::NFS3ERR_PERM),
    }
    for other in [ftype3::NF3REG, ftype3::NF3DIR, ftype3::NF3LNK] {
        let encode = |to: &mut Encoder<'_>| {
            at(&root, "none").encode(to);
            other.encode(to);
        };
        let (procedure, spec) = (NFS_PROGRAM::NFSPROC3_MKNOD as u32, CallSpec::new());
        let none = session.raw(procedure, spec.reply_bytes_max(1024), encode, only_status);
        assert_eq!(none.unwrap(), nfsstat3::NFS3ERR_BADTYPE);
    }
    let again = session.mknod(&root, "fifo", mknoddata3::NF3FIFO(mode(0o640)));
    assert_eq!(status(again), nfsstat3::NFS3ERR_EXIST);
    session.remove(&root, "fifo").unwrap();
}

/// Linux has 12 bits for the major number and 20 for the minor one: others would make another device.
pub(crate) fn device_numbers_of_linux(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let device = |specdata1, specdata2| devicedata3 {
        dev_attributes: mode(0o600),
        spec: specdata3 { specdata1, specdata2 },
    };
    for (major, minor) in [(65537, 3), (4096, 1), (1, 1 << 20), (u32::MAX, 0), (0, u32::MAX)] {
        for kind in [mknoddata3::NF3CHR, mknoddata3::NF3BLK] {
            let made = session.mknod(&root, "device", kind(device(major, minor)));
            assert_eq!(status(made), nfsstat3::NFS3ERR_INVAL, "{major}:{minor}");
        }
    }
    assert_eq!(status(session.lookup(&root, "device")), nfsstat3::NFS3ERR_NOENT);
    match session.mknod(&root, "device", mknoddata3::NF3CHR(device(4095, (1 << 20) - 1))) {
        Ok(made) => {
            let largest = specdata3 { specdata1: 4095, specdata2: (1 << 20) - 1 };
            assert_eq!(some(made.obj_attributes).rdev, largest);
        }
        Err((refused, _)) => assert_eq!(refused, nfsstat3::NFS3ERR_PERM),
    }
}

pub(crate) fn hard_links(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let directory = session.mkdir(&root, "directory");
    let file = session.create(&root, "file");
    session.write(&file, 0, b"content");
    let (attributes, wcc) = session.link(&file, &directory, "link").unwrap();
    assert_eq!(some(attributes).nlink, 2);
    some(wcc.after);
    assert_eq!(session.lookup(&directory, "link").unwrap().object, file, "one handle");
    assert_eq!(status(session.link(&file, &directory, "link")), nfsstat3::NFS3ERR_EXIST);
    session.remove(&root, "file").unwrap();
    assert_eq!(session.read(&file, 0, 100).unwrap().0, b"content");
    assert_eq!(session.getattr(&file).unwrap().nlink, 1);
    let refused = status(session.link(&directory, &root, "x"));
    let allowed = [nfsstat3::NFS3ERR_INVAL, nfsstat3::NFS3ERR_ISDIR, nfsstat3::NFS3ERR_PERM];
    assert!(allowed.contains(&refused), "{refused}");
}

pub(crate) fn removal(host: &Host) {
    let (session, root) = (host.session(), host.root());
    session.create(&root, "file");
    session.mkdir(&root, "directory");
    session.remove(&root, "file").unwrap();
    assert_eq!(status(session.remove(&root, "file")), nfsstat3::NFS3ERR_NOENT);
    assert_eq!(status(session.lookup(&root, "file")), nfsstat3::NFS3ERR_NOENT);
    let refused = status(session.remove(&root, "directory"));
    assert!(matches!(refused, nfsstat3::NFS3ERR_ISDIR | nfsstat3::NFS3ERR_PERM), "{refused}");
}

/// Changes of a directory return its attributes from before and after.
pub(crate) fn wcc_of_directories(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let mut before = session.getattr(&root).unwrap();
    let new = || createhow3::GUARDED(mode(0o600));
    let wccs = [
        session.create_as(&root, "a", new()).unwrap().dir_wcc,
        session.try_mkdir(&root, "b").unwrap().dir_wcc,
        session.symlink(&root, "c", "x").unwrap().dir_wcc,
        session.remove(&root, "a").unwrap(),
        session.rmdir(&root, "b").unwrap(),
        session.rename((&root, "c"), (&root, "d")).unwrap().1,
    ];
    for wcc in wccs {
        let (pre, post) = (some(wcc.before), some(wcc.after));
        assert_eq!((pre.mtime, pre.ctime), (before.mtime, before.ctime));
        before = post;
    }
    let failed = session.create_as(&root, "d", new());
    let Err((nfsstat3::NFS3ERR_EXIST, wcc)) = failed else { panic!("made twice") };
    assert_eq!(some(wcc.after).mtime, before.mtime);
}

pub(crate) fn not_in_a_file(host: &Host) {
    let (session, root, file) = host.session_root_and_file();
    let not_one = nfsstat3::NFS3ERR_NOTDIR;
    let new = || createhow3::GUARDED(mode(0o600));
    assert_eq!(status(session.create_as(&file, "x", new())), not_one);
    assert_eq!(status(session.try_mkdir(&file, "x")), not_one);
    assert_eq!(status(session.symlink(&file, "x", "y")), not_one);
    assert_eq!(status(session.remove(&file, "x")), not_one);
    assert_eq!(status(session.rmdir(&file, "x")), not_one);
    assert_eq!(status(session.link(&file, &file, "x")), not_one);
    assert_eq!(status(session.rename((&root, "file"), (&file, "x"))), not_one);
}
