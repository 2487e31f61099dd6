//! READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17).

use crate::*;
use std::collections::BTreeSet;

/// An entry, with the additional data of READDIRPLUS.
struct Entry {
    fileid: u64,
    name: String,
    cookie: u64,
    file: Option<(fattr3, nfs_fh3)>,
}

struct Page {
    verifier: cookieverf3,
    entries: Vec<Entry>,
    is_end: bool,
    /// Length of all results after the status.
    bytes: usize,
}

fn text(name: &[u8]) -> String {
    String::from_utf8(name.to_vec()).unwrap()
}

fn page(from: &mut Decoder<'_>) -> Result<Page, DecodeError> {
    let results = READDIR3resok::decode(from)?;
    let entry = |entry: &nfs3_types::nfs3::entry3<'_>| Entry {
        fileid: entry.fileid,
        name: text(entry.name.as_ref()),
        cookie: entry.cookie,
        file: None,
    };
    let entries = results.reply.entries.0.iter().map(entry).collect();
    let (verifier, is_end) = (results.cookieverf, results.reply.eof);
    Ok(Page { verifier, entries, is_end, bytes: from.position() - 4 })
}

fn page_plus(from: &mut Decoder<'_>) -> Result<Page, DecodeError> {
    let results = READDIRPLUS3resok::decode(from)?;
    let (verifier, is_end) = (results.cookieverf, results.reply.eof);
    let entry = |entry: nfs3_types::nfs3::entryplus3<'_>| Entry {
        fileid: entry.fileid,
        name: text(entry.name.as_ref()),
        cookie: entry.cookie,
        file: Some((some(entry.name_attributes), some(entry.name_handle))),
    };
    let entries = results.reply.entries.0.into_iter().map(entry).collect();
    Ok(Page { verifier, entries, is_end, bytes: from.position() - 4 })
}

fn list(
    session: &Session,
    operation: NFS_PROGRAM,
    arguments: &impl ToXdr,
    page: fn(&mut Decoder<'_>) -> Result<Page, DecodeError>,
) -> Res<Page, post_op_attr> {
    let spec = CallSpec::new().reply_bytes_max(70_000);
    let results = move |from: &mut Decoder<'_>| match nfsstat3::decode(from)? {
        nfsstat3::NFS3_OK => page(from).map(Ok),
        status => Ok(Err((status, post_op_attr::decode(from)?))),
    };
    session.raw(operation as u32, spec, |to| arguments.encode(to), results).unwrap()
}

fn readdir(
    session: &Session,
    dir: &nfs_fh3,
    (cookie, cookieverf): (u64, cookieverf3),
    count: u32,
) -> Res<Page, post_op_attr> {
    let arguments = READDIR3args { dir: dir.clone(), cookie, cookieverf, count };
    list(session, NFS_PROGRAM::NFSPROC3_READDIR, &arguments, page)
}

fn readdirplus(
    session: &Session,
    dir: &nfs_fh3,
    (cookie, cookieverf): (u64, cookieverf3),
    (dircount, maxcount): (u32, u32),
) -> Res<Page, post_op_attr> {
    let arguments = READDIRPLUS3args { dir: dir.clone(), cookie, cookieverf, dircount, maxcount };
    list(session, NFS_PROGRAM::NFSPROC3_READDIRPLUS, &arguments, page_plus)
}

const BEGINNING: (u64, cookieverf3) = (0, cookieverf3([0; 8]));

/// A directory with this many files, and their names.
fn full(session: &Session, host: &Host, count: usize) -> (nfs_fh3, BTreeSet<String>) {
    let directory = session.mkdir(&host.root(), "full");
    let names: BTreeSet<_> = (0..count).map(|number| format!("{number:0>9}")).collect();
    for name in &names {
        session.create(&directory, name);
    }
    (directory, names)
}

/// All names, page by page, including duplicates.
fn names(session: &Session, dir: &nfs_fh3, count: u32, plus: bool) -> Vec<String> {
    let (mut from, mut names) = (BEGINNING, Vec::new());
    loop {
        let page = match plus {
            true => readdirplus(session, dir, from, (count, count)),
            false => readdir(session, dir, from, count),
        };
        let page = page.map_err(|(status, _)| status).unwrap();
        assert!(page.bytes <= count as usize, "{} of {count}", page.bytes);
        if let Some(last) = page.entries.last() {
            from = (last.cookie, page.verifier);
        }
        names.extend(page.entries.into_iter().map(|entry| entry.name));
        if page.is_end {
            return names;
        }
    }
}

pub(crate) fn a_directory_page_by_page(host: &Host) {
    let session = host.session();
    let (directory, made) = full(&session, host, 40);
    for plus in [false, true] {
        for count in [400, 1000, 60_000] {
            let listed = names(&session, &directory, count, plus);
            assert_eq!(listed.len(), 42, "each once");
            let listed: BTreeSet<_> = listed.into_iter().collect();
            let dots = [".", ".."].map(String::from);
            assert_eq!(listed, &made | &BTreeSet::from(dots));
        }
    }
}

