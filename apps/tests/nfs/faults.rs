//! Servers that do less than requested, forget, reject, or lie.

use crate::files::local_file;
use crate::server::{Faults, Server};
use crate::tree::Content;
use crate::{answer, refused};
use nfs3_types::nfs3::{NFS_PROGRAM, nfsstat3};
use std::io;

/// A server with one file of 200,000 bytes.
fn server(name: &str, faults: Faults) -> io::Result<(Server, Vec<u8>)> {
    let server = Server::start(name)?;
    let content: Vec<u8> = (0..50_000_u32).flat_map(u32::to_le_bytes).collect();
    server.state().tree.put("file", Content::File(content.clone()));
    server.state().faults = faults;
    Ok((server, content))
}

/// Result of reading the file from such a server.
fn cat(name: &str, faults: Faults) -> io::Result<(Option<i32>, String)> {
    let (server, _) = server(name, faults)?;
    refused(&["cat", &server.target("/file")])
}

/// Result of writing to such a server.
fn put(name: &str, faults: Faults) -> io::Result<(Option<i32>, String)> {
    let (server, _) = server(name, faults)?;
    let (path, _) = local_file(name, 200_000)?;
    refused(&["put", &server.target("/new"), &path.to_string_lossy()])
}

#[test]
fn receive_short_reads_expect_the_rest_asked_for() -> io::Result<()> {
    for (name, bytes) in [("short-1", 10_001), ("short-2", 65_535)] {
        let faults = Faults { read_bytes_max: Some(bytes), ..Faults::default() };
        let (server, content) = server(name, faults)?;
        assert!(answer(&["cat", &server.target("/file")])? == content);
        assert!(answer(&["cat", &server.target("/file"), "--depth", "1"])? == content);
    }
    Ok(())
}

#[test]
fn receive_data_inline_though_memory_was_offered_expect_them_taken() -> io::Result<()> {
    let (server, content) = server("inline", Faults { reads_inline: true, ..Faults::default() })?;
    let target = server.target("/file");
    assert!(answer(&["cat", &target, "--block", "3000"])? == content);
    Ok(())
}

#[test]
fn receive_short_writes_expect_the_rest_written() -> io::Result<()> {
    let faults = Faults { write_bytes_max: Some(10_001), ..Faults::default() };
    let (server, _) = server("short-writes", faults)?;
    let (path, content) = local_file("short-writes", 200_000)?;
    answer(&["put", &server.target("/new"), &path.to_string_lossy()])?;
    assert!(server.state().tree.content("new") == content);
    Ok(())
}

#[test]
fn receive_another_verifier_expect_what_was_lost_written_again() -> io::Result<()> {
    for crash_after in [1, 2, 4] {
        let name = format!("crash-{crash_after}");
        let faults = Faults { crash_after_writes: Some(crash_after), ..Faults::default() };
        let (server, _) = server(&name, faults)?;
        let (path, content) = local_file(&name, 200_000)?;
        answer(&["put", &server.target("/new"), &path.to_string_lossy()])?;
        assert!(server.state().tree.content("new") == content, "{crash_after}");
        assert_eq!(server.calls(NFS_PROGRAM::NFSPROC3_WRITE), 4 + crash_after);
        assert_eq!(server.calls(NFS_PROGRAM::NFSPROC3_COMMIT), 2);
    }
    Ok(())
}

#[test]
fn receive_another_verifier_each_time_expect_an_end() -> io::Result<()> {
    let faults = Faults { crash_after_writes: Some(1), crashes_again: true, ..Faults::default() };
    let (code, line) = put("crashes", faults)?;
    assert!(code == Some(6) && line.contains("keeps losing data"), "{line}");
    Ok(())
}

#[test]
fn receive_jukebox_expect_another_try() -> io::Result<()> {
    let jukebox = [
        NFS_PROGRAM::NFSPROC3_LOOKUP,
        NFS_PROGRAM::NFSPROC3_READ,
        NFS_PROGRAM::NFSPROC3_WRITE,
        NFS_PROGRAM::NFSPROC3_COMMIT,
    ];
    let jukebox = jukebox.map(|operation| (operation as u32, 1)).into();
    let (server, content) = server("jukebox", Faults { jukebox, ..Faults::default() })?;
    assert!(answer(&["cat", &server.target("/file")])? == content);
    let (path, content) = local_file("jukebox", 200_000)?;
    answer(&["put", &server.target("/new"), &path.to_string_lossy()])?;
    assert!(server.state().tree.content("new") == content);
    Ok(())
}

