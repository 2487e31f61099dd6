//! Rights of callers: checked by the kernel, with their identity. Only root can test that.

use super::*;
use crate::protocol::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ,
    Ftype3, Nfstime3, SetAtime, SetMtime, Specdata3,
};
use std::os::unix::fs::{PermissionsExt, chown};

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
    let all = ACCESS3_READ
        | ACCESS3_LOOKUP
        | ACCESS3_MODIFY
        | ACCESS3_EXTEND
        | ACCESS3_DELETE
        | ACCESS3_EXECUTE;
    let access = |caller: &Caller, key| export.directory.access(caller, key, all).unwrap();
    let writes = ACCESS3_MODIFY | ACCESS3_EXTEND;
    assert_eq!(access(&user(ANN), &file), ACCESS3_READ | writes);
    assert_eq!(access(&user(BOB), &file), 0);
    let of_group = Caller { groups: Groups::new(&[7, ANN]).unwrap().into(), ..user(BOB) };
    assert_eq!(access(&of_group, &file), ACCESS3_READ);
    assert_eq!(access(&ROOT, &file), ACCESS3_READ | writes, "root may, but no user may execute");
    let root = export.root();
    let on_directory = ACCESS3_READ | ACCESS3_LOOKUP | writes | ACCESS3_DELETE;
    assert_eq!(access(&user(BOB), &root), on_directory);
    fs::set_permissions(&export.path, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(access(&user(BOB), &root), ACCESS3_READ | ACCESS3_LOOKUP);
    assert_eq!(export.directory.access(&ROOT, &root, ACCESS3_LOOKUP).unwrap(), ACCESS3_LOOKUP);
}

