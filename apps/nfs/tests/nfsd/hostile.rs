//! A hostile client: it gets errors, and the server continues.

use crate::*;
use spinrpc::sys::random::Random;
use spinrpc_nfs::nfs3::PROCEDURES;

fn start() -> (Host, Session) {
    let host = Host::start(back_end::memory());
    let session = host.session();
    session.create(&host.root(), "file");
    (host, session)
}

/// The next client is served, whatever came before.
fn goes_on(host: &Host) {
    assert!(host.session().getattr(&host.root()).is_ok());
}

/// A call with these bytes as arguments.
fn send(session: &Session, procedure: u32, arguments: &[u8]) -> Result<(), CallError> {
    let spec = CallSpec::new().reply_bytes_max(70_000);
    session.raw(procedure, spec, |to| to.fixed(arguments), |_| Ok(()))
}

fn is_garbage(outcome: &Result<(), CallError>) -> bool {
    matches!(outcome, Err(CallError::Accepted(AcceptStatus::GarbageArgs)))
}

fn bytes(arguments: &impl ToXdr) -> Vec<u8> {
    to_bytes(|to| arguments.encode(to))
}

/// Decodable arguments of every procedure but NULL.
fn readable(root: &nfs_fh3) -> Vec<(NFS_PROGRAM, Vec<u8>)> {
    use NFS_PROGRAM::*;
    let handle = GETATTR3args { object: root.clone() };
    let in_root = at(root, "name");
    let guard = Nfs3Option::Some(nfstime3::default());
    let set = SETATTR3args { object: root.clone(), new_attributes: mode(0o700), guard };
    let how = createhow3::EXCLUSIVE(createverf3([1; 8]));
    let made = |new: sattr3| [bytes(&in_root), bytes(&new)].concat();
    let symlink_data = (&b"text"[..]).into();
    let symlink = symlinkdata3 { symlink_attributes: mode(0o777), symlink_data };
    let cookieverf = cookieverf3([0; 8]);
    let list = READDIR3args { dir: root.clone(), cookie: 0, cookieverf, count: 4096 };
    let (dircount, maxcount) = (4096, 4096);
    let plus = READDIRPLUS3args { dir: root.clone(), cookie: 0, cookieverf, dircount, maxcount };
    let fifo = mknoddata3::NF3FIFO(sattr3::default());
    let write =
        WriteHead { file: root.clone(), offset: 0, count: 4, stable: stable_how::FILE_SYNC };
    let data = to_bytes(|to| to.opaque(b"data"));
    let commit = COMMIT3args { file: root.clone(), offset: 0, count: 0 };
    let read = READ3args { file: root.clone(), offset: 0, count: 4 };
    let renamed = RENAME3args { from: at(root, "x"), to: at(root, "y") };
    vec![
        (NFSPROC3_GETATTR, bytes(&handle)),
        (NFSPROC3_SETATTR, bytes(&set)),
        (NFSPROC3_LOOKUP, bytes(&in_root)),
        (NFSPROC3_ACCESS, [bytes(&handle), vec![0, 0, 0, 1]].concat()),
        (NFSPROC3_READLINK, bytes(&handle)),
        (NFSPROC3_READ, bytes(&read)),
        (NFSPROC3_WRITE, [bytes(&write), data].concat()),
        (NFSPROC3_CREATE, bytes(&CREATE3args { where_: at(root, "made"), how })),
        (NFSPROC3_MKDIR, made(mode(0o700))),
        (NFSPROC3_SYMLINK, bytes(&SYMLINK3args { where_: at(root, "link"), symlink })),
        (NFSPROC3_MKNOD, bytes(&MKNOD3args { where_: at(root, "fifo"), what: fifo })),
        (NFSPROC3_REMOVE, bytes(&in_root)),
        (NFSPROC3_RMDIR, bytes(&in_root)),
        (NFSPROC3_RENAME, bytes(&renamed)),
        (NFSPROC3_LINK, bytes(&LINK3args { file: root.clone(), link: at(root, "link") })),
        (NFSPROC3_READDIR, bytes(&list)),
        (NFSPROC3_READDIRPLUS, bytes(&plus)),
        (NFSPROC3_FSSTAT, bytes(&handle)),
        (NFSPROC3_FSINFO, bytes(&handle)),
        (NFSPROC3_PATHCONF, bytes(&handle)),
        (NFSPROC3_COMMIT, bytes(&commit)),
    ]
}