#[test]
fn receive_jukebox_for_ever_expect_an_end() -> io::Result<()> {
    let operations =
        [NFS_PROGRAM::NFSPROC3_LOOKUP, NFS_PROGRAM::NFSPROC3_READ, NFS_PROGRAM::NFSPROC3_WRITE];
    for (number, operation) in operations.into_iter().enumerate() {
        let jukebox = [(operation as u32, u32::MAX)].into();
        let name = format!("jukebox-{number}");
        let (server, _) = server(&name, Faults { jukebox, ..Faults::default() })?;
        let (path, _) = local_file(&name, 200_000)?;
        let path = path.to_string_lossy();
        let target = server.target("/file");
        let arguments = match operation {
            NFS_PROGRAM::NFSPROC3_WRITE => vec!["put", &target, &path, "--timeout", "2"],
            _ => vec!["cat", &target, "--timeout", "2"],
        };
        let (code, line) = refused(&arguments)?;
        assert!(code == Some(4) && line.contains("NFS3ERR_JUKEBOX"), "{line}");
        assert!(line.contains("try again later"), "{line}");
    }
    Ok(())
}

#[test]
fn receive_an_error_expect_its_name_its_words_and_what_to_do() -> io::Result<()> {
    for (name, operation, status, words) in [
        ("stale", NFS_PROGRAM::NFSPROC3_READ, nfsstat3::NFS3ERR_STALE, "stale handle"),
        ("acces", NFS_PROGRAM::NFSPROC3_LOOKUP, nfsstat3::NFS3ERR_ACCES, "permission denied"),
        ("io", NFS_PROGRAM::NFSPROC3_FSINFO, nfsstat3::NFS3ERR_IO, "I/O error"),
    ] {
        let status_of = [(operation as u32, status)].into();
        let (code, line) = cat(name, Faults { status: status_of, ..Faults::default() })?;
        assert_eq!(code, Some(4), "{line}");
        assert!(line.contains(&format!("{status}: ")) && line.contains(words), "{line}");
        assert!(line.contains("/export/file: "), "{line}");
    }
    Ok(())
}

#[test]
fn a_missing_file_is_named_with_the_path_to_it() -> io::Result<()> {
    let (server, _) = server("noent", Faults::default())?;
    let (code, line) = refused(&["cat", &server.target("/none/deeper")])?;
    let expected = "spin-nfs: /export/none: NFS3ERR_NOENT: no such file or directory \
                    (LOOKUP): check the path\n";
    assert_eq!((code, line.as_str()), (Some(4), expected));
    Ok(())
}

#[test]
fn a_missing_export_is_answered_with_those_there_are() -> io::Result<()> {
    let (server, _) = server("exports", Faults::default())?;
    let target = format!("{}//elsewhere/file", server.address());
    let (code, line) = refused(&["cat", &target])?;
    assert_eq!(code, Some(4), "{line}");
    assert!(line.contains("MNT3ERR_NOENT") && line.contains("it exports /export"), "{line}");
    Ok(())
}

#[test]
fn receive_a_count_that_is_not_that_of_the_data_expect_refusal() -> io::Result<()> {
    for (name, count) in [("count-less", 1), ("count-more", u32::MAX)] {
        let (code, line) = cat(name, Faults { read_count: Some(count), ..Faults::default() })?;
        assert!(code == Some(6) && line.contains("bytes of data"), "{line}");
    }
    Ok(())
}

#[test]
fn receive_nothing_and_no_end_expect_refusal() -> io::Result<()> {
    let faults = Faults { read_bytes_max: Some(0), eof: Some(false), ..Faults::default() };
    let (code, line) = cat("nothing", faults)?;
    assert!(code == Some(6) && line.contains("and no end of file"), "{line}");
    Ok(())
}

