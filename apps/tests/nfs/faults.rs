//! Servers that do less than requested, forget, reject, or lie.

use crate::files::local_file;
use crate::*;
use nfs3_types::nfs3::NFS_PROGRAM::*;

/// A server with one file of 200,000 bytes.
fn server(name: &str, faults: Faults) -> (Server, Vec<u8>) {
    let server = Server::start(name);
    let content: Vec<u8> = (0..50_000_u32).flat_map(u32::to_le_bytes).collect();
    server.state().tree.put("file", Content::File(content.clone()));
    server.state().faults = faults;
    (server, content)
}

/// Writes 200,000 bytes to the server, which then has them.
fn put(server: &Server, name: &str) {
    let (path, content) = local_file(name, 200_000);
    answer(&["put", &server.target("/new"), &path.to_string_lossy()]);
    assert!(server.state().tree.content("new") == content, "{name}");
}

/// Runs that read the file of such a server, write another, or list the directory, and fail with this
/// code and these words.
fn fail(test: &str, runs: Vec<(&str, Faults, i32, &[&str])>) {
    for (number, (command, faults, expected, words)) in runs.into_iter().enumerate() {
        let name = format!("{test}-{number}");
        let (server, _) = server(&name, faults);
        let (path, _) = local_file(&name, 200_000);
        let (path, file, new) =
            (path.to_string_lossy(), server.target("/file"), server.target("/new"));
        let output = match command {
            "put" => spin_nfs(&["put", &new, &path]),
            "put in time" => spin_nfs(&["put", &new, &path, "--timeout", "2"]),
            "cat in time" => spin_nfs(&["cat", &file, "--timeout", "2"]),
            "ls" => spin_nfs(&["ls", &server.target("")]),
            _ => spin_nfs(&[command, &file]),
        };
        fails(&output, expected, words);
    }
}

#[test]
fn receive_short_reads_expect_the_rest_asked_for() {
    for (name, bytes) in [("short-1", 10_001), ("short-2", 65_535)] {
        let faults = Faults { read_bytes_max: Some(bytes), ..Faults::default() };
        let (server, content) = server(name, faults);
        assert!(answer(&["cat", &server.target("/file")]) == content);
        assert!(answer(&["cat", &server.target("/file"), "--depth", "1"]) == content);
    }
}

#[test]
fn receive_data_inline_though_memory_was_offered_expect_them_taken() {
    let (server, content) = server("inline", Faults { reads_inline: true, ..Faults::default() });
    let target = server.target("/file");
    assert!(answer(&["cat", &target, "--block", "3000"]) == content);
}

#[test]
fn receive_short_writes_expect_the_rest_written() {
    let faults = Faults { write_bytes_max: Some(10_001), ..Faults::default() };
    let (server, _) = server("short-writes", faults);
    put(&server, "short-writes")
}

#[test]
fn receive_another_verifier_expect_what_was_lost_written_again() {
    for crash_after in [1, 2, 4] {
        let name = format!("crash-{crash_after}");
        let faults = Faults { crash_after_writes: Some(crash_after), ..Faults::default() };
        let (server, _) = server(&name, faults);
        put(&server, &name);
        assert_eq!(server.calls(NFSPROC3_WRITE), 4 + crash_after);
        assert_eq!(server.calls(NFSPROC3_COMMIT), 2);
    }
}

#[test]
fn receive_jukebox_expect_another_try() {
    let jukebox = [NFSPROC3_LOOKUP, NFSPROC3_READ, NFSPROC3_WRITE, NFSPROC3_COMMIT];
    let jukebox = jukebox.map(|operation| (operation as u32, 1)).into();
    let (server, content) = server("jukebox", Faults { jukebox, ..Faults::default() });
    assert!(answer(&["cat", &server.target("/file")]) == content);
    put(&server, "jukebox")
}

#[test]
fn receive_jukebox_for_ever_expect_an_end() {
    let runs = [
        ("cat in time", NFSPROC3_LOOKUP),
        ("cat in time", NFSPROC3_READ),
        ("put in time", NFSPROC3_WRITE),
    ];
    let runs = runs.map(|(command, operation)| {
        let jukebox = [(operation as u32, u32::MAX)].into();
        let faults = Faults { jukebox, ..Faults::default() };
        (command, faults, 4, &["NFS3ERR_JUKEBOX", "try again later"][..])
    });
    fail("jukeboxes", runs.into())
}

#[test]
fn receive_an_error_expect_its_name_its_words_and_what_to_do() {
    let runs = [
        (NFSPROC3_READ, nfsstat3::NFS3ERR_STALE, ["/export/file: NFS3ERR_STALE: ", "stale handle"]),
        (
            NFSPROC3_LOOKUP,
            nfsstat3::NFS3ERR_ACCES,
            ["/export/file: NFS3ERR_ACCES: ", "permission denied"],
        ),
        (NFSPROC3_FSINFO, nfsstat3::NFS3ERR_IO, ["/export/file: NFS3ERR_IO: ", "I/O error"]),
    ];
    let runs = runs.each_ref().map(|(operation, status, words)| {
        let status = [(*operation as u32, *status)].into();
        ("cat", Faults { status, ..Faults::default() }, 4, &words[..])
    });
    fail("error", runs.into())
}