#[test]
fn arguments_that_end_early_or_late_expect_garbage_args() {
    let (host, session) = start();
    let all = readable(&host.root());
    assert_eq!(all.len(), PROCEDURES - 1);
    let mut refused = 0;
    for (operation, arguments) in &all {
        for length in (0..arguments.len()).step_by(4) {
            let outcome = send(&session, *operation as u32, &arguments[..length]);
            assert!(is_garbage(&outcome), "{operation} with {length} bytes: {outcome:?}");
            refused += 1;
        }
        let longer = [&arguments[..], &[0; 4]].concat();
        assert!(is_garbage(&send(&session, *operation as u32, &longer)), "{operation}");
        refused += 1;
    }
    assert!(is_garbage(&send(&session, 0, &[0; 4])), "NULL has no arguments");
    assert_eq!(host.server.stats().garbage, refused + 1);
    for (operation, arguments) in &all {
        assert!(send(&session, *operation as u32, arguments).is_ok(), "{operation}");
    }
    goes_on(&host);
}

#[test]
fn procedures_that_are_none_expect_proc_unavail() {
    let (host, session) = start();
    for procedure in [PROCEDURES as u32, 1000, u32::MAX] {
        let outcome = send(&session, procedure, &[]);
        let unavailable = matches!(outcome, Err(CallError::Accepted(AcceptStatus::ProcUnavail)));
        assert!(unavailable, "{procedure}: {outcome:?}");
    }
    goes_on(&host);
}

/// Lengths of up to 4 GiB, for a handle, a name, a path and data that are missing.
#[test]
fn lengths_beyond_the_message_expect_garbage_args() {
    let (host, session) = start();
    let handle = bytes(&GETATTR3args { object: host.root() });
    let head =
        WriteHead { file: host.root(), offset: 0, count: u32::MAX, stable: stable_how::UNSTABLE };
    let symlink = [bytes(&at(&host.root(), "x")), bytes(&sattr3::default())].concat();
    for length in [u32::MAX, u32::MAX - 3, 1 << 31, 1 << 20, 1025] {
        let length = length.to_be_bytes().to_vec();
        let calls = [
            (NFS_PROGRAM::NFSPROC3_GETATTR, length.clone()),
            (NFS_PROGRAM::NFSPROC3_READ, length.clone()),
            (NFS_PROGRAM::NFSPROC3_LOOKUP, [&handle[..], &length].concat()),
            (NFS_PROGRAM::NFSPROC3_SYMLINK, [&symlink[..], &length].concat()),
            (NFS_PROGRAM::NFSPROC3_WRITE, [&bytes(&head)[..], &length].concat()),
        ];
        for (operation, arguments) in calls {
            let outcome = send(&session, operation as u32, &arguments);
            assert!(is_garbage(&outcome), "{operation}: {outcome:?}");
        }
    }
    goes_on(&host);
}

/// Random words after a valid handle: decodable or not, they are answered.
#[test]
fn arguments_at_random_expect_an_answer_each_time() {
    let (host, session) = start();
    let seed = 0x1813;
    println!("seed {seed:#x}");
    let mut random = Random::seeded(seed);
    let file = session.lookup(&host.root(), "file").unwrap().object;
    for number in 0..4000 {
        let object = if number % 2 == 0 { host.root() } else { file.clone() };
        let handle = bytes(&GETATTR3args { object });
        let arguments = [handle, words(&mut random)].concat();
        let outcome = send(&session, random.at_most(21) as u32, &arguments);
        assert!(outcome.is_ok() || is_garbage(&outcome), "{number}: {outcome:?}");
    }
    goes_on(&host);
}

