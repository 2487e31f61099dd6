//! Rights of callers: checked by the kernel, with their identity. Only root can test that.

use super::*;
use crate::protocol::{
    ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ, Ftype3,
    SetAtime, SetMtime, Specdata3,
};
use std::os::unix::fs::{PermissionsExt, chown};
use std::time::UNIX_EPOCH;

const ANN: u32 = 12_345;
const BOB: u32 = 12_346;

/// A directory where every user may create files, and a file of Ann's.
fn of_ann(mode: u32) -> Option<(Export, FileKey)> {
    if !is_root() {
        eprintln!("not tested, as this is not root");
        return None;
    }
    let export = Export::new();
    fs::set_permissions(&export.path, fs::Permissions::from_mode(0o777)).unwrap();
    let file = export.create_as(&user(ANN), "file", &Createhow3::Guarded(with_mode(mode))).unwrap();
    assert_eq!((file.attributes.uid, file.attributes.gid), (ANN, ANN));
    assert_eq!(file.attributes.mode, mode);
    Some((export, file.key))
}

#[test]
fn access_says_what_the_mode_says() {
    let Some((export, file)) = of_ann(0o640) else { return };
    fs::set_permissions(&export.path, fs::Permissions::from_mode(0o755)).unwrap();
    let of_group = Caller { groups: Groups::new(&[7, ANN]).unwrap().into(), ..user(BOB) };
    let writes = ACCESS3_MODIFY | ACCESS3_EXTEND;
    let all = ACCESS3_READ | ACCESS3_LOOKUP | ACCESS3_EXECUTE | writes;
    for (caller, key, expected) in [
        (user(ANN), &file, ACCESS3_READ | writes),
        (of_group, &file, ACCESS3_READ),
        (user(BOB), &file, 0),
        (user(BOB), &export.root(), ACCESS3_READ | ACCESS3_LOOKUP),
        // Root may, but no user may execute.
        (*ROOT, &file, ACCESS3_READ | writes),
    ] {
        assert_eq!(export.directory.access(&caller, key, all).unwrap(), expected, "{caller:?}");
    }
}

#[test]
fn the_thread_is_itself_again_behind_each_call() {
    let Some((export, _)) = of_ann(0o640) else { return };
    let rights = || fs::read_to_string("/proc/thread-self/status").unwrap();
    let own = |status: &str| -> Vec<String> {
        let kept = ["Uid", "Gid", "Groups", "CapEff"];
        let lines = status.lines().filter(|line| kept.iter().any(|name| line.starts_with(name)));
        lines.map(str::to_owned).collect()
    };
    let before = own(&rights());
    let caller = Caller { groups: Groups::new(&[1, 2, 3]).unwrap().into(), ..user(BOB) };
    let _ = export.create_as(&caller, "new", &Createhow3::Guarded(with_mode(0o600))).unwrap();
    let _ = export.directory.lookup(&caller, at(&export.root(), "none"));
    assert_eq!(own(&rights()), before);
}

#[test]
fn a_caller_with_id_minus_one_does_not_become_root() {
    let Some((export, file)) = of_ann(0o600) else { return };
    let invalid = Caller { uid: u32::MAX, gid: u32::MAX, groups: Groups::default().into() };
    for caller in [invalid, Caller { gid: 0, ..invalid }, Caller { uid: 0, ..invalid }] {
        let access = export.directory.access(&caller, &file, ACCESS3_READ);
        assert_eq!(status(access), Nfsstat3::Nfs3errAcces);
        let read = export.data().read_as(&caller, &file, (0, 1));
        assert_eq!(status(read), Nfsstat3::Nfs3errAcces);
    }
}

#[test]
fn a_change_of_the_mode_takes_effect_on_the_next_request_for_data() {
    let Some((export, file)) = of_ann(0o644) else { return };
    let mut data = export.data();
    let bob = user(BOB);
    for _ in 0..3 {
        data.read_as(&bob, &file, (0, 1)).unwrap();
    }
    export.set(&user(ANN), &file, &with_mode(0o600)).unwrap();
    assert_eq!(status(data.read_as(&bob, &file, (0, 1))), Nfsstat3::Nfs3errAcces);
    // A caller who may execute it may read it.
    export.set(&user(ANN), &file, &with_mode(0o701)).unwrap();
    data.read_as(&bob, &file, (0, 1)).unwrap();
}

