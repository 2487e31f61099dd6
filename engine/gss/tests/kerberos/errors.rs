//! Errors that a user reads, each provoked with a real KDC.

use spinrpc_gss::library::{AcceptorOptions, Fault, InitiatorOptions, Kerberos, KerberosError};
use spinrpc_gss::mechanism::{Mechanism, MechanismError};
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::thread;

use crate::realm::in_realm;
use crate::{AES, NOW, TARGET, accept, acceptor, complete, establish, fault, first, initiator};

/// Seconds.
const HOUR: i32 = 3600;

#[track_caller]
fn assert_reads(error: &MechanismError, expected: Fault, words: &[&str]) {
    assert_eq!(fault(error), expected, "{error}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}: not {words:?}");
}

#[track_caller]
fn assert_keytab(options: AcceptorOptions, expected: Fault, words: &[&str]) {
    let error: KerberosError = Kerberos::acceptor(options).err().unwrap();
    assert_eq!(error.fault, expected, "{error}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}: not {words:?}");
}

#[test]
fn no_ticket() {
    in_realm(AES, |home| {
        let missing = initiator("FILE:/nonexistent/cache").begin(TARGET, NOW).unwrap_err();
        assert_reads(&missing, Fault::NoTicket, &["run kinit", "No credentials cache found"]);
        let options = InitiatorOptions::new().cache(home.kinit("alice", &[]));
        let other = Kerberos::initiator(options.principal("bob")).unwrap();
        let other = other.begin(TARGET, NOW).unwrap_err();
        assert_reads(&other, Fault::NoTicket, &["run kinit", "does not match desired name"]);
    });
}

/// The part before the NUL is a name that the server has.
#[test]
fn names_with_a_nul_are_refused() {
    in_realm(AES, |home| {
        let cache = home.kinit("alice", &[]);
        let target = initiator(&cache).begin(&format!("{TARGET}\0.evil"), NOW).unwrap_err();
        assert_reads(&target, Fault::Other, &["a path or name contains a NUL"]);
        let options = InitiatorOptions::new().cache(cache).principal("alice\0bob");
        let refused = match Kerberos::initiator(options) {
            Err(error) => error.to_string(),
            Ok(client) => client.begin(TARGET, NOW).unwrap_err().to_string(),
        };
        assert!(refused.contains("contains a NUL"), "{refused}");
    });
}

/// The client's side of it, and then a server that is given a token of a ticket which is over.
#[test]
fn the_ticket_has_expired() {
    in_realm(AES, |home| {
        home.configure_clients("clockskew = 4");
        let server = acceptor(home);
        // On a busy machine a ticket may expire before it was used.
        let (client, token) = (0..10)
            .find_map(|_| {
                let client = initiator(&home.kinit("alice", &["-l", "4s"]));
                match first(&client, TARGET)
                    .and_then(|(_, token)| accept(&server, &token).map(|_| token))
                {
                    Ok(token) => Some((client, token)),
                    Err(error) => {
                        let fault = fault(&error);
                        assert!(
                            matches!(fault, Fault::TicketExpired | Fault::ClockDiffers),
                            "{error}"
                        );
                        None
                    }
                }
            })
            .expect("a ticket that is valid for long enough");
        let refused = loop {
            if let Err(error) = client.begin(TARGET, NOW) {
                break error;
            }
        };
        assert_reads(&refused, Fault::TicketExpired, &["has expired; run kinit"]);
        let refused = loop {
            match accept(&server, &token) {
                Err(error) if fault(&error) != Fault::ClockDiffers => break error,
                _ => {}
            }
        };
        assert_reads(&refused, Fault::TicketExpired, &["has expired"]);
    });
}

