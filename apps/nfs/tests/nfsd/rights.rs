//! Permissions by mode bits, of the back ends that check them; and a full file system: the back end in memory.

use crate::attributes::size;
use crate::*;
use spinrpc_nfs::server::memfs::MemoryOptions;

const OWNER: (u32, u32) = (1000, 100);
const MEMBER: (u32, u32) = (1001, 100);
const STRANGER: (u32, u32) = (1002, 200);
const ROOT: (u32, u32) = (0, 0);

const ACCES: nfsstat3 = nfsstat3::NFS3ERR_ACCES;
const PERM: nfsstat3 = nfsstat3::NFS3ERR_PERM;

/// A session, and a directory that belongs to the owner. The root is sticky, and anyone's.
fn start(host: &Host) -> (Session, nfs_fh3) {
    let session = host.session();
    session.act_as(Some(ROOT));
    session.setattr(&host.root(), mode(0o1777), None).unwrap();
    session.act_as(Some(OWNER));
    let directory = session.mkdir(&host.root(), "home");
    session.setattr(&directory, mode(0o755), None).unwrap();
    (session, directory)
}

pub(crate) fn a_file_is_read_and_written_by_whom_the_mode_allows(host: &Host) {
    let (session, home) = start(host);
    let file = session.create(&home, "file");
    session.setattr(&file, mode(0o640), None).unwrap();
    session.write(&file, 0, b"content");
    for (user, read, write) in
        [(OWNER, true, true), (MEMBER, true, false), (STRANGER, false, false), (ROOT, true, true)]
    {
        session.act_as(Some(user));
        assert_eq!(session.read(&file, 0, 10).err(), (!read).then_some(ACCES), "{user:?}");
        let written = session.write(&file, 0, b"content");
        assert_eq!(written, if write { nfsstat3::NFS3_OK } else { ACCES }, "{user:?}");
        let wanted = ACCESS3_READ | ACCESS3_MODIFY | ACCESS3_EXTEND;
        let expected = u32::from(read) + u32::from(write) * (ACCESS3_MODIFY | ACCESS3_EXTEND);
        assert_eq!(session.access(&file, wanted).unwrap().access, expected);
    }
}

/// "The server's permission checking algorithm should allow the owner of a file to access it regardless
/// of the permission setting" (section 4.4): it was open when that was changed.
pub(crate) fn the_owner_reads_and_writes_whatever_the_mode_is(host: &Host) {
    let (session, home) = start(host);
    let file = session.create(&home, "file");
    session.setattr(&file, mode(0), None).unwrap();
    assert_eq!(session.write(&file, 0, b"content"), nfsstat3::NFS3_OK);
    assert!(session.read(&file, 0, 10).is_ok());
    assert_eq!(session.access(&file, ACCESS3_READ).unwrap().access, 0);
}

pub(crate) fn a_directory_is_changed_and_searched_by_whom_the_mode_allows(host: &Host) {
    let (session, home) = start(host);
    session.create(&home, "file");
    session.act_as(Some(STRANGER));
    assert!(session.lookup(&home, "file").is_ok());
    assert_eq!(status(session.try_mkdir(&home, "x")), ACCES);
    assert_eq!(status(session.remove(&home, "file")), ACCES);
    assert_eq!(status(session.rename((&home, "file"), (&home, "x"))), ACCES);
    let set = |to| {
        session.act_as(Some(OWNER));
        session.setattr(&home, mode(to), None).unwrap();
        session.act_as(Some(STRANGER));
    };
    set(0o744);
    let (cookie, cookieverf, maxcount) = (0, cookieverf3([0; 8]), 1000);
    let all =
        READDIRPLUS3args { dir: home.clone(), cookie, cookieverf, dircount: maxcount, maxcount };
    let list = || {
        session.call::<READDIRPLUS3resok<'_>, post_op_attr>(NFS_PROGRAM::NFSPROC3_READDIRPLUS, &all)
    };
    let entries = list().unwrap().reply.entries.0;
    let is_name = |entry: &entryplus3<'_>| {
        matches!(entry.name_attributes, Nfs3Option::None)
            && matches!(entry.name_handle, Nfs3Option::None)
    };
    assert!(entries.len() == 3 && entries.iter().all(is_name), "{entries:?}");
    set(0o700);
    assert_eq!(status(list()), ACCES);
    assert_eq!(status(session.lookup(&home, "file")), ACCES);
    session.act_as(Some(ROOT));
    assert!(session.lookup(&home, "file").is_ok());
}

