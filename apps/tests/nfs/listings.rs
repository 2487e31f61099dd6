//! Directories: complete listings over any number of pages, and the errors of a faulty server.

use crate::*;
use serde_json::{Value, json};

fn fill(server: &Server, files: usize) {
    let mut state = server.state();
    for number in 0..files {
        state.tree.put(&format!("file-{number:04}"), Content::File(vec![0; number]));
    }
}

/// The name at the end of each line.
fn names(listing: &str) -> Vec<String> {
    listing.lines().filter_map(|line| line.split(' ').next_back()).map(str::to_owned).collect()
}

fn expected(files: usize) -> Vec<String> {
    (0..files).map(|number| format!("file-{number:04}")).collect()
}

#[test]
fn a_directory_of_1000_files_is_listed_whole_at_every_threshold() {
    let server = Server::start("ls");
    fill(&server, 1000);
    for inline in THRESHOLDS {
        let listing = text(&[&["ls", &server.target("")][..], inline].concat());
        assert_eq!(names(&listing), expected(1000), "{inline:?}");
    }
    assert_eq!(server.calls(NFS_PROGRAM::NFSPROC3_READDIRPLUS), 30);
}

#[test]
fn a_line_has_what_people_look_for() {
    let server = Server::start("ls-line");
    {
        let mut state = server.state();
        state.tree.put("a\tb", Content::File(vec![0; 77]));
        state.tree.put("d", Content::Directory(Default::default()));
        state.tree.put("link", Content::Link(b"../there".to_vec()));
    }
    let listing = text(&["ls", &server.target("/")]);
    let lines: Vec<_> = listing.lines().collect();
    let expected = "-rw-r--r--   1  1000   100           77 1970-01-02T00:00:00Z a\\tb";
    assert_eq!(lines[0], expected);
    assert!(lines[1].starts_with("drw-r--r--") && lines[1].ends_with(" d"), "{listing}");
    assert!(lines[2].starts_with('l') && lines[2].ends_with(" link -> ../there"), "{listing}");
    assert_eq!(lines.len(), 3);
}

/// The objects that `ls --json` prints.
fn objects(server: &Server) -> Vec<Value> {
    let listing = text(&["ls", "--json", &server.target("")]);
    listing.lines().map(serde_json::from_str).collect::<Result<_, _>>().unwrap()
}

/// Entries of READDIRPLUS may lack attributes, and READDIR has none (RFC 1813 sections 3.3.16 and 3.3.17).
#[test]
fn every_attribute_of_every_entry_is_listed_however_the_server_gives_them() {
    let server = Server::start("ls-attributes");
    {
        let mut state = server.state();
        state.tree.put("directory", Content::Directory(Default::default()));
        state.tree.put("file", Content::File(vec![0; 300]));
        state.tree.put("link", Content::Link(b"file".to_vec()));
    }
    let time = "1970-01-02T00:00:00.000000005Z";
    let object = |fileid: u64, name: &str, r#type: &str, size: u64| {
        json!({
            "name": name, "fileid": fileid, "type": r#type, "mode": 0o644, "links": 1, "uid": 1000,
            "gid": 100, "size": size, "used": size, "fsid": 0xf5, "atime": time, "mtime": time,
            "ctime": time,
        })
    };
    let mut link = object(4, "link", "symbolic link", 4);
    link["target"] = "file".into();
    let expected = [object(2, "directory", "directory", 0), object(3, "file", "file", 300), link];
    assert_eq!(objects(&server), expected, "in the pages");
    server.state().faults.no_options = true;
    assert_eq!(objects(&server), expected, "asked for, as the pages lack them");
    let operation = NFS_PROGRAM::NFSPROC3_READDIRPLUS as u32;
    server.state().faults.status.insert(operation, nfsstat3::NFS3ERR_NOTSUPP);
    assert_eq!(objects(&server), expected, "asked for, name by name");
}

