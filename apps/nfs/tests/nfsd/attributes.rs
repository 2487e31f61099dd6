//! GETATTR and SETATTR (RFC 1813 sections 3.3.1 and 3.3.2).

use crate::*;

pub(crate) fn a_root_that_is_a_directory(host: &Host) {
    let session = host.session();
    let root = session.getattr(&host.root()).unwrap();
    assert_eq!(root.type_, ftype3::NF3DIR);
    assert!(root.nlink >= 2 && root.fileid != 0, "{root:?}");
    let again = session.getattr(&host.root()).unwrap();
    assert_eq!((again.fileid, again.fsid), (root.fileid, root.fsid));
}

/// The last one is the maximum of FSINFO.
pub(crate) const HUGE: [u64; 2] = [1 << 62, i64::MAX as u64];

pub(crate) fn size(size: u64) -> sattr3 {
    sattr3 { size: Nfs3Option::Some(size), ..sattr3::default() }
}

pub(crate) fn sizes_are_set(host: &Host) {
    let (session, file) = host.session_and_file();
    assert_eq!(session.write(&file, 0, b"0123456789"), nfsstat3::NFS3_OK);
    let wcc = session.setattr(&file, size(4), None).unwrap();
    assert_eq!((some(wcc.before).size, some(wcc.after).size), (10, 4));
    session.setattr(&file, size(8), None).unwrap();
    assert_eq!(session.read(&file, 0, 100).unwrap(), (b"0123\0\0\0\0".to_vec(), true));
}

pub(crate) fn times_are_set(host: &Host) {
    let (session, file) = host.session_and_file();
    let (atime, mtime) = (time(1000), time(2000));
    let new = sattr3 {
        atime: set_atime::SET_TO_CLIENT_TIME(atime),
        mtime: set_mtime::SET_TO_CLIENT_TIME(mtime),
        ..sattr3::default()
    };
    session.setattr(&file, new, None).unwrap();
    let set = session.getattr(&file).unwrap();
    assert_eq!((set.atime, set.mtime), (atime, mtime));
    let second = nfstime3 { nseconds: 1_000_000_000, ..mtime };
    let new = sattr3 { mtime: set_mtime::SET_TO_CLIENT_TIME(second), ..sattr3::default() };
    session.setattr(&file, new, None).unwrap();
    let set = session.getattr(&file).unwrap().mtime;
    assert_eq!(set, nfstime3 { nseconds: 999_999_999, ..mtime }, "no valid time");
    let now = sattr3 { mtime: set_mtime::SET_TO_SERVER_TIME, ..sattr3::default() };
    session.setattr(&file, now, None).unwrap();
    let set = session.getattr(&file).unwrap();
    assert!(set.mtime.seconds > 1_000_000_000 && set.atime == atime, "{set:?}");
}

fn time(seconds: u32) -> nfstime3 {
    nfstime3 { seconds, nseconds: 5 }
}

pub(crate) fn modes_are_set(host: &Host) {
    let (session, file) = host.session_and_file();
    assert_eq!(session.getattr(&file).unwrap().mode, 0o644);
    session.setattr(&file, mode(0o751), None).unwrap();
    assert_eq!(session.getattr(&file).unwrap().mode, 0o751);
}

/// "If the values are different, the server must preserve the object attributes and must return a
/// status of NFS3ERR_NOT_SYNC" (section 3.3.2).
pub(crate) fn a_guard_that_is_not_the_ctime(host: &Host) {
    let (session, file) = host.session_and_file();
    let ctime = session.getattr(&file).unwrap().ctime;
    let other = nfstime3 { nseconds: ctime.nseconds ^ 1, ..ctime };
    let failed = session.setattr(&file, mode(0o600), Some(other));
    let Err((nfsstat3::NFS3ERR_NOT_SYNC, wcc)) = failed else { panic!("{failed:?}") };
    assert_eq!(some(wcc.after).mode, 0o644);
    session.setattr(&file, mode(0o600), Some(ctime)).unwrap();
    assert_eq!(session.getattr(&file).unwrap().mode, 0o600);
}

pub(crate) fn a_file_that_is_gone(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let (file, directory) = (session.create(&root, "file"), session.mkdir(&root, "directory"));
    session.remove(&root, "file").unwrap();
    session.rmdir(&root, "directory").unwrap();
    // A new file with the same name is another file.
    session.create(&root, "file");
    for gone in [&file, &directory] {
        let stale = nfsstat3::NFS3ERR_STALE;
        assert_eq!(session.getattr(gone).unwrap_err(), stale);
        assert_eq!(status(session.setattr(gone, mode(0), None)), stale);
        assert_eq!(status(session.lookup(gone, "x")), stale);
        assert_eq!(status(session.access(gone, 1)), stale);
        assert_eq!(status(session.readlink(gone)), stale);
        assert_eq!(session.read(gone, 0, 1).unwrap_err(), stale);
        assert_eq!(session.write(gone, 0, b"x"), stale);
        assert_eq!(status(session.commit(gone, 0, 0)), stale);
        assert_eq!(status(session.try_mkdir(gone, "x")), stale);
        assert_eq!(status(session.remove(gone, "x")), stale);
        assert_eq!(status(session.link(gone, &root, "x")), stale);
        assert_eq!(status(session.rename((gone, "x"), (&root, "y"))), stale);
    }
}

pub(crate) fn what_is_no_size_of_a_file(host: &Host) {
    let (session, root, file) = host.session_root_and_file();
    session.write_as(&file, 0, b"data", stable_how::FILE_SYNC).unwrap();
    assert_eq!(status(session.setattr(&file, size(u64::MAX), None)), nfsstat3::NFS3ERR_INVAL);
    assert_eq!(session.getattr(&file).unwrap().size, 4);
    let directory = session.mkdir(&root, "directory");
    let refused = status(session.setattr(&directory, size(0), None));
    assert!(matches!(refused, nfsstat3::NFS3ERR_INVAL | nfsstat3::NFS3ERR_ISDIR), "{refused}");
}

/// A file system may have a lower maximum than the protocol: then neither is changed, else both. SETATTR does not have
/// NFS3ERR_FBIG.
pub(crate) fn a_size_that_is_refused_changes_nothing(host: &Host) {
    let (session, file) = host.session_and_file();
    session.write(&file, 0, b"data");
    for huge in HUGE {
        let before = session.getattr(&file).unwrap();
        let new = sattr3 { mode: Nfs3Option::Some(0o4750), ..size(huge) };
        let outcome = status(session.setattr(&file, new, None));
        let after = session.getattr(&file).unwrap();
        let (expected, is) = match after.size == huge {
            true => (nfsstat3::NFS3_OK, (0o4750, huge)),
            false => (nfsstat3::NFS3ERR_INVAL, (before.mode, before.size)),
        };
        assert_eq!((outcome, (after.mode, after.size)), (expected, is), "{huge}");
    }
}