pub(crate) fn a_sticky_directory_keeps_what_others_made(host: &Host) {
    let (session, _) = start(host);
    session.create(&host.root(), "file");
    session.act_as(Some(STRANGER));
    session.create(&host.root(), "mine");
    assert_eq!(status(session.remove(&host.root(), "file")), PERM);
    let onto = session.rename((&host.root(), "mine"), (&host.root(), "file"));
    assert_eq!(status(onto), PERM);
    session.remove(&host.root(), "mine").unwrap();
}

pub(crate) fn attributes_are_set_by_whom_they_belong_to(host: &Host) {
    let (session, home) = start(host);
    let foreign = sattr3 { gid: Nfs3Option::Some(STRANGER.1), ..owner(STRANGER.0) };
    let made = session.create_as(&home, "file", createhow3::GUARDED(foreign)).unwrap();
    let (file, made) = (some(made.obj), some(made.obj_attributes));
    assert_eq!((made.uid, made.gid), OWNER, "only root gives files away");
    session.setattr(&file, mode(0o666), None).unwrap();
    let time = nfs3_types::nfs3::nfstime3 { seconds: 1, nseconds: 0 };
    let past = || sattr3 { mtime: set_mtime::SET_TO_CLIENT_TIME(time), ..sattr3::default() };
    let now = || sattr3 { mtime: set_mtime::SET_TO_SERVER_TIME, ..sattr3::default() };
    assert_eq!(status(session.setattr(&file, owner(STRANGER.0), None)), PERM);
    assert_eq!(status(session.setattr(&file, group(STRANGER.1), None)), PERM);
    session.setattr(&file, group(OWNER.1), None).unwrap();
    session.act_as(Some(STRANGER));
    assert_eq!(status(session.setattr(&file, mode(0o777), None)), PERM);
    assert_eq!(status(session.setattr(&file, past(), None)), PERM);
    session.setattr(&file, now(), None).unwrap();
    session.act_as(Some(ROOT));
    session.setattr(&file, mode(0o6755), None).unwrap();
    session.setattr(&file, owner(STRANGER.0), None).unwrap();
    session.act_as(Some(STRANGER));
    session.write(&file, 0, b"another program");
    assert_eq!(session.getattr(&file).unwrap().mode, 0o755, "it runs as its owner no more");
}

fn owner(uid: u32) -> sattr3 {
    sattr3 { uid: Nfs3Option::Some(uid), ..sattr3::default() }
}

fn group(gid: u32) -> sattr3 {
    sattr3 { gid: Nfs3Option::Some(gid), ..sattr3::default() }
}

/// A new size, and whether the access and the modification time become the server's.
type Writing = (Option<u64>, bool, bool);

const WRITINGS: [Writing; 7] = [
    (Some(0), false, true),
    (Some(3), true, false),
    (Some(1), false, false),
    (Some(9), true, true),
    (None, false, true),
    (None, true, false),
    (None, true, true),
];

/// A time of the server asks for the right to write, not for ownership (section 3.3.2): Linux sends one with
/// the size for `>`, and one alone for `touch -a` and `touch -m`.
pub(crate) fn a_caller_who_may_write_sets_the_size_and_present_times(host: &Host) {
    let (session, home) = start(host);
    let file = session.create(&home, "file");
    for file_mode in [0o664, 0o666, 0o620, 0o660, 0o644, 0o602, 0o400] {
        let (members, strangers) = (file_mode & 0o020 != 0, file_mode & 0o002 != 0);
        for (user, may) in [(OWNER, true), (MEMBER, members), (STRANGER, strangers), (ROOT, true)] {
            for new in WRITINGS {
                session.act_as(Some(OWNER));
                session.write(&file, 0, b"content");
                session.setattr(&file, past(file_mode), None).unwrap();
                session.act_as(Some(user));
                check_writing(&session, &file, new, may, &format!("{file_mode:o} {user:?}"));
            }
        }
    }
}

fn check_writing(session: &Session, file: &nfs_fh3, new: Writing, may: bool, who: &str) {
    let (bytes, atime, mtime) = new;
    let changes = sattr3 {
        size: bytes.map_or(Nfs3Option::None, Nfs3Option::Some),
        atime: if atime { set_atime::SET_TO_SERVER_TIME } else { set_atime::DONT_CHANGE },
        mtime: if mtime { set_mtime::SET_TO_SERVER_TIME } else { set_mtime::DONT_CHANGE },
        ..sattr3::default()
    };
    let old = session.getattr(file).unwrap();
    let outcome = status(session.setattr(file, changes, None));
    assert_eq!(outcome, if may { nfsstat3::NFS3_OK } else { ACCES }, "{who} {new:?}");
    let now = session.getattr(file).unwrap();
    if !may {
        return assert_eq!(format!("{now:?}"), format!("{old:?}"), "{who} {new:?}");
    }
    assert_eq!(now.size, bytes.unwrap_or(old.size), "{who} {new:?}");
    assert_eq!(now.atime != old.atime, atime, "{who} {new:?}");
    assert_eq!(now.mtime != old.mtime, mtime || bytes.is_some(), "{who} {new:?}");
}

