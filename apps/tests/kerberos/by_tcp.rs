//! Contexts over TCP, where the server denies them over its fabric.

use crate::realm::in_realm;
use crate::server::Place;
use crate::{AES256, assert_refused, serve, with_cache};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::thread;

const DENIED: &str = "denied the context over this connection (AuthError(BadCred))";

/// The server of the target has no keytab, and denies every context. That at the port is another one, whose context it does
/// not know: a call under it is denied, and that one is.
#[test]
fn a_context_that_the_server_denies_comes_by_tcp() {
    in_realm(AES256, |home| {
        let place = Place::new("krb5-denies");
        let _denying = place.serve(&["--memory=m:client=local"]);
        let other = Place::new("krb5-by-tcp");
        let krb5 = ["--memory=m:client=127.0.0.1,sec=krb5", "--gss-port=127.0.0.1:0"];
        let server = serve(&other, home, &krb5);
        let at = |line: &String| line.strip_prefix("kerberos contexts by tcp at ")?.parse().ok();
        let address: SocketAddr = server.said.iter().find_map(at).unwrap();
        let cache = home.kinit("alice", &["-l", "3h"]);
        let target = format!("{}//m", place.address());
        let ls = |options: &[&str]| {
            with_cache(&cache, &[&["ls", &target, "--sec", "krb5i"], options].concat())
        };
        let port = address.port().to_string();
        assert_refused(&ls(&["--gss-port", &port]), 4, &["denied the call", "BadCred"]);
        // Over shared memory there is no port unless it is given.
        for options in [&[][..], &["--gss-port", "no"]] {
            assert_refused(&ls(options), 3, &["Kerberos with shm:", "BadCred"]);
        }
        // A mistake of the user is told without either transport.
        let absent = ls(&["--gss-port", &port, "--gss-host", "elsewhere"]);
        assert_refused(&absent, 3, &["the KDC does not know the server"]);
        // The server by TCP has no key for this ticket.
        let absent = ls(&["--gss-port", &port, "--gss-host", "absent"]);
        assert_refused(&absent, 3, &[DENIED, "the server refused the context"]);
        drop(server);
        let words = [DENIED, "TCP 127.0.0.1:", "refused", "--gss-port sets the port"];
        assert_refused(&ls(&["--gss-port", &port]), 3, &words);
    });
}

#[test]
fn what_listens_at_the_port_may_be_hostile() {
    in_realm(AES256, |home| {
        let place = Place::new("krb5-hostile-tcp");
        let _denying = place.serve(&["--memory=m:client=local"]);
        let cache = home.kinit("alice", &["-l", "3h"]);
        let target = format!("{}//m", place.address());
        for (said, words) in [
            (&[0xff; 64][..], "more than 16384 bytes"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "more than 16384 bytes"),
            (b"\x80\0\0\x04DENY", "over the other transport"),
            (b"", "no reply"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port().to_string();
            let server = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                spinrpc::rpcbind::record::read(&mut stream).unwrap();
                // The client may have hung up.
                drop(stream.write_all(said));
            });
            let options = ["--sec", "krb5p", "--gss-port", &port];
            let output = with_cache(&cache, &[&["ls", &target][..], &options].concat());
            assert_refused(&output, 3, &[DENIED, words]);
            server.join().unwrap();
        }
        // Silence, for half of the time of a connection.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let options = ["--sec", "krb5p", "--timeout", "1", "--gss-port", &port];
        let output = with_cache(&cache, &[&["ls", &target][..], &options].concat());
        assert_refused(&output, 3, &[DENIED, "no reply: timed out"]);
    });
}
