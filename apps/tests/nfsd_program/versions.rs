//! Version of RPC-over-RDMA that the server and its clients negotiate.

use crate::common::{answer, refused, spin_nfs};
use crate::server::{Place, Server, file};

fn server_of(place: &Place, version: &str) -> Server {
    place.serve(&[&place.export(""), &format!("--set=rpc.version={version}")])
}

/// A file's bytes, and whether both connections, for MOUNT and for NFS, used version two.
fn fetched(place: &Place, version: &str) -> (Vec<u8>, bool) {
    let target = place.target("/file");
    let version = format!("--set=rpc.version={version}");
    let output = spin_nfs(&["cat", &target, "--stats", &version]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains(" engine.connections_opened=2 "), "{said}");
    (output.stdout, said.contains(" engine.connections_version_two=2 "))
}

/// Version two section 5.2: "the requester selects a protocol version in the range of
/// responder-supported versions".
#[test]
fn a_client_that_may_speak_both_takes_the_highest_that_the_server_has() {
    let place = Place::new("versions");
    let content = file(&place.data().join("file"), 300_000);
    for (serves, calls, is_two) in [
        ("auto", "auto", true),
        ("2", "auto", true),
        ("1", "auto", false),
        ("auto", "2", true),
        ("auto", "1", false),
    ] {
        let _server = server_of(&place, serves);
        let (read, was_two) = fetched(&place, calls);
        assert_eq!((read == content, was_two), (true, is_two), "{serves} {calls}");
        let listing = answer(&["ls", &place.target(""), &format!("--set=rpc.version={calls}")]);
        assert!(String::from_utf8_lossy(&listing).contains("file"), "{serves} {calls}");
    }
}

#[test]
fn ends_without_a_version_in_common_say_which_there_are() {
    let place = Place::new("no-version");
    for (serves, calls) in [("1", "2"), ("2", "1")] {
        let _server = server_of(&place, serves);
        let target = place.target("/");
        let (code, line) = refused(&["ls", &target, &format!("--set=rpc.version={calls}")]);
        assert_eq!(code, Some(3), "{line}");
        assert!(line.contains(&format!("speaks versions {serves} to {serves}")), "{line}");
    }
}