#[test]
fn receive_no_attributes_of_an_entry_expect_it_listed_without() {
    let server = Server::start("ls-unknown");
    fill(&server, 2);
    let unsupported = NFS_PROGRAM::NFSPROC3_READDIRPLUS as u32;
    let refused = NFS_PROGRAM::NFSPROC3_LOOKUP as u32;
    server.state().faults.status.insert(unsupported, nfsstat3::NFS3ERR_NOTSUPP);
    server.state().faults.status.insert(refused, nfsstat3::NFS3ERR_ACCES);
    let listing = text(&["ls", &server.target("")]);
    assert_eq!(names(&listing), expected(2));
    assert!(listing.lines().all(|line| line.starts_with("? ")), "{listing}");
    let object = |fileid: u64, name: &str| json!({ "name": name, "fileid": fileid });
    assert_eq!(objects(&server), [object(2, "file-0000"), object(3, "file-0001")]);
}

#[test]
fn a_file_is_listed_as_itself() {
    let server = Server::start("ls-file");
    fill(&server, 2);
    assert_eq!(names(&text(&["ls", &server.target("/file-0001")])), ["file-0001"]);
}

#[test]
fn a_server_without_readdirplus_is_asked_name_by_name() {
    let server = Server::start("ls-readdir");
    fill(&server, 25);
    let operation = NFS_PROGRAM::NFSPROC3_READDIRPLUS as u32;
    server.state().faults.status.insert(operation, nfsstat3::NFS3ERR_NOTSUPP);
    server.state().faults.page_entries = Some(10);
    let listing = text(&["ls", &server.target("")]);
    assert_eq!(names(&listing), expected(25));
    assert!(!listing.contains('?'), "with attributes: {listing}");
    assert_eq!(server.calls(NFS_PROGRAM::NFSPROC3_READDIRPLUS), 1);
    assert_eq!(server.calls(NFS_PROGRAM::NFSPROC3_READDIR), 3);
    assert_eq!(server.calls(NFS_PROGRAM::NFSPROC3_LOOKUP), 25);
}

#[test]
fn what_a_server_need_not_give_is_asked_for() {
    let server = Server::start("ls-options");
    fill(&server, 5);
    server.state().faults.no_options = true;
    let listing = text(&["ls", &server.target("")]);
    assert_eq!(names(&listing), expected(5));
    assert!(!listing.contains('?'), "with attributes: {listing}");
    let (path, content) = crate::files::local_file("no-options", 1000);
    answer(&["put", &server.target("/new"), &path.to_string_lossy()]);
    assert_eq!(answer(&["cat", &server.target("/new")]), content);
}

#[test]
fn receive_cookies_that_repeat_expect_an_end() {
    let server = Server::start("ls-circle");
    fill(&server, 30);
    server.state().faults.page_entries = Some(10);
    server.state().faults.cookies_repeat = true;
    fails(&spin_nfs(&["ls", &server.target("")]), 6, &["would never end"]);
    assert!(server.calls(NFS_PROGRAM::NFSPROC3_READDIRPLUS) <= 2);
}

#[test]
fn receive_no_entry_and_no_end_expect_refusal() {
    let server = Server::start("ls-nothing");
    fill(&server, 30);
    server.state().faults.page_entries = Some(0);
    fails(&spin_nfs(&["ls", &server.target("")]), 6, &["neither an entry nor the end"]);
    assert_eq!(server.calls(NFS_PROGRAM::NFSPROC3_READDIRPLUS), 1);
}

#[test]
fn receive_toosmall_expect_a_larger_page_and_an_end() {
    let server = Server::start("ls-small");
    let operation = NFS_PROGRAM::NFSPROC3_READDIRPLUS as u32;
    server.state().faults.status.insert(operation, nfsstat3::NFS3ERR_TOOSMALL);
    fails(&spin_nfs(&["ls", &server.target("")]), 4, &["NFS3ERR_TOOSMALL"]);
    assert_eq!(server.calls(NFS_PROGRAM::NFSPROC3_READDIRPLUS), 5);
}
