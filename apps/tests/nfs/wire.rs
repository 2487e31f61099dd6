//! The encoding of the generated NFS types: the same as that of the crate `nfs3_types`, another
//! implementation.

use nfs3_types::nfs3::{
    ACCESS3args, ACCESS3resok, COMMIT3resok, CREATE3args, CREATE3resok, FSINFO3resok, FSSTAT3args,
    FSSTAT3resok, GETATTR3args, LINK3args, LINK3resfail, LINK3resok, LOOKUP3args, LOOKUP3resok,
    MKDIR3args, MKNOD3args, Nfs3Option, Nfs3Result, PATHCONF3args, PATHCONF3resok, READ3args,
    READ3resok, READDIR3args, READDIR3resok, READDIRPLUS3args, READDIRPLUS3resok, READLINK3resok,
    REMOVE3args, RENAME3args, RMDIR3args, SETATTR3args, SYMLINK3args, WRITE3resok, cookieverf3,
    createhow3, createverf3, devicedata3, dirlist3, dirlistplus3, diropargs3, entry3, entryplus3,
    fattr3, ftype3, mknoddata3, nfs_fh3, nfsstat3, nfstime3, sattr3, set_atime, set_mtime,
    specdata3, stable_how, symlinkdata3, wcc_attr, wcc_data, writeverf3,
};
use nfs3_types::xdr_codec::{List, Opaque, Pack};
use proptest::prelude::*;
use spinrpc::Decoder;
use spinrpc_nfs::mount3::Mounted;
use spinrpc_nfs::protocol::{self, FileHandle, PATH_BYTES_MAX};
use spinrpc_nfs::{mount3, nfs3};
use spinrpc_xdr::{Decode, Encode, bytes_of, to_bytes};

/// The encoding of `value` by its crate is decoded and encoded again by the generated type `T`, to
/// the last byte.
fn agree<'a, T: Decode<'a> + Encode>(value: &impl Pack, room: &'a mut Vec<u8>) {
    value.pack(room).unwrap();
    let mut decoder = Decoder::plain(room);
    let read = T::decode(&mut decoder).unwrap();
    assert_eq!(decoder.finish(), Ok(()));
    assert_eq!(to_bytes(&read), *room);
}

macro_rules! agree {
    ($($type:ty: $value:expr),+ $(,)?) => {$( agree::<$type>(&$value, &mut Vec::new()); )+};
}

fn file(bytes: usize) -> nfs_fh3 {
    nfs_fh3 { data: Opaque::owned(vec![0xfe; bytes]) }
}

fn time(seconds: u32) -> nfstime3 {
    nfstime3 { seconds, nseconds: 999 }
}

fn attributes() -> fattr3 {
    fattr3 {
        type_: ftype3::NF3FIFO,
        mode: 0o7777,
        nlink: 2,
        uid: 3,
        gid: 4,
        size: 1 << 40,
        used: 5,
        rdev: specdata3 { specdata1: 6, specdata2: 7 },
        fsid: 8,
        fileid: u64::MAX,
        atime: time(9),
        mtime: time(10),
        ctime: time(11),
    }
}

fn wcc() -> wcc_data {
    let before = wcc_attr { size: 1, mtime: time(2), ctime: time(3) };
    wcc_data { before: Nfs3Option::Some(before), after: Nfs3Option::Some(attributes()) }
}

fn name(of: &[u8]) -> diropargs3<'_> {
    diropargs3 { dir: file(33), name: of.into() }
}