#[test]
fn a_write_by_another_user_takes_set_user_id_away() {
    let Some((export, file)) = of_ann(0o6777) else { return };
    let mode = || export.directory.attributes(&file).unwrap().mode;
    let mut data = export.data();
    data.write_as(&ROOT, &file, (0, b"x"), StableHow::Unstable).unwrap();
    assert_eq!(mode(), 0o6777, "root keeps them");
    data.write_as(&user(BOB), &file, (0, b"x"), StableHow::Unstable).unwrap();
    assert_eq!(mode(), 0o777);
    fs::set_permissions(export.local("file"), fs::Permissions::from_mode(0o6777)).unwrap();
    let cut = Sattr3 { size: Some(0), ..Sattr3::default() };
    export.set(&user(BOB), &file, &cut).unwrap();
    assert_eq!(mode(), 0o777);
    fs::set_permissions(export.local("file"), fs::Permissions::from_mode(0o6777)).unwrap();
    chown(export.local("file"), Some(ANN), Some(ANN)).unwrap();
    assert_eq!(mode(), 0o777);
}

/// Whatever the mode was at the check: the kernel clears the bits, and does not use blocks reserved
/// for root.
#[test]
fn threads_write_as_the_caller() {
    let Some((export, file)) = of_ann(0o6777) else { return };
    let tree = &export.directory.tree;
    let node = tree.node(&file).unwrap();
    for (caller, mode) in [(*ROOT, 0o6777), (user(ANN), 0o777)] {
        let data = Bulk::from_vec(vec![1]);
        let write = Request::Write { offset: 0, data, stable: StableHow::Unstable };
        let ended = tree.transfer(&caller, &node, write);
        assert_eq!((ended.result, ended.bytes), (Ok(()), 1));
        assert_eq!(export.directory.attributes(&file).unwrap().mode, mode);
    }
}

/// "If the values are different, the server must preserve the object attributes and must return a status of
/// NFS3ERR_NOT_SYNC" (RFC 1813 section 3.3.2): also if another change came between the check and the change.
#[test]
fn of_two_changes_with_one_guard_one_is_made() {
    let export = Export::new();
    let (file, other) = (export.create("file"), export.create("other"));
    let ctime = |file| export.directory.attributes(file).unwrap().ctime;
    let guard = ctime(&file);
    // Until the clock of the file system has moved on.
    while ctime(&other) == guard {
        export.set(&ROOT, &other, &with_mode(0o600)).unwrap();
    }
    let node = export.directory.tree.node(&file).unwrap();
    let (changing, asked) = (spinrpc::sync::lock(&node.mode), AtomicU32::new(0));
    let set = || {
        asked.fetch_add(1, Ordering::Relaxed);
        let to = Setting { new: &with_mode(0o600), guard: Some(guard) };
        export.directory.setattr(by(&ROOT, &mut Default::default()), &file, to)
    };
    let outcomes = thread::scope(|scope| {
        let threads = [scope.spawn(set), scope.spawn(set)];
        while asked.load(Ordering::Relaxed) < 2 {
            thread::yield_now();
        }
        // Without the lock, both would have compared by now.
        (0..1000).for_each(|_| thread::yield_now());
        drop(changing);
        threads.map(|thread| thread.join().unwrap())
    });
    let refused = Err(Nfsstat3::Nfs3errNotSync);
    let is_one = outcomes == [Ok(()), refused] || outcomes == [refused, Ok(())];
    assert!(is_one, "{outcomes:?}");
}

const SERVER_TIMES: Sattr3 = Sattr3 {
    atime: SetAtime::SetToServerTime,
    mtime: SetMtime::SetToServerTime,
    mode: None,
    uid: None,
    gid: None,
    size: None,
};
/// As Linux sends it for `>`.
const OVERWRITE: Sattr3 = Sattr3 { size: Some(0), atime: SetAtime::DontChange, ..SERVER_TIMES };
const MTIME: Sattr3 = Sattr3 { size: None, ..OVERWRITE };
const ATIME: Sattr3 = Sattr3 { mtime: SetMtime::DontChange, ..SERVER_TIMES };

/// The mode says nothing of him.
#[test]
fn a_user_of_an_access_control_list_overwrites_a_file() {
    let Some((export, file)) = of_ann(0o600) else { return };
    // struct posix_acl_xattr_header and posix_acl_xattr_entry of Linux: tag, permissions, user.
    let none = u32::MAX;
    let entries = [(1, 6, none), (2, 6, BOB), (4, 0, none), (0x10, 6, none), (0x20, 0, none)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, user) in entries {
        list.extend_from_slice(&u16::to_le_bytes(tag));
        list.extend_from_slice(&u16::to_le_bytes(permissions));
        list.extend_from_slice(&u32::to_le_bytes(user));
    }
    let none = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(export.local("file"), c"system.posix_acl_access", &list, none).is_err()
    {
        return eprintln!("not tested, as the file system has no access control lists");
    }
    fs::write(export.local("file"), "content").unwrap();
    for new in [MTIME, ATIME, SERVER_TIMES, OVERWRITE] {
        export.set(&user(BOB), &file, &new).unwrap();
        let others = user(BOB + 1);
        assert_eq!(status(export.set(&others, &file, &new)), Nfsstat3::Nfs3errAcces, "{new:?}");
    }
    assert_eq!(export.directory.attributes(&file).unwrap().size, 0);
}