pub(crate) fn entries_with_their_files(host: &Host) {
    let session = host.session();
    let (directory, _) = full(&session, host, 3);
    session.mkdir(&directory, "below");
    let page = readdirplus(&session, &directory, BEGINNING, (4096, 4096)).ok().unwrap();
    assert!(page.is_end);
    for entry in page.entries {
        let (attributes, handle) = entry.file.unwrap();
        assert_eq!(attributes.fileid, entry.fileid, "{}", entry.name);
        let found = session.lookup(&directory, &entry.name).unwrap();
        assert_eq!(found.object, handle);
        assert_eq!(some(found.obj_attributes).fileid, entry.fileid);
        assert_eq!(session.getattr(&handle).unwrap().fileid, entry.fileid);
    }
}

/// A page includes the entry that fills it to the last byte, and not the next: for READDIR by
/// count, for READDIRPLUS by maxcount and by dircount.
pub(crate) fn pages_are_filled(host: &Host) {
    let session = host.session();
    let (directory, _) = full(&session, host, 8);
    let count = |page: Res<Page, post_op_attr>| page.ok().unwrap().entries.len();
    let page = readdir(&session, &directory, BEGINNING, 60_000).ok().unwrap();
    let (all, bytes) = (page.entries.len(), page.bytes as u32);
    assert_eq!(all, 10);
    assert_eq!(count(readdir(&session, &directory, BEGINNING, bytes)), all);
    assert_eq!(count(readdir(&session, &directory, BEGINNING, bytes - 1)), all - 1);
    let plus = |counts| readdirplus(&session, &directory, BEGINNING, counts);
    let bytes = plus((60_000, 60_000)).ok().unwrap().bytes as u32;
    assert_eq!(count(plus((60_000, bytes))), all);
    assert_eq!(count(plus((60_000, bytes - 1))), all - 1);
    // Each entry has two 64-bit numbers, a word before, and the name with its length.
    let dircount = 2 * (4 + 8 + 4 + 4 + 8) + 8 * (4 + 8 + 4 + 12 + 8);
    assert_eq!(count(plus((dircount, 60_000))), all);
    assert_eq!(count(plus((dircount - 1, 60_000))), all - 1);
}

/// "NFS3ERR_TOOSMALL" if not even one entry fits.
pub(crate) fn a_page_too_small_for_one_entry(host: &Host) {
    let session = host.session();
    let (directory, _) = full(&session, host, 2);
    let too_small = nfsstat3::NFS3ERR_TOOSMALL;
    for count in [0, 1, 100, 130] {
        assert_eq!(status(readdir(&session, &directory, BEGINNING, count)), too_small, "{count}");
        let listed = readdirplus(&session, &directory, BEGINNING, (60_000, count));
        assert_eq!(status(listed), too_small, "{count}");
        // A "dircount" smaller than any name does not keep a client from continuing.
        let page = readdirplus(&session, &directory, BEGINNING, (count.min(20), 60_000));
        assert_eq!(page.ok().unwrap().entries.len(), 1, "{count}");
    }
}

/// Like `rm -r`: names that were not removed yet come later.
pub(crate) fn names_removed_while_listing(host: &Host) {
    let session = host.session();
    let (directory, made) = full(&session, host, 30);
    let (mut from, mut removed) = (BEGINNING, BTreeSet::new());
    loop {
        let page = readdir(&session, &directory, from, 400).ok().unwrap();
        for entry in page.entries {
            from = (entry.cookie, page.verifier);
            if !entry.name.starts_with('.') {
                session.remove(&directory, &entry.name).unwrap();
                removed.insert(entry.name);
            }
        }
        if page.is_end {
            break;
        }
    }
    assert_eq!(removed, made);
    session.rmdir(&host.root(), "full").unwrap();
}

pub(crate) fn a_wrong_cookie(host: &Host) {
    let session = host.session();
    let (directory, _) = full(&session, host, 2);
    let page = readdir(&session, &directory, BEGINNING, 4096).ok().unwrap();
    let cookie = page.entries[0].cookie;
    // A verifier that is always zero carries no information.
    if page.verifier != cookieverf3([0; 8]) {
        let mut other = page.verifier;
        other.0[7] ^= 1;
        let listed = readdir(&session, &directory, (cookie, other), 4096);
        assert_eq!(status(listed), nfsstat3::NFS3ERR_BAD_COOKIE);
    }
    // The server continues, whatever the cookie is.
    let listed = readdir(&session, &directory, (u64::MAX, page.verifier), 4096);
    let is_empty = listed.as_ref().is_ok_and(|page| page.entries.is_empty());
    assert!(is_empty || status(listed) == nfsstat3::NFS3ERR_BAD_COOKIE);
}

pub(crate) fn no_directory_to_list(host: &Host) {
    let (session, file) = host.session_and_file();
    let not_one = nfsstat3::NFS3ERR_NOTDIR;
    assert_eq!(status(readdir(&session, &file, BEGINNING, 4096)), not_one);
    assert_eq!(status(readdirplus(&session, &file, BEGINNING, (4096, 4096))), not_one);
}