#[test]
fn arguments_are_as_the_types_write_them() {
    let cookieverf = cookieverf3([7; 8]);
    agree!(
        protocol::Getattr3args<'_>: GETATTR3args { object: file(64) },
        protocol::Lookup3args<'_>: LOOKUP3args { what: name(b"a name") },
        protocol::Read3args<'_>: READ3args { file: file(1), offset: 1 << 33, count: 3 },
        protocol::Readdir3args<'_>: READDIR3args { dir: file(5), cookie: 6, cookieverf, count: 8 },
        protocol::Readdirplus3args<'_>: READDIRPLUS3args { dir: file(5), cookie: 6, cookieverf, dircount: 8, maxcount: 9 },
    );
    let set = sattr3 {
        mode: Nfs3Option::Some(0o644),
        uid: Nfs3Option::None,
        gid: Nfs3Option::Some(1),
        size: Nfs3Option::Some(0),
        atime: set_atime::SET_TO_SERVER_TIME,
        mtime: set_mtime::SET_TO_CLIENT_TIME(time(4)),
    };
    let symlink_data = b"../there"[..].into();
    let symlink = symlinkdata3 { symlink_attributes: set.clone(), symlink_data };
    agree!(
        protocol::Setattr3args<'_>: SETATTR3args {
            object: file(9),
            new_attributes: set.clone(),
            guard: Nfs3Option::Some(time(5)),
        },
        protocol::Access3args<'_>: ACCESS3args { object: file(10), access: 0x3f },
        protocol::Mkdir3args<'_>: MKDIR3args { where_: name(b"directory"), attributes: set.clone() },
        protocol::Symlink3args<'_>: SYMLINK3args { where_: name(b"link"), symlink },
        protocol::Remove3args<'_>: REMOVE3args { object: name(b"a") },
        protocol::Rmdir3args<'_>: RMDIR3args { object: name(b"b") },
        protocol::Link3args<'_>: LINK3args { file: file(12), link: name(b"c") },
        protocol::Rename3args<'_>: RENAME3args { from: name(b"from"), to: name(b"to") },
        protocol::Fsstat3args<'_>: FSSTAT3args { fsroot: file(2) },
        protocol::Pathconf3args<'_>: PATHCONF3args { object: file(3) },
    );
    let spec = specdata3 { specdata1: 8, specdata2: 1 };
    let device = || devicedata3 { dev_attributes: set.clone(), spec: spec.clone() };
    for what in [
        mknoddata3::NF3CHR(device()),
        mknoddata3::NF3BLK(device()),
        mknoddata3::NF3SOCK(set.clone()),
        mknoddata3::NF3FIFO(set.clone()),
    ] {
        agree!(protocol::Mknod3args<'_>: MKNOD3args { where_: name(b"special"), what });
    }
    for how in [
        createhow3::UNCHECKED(set.clone()),
        createhow3::GUARDED(set),
        createhow3::EXCLUSIVE(createverf3([9; 8])),
    ] {
        agree!(protocol::Create3args<'_>: CREATE3args { where_: name(b"new"), how });
    }
}

#[test]
fn results_are_as_the_types_write_them() {
    let some = || Nfs3Option::Some(attributes());
    let verf = writeverf3([1, 2, 3, 4, 5, 6, 7, 8]);
    agree!(
        protocol::Fattr3: attributes(),
        protocol::Lookup3resok<'_>: LOOKUP3resok { object: file(7), obj_attributes: some(), dir_attributes: Nfs3Option::None },
        protocol::Readlink3resok<'_>: READLINK3resok { symlink_attributes: some(), data: b"../there"[..].into() },
        protocol::Read3resok<'_>: READ3resok {
            file_attributes: some(),
            count: 5,
            eof: true,
            data: Opaque::owned(b"bytes".to_vec()),
        },
        protocol::Commit3resok: COMMIT3resok { file_wcc: wcc(), verf },
        protocol::Write3resok: WRITE3resok { file_wcc: wcc(), count: 3, committed: stable_how::FILE_SYNC, verf },
        protocol::Create3resok<'_>: CREATE3resok {
            obj: Nfs3Option::Some(file(3)),
            obj_attributes: some(),
            dir_wcc: wcc_data::default(),
        },
        protocol::Access3resok: ACCESS3resok { obj_attributes: some(), access: 0x1f },
        protocol::Fsstat3resok: FSSTAT3resok {
            obj_attributes: some(),
            tbytes: 1,
            fbytes: 2,
            abytes: 3,
            tfiles: 4,
            ffiles: 5,
            afiles: 6,
            invarsec: 7,
        },
        protocol::Pathconf3resok: PATHCONF3resok {
            obj_attributes: some(),
            linkmax: 1,
            name_max: 2,
            no_trunc: true,
            chown_restricted: false,
            case_insensitive: true,
            case_preserving: false,
        },
        protocol::Fsinfo3resok: FSINFO3resok {
            obj_attributes: some(),
            rtmax: 1,
            rtpref: 2,
            rtmult: 3,
            wtmax: 4,
            wtpref: 5,
            wtmult: 6,
            dtpref: 7,
            maxfilesize: 8,
            time_delta: time(9),
            properties: 10,
        },
    );
}

