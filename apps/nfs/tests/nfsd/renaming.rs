//! RENAME (RFC 1813 section 3.3.14).

use crate::*;

pub(crate) fn to_another_name(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let (one, two) = (session.mkdir(&root, "one"), session.mkdir(&root, "two"));
    let file = session.create(&one, "file");
    session.rename((&one, "file"), (&one, "other")).unwrap();
    assert_eq!(session.lookup(&one, "other").unwrap().object, file);
    let (from, to) = session.rename((&one, "other"), (&two, "file")).unwrap();
    assert_ne!(some(from.before).mtime, some(from.after).mtime);
    assert_ne!(some(to.before).mtime, some(to.after).mtime);
    assert_eq!(session.lookup(&two, "file").unwrap().object, file, "the same handle");
    assert_eq!(status(session.lookup(&one, "other")), nfsstat3::NFS3ERR_NOENT);
    assert_eq!(status(session.rename((&one, "file"), (&two, "x"))), nfsstat3::NFS3ERR_NOENT);
    // A directory knows its parent.
    session.rename((&root, "one"), (&two, "one")).unwrap();
    assert_eq!(session.lookup(&one, "..").unwrap().object, two);
    assert_eq!(session.getattr(&two).unwrap().nlink, 3);
}

pub(crate) fn onto_a_file(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let (moved, replaced) = (session.create(&root, "moved"), session.create(&root, "replaced"));
    session.rename((&root, "moved"), (&root, "replaced")).unwrap();
    assert_eq!(session.lookup(&root, "replaced").unwrap().object, moved);
    assert_eq!(session.getattr(&replaced).unwrap_err(), nfsstat3::NFS3ERR_STALE);
    session.mkdir(&root, "directory");
    let refused = status(session.rename((&root, "directory"), (&root, "replaced")));
    assert_eq!(refused, nfsstat3::NFS3ERR_EXIST);
}

pub(crate) fn onto_a_directory(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let moved = session.mkdir(&root, "moved");
    let full = session.mkdir(&root, "full");
    session.create(&full, "file");
    let refused = status(session.rename((&root, "moved"), (&root, "full")));
    assert!(matches!(refused, nfsstat3::NFS3ERR_NOTEMPTY | nfsstat3::NFS3ERR_EXIST), "{refused}");
    session.create(&root, "file");
    let refused = status(session.rename((&root, "file"), (&root, "full")));
    assert_eq!(refused, nfsstat3::NFS3ERR_EXIST);
    session.remove(&full, "file").unwrap();
    session.rename((&root, "moved"), (&root, "full")).unwrap();
    assert_eq!(session.lookup(&root, "full").unwrap().object, moved);
}

pub(crate) fn of_a_directory_below_itself(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let above = session.mkdir(&root, "above");
    let below = session.mkdir(&above, "below");
    let inval = nfsstat3::NFS3ERR_INVAL;
    assert_eq!(status(session.rename((&root, "above"), (&above, "x"))), inval);
    assert_eq!(status(session.rename((&root, "above"), (&below, "x"))), inval);
    assert_eq!(session.lookup(&root, "above").unwrap().object, above);
}

/// If both names are those of one file, the call succeeds without any effect.
pub(crate) fn onto_itself(host: &Host) {
    let (session, root, file) = host.session_root_and_file();
    session.rename((&root, "file"), (&root, "file")).unwrap();
    session.link(&file, &root, "link").unwrap();
    session.rename((&root, "file"), (&root, "link")).unwrap();
    for name in ["file", "link"] {
        assert_eq!(session.lookup(&root, name).unwrap().object, file);
    }
}

pub(crate) fn with_names_that_are_none(host: &Host) {
    let (session, root) = (host.session(), host.root());
    session.create(&root, "file");
    session.mkdir(&root, "directory");
    let long = "x".repeat(256);
    let inval = nfsstat3::NFS3ERR_INVAL;
    for (name, expected) in [
        ("", inval),
        (".", inval),
        ("..", inval),
        ("directory/..", inval),
        ("a\0", inval),
        (&long, nfsstat3::NFS3ERR_NAMETOOLONG),
    ] {
        assert_eq!(status(session.rename((&root, "file"), (&root, name))), expected, "{name:?}");
        assert_eq!(status(session.rename((&root, name), (&root, "x"))), expected, "{name:?}");
    }
    // Moves and links between exports are rejected.
    let other = host.root_of(OTHER);
    let xdev = nfsstat3::NFS3ERR_XDEV;
    assert_eq!(status(session.rename((&root, "file"), (&other, "file"))), xdev);
    let file = session.lookup(&root, "file").unwrap().object;
    assert_eq!(status(session.link(&file, &other, "link")), xdev);
    assert_eq!(status(session.lookup(&other, "file")), nfsstat3::NFS3ERR_NOENT);
}