#[test]
fn a_server_without_privileges_is_itself_for_all_callers() {
    if !is_root() {
        return;
    }
    let path = fresh_path();
    fs::create_dir(&path).unwrap();
    chown(&path, Some(ANN), Some(ANN)).unwrap();
    fs::write(path.join("of root"), "content").unwrap();
    fs::set_permissions(path.join("of root"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::File::open(path.join("of root")).unwrap().set_modified(UNIX_EPOCH).unwrap();
    let made = thread::scope(|scope| scope.spawn(|| as_ann(&path)).join());
    fs::remove_dir_all(&path).unwrap();
    made.unwrap();
}

/// Runs on its own thread, which stays Ann.
fn as_ann(path: &Path) {
    use rustix::process::{Gid, Uid};
    let (uid, gid) = (Uid::from_raw(ANN), Gid::from_raw(ANN));
    rustix::thread::set_thread_groups(&[]).unwrap();
    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
    let directory = Directory::open(path, &DirectoryOptions::default()).unwrap();
    assert_eq!(directory.ways().keys, KeyMode::Walk);
    assert!(!directory.ways().acts_as_callers);
    let export =
        Export { path: path.join("none"), options: DirectoryOptions::default(), directory };
    let export = std::mem::ManuallyDrop::new(export);
    let how = Createhow3::Guarded(with_mode(0o600));
    let file = export.create_as(&user(BOB), "file", &how).unwrap();
    assert_eq!(file.attributes.uid, ANN);
    let device = SpecialFile {
        kind: Ftype3::Nf3chr,
        device: Specdata3 { specdata1: 1, specdata2: 3 },
        attributes: with_mode(0o600),
    };
    let made = export.make(&ROOT, "null", NewFile::Special(&device));
    assert_eq!(status(made), Nfsstat3::Nfs3errPerm);
    let mut data = export.data();
    data.write_as(&user(BOB), &file.key, (0, b"text"), StableHow::FileSync).unwrap();
    assert_eq!(data.read_as(&ROOT, &file.key, (0, 4)).unwrap(), (b"text".to_vec(), true));
    overwrites_what_it_may_write(&export);
    writes_and_reads_its_own_whatever_the_mode_is(&export);
}

/// As git creates its objects: the mode denies the owner what the program has opened the file for.
fn writes_and_reads_its_own_whatever_the_mode_is(export: &Export) {
    let mut data = export.data();
    for mode in [0o444, 0o4004] {
        let name = format!("{mode:o}");
        let how = Createhow3::Guarded(with_mode(mode));
        let file = export.create_as(&user(BOB), &name, &how).unwrap().key;
        data.write_as(&user(BOB), &file, (0, b"text"), StableHow::FileSync).unwrap();
        assert_eq!(data.read_as(&ROOT, &file, (0, 4)).unwrap(), (b"text".to_vec(), true));
        (0..10).for_each(|_| export.directory.tree.tick_now());
        export.set(&user(BOB), &file, &Sattr3 { size: Some(2), ..Sattr3::default() }).unwrap();
        let attributes = export.directory.attributes(&file).unwrap();
        // The kernel clears set-user-ID at a write.
        assert_eq!((attributes.size, attributes.mode), (2, mode & 0o777));
    }
}

/// It owns nothing of root's, so that the kernel lets it set both times only.
fn overwrites_what_it_may_write(export: &Export) {
    let file = export.key("of root");
    let attributes = || export.directory.attributes(&file).unwrap();
    let before = attributes();
    assert_eq!(status(export.set(&user(BOB), &file, &ATIME)), Nfsstat3::Nfs3errPerm);
    assert_eq!(attributes(), before);
    export.set(&user(BOB), &file, &MTIME).unwrap();
    let touched = attributes();
    assert!(touched.mtime != before.mtime && touched.size == before.size);
    for new in [OVERWRITE, SERVER_TIMES, Sattr3 { size: Some(2), ..ATIME }] {
        export.set(&user(BOB), &file, &new).unwrap();
    }
    assert_eq!(attributes().size, 2);
}