/// A status, and its results: those of success or of failure.
#[test]
fn outcomes_are_as_the_types_write_them() {
    type Link = Nfs3Result<LINK3resok, LINK3resfail>;
    let (file_attributes, linkdir_wcc) = (Nfs3Option::Some(attributes()), wcc());
    let results: Link = Nfs3Result::Ok(LINK3resok { file_attributes, linkdir_wcc });
    let (file_attributes, linkdir_wcc) = (Nfs3Option::None, wcc());
    let failure = LINK3resfail { file_attributes, linkdir_wcc };
    let failed: Link = Nfs3Result::Err((nfsstat3::NFS3ERR_XDEV, failure));
    agree!(protocol::Link3res: results, protocol::Link3res: failed);
}

#[test]
fn lists_are_as_the_types_write_them() {
    let cookieverf = cookieverf3([3; 8]);
    let entry = |cookie: u64| entry3 { fileid: 1, name: b"abc"[..].into(), cookie };
    let plus = |cookie: u64| entryplus3 {
        fileid: 1,
        name: b"abcde"[..].into(),
        cookie,
        name_attributes: Nfs3Option::Some(attributes()),
        name_handle: Nfs3Option::Some(file(31)),
    };
    let dir_attributes = || Nfs3Option::Some(attributes());
    for length in 0..3 {
        let entries = List((0..length).map(entry).collect());
        let reply = dirlist3 { entries, eof: length == 0 };
        agree!(protocol::Readdir3resok<'_>: READDIR3resok { dir_attributes: dir_attributes(), cookieverf, reply });
        let entries = List((0..length).map(plus).collect());
        let reply = dirlistplus3 { entries, eof: length == 0 };
        agree!(protocol::Readdirplus3resok<'_>: READDIRPLUS3resok { dir_attributes: dir_attributes(), cookieverf, reply });
    }
}

/// The longest results, for which the offered room just suffices.
#[test]
fn results_fit_the_room_that_is_offered_for_them() {
    let all = || Nfs3Option::Some(attributes());
    let obj = Nfs3Option::Some(file(64));
    let longest = CREATE3resok { obj, obj_attributes: all(), dir_wcc: wcc() };
    assert!(4 + longest.packed_size() <= nfs3::PLAIN_RESULT_BYTES_MAX);
    let path = vec![b'x'; PATH_BYTES_MAX as usize];
    let longest = READLINK3resok { symlink_attributes: all(), data: path.into() };
    assert!(4 + longest.packed_size() <= nfs3::READLINK_RESULT_BYTES_MAX);
    let longest = READ3resok {
        file_attributes: all(),
        count: 0,
        eof: false,
        data: Opaque::owned(Vec::new()),
    };
    assert!(4 + longest.packed_size() <= nfs3::READ_RESULT_HEAD_BYTES);
}

#[test]
fn receive_more_flavors_than_there_are_expect_refusal() {
    let bytes = bytes_of(|to| {
        to.u32(0);
        to.opaque(b"handle");
        to.u32(u32::MAX);
    });
    assert!(mount3::outcome(&mut Decoder::plain(&bytes)).is_err());
    let mounted = Mounted { handle: FileHandle::new(b"handle").unwrap(), flavors: vec![1, 6] };
    let bytes = bytes_of(|to| {
        to.u32(0);
        mounted.encode(to);
    });
    assert_eq!(mount3::outcome(&mut Decoder::plain(&bytes)).unwrap().unwrap(), mounted);
}

proptest! {
    #[test]
    fn any_bytes_are_results_or_refused(bytes: Vec<u8>) {
        let _ = nfs3::outcome::<protocol::Lookup3resok<'_>>(&mut Decoder::plain(&bytes));
        let _ = nfs3::outcome::<protocol::Readdirplus3resok<'_>>(&mut Decoder::plain(&bytes));
        let _ = nfs3::outcome::<protocol::Create3resok<'_>>(&mut Decoder::plain(&bytes));
        let _ = protocol::Create3args::decode(&mut Decoder::plain(&bytes));
        let _ = mount3::outcome(&mut Decoder::plain(&bytes));
    }
}