/// A mode, and times that are long ago.
fn past(file_mode: u32) -> sattr3 {
    let time = || nfs3_types::nfs3::nfstime3 { seconds: 1000, nseconds: 0 };
    sattr3 {
        atime: set_atime::SET_TO_CLIENT_TIME(time()),
        mtime: set_mtime::SET_TO_CLIENT_TIME(time()),
        ..mode(file_mode)
    }
}

/// A part of it would be allowed, or cannot be taken back: a size.
pub(crate) fn a_refused_change_changes_nothing(host: &Host) {
    let (session, home) = start(host);
    let file = session.create(&home, "file");
    session.write(&file, 0, b"content");
    session.setattr(&file, mode(0o666), None).unwrap();
    let before = format!("{:?}", session.getattr(&file).unwrap());
    let empty = |rest: sattr3| sattr3 { size: Nfs3Option::Some(0), ..rest };
    let of_owner = [
        empty(owner(STRANGER.0)),
        empty(group(STRANGER.1)),
        sattr3 { mode: Nfs3Option::Some(0o600), ..empty(group(STRANGER.1)) },
        sattr3 { gid: Nfs3Option::Some(STRANGER.1), ..mode(0o600) },
    ];
    let of_member = [empty(mode(0o666)), empty(past(0o666)), empty(owner(MEMBER.0))];
    let refused = of_owner.map(|new| (OWNER, new)).into_iter();
    for (user, new) in refused.chain(of_member.map(|new| (MEMBER, new))) {
        session.act_as(Some(user));
        let what = format!("{user:?} {new:?}");
        assert_eq!(status(session.setattr(&file, new, None)), PERM, "{what}");
        assert_eq!(format!("{:?}", session.getattr(&file).unwrap()), before, "{what}");
    }
    assert_eq!(session.read(&file, 0, 100).unwrap().0, b"content");
}

/// For any caller, and whether it is another one or not, as on Linux.
pub(crate) fn a_new_owner_or_group_takes_privileges_away(host: &Host) {
    let (session, home) = start(host);
    let file = session.create(&home, "file");
    for (before, user, new, after) in [
        (0o4755, ROOT, owner(STRANGER.0), 0o755),
        (0o4755, ROOT, group(STRANGER.1), 0o755),
        (0o6775, ROOT, owner(OWNER.0), 0o775),
        (0o6775, OWNER, owner(OWNER.0), 0o775),
        (0o6775, OWNER, group(OWNER.1), 0o775),
        // Without execute permission of the group, its bit has another meaning.
        (0o6644, OWNER, group(OWNER.1), 0o2644),
        (0o2644, ROOT, group(STRANGER.1), 0o2644),
        (0o755, ROOT, owner(STRANGER.0), 0o755),
        // A mode that is given with it counts.
        (0o644, OWNER, sattr3 { mode: Nfs3Option::Some(0o4755), ..size(1) }, 0o4755),
        (0o644, ROOT, sattr3 { mode: Nfs3Option::Some(0o4755), ..owner(STRANGER.0) }, 0o4755),
    ] {
        session.act_as(Some(ROOT));
        let owned = sattr3 { gid: Nfs3Option::Some(OWNER.1), ..owner(OWNER.0) };
        session.setattr(&file, owned, None).unwrap();
        session.setattr(&file, mode(before), None).unwrap();
        session.act_as(Some(user));
        session.setattr(&file, new.clone(), None).unwrap();
        let got = session.getattr(&file).unwrap().mode;
        assert_eq!(got, after, "{before:o} {user:?} {new:?}: {got:o}");
    }
    session.act_as(Some(ROOT));
    session.setattr(&home, mode(0o2755), None).unwrap();
    session.setattr(&home, owner(STRANGER.0), None).unwrap();
    assert_eq!(session.getattr(&home).unwrap().mode, 0o2755, "a directory keeps it");
}