#[test]
fn who_may_not_search_or_write_a_directory_is_refused() {
    let Some((export, _)) = of_ann(0o640) else { return };
    fs::set_permissions(&export.path, fs::Permissions::from_mode(0o700)).unwrap();
    let root = export.root();
    let bob = user(BOB);
    let wcc = &mut WccData::default();
    let looked = export.directory.lookup(&bob, at(&root, "file"));
    assert_eq!(status(looked), Nfsstat3::Nfs3errAcces);
    let made = export.create_as(&bob, "new", &Createhow3::Guarded(with_mode(0o600)));
    assert_eq!(status(made), Nfsstat3::Nfs3errAcces);
    let removed = export.directory.remove(&bob, at(&root, "file"), wcc);
    assert_eq!(status(removed), Nfsstat3::Nfs3errAcces);
    let from = ListFrom { cookie: 0, verifier: [0; 8], with_files: true };
    let listed = export.directory.list(&bob, &root, &from, &mut |_| true);
    assert_eq!(status(listed), Nfsstat3::Nfs3errAcces);
    // A caller who may list but not search gets names only.
    fs::set_permissions(&export.path, fs::Permissions::from_mode(0o704)).unwrap();
    let mut names = 0;
    export
        .directory
        .list(&bob, &root, &from, &mut |entry| {
            assert!(entry.found.is_none());
            names += 1;
            true
        })
        .unwrap();
    assert_eq!(names, 3);
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
fn an_owner_reads_and_writes_whatever_the_mode_says() {
    let Some((export, file)) = of_ann(0) else { return };
    let mut data = export.data();
    let (ann, bob) = (user(ANN), user(BOB));
    for _ in 0..2 {
        data.write_as(&ann, &file, (0, b"text"), StableHow::Unstable).unwrap();
        assert_eq!(data.read_as(&ann, &file, (0, 9)).unwrap(), (b"text".to_vec(), true));
        let read = data.read_as(&bob, &file, (0, 9));
        assert_eq!(status(read), Nfsstat3::Nfs3errAcces);
        let written = data.write_as(&bob, &file, (0, b"x"), StableHow::Unstable);
        assert_eq!(status(written), Nfsstat3::Nfs3errAcces);
    }
    let cut = Sattr3 { size: Some(1), ..Sattr3::default() };
    export.set(&ann, &file, &cut).unwrap();
    assert_eq!(status(export.set(&bob, &file, &cut)), Nfsstat3::Nfs3errAcces);
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

#[test]
fn only_the_owner_sets_mode_and_times_and_only_root_gives_away() {
    let Some((export, file)) = of_ann(0o666) else { return };
    let (ann, bob) = (user(ANN), user(BOB));
    let time = Nfstime3 { seconds: 77, nseconds: 999_999_999 };
    let times = Sattr3 {
        atime: SetAtime::SetToClientTime(time),
        mtime: SetMtime::SetToClientTime(time),
        ..Sattr3::default()
    };
    let touch = Sattr3 {
        atime: SetAtime::SetToServerTime,
        mtime: SetMtime::SetToServerTime,
        ..Sattr3::default()
    };
    let owner = |uid| Sattr3 { uid: Some(uid), ..Sattr3::default() };
    assert_eq!(status(export.set(&bob, &file, &with_mode(0o777))), Nfsstat3::Nfs3errPerm);
    assert_eq!(status(export.set(&bob, &file, &times)), Nfsstat3::Nfs3errPerm);
    assert_eq!(status(export.set(&ann, &file, &owner(BOB))), Nfsstat3::Nfs3errPerm);
    assert_eq!(status(export.set(&ROOT, &file, &owner(u32::MAX))), Nfsstat3::Nfs3errInval);
    export.set(&bob, &file, &touch).unwrap();
    export.set(&ann, &file, &times).unwrap();
    let attributes = export.directory.attributes(&file).unwrap();
    assert_eq!((attributes.atime, attributes.mtime), (time, time));
    export.set(&ann, &file, &owner(ANN)).unwrap();
    export.set(&ROOT, &file, &owner(BOB)).unwrap();
    assert_eq!(export.directory.attributes(&file).unwrap().uid, BOB);
    // All or nothing: the mode, which alone would be allowed, is not set either.
    let both = Sattr3 { uid: Some(ANN), ..with_mode(0o600) };
    assert_eq!(status(export.set(&bob, &file, &both)), Nfsstat3::Nfs3errPerm);
    assert_eq!(export.directory.attributes(&file).unwrap().mode, 0o666);
}

#[test]
fn a_guard_that_does_not_hold_changes_nothing() {
    let export = Export::new();
    let file = export.create("file");
    let ctime = export.directory.attributes(&file).unwrap().ctime;
    let wrong = Nfstime3 { nseconds: ctime.nseconds ^ 1, ..ctime };
    let set = |guard, wcc: &mut _| {
        export.directory.set_attributes(&ROOT, &file, &with_mode(0o600), Some(guard), wcc)
    };
    let mut wcc = WccData::default();
    assert_eq!(status(set(wrong, &mut wcc)), Nfsstat3::Nfs3errNotSync);
    assert!(wcc.before.is_some() && wcc.after.is_some());
    assert_eq!(export.directory.attributes(&file).unwrap().mode, 0o644);
    set(ctime, &mut wcc).unwrap();
    assert_eq!(export.directory.attributes(&file).unwrap().mode, 0o600);
}

#[test]
fn sizes_are_set_within_bounds_and_of_files_only() {
    let export = Export::new();
    let (file, directory) = (export.create("file"), export.make_directory("directory"));
    let size = |bytes| Sattr3 { size: Some(bytes), ..Sattr3::default() };
    export.set(&ROOT, &file, &size(5000)).unwrap();
    assert_eq!(export.directory.attributes(&file).unwrap().size, 5000);
    assert_eq!(status(export.set(&ROOT, &file, &size(u64::MAX))), Nfsstat3::Nfs3errFbig);
    assert_eq!(status(export.set(&ROOT, &directory, &size(0))), Nfsstat3::Nfs3errIsdir);
}

#[test]
fn a_server_without_privileges_is_itself_for_all_callers() {
    if !is_root() {
        return;
    }
    let path = fresh_path();
    fs::create_dir(&path).unwrap();
    chown(&path, Some(ANN), Some(ANN)).unwrap();
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
    let root = export.root();
    let wcc = &mut WccData::default();
    let made = export.directory.make(&ROOT, at(&root, "null"), NewFile::Special(&device), wcc);
    assert_eq!(status(made), Nfsstat3::Nfs3errPerm);
    let mut data = export.data();
    data.write_as(&user(BOB), &file.key, (0, b"text"), StableHow::FileSync).unwrap();
    assert_eq!(data.read_as(&ROOT, &file.key, (0, 4)).unwrap(), (b"text".to_vec(), true));
}
