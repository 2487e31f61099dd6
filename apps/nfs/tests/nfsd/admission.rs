//! Admission and identity: exports, handles and credentials.

use crate::*;
use spinrpc::RejectStatus;
use spinrpc_nfs::protocol::FileHandle;
use spinrpc_nfs::server::handle::Seal;

/// A host with one export.
fn only(options: ExportOptions) -> (Host, Session) {
    let back_end = back_end::memory();
    let exports = vec![export(MAIN, &back_end, options)];
    let host = Host::with(exports, vec![back_end], &host::options());
    let session = host.session();
    (host, session)
}

fn fh3(handle: FileHandle) -> nfs_fh3 {
    nfs_fh3 { data: Opaque::owned(handle.as_bytes().to_vec()) }
}

#[test]
fn more_bytes_promised_than_the_engine_moves_expect_refusal() {
    let back_end = back_end::memory();
    let exports = Exports::new(vec![export(MAIN, &back_end, open())]).unwrap();
    let options = ServerOptions { write_bytes_max: 2 << 20, ..host::options() };
    let server = Server::new(exports, SEAL_KEY, &options).unwrap();
    let refused = server.serve(&Engine::new(host::config()).unwrap()).unwrap_err();
    assert!(refused.to_string().contains("rpc.max_write_bytes"), "{refused}");
}

#[test]
fn a_peer_that_was_not_named_expect_acces_and_nothing_of_the_root() {
    let (host, session) = only(ExportOptions { clients: Vec::new(), ..open() });
    let acces = nfsstat3::NFS3ERR_ACCES;
    assert_eq!(session.getattr(&host.root()).unwrap_err(), acces);
    assert_eq!(status(session.try_mkdir(&host.root(), "x")), acces);
    assert_eq!(session.read(&host.root(), 0, 1).unwrap_err(), acces);
    // NULL is always allowed.
    session.raw(0, CallSpec::new(), |_| {}, |_| Ok(())).unwrap();
}

#[test]
fn a_flavor_that_is_not_taken_expect_auth_tooweak() {
    let (host, session) = only(ExportOptions { flavors: vec![Flavor::Sys], ..open() });
    assert!(session.getattr(&host.root()).is_ok());
    session.act_as(None);
    let arguments = GETATTR3args { object: host.root() };
    let denied = session.try_call::<fattr3, ()>(NFS_PROGRAM::NFSPROC3_GETATTR, &arguments);
    let too_weak = RejectStatus::AuthError(AuthStat::TooWeak);
    assert!(matches!(denied, Err(CallError::Rejected(why)) if why == too_weak), "{denied:?}");
    assert_eq!(host.server.stats().denied, 1);
}

/// RFC 2623 section 2.3.2: a client mounts before its users have tickets.
#[test]
fn fsinfo_of_the_root_expect_an_answer_without_kerberos_and_of_nothing_else() {
    let (host, session) =
        only(ExportOptions { flavors: vec![Flavor::Sys, Flavor::Krb5p], ..open() });
    let file = session.create(&host.root(), "file");
    session.act_as(None);
    let is_denied = |operation, object: &nfs_fh3| {
        let arguments = GETATTR3args { object: object.clone() };
        let denied = session.try_call::<(), ()>(operation, &arguments);
        let too_weak = RejectStatus::AuthError(AuthStat::TooWeak);
        matches!(denied, Err(CallError::Rejected(why)) if why == too_weak)
    };
    let root = GETATTR3args { object: host.root() };
    let fsinfo = NFS_PROGRAM::NFSPROC3_FSINFO;
    assert!(session.call::<FSINFO3resok, post_op_attr>(fsinfo, &root).is_ok());
    assert!(is_denied(fsinfo, &file));
    assert!(is_denied(NFS_PROGRAM::NFSPROC3_GETATTR, &host.root()));
    assert!(is_denied(NFS_PROGRAM::NFSPROC3_FSSTAT, &host.root()));
    // Only exports with Kerberos need this.
    let (host, session) = only(ExportOptions { flavors: vec![Flavor::Sys], ..open() });
    session.act_as(None);
    let arguments = GETATTR3args { object: host.root() };
    let denied = session.try_call::<(), ()>(fsinfo, &arguments);
    assert!(matches!(denied, Err(CallError::Rejected(_))), "{denied:?}");
}

#[test]
fn a_read_only_export_expect_rofs_and_all_that_changes_nothing() {
    let host = Host::start(back_end::memory());
    let session = host.session();
    let (root, read_only) = (host.root(), host.root_of(READ_ONLY));
    let file = session.create(&root, "file");
    session.write(&file, 0, b"content");
    let file = session.lookup(&read_only, "file").unwrap().object;
    assert_eq!(session.read(&file, 0, 10).unwrap().0, b"content");
    assert_eq!(session.access(&file, 0x3f).unwrap().access, 1, "READ alone");
    let rofs = nfsstat3::NFS3ERR_ROFS;
    assert_eq!(session.write(&file, 0, b"x"), rofs);
    assert_eq!(status(session.commit(&file, 0, 0)), rofs);
    assert_eq!(status(session.setattr(&file, mode(0), None)), rofs);
    let new = createhow3::UNCHECKED(mode(0o600));
    assert_eq!(status(session.create_as(&read_only, "file", new)), rofs);
    assert_eq!(status(session.try_mkdir(&read_only, "x")), rofs);
    assert_eq!(status(session.symlink(&read_only, "x", "y")), rofs);
    assert_eq!(status(session.remove(&read_only, "file")), rofs);
    assert_eq!(status(session.rmdir(&read_only, "file")), rofs);
    assert_eq!(status(session.link(&file, &read_only, "x")), rofs);
    assert_eq!(status(session.rename((&read_only, "file"), (&read_only, "x"))), rofs);
}

