//! READ, WRITE and COMMIT (RFC 1813 sections 3.3.6, 3.3.7 and 3.3.21), their data in messages and in
//! chunks.

use crate::*;

/// Bytes whose words are all different.
fn content(bytes: usize) -> Vec<u8> {
    let mut content: Vec<u8> = (0..=bytes as u32 / 4).flat_map(u32::to_le_bytes).collect();
    content.truncate(bytes);
    content
}

/// All lengths modulo four, through a Write chunk and in the reply.
pub(crate) fn what_is_written_is_read(host: &Host) {
    let (session, file) = host.session_and_file();
    for length in 1..20 {
        let data = content(length);
        assert_eq!(session.write(&file, 3, &data), nfsstat3::NFS3_OK);
        for inline in [false, true] {
            let (head, read) = session.read_by(&file, 3, length as u32, inline).unwrap();
            assert_eq!((read, head.eof), (data.clone(), true), "{length} {inline}");
            assert_eq!(some(head.file_attributes).size, 3 + length as u64);
        }
    }
}

/// RFC 8267 section 2: the data of READ in a Write chunk, those of WRITE in a Read chunk.
pub(crate) fn data_by_chunks(host: &Host) {
    let (session, file) = host.session_and_file();
    let data = content(BLOCK_BYTES as usize);
    assert_eq!(session.write(&file, 0, &data), nfsstat3::NFS3_OK);
    assert_eq!(session.write(&file, BLOCK_BYTES.into(), &data[..99_999]), nfsstat3::NFS3_OK);
    assert!(session.read(&file, 0, BLOCK_BYTES).unwrap() == (data.clone(), false));
    let (read, is_end) = session.read(&file, BLOCK_BYTES.into(), BLOCK_BYTES).unwrap();
    assert!(read == data[..99_999] && is_end);
    let stats = host.server.stats();
    assert_eq!(stats.bytes_written, u64::from(BLOCK_BYTES) + 99_999);
    assert_eq!(stats.bytes_read, stats.bytes_written);
}

/// "If offset is greater than or equal to the size of the file, the status, NFS3_OK, is returned
/// with count set to 0 and eof set to TRUE" (section 3.3.6).
pub(crate) fn behind_the_end(host: &Host) {
    let (session, file) = host.session_and_file();
    session.write(&file, 0, b"0123456789");
    for offset in [10, 11, 1 << 40, u64::MAX - 3, u64::MAX] {
        assert_eq!(session.read(&file, offset, 100).unwrap(), (vec![], true), "{offset}");
    }
    assert_eq!(session.read(&file, 8, 100).unwrap(), (b"89".to_vec(), true));
    assert_eq!(session.read(&file, 8, 2).unwrap(), (b"89".to_vec(), true));
    assert_eq!(session.read(&file, 7, 2).unwrap(), (b"78".to_vec(), false));
}

pub(crate) fn a_hole_is_zeros(host: &Host) {
    let (session, file) = host.session_and_file();
    session.write(&file, 300_000, b"end");
    session.write(&file, 0, b"begin");
    let (read, is_end) = session.read(&file, 0, BLOCK_BYTES).unwrap();
    assert!(read[..5] == *b"begin" && read[5..].iter().all(|byte| *byte == 0) && !is_end);
    let (read, is_end) = session.read(&file, 299_998, 100).unwrap();
    assert_eq!((read, is_end), (b"\0\0end".to_vec(), true));
}

pub(crate) fn unstable_and_commit(host: &Host) {
    let (session, file) = host.session_and_file();
    let mut verifiers = Vec::new();
    for stable in [stable_how::UNSTABLE, stable_how::DATA_SYNC, stable_how::FILE_SYNC] {
        let written = session.write_as(&file, 0, b"data", stable).unwrap();
        assert_eq!(written.count, 4);
        assert!(written.committed as u32 >= stable as u32, "{written:?}");
        verifiers.push(written.verf);
    }
    for (offset, count) in [(0, 0), (0, 4), (2, 1000), (u64::MAX, u32::MAX)] {
        let committed = session.commit(&file, offset, count).unwrap();
        assert_eq!(some(committed.file_wcc.after).size, 4);
        verifiers.push(committed.verf);
    }
    verifiers.dedup();
    assert_eq!(verifiers.len(), 1, "the server has not been started again");
}

