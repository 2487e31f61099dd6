//! ACCESS, FSSTAT, FSINFO and PATHCONF (RFC 1813 sections 3.3.4 and 3.3.18 to 3.3.20).

use crate::*;

fn fsinfo(session: &Session, of: &nfs_fh3) -> Res<FSINFO3resok, post_op_attr> {
    session.call(NFS_PROGRAM::NFSPROC3_FSINFO, &FSINFO3args { fsroot: of.clone() })
}

fn fsstat(session: &Session, of: &nfs_fh3) -> Res<FSSTAT3resok, post_op_attr> {
    session.call(NFS_PROGRAM::NFSPROC3_FSSTAT, &FSSTAT3args { fsroot: of.clone() })
}

fn pathconf(session: &Session, of: &nfs_fh3) -> Res<PATHCONF3resok, post_op_attr> {
    session.call(NFS_PROGRAM::NFSPROC3_PATHCONF, &PATHCONF3args { object: of.clone() })
}

pub(crate) fn fsinfo_fsstat_and_pathconf(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let info = fsinfo(&session, &root).unwrap();
    assert_eq!((info.rtmax, info.wtmax), (BLOCK_BYTES, BLOCK_BYTES));
    assert!(info.rtpref <= info.rtmax && info.wtpref <= info.wtmax && info.dtpref > 0);
    assert!(info.maxfilesize >= 1 << 32);
    assert_eq!(info.properties & (FSF3_LINK | FSF3_SYMLINK), FSF3_LINK | FSF3_SYMLINK);
    some(info.obj_attributes);
    let space = fsstat(&session, &root).unwrap();
    assert!(space.tbytes >= space.fbytes && space.fbytes >= space.abytes && space.abytes > 0);
    assert!(space.tfiles >= space.ffiles && space.ffiles >= space.afiles);
    some(space.obj_attributes);
    let names = pathconf(&session, &root).unwrap();
    assert_eq!(names.name_max, 255);
    assert!(names.linkmax > 1 && names.no_trunc && names.case_preserving);
    assert!(!names.case_insensitive && names.chown_restricted);
}

pub(crate) fn limits_of_what_is_gone(host: &Host) {
    let (session, root, gone) = host.session_root_and_file();
    session.remove(&root, "file").unwrap();
    let stale = nfsstat3::NFS3ERR_STALE;
    assert_eq!(status(fsinfo(&session, &gone)), stale);
    assert_eq!(status(fsstat(&session, &gone)), stale);
    assert_eq!(status(pathconf(&session, &gone)), stale);
}

/// Bits that are meaningless for a file type are not set.
pub(crate) fn access_by_type(host: &Host) {
    let (session, root) = (host.session(), host.root());
    let directory = session.mkdir(&root, "directory");
    let given = session.access(&directory, u32::MAX).unwrap();
    let all = ACCESS3_READ | ACCESS3_LOOKUP | ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE;
    assert_eq!(given.access, all);
    some(given.obj_attributes);
    let file = session.create(&root, "file");
    let given = session.access(&file, u32::MAX).unwrap().access;
    let all = ACCESS3_READ | ACCESS3_MODIFY | ACCESS3_EXTEND;
    // DELETE "may be ignored" for anything but a directory (section 3.3.4).
    assert_eq!(given & !ACCESS3_DELETE, all);
    session.setattr(&file, crate::session::mode(0o755), None).unwrap();
    assert_eq!(session.access(&file, ACCESS3_EXECUTE).unwrap().access, ACCESS3_EXECUTE);
    assert_eq!(session.access(&file, 0).unwrap().access, 0);
}
