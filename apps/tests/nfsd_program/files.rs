//! Files of a directory and of an in-memory tree, and access to them.

use crate::common::text;
use crate::server::{Place, answer, attributes, file, handle};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;

#[test]
fn files_go_into_a_directory_and_a_tree_in_memory_and_come_back() {
    let place = Place::new("files");
    let _server = place.serve(&[&place.export(""), "--memory=scratch:client=local"]);
    let scratch = format!("{}//scratch", place.address());
    for bytes in [0, 1, 700, 100_000, 3_000_001] {
        let source = place.root.join("source");
        let content = file(&source, bytes);
        let source = source.display().to_string();
        for target in [place.target("/file"), format!("{scratch}/file")] {
            answer(&["put", &target, &source]);
            assert!(answer(&["cat", &target]) == content, "{bytes} bytes at {target}");
            assert_eq!(attributes(&target)["size"], bytes);
        }
        assert!(fs::read(place.data().join("file")).unwrap() == content, "{bytes} bytes");
    }
    fs::create_dir(place.data().join("below")).unwrap();
    fs::write(place.data().join("below/other"), "other").unwrap();
    assert_eq!(answer(&["cat", &place.target("/below/other")]), b"other");
    let listed = text(&["ls", &place.target("")]);
    assert!(listed.contains(" below\n") && listed.contains(" file\n"), "{listed}");
    let listed = text(&["ls", &scratch]);
    assert!(listed.contains(" file\n") && !listed.contains("below"), "{listed}");
}

#[test]
fn files_are_made_by_who_calls_and_root_is_nobody() {
    let place = Place::new("owners");
    let _server = place.serve(&[&place.export(",anon=4711:4712"), "--memory=m:client=local"]);
    let source = place.root.join("source");
    file(&source, 10);
    let source = source.display().to_string();
    let put =
        |target: &str, uid: &str| answer(&["put", target, &source, "--uid", uid, "--gid", uid]);
    let in_memory = format!("{}//m/", place.address());
    put(&format!("{in_memory}theirs"), "1234");
    put(&format!("{in_memory}roots"), "0");
    let owner = |name: &str| attributes(&format!("{in_memory}{name}"));
    assert_eq!((&owner("theirs")["uid"], &owner("roots")["uid"]), (&1234.into(), &65534.into()));
    // Only root can act as other users.
    if rustix::process::geteuid().is_root() {
        put(&place.target("/theirs"), "1234");
        put(&place.target("/roots"), "0");
        let owner =
            |name: &str| fs::metadata(place.data().join(name)).map(|file| (file.uid(), file.gid()));
        assert_eq!(
            (owner("theirs").unwrap(), owner("roots").unwrap()),
            ((1234, 1234), (4711, 4712))
        );
    }
}

#[test]
fn handles_of_files_outlive_a_kill_and_those_of_other_keys_do_not_count() {
    let place = Place::new("restart");
    let options = [&place.export("")[..], "--memory=scratch:client=local"];
    fs::write(place.data().join("file"), "content").unwrap();
    let server = place.serve(&options);
    let (of_file, of_memory) =
        (handle(&place.target("/file")), handle(&format!("{}//scratch", place.address())));
    let by_handle = |handle: &str| [place.address(), "--handle".to_owned(), handle.to_owned()];
    let cat = |handle: &str| {
        let [address, option, handle] = by_handle(handle);
        crate::server::spin_nfs(&["getattr", &address, &option, &handle])
    };
    assert_eq!(server.end_by(Signal::KILL).0, None);

    let server = place.serve(&options);
    assert!(cat(&of_file).status.success());
    let gone = cat(&of_memory);
    let complaint = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert!(complaint.contains("NFS3ERR_STALE"), "what was in memory is gone: {complaint}");
    drop(server);

    fs::remove_file(place.root.join("state/handle-key")).unwrap();
    let _server = place.serve(&options);
    let foreign = cat(&of_file);
    let complaint = String::from_utf8_lossy(&foreign.stderr).into_owned();
    assert!(complaint.contains("NFS3ERR_BADHANDLE"), "{complaint}");
}
