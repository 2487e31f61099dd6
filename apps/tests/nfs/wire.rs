//! Results of servers: the room that is offered for them, and bytes that are none. Their encoding is that of the crate
//! `nfs3_types`, another implementation, with which every other test here, and those of the server, speak.

use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{Opaque, Pack};
use proptest::prelude::*;
use spinrpc::Decoder;
use spinrpc_nfs::mount3::Mounted;
use spinrpc_nfs::protocol::{self, FileHandle, PATH_BYTES_MAX};
use spinrpc_nfs::{mount3, nfs3};
use spinrpc_xdr::{Decode, bytes_of};

const TIME: nfstime3 = nfstime3 { seconds: 1, nseconds: 2 };

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
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
    }
}

/// The longest results, for which the offered room just suffices.
#[test]
fn results_fit_the_room_that_is_offered_for_them() {
    let all = || Nfs3Option::Some(attributes());
    let obj = Nfs3Option::Some(nfs_fh3 { data: Opaque::owned(vec![0xfe; 64]) });
    let dir_wcc = wcc_data {
        before: Nfs3Option::Some(wcc_attr { size: 1, mtime: TIME, ctime: TIME }),
        after: all(),
    };
    let longest = CREATE3resok { obj, obj_attributes: all(), dir_wcc };
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