/// Words that are meaningful more often than not.
fn words(random: &mut Random) -> Vec<u8> {
    let words = random.at_most(12) as usize;
    let word = |random: &mut Random| match random.at_most(5) {
        0 => random.next_u64() as u32,
        1 => u32::MAX,
        _ => random.at_most(4) as u32,
    };
    (0..words).flat_map(|_| word(random).to_be_bytes()).collect()
}

/// READs of all sizes return at most the FSINFO limit.
#[test]
fn read_of_4_gib_expect_what_there_is() {
    let (host, session) = start();
    let file = session.lookup(&host.root(), "file").unwrap().object;
    session.write(&file, 0, b"content");
    for (offset, count) in [(0, u32::MAX), (7, u32::MAX), (u64::MAX, u32::MAX), (1 << 63, 1 << 31)]
    {
        let arguments = READ3args { file: file.clone(), offset, count };
        let spec = CallSpec::new().reply_bytes_max(BLOCK_BYTES as usize + 200);
        let procedure = NFS_PROGRAM::NFSPROC3_READ as u32;
        let answered =
            session.raw(procedure, spec, |to| arguments.encode(to), only_status).unwrap();
        assert_eq!(answered, nfsstat3::NFS3_OK, "{offset} {count}");
    }
    goes_on(&host);
}

/// The client's chunk is smaller than the requested data: an error of the transport or of RPC (RFC
/// 8166 section 4.5.3), and not one byte beyond the chunk.
#[test]
fn read_with_a_chunk_that_is_too_small_expect_an_error_and_no_byte_beyond_it() {
    let (host, session) = start();
    let file = session.lookup(&host.root(), "file").unwrap().object;
    session.write(&file, 0, &[7; 100_000]);
    for room in [0, 1, 100, 99_996] {
        let arguments = READ3args { file: file.clone(), offset: 0, count: 100_000 };
        let chunk = session.client.bulk(room).unwrap();
        let spec = CallSpec::new().reply_bytes_max(128).result_into(chunk);
        let procedure = NFS_PROGRAM::NFSPROC3_READ as u32;
        let outcome = session.raw(procedure, spec, |to| arguments.encode(to), |_| Ok(()));
        assert!(outcome.is_err(), "{room}");
        goes_on(&host);
    }
}

/// A listing that does not fit in the reply.
#[test]
fn readdir_without_a_reply_chunk_expect_an_error() {
    let (host, session) = start();
    for number in 0..200 {
        session.create(&host.root(), &format!("a name that is not very short {number}"));
    }
    let cookieverf = cookieverf3([0; 8]);
    let list = READDIR3args { dir: host.root(), cookie: 0, cookieverf, count: 60_000 };
    let procedure = NFS_PROGRAM::NFSPROC3_READDIR as u32;
    let outcome = session.raw(procedure, CallSpec::short(), |to| list.encode(to), |_| Ok(()));
    assert!(outcome.is_err());
    goes_on(&host);
}

/// Data in a chunk whose length differs from the count.
#[test]
fn write_whose_chunk_is_longer_than_its_count_expect_inval_and_no_byte_written() {
    let (host, session) = start();
    let file = session.lookup(&host.root(), "file").unwrap().object;
    let mut bulk = session.client.bulk(50_000).unwrap();
    bulk.bytes_mut().fill(7);
    let head = WriteHead { file: file.clone(), offset: 0, count: 4, stable: stable_how::UNSTABLE };
    let spec = CallSpec::new().argument(bulk);
    let encode = |to: &mut spinrpc::Encoder<'_>| {
        head.encode(to);
        to.bulk();
    };
    let answered = session.raw(NFS_PROGRAM::NFSPROC3_WRITE as u32, spec, encode, only_status);
    assert_eq!(answered.unwrap(), nfsstat3::NFS3ERR_INVAL);
    assert_eq!(session.getattr(&file).unwrap().size, 0);
    goes_on(&host);
}