pub(crate) fn a_directory_with_the_group_bit_gives_its_group(host: &Host) {
    let (session, home) = start(host);
    session.setattr(&home, mode(0o2777), None).unwrap();
    session.act_as(Some(STRANGER));
    let below = session.mkdir(&home, "below");
    let attributes = session.getattr(&below).unwrap();
    assert_eq!((attributes.uid, attributes.gid), (STRANGER.0, OWNER.1));
    assert_eq!(attributes.mode, 0o2755);
    let file = session.create(&below, "file");
    assert_eq!(session.getattr(&file).unwrap().gid, OWNER.1);
}

pub(crate) fn no_program_runs_for_a_group_of_others(host: &Host) {
    let (session, home) = start(host);
    session.setattr(&home, mode(0o2777), None).unwrap();
    let made = |name, user| {
        session.act_as(Some(user));
        let how = createhow3::GUARDED(mode(0o6755));
        let attributes = session.getattr(&made(session.create_as(&home, name, how))).unwrap();
        assert_eq!((attributes.uid, attributes.gid), (user.0, OWNER.1));
        attributes.mode
    };
    assert_eq!(made("of a stranger", STRANGER), 0o4755);
    assert_eq!(made("of a member", MEMBER), 0o6755);
}

pub(crate) fn devices_are_made_by_root_alone(host: &Host) {
    let (session, home) = start(host);
    let spec = || specdata3 { specdata1: 1, specdata2: 3 };
    let device = || devicedata3 { dev_attributes: mode(0o600), spec: spec() };
    for device in [mknoddata3::NF3CHR(device()), mknoddata3::NF3BLK(device())] {
        assert_eq!(status(session.mknod(&home, "device", device)), PERM);
    }
    assert_eq!(status(session.lookup(&home, "device")), nfsstat3::NFS3ERR_NOENT);
    session.mknod(&home, "fifo", mknoddata3::NF3FIFO(mode(0o600))).unwrap();
    session.act_as(Some(ROOT));
    let made = session.mknod(&home, "device", mknoddata3::NF3CHR(device())).unwrap();
    assert_eq!(some(made.obj_attributes).rdev, spec());
}

fn small(bytes_max: u64, files_max: u64) -> Host {
    let options = MemoryOptions { bytes_max, files_max, ..MemoryOptions::default() };
    let back_end = back_end::small_memory(&options);
    let exports = vec![host::export(MAIN, &back_end, host::open())];
    Host::with(exports, vec![back_end], &host::options())
}

#[test]
fn no_room_for_bytes_expect_nospc_until_some_are_removed() {
    let host = small(100_000, 100);
    let (session, root, file) = host.session_root_and_file();
    assert_eq!(session.write(&file, 0, &[1; 60_000]), nfsstat3::NFS3_OK);
    assert_eq!(session.write(&file, 60_000, &[1; 60_000]), nfsstat3::NFS3ERR_NOSPC);
    assert_eq!(session.getattr(&file).unwrap().size, 60_000, "nothing of it was written");
    assert_eq!(session.write(&file, 0, &[2; 60_000]), nfsstat3::NFS3_OK, "no more than before");
    session.remove(&root, "file").unwrap();
    let file = session.create(&root, "other");
    assert_eq!(session.write(&file, 0, &[1; 99_000]), nfsstat3::NFS3_OK);
    let long = "x".repeat(2000);
    assert_eq!(status(session.symlink(&root, "link", &long)), nfsstat3::NFS3ERR_NOSPC);
}

#[test]
fn no_room_for_a_longer_name_expect_nospc_and_the_old_one() {
    let host = small(200, 100);
    let (session, root) = (host.session(), host.root());
    session.create(&root, "file");
    let long = "x".repeat(250);
    assert_eq!(status(session.rename((&root, "file"), (&root, &long))), nfsstat3::NFS3ERR_NOSPC);
    assert_eq!(status(session.rename((&root, "file"), (&root, "name"))), nfsstat3::NFS3_OK);
}

#[test]
fn no_room_for_files_expect_nospc_and_fsstat_to_say_so() {
    let host = small(1 << 20, 3);
    let (session, root) = (host.session(), host.root());
    session.create(&root, "one");
    session.mkdir(&root, "two");
    assert_eq!(status(session.try_mkdir(&root, "three")), nfsstat3::NFS3ERR_NOSPC);
    let arguments = FSSTAT3args { fsroot: root.clone() };
    let space =
        session.call::<FSSTAT3resok, post_op_attr>(NFS_PROGRAM::NFSPROC3_FSSTAT, &arguments);
    assert_eq!(space.unwrap().ffiles, 0);
    session.rmdir(&root, "two").unwrap();
    session.mkdir(&root, "three");
}