/// Sets the clock of an initiator ahead: its ticket cache says by how much it differs from the KDC's, as `kinit` writes it.
fn set_clock(cache: &str, seconds: i32) {
    let path = cache.trim_start_matches("FILE:");
    let mut bytes = fs::read(path).unwrap();
    // Version 4, the length of the header, a field with tag 1 and length 8: seconds and microseconds.
    assert_eq!(bytes[..8], [5, 4, 0, 12, 0, 1, 0, 8]);
    bytes[8..12].copy_from_slice(&seconds.to_be_bytes());
    fs::write(path, bytes).unwrap();
}

#[test]
fn the_clock_differs() {
    in_realm(AES, |home| {
        let cache = home.kinit("alice", &[]);
        home.run("kvno", &["-q", "-c", &cache, "nfs/localhost"]);
        set_clock(&cache, HOUR);
        let client = initiator(&cache);
        let (_, token) = first(&client, TARGET).unwrap();
        let at_server = accept(&acceptor(home), &token).unwrap_err();
        assert_reads(
            &at_server,
            Fault::ClockDiffers,
            &["synchronize the clocks", "Clock skew too great"],
        );
        // The KDC is asked for another ticket.
        let at_kdc = client.begin("nfs@absent", NOW).unwrap_err();
        assert_reads(&at_kdc, Fault::ClockDiffers, &["synchronize the clocks"]);
    });
}

#[test]
fn the_server_is_unknown() {
    in_realm(AES, |home| {
        let client = initiator(&home.kinit("alice", &[]));
        let error = client.begin("nfs@elsewhere", NOW).unwrap_err();
        let words = ["the KDC does not know the server", "nfs/elsewhere@SPIN.TEST"];
        assert_reads(&error, Fault::UnknownServer, &words);
    });
}

#[test]
fn the_client_is_unknown() {
    in_realm(AES, |home| {
        home.kadmin("delprinc -force host/client");
        let options = InitiatorOptions::new().keytab(home.path("client.keytab"));
        let error = Kerberos::initiator(options).unwrap().begin(TARGET, NOW).unwrap_err();
        assert_reads(&error, Fault::UnknownClient, &["does not know the client", "host/client"]);
    });
}

/// Files that are missing, of another kind, unreadable (root reads everything, so by a path through a file), empty.
#[test]
fn keytabs_that_cannot_be_used() {
    in_realm(AES, |home| {
        let keytab = |path: &str| AcceptorOptions::new().keytab(path);
        let (empty, no_keytab) = (home.path("empty"), home.path("krb5.conf"));
        fs::write(&empty, "").unwrap();
        let through_a_file = format!("{no_keytab}/nfs.keytab");
        for service in [false, true] {
            let with = |path: &str| match service {
                true => keytab(path).service("nfs"),
                false => keytab(path),
            };
            let missing = home.path("missing");
            assert_keytab(with(&missing), Fault::KeytabMissing, &["does not exist", &missing]);
            for path in [&empty, &no_keytab, &through_a_file, &home.path("")] {
                assert_keytab(with(path), Fault::KeytabUnreadable, &["cannot be read", path]);
            }
        }
        let wrong = keytab(&home.path("client.keytab")).service("nfs");
        assert_keytab(wrong, Fault::KeyMissing, &["has no key", "nfs/"]);
        assert!(Kerberos::acceptor(keytab("a\0b")).is_err());
        // Initiators.
        let options = InitiatorOptions::new().keytab(home.path("missing"));
        let error = Kerberos::initiator(options).unwrap().begin(TARGET, NOW).unwrap_err();
        assert!(error.to_string().contains("the keytab does not exist"), "{error}");
    });
}

#[test]
fn the_keytab_has_another_key() {
    in_realm(AES, |home| {
        let server = acceptor(home);
        let (_, token) = first(&initiator(&home.kinit("alice", &[])), "nfs@absent").unwrap();
        let error = accept(&server, &token).unwrap_err();
        assert_reads(&error, Fault::KeyMissing, &["has no key", "nfs/absent@SPIN.TEST"]);
        // The key has a new version, and the keytab has not.
        home.kadmin("cpw -randkey nfs/localhost");
        let (_, token) = first(&initiator(&home.kinit("bob", &[])), TARGET).unwrap();
        let error = accept(&server, &token).unwrap_err();
        assert_reads(&error, Fault::WrongKeyVersion, &["renew the keytab", "kvno 3"]);
    });
}