pub(crate) fn what_is_no_regular_file(host: &Host) {
    let (session, root) = (host.session(), host.root());
    session.symlink(&root, "link", "file").unwrap();
    let link = session.lookup(&root, "link").unwrap().object;
    for other in [&root, &link] {
        for refused in [session.read(other, 0, 10).unwrap_err(), session.write(other, 0, b"x")] {
            let is_right = matches!(refused, nfsstat3::NFS3ERR_INVAL | nfsstat3::NFS3ERR_ISDIR);
            assert!(is_right, "{refused}");
        }
        assert_ne!(status(session.commit(other, 0, 0)), nfsstat3::NFS3_OK);
    }
}

/// NFS3ERR_FBIG: "The operation would have caused a file to grow beyond the server's limit".
pub(crate) fn offsets_beyond_all_files(host: &Host) {
    let (session, file) = host.session_and_file();
    for offset in [u64::MAX, u64::MAX - 3, i64::MAX as u64 - 3, 1 << 63] {
        assert_eq!(session.write(&file, offset, b"0123"), nfsstat3::NFS3ERR_FBIG, "{offset}");
    }
    assert_eq!(session.getattr(&file).unwrap().size, 0);
}

pub(crate) fn a_count_that_is_not_that_of_the_data(host: &Host) {
    let (session, file) = host.session_and_file();
    for count in [0, 3, 5, u32::MAX] {
        let head =
            WriteHead { file: file.clone(), offset: 0, count, stable: stable_how::FILE_SYNC };
        let answered = session.raw(
            NFS_PROGRAM::NFSPROC3_WRITE as u32,
            CallSpec::new(),
            |to| {
                head.encode(to);
                to.opaque(b"data");
            },
            only_status,
        );
        assert_eq!(answered.unwrap(), nfsstat3::NFS3ERR_INVAL, "{count}");
    }
    assert_eq!(session.getattr(&file).unwrap().size, 0);
}

/// "The server may return only rtmax bytes, resulting in a short read", and write only wtmax.
pub(crate) fn more_than_one_read_gives(host: &Host) {
    let (session, file) = host.session_and_file();
    let data = content(BLOCK_BYTES as usize + 4096);
    let written = session.write_as(&file, 0, &data, stable_how::FILE_SYNC).unwrap();
    assert_eq!(written.count, BLOCK_BYTES);
    session.write(&file, BLOCK_BYTES.into(), &data[BLOCK_BYTES as usize..]);
    let (read, is_end) = session.read(&file, 0, data.len() as u32).unwrap();
    assert!(read == data[..BLOCK_BYTES as usize] && !is_end);
}

/// "If count is 0, the READ will succeed and return 0 bytes of data" (section 3.3.6); WRITE as well.
pub(crate) fn no_bytes_at_all(host: &Host) {
    let (session, file) = host.session_and_file();
    let before = session.getattr(&file).unwrap().mtime;
    let written = session.write_as(&file, 7, b"", stable_how::UNSTABLE).unwrap();
    assert_eq!(written.count, 0);
    let after = session.getattr(&file).unwrap();
    assert_eq!((after.size, after.mtime), (0, before));
    assert_eq!(session.read(&file, 0, 0).unwrap(), (vec![], true));
    session.write(&file, 0, b"data");
    let (head, read) = session.read_by(&file, 0, 0, true).unwrap();
    assert_eq!((head.count, read), (0, vec![]));
}

pub(crate) fn wcc_of_a_write(host: &Host) {
    let (session, file) = host.session_and_file();
    let before = session.getattr(&file).unwrap();
    let wcc = session.write_as(&file, 0, b"data", stable_how::FILE_SYNC).unwrap().file_wcc;
    let (pre, post) = (some(wcc.before), some(wcc.after));
    assert_eq!((pre.size, pre.mtime, pre.ctime), (0, before.mtime, before.ctime));
    let now = session.getattr(&file).unwrap();
    assert_eq!((post.size, post.mtime, post.ctime), (4, now.mtime, now.ctime));
}
