//! Files: attributes, reading and writing.

use crate::*;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Output;

/// A local file with such bytes.
pub(crate) fn local_file(name: &str, bytes: usize) -> (PathBuf, Vec<u8>) {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("nfs-{name}"));
    let content = content(bytes);
    fs::write(&path, &content).unwrap();
    (path, content)
}

fn file(server: &Server, path: &str, bytes: usize) -> Vec<u8> {
    let content = content(bytes);
    server.state().tree.put(path, Content::File(content.clone()));
    content
}

#[test]
fn getattr_says_what_a_file_is() {
    let server = Server::start("getattr");
    file(&server, "file", 4321);
    let shown = text(&["getattr", &server.target("/file")]);
    for line in ["type    file", "mode    0644", "owner   1000:100", "size    4321"] {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(shown.contains("mtime   1970-01-02T00:00:00.000000005Z"), "{shown}");
    let json = text(&["getattr", "--json", &server.target("/file")]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["type"], &json["size"]), (&"file".into(), &4321.into()));
    assert_eq!(json["fileid"], 2);
}

#[test]
fn a_handle_that_getattr_showed_needs_no_mount() {
    let server = Server::start("handle");
    let expected = file(&server, "file", 100);
    let json = text(&["getattr", "--json", &server.target("")]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let handle = json["handle"].as_str().unwrap_or_default();
    server.state().mounts.clear();
    let target = format!("{}//file", server.address());
    assert_eq!(answer(&["cat", &target, "--handle", handle]), expected);
    assert!(server.state().mounts.is_empty());
}

#[test]
fn what_was_mounted_is_given_back() {
    let server = Server::start("umount");
    file(&server, "file", 1);
    answer(&["cat", &server.target("/file")]);
    let both = [("MNT", EXPORTED.to_owned()), ("UMNT", EXPORTED.to_owned())];
    assert_eq!(server.state().mounts, both);
}

#[test]
fn a_file_comes_out_as_it_is_at_every_size_and_threshold() {
    let server = Server::start("cat");
    let block = BLOCK_BYTES as usize;
    for bytes in [0, 1, 3, 700, 4096, block - 1, block, block + 1, 5 * block + 7] {
        let expected = file(&server, &format!("file-{bytes}"), bytes);
        for inline in THRESHOLDS {
            let target = server.target(&format!("/file-{bytes}"));
            let got = answer(&[&["cat", &target][..], inline].concat());
            assert!(got == expected, "{bytes} bytes at {inline:?}: {} came", got.len());
        }
    }
}

#[test]
fn a_file_goes_in_as_it_is_at_every_size_and_threshold() {
    let server = Server::start("put");
    let block = BLOCK_BYTES as usize;
    for bytes in [0, 1, 3, 700, 4096, block - 1, block, block + 1, 5 * block + 7] {
        let (path, expected) = local_file(&format!("put-{bytes}"), bytes);
        for (number, inline) in THRESHOLDS.into_iter().enumerate() {
            let target = server.target(&format!("/file-{number}"));
            let path = path.to_string_lossy();
            answer(&[&["put", &target, &path][..], inline].concat());
            let got = server.state().tree.content(&format!("file-{number}"));
            assert!(got == expected, "{bytes} bytes at {inline:?}: {} are there", got.len());
        }
    }
}

/// Puts `content` from a pipe.
fn put_piped(target: &str, content: Vec<u8>) -> Output {
    let mut put = Command::new(PROGRAM);
    put.args(["put", target, "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut put = put.spawn().unwrap();
    let mut stdin = put.stdin.take().unwrap();
    let writer = thread::spawn(move || stdin.write_all(&content));
    let output = put.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    output
}

#[test]
fn put_from_a_dash_copies_standard_input_from_a_pipe_or_a_file() {
    let server = Server::start("stdin");
    let target = server.target("/file");
    for bytes in [0, 1, 300_000] {
        let (path, expected) = local_file(&format!("stdin-{bytes}"), bytes);
        let output = put_piped(&target, expected.clone());
        assert!(output.status.success(), "{bytes} bytes: {output:?}");
        assert!(server.state().tree.content("file") == expected, "{bytes} bytes by pipe");
        let mut redirected = Command::new(PROGRAM);
        redirected.args(["put", &target, "-"]).stdin(File::open(path).unwrap());
        let output = redirected.output().unwrap();
        assert!(output.status.success(), "{bytes} bytes: {output:?}");
        assert!(server.state().tree.content("file") == expected, "{bytes} bytes by file");
    }
}

/// What was read before belongs to another program, as in `(head -n 1; spin-nfs put TARGET -) <FILE`.
#[test]
fn put_from_a_dash_begins_where_a_redirected_file_was_left() {
    let server = Server::start("stdin-rest");
    let (path, expected) = local_file("stdin-rest", 1000);
    let mut stdin = File::open(path).unwrap();
    stdin.seek(SeekFrom::Start(100)).unwrap();
    let mut put = Command::new(PROGRAM);
    let output = put.args(["put", &server.target("/file"), "-"]).stdin(stdin).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(server.state().tree.content("file"), expected[100..]);
}

/// Their lengths say 0 and 4096, whatever they contain.
#[test]
fn put_reads_files_of_procfs_and_sysfs_to_their_end() {
    let server = Server::start("procfs");
    let target = server.target("/file");
    for path in ["/proc/version", "/sys/devices/system/cpu/online"] {
        let Ok(expected) = fs::read(path) else { continue };
        file(&server, "file", 9000);
        answer(&["put", &target, path]);
        assert_eq!(server.state().tree.content("file"), expected, "{path}");
    }
}

#[test]
fn put_reads_a_pipe_with_a_name_to_its_end() {
    let server = Server::start("fifo");
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("nfs-put-fifo");
    let _ = fs::remove_file(&path);
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
    let expected = content(300_000);
    let written = (path.clone(), expected.clone());
    let writer = thread::spawn(move || fs::write(written.0, written.1));
    answer(&["put", &server.target("/file"), &path.to_string_lossy()]);
    writer.join().unwrap().unwrap();
    assert!(server.state().tree.content("file") == expected);
}

/// No page is mapped at the start of a process's memory, so that reading it there fails.
#[test]
fn put_touches_no_file_for_one_that_it_cannot_read() {
    let server = Server::start("unreadable");
    let expected = file(&server, "file", 9000);
    for path in ["/proc/self/mem", env!("CARGO_TARGET_TMPDIR"), "/nonexistent"] {
        fails(&spin_nfs(&["put", &server.target("/file"), path]), 1, &[path]);
    }
    assert_eq!(server.calls(NFS_PROGRAM::NFSPROC3_CREATE), 0);
    assert!(server.state().tree.content("file") == expected);
}

/// Its size is 0, as that of a FIFO or of a file that the caller may not read.
#[test]
fn cat_reads_an_empty_file_as_well() {
    let server = Server::start("empty");
    file(&server, "file", 0);
    assert_eq!(answer(&["cat", &server.target("/file")]), b"");
    for status in [nfsstat3::NFS3ERR_ACCES, nfsstat3::NFS3ERR_INVAL] {
        server.state().faults.status.insert(NFS_PROGRAM::NFSPROC3_READ as u32, status);
        fails(&spin_nfs(&["cat", &server.target("/file")]), 4, &[&status.to_string()]);
    }
}

#[test]
fn several_calls_are_in_flight_and_blocks_are_as_told() {
    let server = Server::start("depth");
    let (path, expected) = local_file("depth", 1_000_000);
    let (path, target) = (path.to_string_lossy(), server.target("/file"));
    for (depth, block) in [("1", "1000"), ("8", "65536"), ("64", "4097"), ("3", "1048576")] {
        let with = ["--depth", depth, "--block", block];
        answer(&[&["put", &target, &path][..], &with].concat());
        assert!(answer(&[&["cat", &target][..], &with].concat()) == expected, "{depth} {block}");
    }
}

#[test]
fn a_new_file_takes_over_the_mode_and_an_old_one_is_emptied() {
    let server = Server::start("create");
    file(&server, "old", 5000);
    let (path, expected) = local_file("create", 10);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    for name in ["old", "new"] {
        answer(&["put", &server.target(&format!("/{name}")), &path.to_string_lossy()]);
        assert_eq!(server.state().tree.content(name), expected);
    }
    let state = server.state();
    let new = state.tree.child(ROOT, b"new").unwrap();
    assert_eq!(state.tree.node(new).unwrap().mode, 0o640);
}

#[test]
fn a_file_below_directories_and_links_is_found() {
    let server = Server::start("walk");
    {
        let mut state = server.state();
        let tree = &mut state.tree;
        tree.put("a", Content::Directory(Default::default()));
        tree.put("a/b", Content::Directory(Default::default()));
        tree.put("a/b/file", Content::File(b"found".to_vec()));
        tree.put("relative", Content::Link(b"a/b".to_vec()));
        tree.put("a/up", Content::Link(b"../relative/./file".to_vec()));
        tree.put("absolute", Content::Link(b"/export/a/up".to_vec()));
        tree.put("outside", Content::Link(b"/exports/a".to_vec()));
        tree.put("circle", Content::Link(b"circle".to_vec()));
    }
    for path in
        ["/a/b/file", "//a/./b//file", "/relative/file", "/a/up", "/absolute", "/../a/b/../up"]
    {
        assert_eq!(answer(&["cat", &server.target(path)]), b"found", "{path}");
    }
    let more_slashes = format!("{}///export//a/b/file", server.address());
    assert_eq!(answer(&["cat", &more_slashes]), b"found");
    let shown = text(&["getattr", &server.target("/absolute")]);
    assert!(shown.contains("symbolic link"), "the link itself: {shown}");
    for (path, word) in [("/outside", "outside of the export"), ("/circle", "circle")] {
        fails(&spin_nfs(&["cat", &server.target(path)]), 4, &[word]);
    }
}

#[test]
fn the_caller_is_who_runs_it_or_who_it_is_told_or_nobody() {
    let server = Server::start("user");
    let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    for (options, expected) in [
        (&[][..], Some(me)),
        (&["--uid", "4711", "--gid", "12"][..], Some((4711, 12))),
        (&["--auth", "none"][..], None),
    ] {
        answer(&[&["null", server.address()][..], options].concat());
        assert_eq!(server.state().caller, expected, "{options:?}");
    }
}

#[test]
fn stats_are_one_line_that_agrees_with_the_server() {
    let server = Server::start("stats");
    file(&server, "file", 300_000);
    let output = spin_nfs(&["cat", &server.target("/file"), "--stats"]);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(line.lines().count(), 1, "{line}");
    let reads = server.calls(NFS_PROGRAM::NFSPROC3_READ);
    assert_eq!(reads, 5);
    for part in [
        "stats: ",
        &format!(" nfs.READ={reads} "),
        " nfs.read_placed_bytes=300000 ",
        " nfs.read_inline_bytes=0 ",
        // NULL of the engine, for NFS and for MOUNT; EXPORT, MNT, UMNT; LOOKUP, FSINFO, READs.
        &format!(" engine.calls_sent={} ", 7 + reads),
        &format!(" engine.replies_received={} ", 7 + reads),
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn a_standard_error_that_takes_nothing_changes_no_outcome() {
    let server = Server::start("full");
    file(&server, "file", 100);
    let (there, missing) = (server.target("/file"), server.target("/missing"));
    for (arguments, code) in [(["cat", &there, "--stats"], 0), (["cat", &missing, "--stats"], 4)] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = Command::new(PROGRAM).args(arguments).stderr(full).output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn what_is_wrong_here_is_said_in_one_line() {
    let server = Server::start("here");
    let target = server.target("/file");
    let directory = env!("CARGO_TARGET_TMPDIR");
    for (arguments, code, word) in [
        (&["put", &target, "/nonexistent"][..], 1, "/nonexistent"),
        (&["put", &target, directory], 1, "not a regular file"),
        (&["put", &server.target("/.."), "/etc/hostname"], 4, "does not end with the name"),
        (&["cat", "file"], 2, "rdma://HOST"),
        (&["cat", "shm:name/export"], 2, "two slashes"),
        (&["cat", &target, "--set=rpc.inline_send_bytes=1000"], 2, "rpc.inline_send_bytes"),
        (&["cat", &target, "--handle", "abc"], 2, "hexadecimal"),
        (&["null", "shm:nfs-absent"], 3, "no connection"),
    ] {
        fails(&spin_nfs(arguments), code, &[word]);
    }
}

#[test]
fn several_connections_move_a_file_there_and_back() {
    let server = Server::start("several");
    let (path, expected) = local_file("several", 3 << 20);
    let (target, also) = (server.target("/new"), server.address().to_owned());
    let several = ["--nconnect", "4", "--also", &also, "--block", "65536"];
    answer(&[&["put", &target, &path.to_string_lossy()][..], &several].concat());
    assert_eq!(answer(&[&["cat", &target][..], &several].concat()), expected);
}

#[test]
fn an_address_of_another_fabric_is_refused() {
    let server = Server::start("other-fabric");
    let refused = spin_nfs(&["null", &server.target(""), "--also", "rdma://10.8.0.1"]);
    fails(&refused, 2, &["rdma://10.8.0.1", "same fabric"]);
    let many = spin_nfs(&["null", &server.target(""), "--nconnect", "17"]);
    assert_eq!(many.status.code(), Some(2));
}
