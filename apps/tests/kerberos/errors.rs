//! Errors that a user reads.

use crate::common::run;
use crate::realm::in_realm;
use crate::server::{PROGRAM, Place};
use crate::{AES256, CHECK, assert_refused, client, done, private_file, serve, with_cache};
use std::fs::{Permissions, set_permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn set_mode(path: &str, mode: u32) {
    set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

const MEMORY: &str = "--memory=m:client=local,sec=krb5p";
const EXPIRED: &str = "the Kerberos ticket has expired; run kinit";
/// Of tickets, in seconds: the next one if the machine was too busy to use the last before it expired.
const LIVES_S: [u64; 4] = [8, 16, 32, 64];

#[test]
fn tickets_that_are_missing_or_of_another_server() {
    in_realm(AES256, |home| {
        let place = Place::new("krb5-tickets");
        let _server = serve(&place, home, &[MEMORY]);
        let target = format!("{}//m", place.address());
        let ls = ["ls", &target, "--sec", "krb5p"];
        let refused = with_cache("FILE:/nonexistent/cache", &ls);
        assert_refused(&refused, 3, &["Kerberos", "run kinit"]);
        let cache = home.kinit("alice", &["-l", "3h"]);
        let refused = with_cache(&cache, &[&ls[..], &["--gss-host", "elsewhere"]].concat());
        assert_refused(
            &refused,
            3,
            &["the KDC does not know the server", "nfs/elsewhere@SPIN.TEST"],
        );
        // The KDC gives a ticket, which the server has no key for.
        let refused = with_cache(&cache, &[&ls[..], &["--gss-host", "absent"]].concat());
        assert_refused(&refused, 3, &["the server refused the context", "keytab has no key"]);
        let refused = with_cache(&cache, &[&ls[..], &["--principal", "bob"]].concat());
        assert_refused(&refused, 3, &["run kinit"]);
        let keytab = ["--keytab", "/nonexistent/keytab"];
        let refused = with_cache(&cache, &[&ls[..], &keytab].concat());
        assert_refused(&refused, 3, &["the keytab does not exist"]);
        // The server goes on.
        done(&with_cache(&cache, &ls));
    });
}

/// The sessions stop in the middle of a file, because the test does not read what they write, and go on when their tickets have
/// expired. The cache of one of the two has another ticket by then.
#[test]
fn a_ticket_that_expires_during_a_session() {
    const FILE_BYTES: usize = 16 << 20;
    in_realm(AES256, |home| {
        home.configure_clients("clockskew = 4");
        let place = Place::new("krb5-expires");
        let _server = serve(&place, home, &[MEMORY]);
        let target = format!("{}//m/file", place.address());
        let local = place.path("local");
        std::fs::write(&local, vec![7; FILE_BYTES]).unwrap();
        let cache = home.kinit("alice", &["-l", "3h"]);
        done(&with_cache(&cache, &["put", &target, &local, "--sec", "krb5p"]));
        let expiring = place.path("expiring");
        let begin = |life: u64| {
            assert_eq!(home.kinit("alice", &["-l", &format!("{life}s")]), cache);
            let end = Instant::now() + Duration::from_secs(life + 4 + 1);
            std::fs::copy(cache.trim_start_matches("FILE:"), &expiring).unwrap();
            let mut sessions = [&format!("FILE:{expiring}"), &cache].map(|cache| {
                let mut session = client(cache, &["cat", &target, "--sec", "krb5p"]);
                session.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            });
            // Then both have a context, and are at the file.
            let are_at_it = sessions.each_mut().map(|session| {
                let stdout = session.stdout.as_mut().unwrap();
                stdout.read_exact(&mut [0]).is_ok()
            });
            are_at_it.into_iter().all(|is_at_it| is_at_it).then_some((sessions, end))
        };
        let (sessions, end) =
            LIVES_S.into_iter().find_map(begin).expect("a ticket lasts until a session has begun");
        // By then the contexts are over for either end: the library adds the difference of clocks that it allows to their life.
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        assert_eq!(home.kinit("alice", &["-l", "3h"]), cache);
        let [expired, goes_on] = sessions.map(|session| session.wait_with_output().unwrap());
        assert!(expired.stdout.len() < FILE_BYTES - 1, "{}", expired.stdout.len());
        assert_refused(&expired, 3, &["READ", EXPIRED]);
        assert_eq!(done(&goes_on).len(), FILE_BYTES - 1);
    });
}

#[test]
fn a_server_without_a_key_says_what_is_missing() {
    in_realm(AES256, |home| {
        let place = Place::new("krb5-keytab");
        let check = |options: &[&str]| run(PROGRAM, &[&CHECK[..], &[MEMORY], options].concat());
        let keytab = |name: &str| format!("--keytab={}", home.path(name));
        assert_refused(&check(&[&keytab("missing")]), 1, &["Kerberos", "does not exist"]);
        let refused = check(&[&keytab("client.keytab")]);
        assert_refused(&refused, 1, &["keytab has no key", "nfs"]);
        let map = place.path("map");
        private_file(&map, "alice 1 1\n");
        let option = format!("--gss-map={map}");
        let refused = check(&[&keytab("nfs.keytab"), &option]);
        assert_refused(&refused, 1, &["line 1", "PRINCIPAL UID GID"]);
        done(&check(&[&keytab("nfs.keytab")]));
        // Files that make anyone the server, or root.
        private_file(&map, "alice@R 1 1\n");
        for mode in [0o620, 0o602] {
            set_mode(&map, mode);
            let refused = check(&[&keytab("nfs.keytab"), &option]);
            assert_refused(&refused, 1, &["can change it", &format!("{mode:04o}")]);
        }
        set_mode(&map, 0o644);
        done(&check(&[&keytab("nfs.keytab"), &option]));
        for (mode, is_refused) in [(0o644, true), (0o602, true), (0o640, false)] {
            set_mode(&home.path("nfs.keytab"), mode);
            let output = check(&[&keytab("nfs.keytab")]);
            if is_refused {
                assert_refused(&output, 1, &["every user can read or change it"]);
            } else {
                done(&output);
            }
        }
        // Options that nothing uses.
        let unused = ["--memory=m", &*keytab("nfs.keytab")];
        assert_refused(
            &run(PROGRAM, &[&CHECK[..], &unused].concat()),
            2,
            &["--keytab needs an export with sec=krb5"],
        );
    });
}
