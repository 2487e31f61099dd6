//! MOUNT over TCP, and its registration with rpcbind.

use crate::clients::{metrics, series};
use crate::rpcbind_daemon::RpcbindDaemon;
use crate::server::{Place, Server, answer, handle, in_time};
use rustix::process::Signal;
use spinrpc::rpcbind::record;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const MNT: u32 = 1;
const EXPORT: u32 = 5;

/// The words of the results of a MOUNT call without credentials, for `path` if there is one.
fn call(address: SocketAddr, procedure: u32, path: Option<&str>) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let words = [7, 0, 2, 100_005, 3, procedure, 0, 0, 0, 0];
    let mut message: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    if let Some(path) = path {
        message.extend((path.len() as u32).to_be_bytes());
        message.extend(path.as_bytes());
        message.resize(message.len().next_multiple_of(4), 0);
    }
    stream.write_all(&record::mark(&message).map_err(io::Error::other)?)?;
    let reply = record::read(&mut stream).map_err(io::Error::other)?;
    // XID, REPLY, MSG_ACCEPTED, AUTH_NONE with an empty body, SUCCESS.
    let header: Vec<u8> = [7, 1, 0, 0, 0, 0].into_iter().flat_map(u32::to_be_bytes).collect();
    reply
        .strip_prefix(&header[..])
        .map(<[u8]>::to_vec)
        .ok_or_else(|| io::Error::other("no success"))
}

/// The status of MNT.
pub(crate) fn status_of_mnt(address: SocketAddr, path: &str) -> io::Result<u32> {
    Ok(word(&call(address, MNT, Some(path))?, 0))
}

fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_be_bytes(bytes[4 * index..][..4].try_into().unwrap())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn by_tcp_a_client_gets_the_handle_of_the_export() {
    let place = Place::new("mount-tcp");
    let export = place.export(",client=127.0.0.1");
    let others = "--memory=others:client=192.0.2.1";
    let server = place.serve(&[&export, others, "--mount=127.0.0.1:0"]);
    let address = server.mount_address();
    let path = place.data().display().to_string();
    let mounted = call(address, MNT, Some(&path)).unwrap();
    let length = word(&mounted, 1) as usize;
    assert_eq!(word(&mounted, 0), 0);
    let root = hex(&mounted[8..8 + length]);
    assert_eq!(root, handle(&place.target("")));
    // One flavor, AUTH_SYS.
    assert_eq!(mounted[(8 + length).next_multiple_of(4)..], [0, 0, 0, 1, 0, 0, 0, 1]);
    std::fs::write(place.data().join("file"), "content").unwrap();
    let file = format!("{}//file", place.address());
    assert_eq!(answer(&["cat", &file, "--handle", &root]), b"content");

    assert_eq!(status_of_mnt(address, "/others").unwrap(), 13);
    assert_eq!(status_of_mnt(address, "/nowhere").unwrap(), 2);
    let exports = call(address, EXPORT, None).unwrap();
    let lists = |name: &str| exports.windows(name.len()).any(|bytes| bytes == name.as_bytes());
    assert!(lists(&path) && lists("192.0.2.1") && lists("/others"));
}

/// Such a host gets no connection, so no call is refused.
#[test]
fn mounts_of_hosts_that_no_export_lists_are_counted() {
    let place = Place::new("mount-stranger");
    let others = "--memory=others:client=192.0.2.1";
    let server = place.serve(&[others, "--mount=127.0.0.1:0"]);
    for refused in 1..=2 {
        assert!(status_of_mnt(server.mount_address(), "/others").is_err());
        // The snapshot may be one from before.
        in_time(|| {
            let metrics = metrics(&server);
            let count = &series(&metrics, "nfs_refused", "mount")["count"];
            (*count == refused).then_some(())
        });
    }
}

#[test]
fn rpcbind_is_told_what_is_served_as_long_as_it_is() {
    let place = Place::new("rpcbind");
    let daemon = RpcbindDaemon::start(2..=4).unwrap();
    let register = format!("--register={}", daemon.address());
    let server = place.serve(&[&place.export(""), "--mount=127.0.0.1:0", &register]);
    let [high, low] = server.mount_address().port().to_be_bytes();
    let mut expected = vec![
        (100_003, 3, "spinrpc-shm".to_owned(), place.address()),
        (100_005, 3, "spinrpc-shm".to_owned(), place.address()),
        (100_005, 3, "tcp".to_owned(), format!("127.0.0.1.{high}.{low}")),
    ];
    expected.sort();
    let rows = || {
        let rows = daemon.rows().into_iter().map(|row| (row.0, row.1, row.2, row.3));
        let mut rows: Vec<_> = rows.collect();
        rows.sort();
        rows
    };
    assert_eq!(rows(), expected);
    assert_eq!(server.end_by(Signal::TERM).0, Some(0));
    assert_eq!(rows(), []);
}

#[test]
fn a_rpcbind_that_was_named_has_to_be_there() {
    let place = Place::new("no-rpcbind");
    let mut command =
        place.command(&[&place.export(""), "--register=unix:/nonexistent/rpcbind.sock"]);
    let output = command.output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("rpcbind is not running"), "{complaint}");
}

#[test]
fn a_port_that_is_taken_is_an_error_that_says_what_to_do() {
    let place = Place::new("port-taken");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mount = format!("--mount={}", listener.local_addr().unwrap());
    let output = place.command(&[&place.export(""), &mount]).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(
        complaint.contains("MOUNT at 127.0.0.1") && complaint.contains("--mount"),
        "{complaint}"
    );
    // The address is free again.
    drop(in_time(|| Server::try_start(&mut place.command(&[&place.export("")]))));
}