#[test]
fn receive_an_end_before_the_end_expect_refusal() -> io::Result<()> {
    for (name, bytes) in [("eof-some", 70_000), ("eof-short", 1000), ("eof-none", 0)] {
        let faults = Faults { read_bytes_max: Some(bytes), eof: Some(true), ..Faults::default() };
        let (code, line) = cat(name, faults)?;
        assert!(code == Some(6) && line.contains("end of file at"), "{line}");
    }
    Ok(())
}

#[test]
fn receive_no_end_at_the_end_expect_the_file_as_long_as_it_was() -> io::Result<()> {
    let (server, content) = server("no-eof", Faults { eof: Some(false), ..Faults::default() })?;
    assert!(answer(&["cat", &server.target("/file")])? == content);
    Ok(())
}

#[test]
fn receive_that_more_or_nothing_was_written_expect_refusal() -> io::Result<()> {
    for (name, count) in [("wrote-none", 0), ("wrote-more", 200_001)] {
        let (code, line) = put(name, Faults { write_count: Some(count), ..Faults::default() })?;
        assert!(code == Some(6) && line.contains("a count of"), "{line}");
    }
    Ok(())
}

#[test]
fn receive_a_transfer_size_of_zero_expect_refusal() -> io::Result<()> {
    let (server, _) = server("rtmax", Faults::default())?;
    server.state().block_bytes = 0;
    let (path, _) = local_file("wtmax", 10)?;
    for (arguments, word) in [
        (&["cat", &server.target("/file")][..], "rtmax"),
        (&["put", &server.target("/new"), &path.to_string_lossy()], "wtmax"),
    ] {
        let (code, line) = refused(arguments)?;
        assert!(code == Some(6) && line.contains(word), "{line}");
    }
    Ok(())
}

/// Words of results in wire form.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[test]
fn receive_lengths_of_4_gib_expect_refusal_and_no_memory_for_them() -> io::Result<()> {
    let hostile = [
        // The handle of a name.
        ("cat", NFS_PROGRAM::NFSPROC3_LOOKUP, words(&[0, u32::MAX])),
        // The data.
        ("cat", NFS_PROGRAM::NFSPROC3_READ, words(&[0, 0, 4, 1, u32::MAX])),
        // The first name of a directory.
        ("ls", NFS_PROGRAM::NFSPROC3_READDIRPLUS, words(&[0, 0, 0, 0, 1, 0, 9, u32::MAX, 0, 0])),
        // Endless entries.
        ("ls", NFS_PROGRAM::NFSPROC3_READDIRPLUS, words(&[&[0, 0, 0, 0][..], &[1; 100]].concat())),
        // Invalid values of a status, a file type and a boolean.
        ("ls", NFS_PROGRAM::NFSPROC3_READDIRPLUS, words(&[12345])),
        ("cat", NFS_PROGRAM::NFSPROC3_GETATTR, words(&[&[0, 99][..], &[0; 20]].concat())),
        ("cat", NFS_PROGRAM::NFSPROC3_READ, words(&[0, 7])),
        // Truncated and empty results.
        ("cat", NFS_PROGRAM::NFSPROC3_LOOKUP, words(&[0])),
        ("cat", NFS_PROGRAM::NFSPROC3_LOOKUP, Vec::new()),
    ];
    for (number, (command, operation, raw)) in hostile.into_iter().enumerate() {
        let raw = [(operation as u32, raw)].into();
        let no_options = operation == NFS_PROGRAM::NFSPROC3_GETATTR;
        let faults = Faults { raw, no_options, ..Faults::default() };
        let (server, _) = server(&format!("hostile-{number}"), faults)?;
        let target = server.target(if command == "ls" { "" } else { "/file" });
        let (code, line) = refused(&[command, &target])?;
        assert_eq!(code, Some(6), "{operation}: {line}");
        assert!(line.contains("cannot be decoded"), "{line}");
    }
    Ok(())
}

#[test]
fn receive_no_reply_expect_the_deadline() -> io::Result<()> {
    let mute = Some((NFS_PROGRAM::NFSPROC3_READ as u32, 0));
    let (server, _) = server("mute", Faults { mute, ..Faults::default() })?;
    let (code, line) = refused(&["cat", &server.target("/file"), "--timeout", "2"])?;
    assert!(code == Some(5) && line.contains("READ: the deadline passed"), "{line}");
    Ok(())
}