/// GSS-API tokens of another key than AES are not those of RFC 4121, or of an encryption type without a user.
#[test]
fn old_encryption_types_are_refused() {
    for (enctype, why) in [
        ("arcfour-hmac", "older than AES, with tokens of RFC 1964"),
        ("camellia256-cts-cmac", "encryption type 26"),
    ] {
        in_realm(enctype, |home| {
            let (client, server) = (initiator(&home.kinit("alice", &[])), acceptor(home));
            let (_, token) = first(&client, TARGET).unwrap();
            let error = accept(&server, &token).unwrap_err();
            let words =
                "the key is of an encryption type that is not supported; use AES (17 to 20)";
            assert_eq!(error.to_string(), format!("{words} ({why})"));
        });
    }
}

/// The thread that asks it waits, half a minute with krb5 1.20. Others go on, also with the same initiator.
#[test]
fn a_silent_kdc_blocks_one_thread_only() {
    in_realm(AES, |home| {
        let cache = home.kinit("alice", &[]);
        home.run("kvno", &["-q", "-c", &cache, "nfs/localhost"]);
        // The number may be that of a TCP port of another test.
        let (udp, _tcp) = (0..100)
            .find_map(|_| {
                let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
                let tcp = TcpListener::bind(udp.local_addr().unwrap()).ok()?;
                Some((udp, tcp))
            })
            .unwrap();
        home.move_kdc(udp.local_addr().unwrap().port());
        let (client, server) = (initiator(&cache), acceptor(home));
        let error = thread::scope(|scope| {
            let waiting = scope.spawn(|| client.begin("nfs@absent", NOW).unwrap_err());
            udp.recv(&mut [0; 4096]).unwrap();
            for _ in 0..100 {
                establish(&client, &server, TARGET).unwrap();
            }
            assert!(!waiting.is_finished(), "it did not wait for the KDC");
            waiting.join().unwrap()
        });
        assert_reads(&error, Fault::KdcUnreachable, &["no KDC answers", "SPIN.TEST"]);
    });
}

/// Noise, and each byte of a real token changed. What is still taken names the same user, because bytes that
/// nothing protects do not name it.
#[test]
fn tokens_that_were_changed() {
    in_realm(AES, |home| {
        let (client, server) = (initiator(&home.kinit("alice", &[])), acceptor(home));
        let (state, token) = first(&client, TARGET).unwrap();
        let mut refused = 0;
        for at in 0..token.len() {
            let mut changed = token.clone();
            changed[at] ^= 0x40;
            match accept(&server, &changed) {
                Ok((established, _)) => assert_eq!(established.peer, "alice@SPIN.TEST"),
                Err(error) => refused += usize::from(error.major >> 16 != 0),
            }
            assert!(accept(&server, &token[..at]).is_err(), "{at} bytes of {}", token.len());
        }
        assert!(refused > token.len() * 9 / 10, "{refused} of {}", token.len());
        let noise: Vec<u8> = (0..65_536_u32).map(|at| ((at * at) >> 3) as u8).collect();
        let error = accept(&server, &noise).unwrap_err();
        assert_reads(&error, Fault::DefectiveToken, &[]);
        // The acceptor's answer.
        let (_, answer) = accept(&server, &token).unwrap();
        let mut changed = answer.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(complete(state, &changed).is_err());
    });
}

#[test]
fn each_end_does_its_part_only() {
    in_realm(AES, |home| {
        let error = acceptor(home).begin(TARGET, NOW).unwrap_err();
        assert_eq!(error.major, MechanismError::NO_CRED);
        let error = accept(&initiator("FILE:x"), b"token").unwrap_err();
        assert_eq!(error.major, MechanismError::NO_CRED);
    });
}