#[test]
fn a_missing_file_is_named_with_the_path_to_it() {
    let (server, _) = server("noent", Faults::default());
    let expected = "spin-nfs: /export/none: NFS3ERR_NOENT: no such file or directory \
                    (LOOKUP): check the path\n";
    fails(&spin_nfs(&["cat", &server.target("/none/deeper")]), 4, &[expected]);
}

#[test]
fn a_missing_export_is_answered_with_those_there_are() {
    let (server, _) = server("exports", Faults::default());
    let target = format!("{}//elsewhere/file", server.address());
    fails(&spin_nfs(&["cat", &target]), 4, &["MNT3ERR_NOENT", "it exports /export"]);
}

#[test]
fn receive_lies_expect_refusal() {
    let none = Faults::default;
    let reads = |bytes, eof| Faults { read_bytes_max: Some(bytes), eof: Some(eof), ..none() };
    fail(
        "lies",
        vec![
            // Counts that are not those of the data.
            ("cat", Faults { read_count: Some(1), ..none() }, 6, &["bytes of data"]),
            ("cat", Faults { read_count: Some(u32::MAX), ..none() }, 6, &["bytes of data"]),
            // Neither data nor an end, and ends before the end.
            ("cat", reads(0, false), 6, &["and no end of file"]),
            ("cat", reads(70_000, true), 6, &["end of file at"]),
            ("cat", reads(1000, true), 6, &["end of file at"]),
            ("cat", reads(0, true), 6, &["end of file at"]),
            // Nothing written, or more than was sent.
            ("put", Faults { write_count: Some(0), ..none() }, 6, &["a count of"]),
            ("put", Faults { write_count: Some(200_001), ..none() }, 6, &["a count of"]),
            // Another verifier each time.
            (
                "put",
                Faults { crash_after_writes: Some(1), crashes_again: true, ..none() },
                6,
                &["keeps losing data"],
            ),
        ],
    )
}

#[test]
fn receive_no_end_at_the_end_expect_the_file_as_long_as_it_was() {
    let (server, content) = server("no-eof", Faults { eof: Some(false), ..Faults::default() });
    assert!(answer(&["cat", &server.target("/file")]) == content);
}

#[test]
fn receive_a_transfer_size_of_zero_expect_refusal() {
    let (server, _) = server("rtmax", Faults::default());
    server.state().block_bytes = 0;
    let (path, _) = local_file("wtmax", 10);
    for (arguments, word) in [
        (&["cat", &server.target("/file")][..], "rtmax"),
        (&["put", &server.target("/new"), &path.to_string_lossy()], "wtmax"),
    ] {
        fails(&spin_nfs(arguments), 6, &[word]);
    }
}

/// Words of results in wire form.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[test]
fn receive_lengths_of_4_gib_expect_refusal_and_no_memory_for_them() {
    let hostile = [
        // The handle of a name.
        ("cat", NFSPROC3_LOOKUP, words(&[0, u32::MAX])),
        // The data.
        ("cat", NFSPROC3_READ, words(&[0, 0, 4, 1, u32::MAX])),
        // The first name of a directory.
        ("ls", NFSPROC3_READDIRPLUS, words(&[0, 0, 0, 0, 1, 0, 9, u32::MAX, 0, 0])),
        // Endless entries.
        ("ls", NFSPROC3_READDIRPLUS, words(&[&[0, 0, 0, 0][..], &[1; 100]].concat())),
        // Invalid values of a status, a file type and a boolean.
        ("ls", NFSPROC3_READDIRPLUS, words(&[12345])),
        ("cat", NFSPROC3_GETATTR, words(&[&[0, 99][..], &[0; 20]].concat())),
        ("cat", NFSPROC3_READ, words(&[0, 7])),
        // Truncated and empty results.
        ("cat", NFSPROC3_LOOKUP, words(&[0])),
        ("cat", NFSPROC3_LOOKUP, Vec::new()),
    ];
    let runs = hostile.map(|(command, operation, raw)| {
        let no_options = operation == NFSPROC3_GETATTR;
        let raw = [(operation as u32, raw)].into();
        let faults = Faults { raw, no_options, ..Faults::default() };
        (command, faults, 6, &["cannot be decoded"][..])
    });
    fail("lengths", runs.into())
}

#[test]
fn receive_no_reply_expect_the_deadline() {
    let faults = Faults { mute: Some((NFSPROC3_READ as u32, 0)), ..Faults::default() };
    fail("mute", vec![("cat in time", faults, 5, &["READ: the deadline passed"])])
}