fn handle(bytes: &[u8]) -> nfs_fh3 {
    nfs_fh3 { data: Opaque::owned(bytes.to_vec()) }
}

#[test]
fn handles_that_were_not_given_out_expect_badhandle() {
    let host = Host::start(back_end::memory());
    let session = host.session();
    let root = host.root().data.to_vec();
    let mut forged = vec![vec![], vec![0; 64], vec![0xff; 21], root[..20].to_vec()];
    // The last half of the code covers the root of the export: see below.
    for bit in 0..(root.len() - 8) * 8 {
        let mut other = root.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        forged.push(other);
    }
    for handle in forged.iter().map(|bytes| handle(bytes)) {
        let bad = nfsstat3::NFS3ERR_BADHANDLE;
        assert_eq!(session.getattr(&handle).unwrap_err(), bad);
        assert_eq!(status(session.lookup(&handle, "x")), bad);
        assert_eq!(session.read(&handle, 0, 1).unwrap_err(), bad);
        let second = session.rename((&host.root(), "x"), (&handle, "y"));
        assert_eq!(status(second), bad);
    }
    assert_eq!(host.server.stats().bad_handles as usize, 4 * forged.len());
    assert!(session.getattr(&host.root()).is_ok());
}

#[test]
fn a_handle_of_an_export_that_is_gone_expect_stale() {
    let host = Host::start(back_end::memory());
    let session = host.session();
    let key = FileKey::of(b"file");
    let gone = fh3(Seal::new(&SEAL_KEY).handle(99, &key, &key));
    assert_eq!(session.getattr(&gone).unwrap_err(), nfsstat3::NFS3ERR_STALE);
}

/// A handle names its export: the same file in another export has another handle.
#[test]
fn a_key_of_one_export_in_a_handle_of_another_expect_stale() {
    let host = Host::start(back_end::memory());
    let (session, file) = host.session_and_file();
    let exports = host.server.exports();
    let root_key = |export| exports.by_id(export).unwrap().file_system.root();
    let seal = Seal::new(&SEAL_KEY);
    let key = seal.open(&file.data).unwrap().below(&root_key(MAIN)).unwrap();
    let elsewhere = fh3(seal.handle(OTHER, &root_key(OTHER), &key));
    assert_eq!(session.getattr(&elsewhere).unwrap_err(), nfsstat3::NFS3ERR_STALE);
}

/// A key of the kernel finds every file of its file system, also outside of the directory that is exported now.
#[test]
fn handles_of_a_directory_that_another_one_has_replaced_expect_stale() {
    let (before, after) = (back_end::directory(), back_end::directory());
    let read_only = ExportOptions { read_only: true, ..open() };
    let replacement = export(MAIN, &after, open());
    let exports = vec![export(MAIN, &before, open()), export(READ_ONLY, &before, read_only)];
    let again = exports[1].clone();
    let host = Host::with(exports, vec![before, after], &host::options());
    let session = host.session();
    let (root, root_of_other) = (host.root(), host.root_of(READ_ONLY));
    let file = session.create(&root, "file");
    session.write(&file, 0, b"secret");
    let stale = nfsstat3::NFS3ERR_STALE;
    host.server.replace_exports(Exports::new(vec![replacement, again]).unwrap()).unwrap();
    for old in [&root, &file] {
        assert_eq!(session.getattr(old).unwrap_err(), stale);
    }
    assert_eq!(status(session.lookup(&root, "file")), stale);
    assert_eq!(session.read(&file, 0, 6).unwrap_err(), stale);
    assert_eq!(session.write(&file, 0, b"x"), stale);
    // As a second handle, too.
    let new = host.root();
    session.create(&new, "new");
    assert_eq!(status(session.rename((&new, "new"), (&root, "new"))), stale);
    assert_eq!(status(session.link(&file, &new, "link")), stale);
    // Another export of the old directory is not concerned.
    let found = session.lookup(&root_of_other, "file").unwrap();
    assert_eq!(session.read(&handle(&found.object.data), 0, 6).unwrap().0, b"secret");
}

/// The in-memory tree is another one after a restart.
#[test]
fn a_handle_of_memory_that_is_gone_expect_stale() {
    let (first, second) = (only(open()), only(open()));
    let old = first.1.create(&first.0.root(), "file");
    assert_eq!(second.1.getattr(&old).unwrap_err(), nfsstat3::NFS3ERR_STALE);
}
