//! Files under each of the three services, and the flavors of an export.

use crate::realm::in_realm;
use crate::server::{Place, file};
use crate::{AES256, ALICE, assert_refused, done, owner, serve, with_cache};

#[test]
fn files_go_and_come_back_under_each_service_as_the_user_who_is_proved() {
    let test = "services::files_go_and_come_back_under_each_service_as_the_user_who_is_proved";
    for enctype in [AES256, "aes256-cts-hmac-sha384-192"] {
        in_realm(test, enctype, |home| {
            let place = Place::new("krb5-services").unwrap();
            let memory = "--memory=m:client=local,sec=krb5:krb5i:krb5p";
            let _server = serve(&place, home, &[memory]);
            let cache = home.kinit("alice", &["-l", "3h"]);
            let source = place.root.join("source");
            for sec in ["krb5", "krb5i", "krb5p"] {
                for bytes in [0, 700, 3_000_001] {
                    let content = file(&source, bytes).unwrap();
                    let target = format!("{}//m/{sec}-{bytes}", place.address());
                    let source = source.display().to_string();
                    done(&with_cache(&cache, &["put", &target, &source, "--sec", sec]));
                    let read = done(&with_cache(&cache, &["cat", &target, "--sec", sec]));
                    assert!(read == content, "{bytes} bytes under {sec}");
                    assert_eq!(owner(&cache, &target, sec), (ALICE.into(), ALICE.into()));
                }
                let target = format!("{}//m/{sec}-3000001", place.address());
                for work in ["getattr", "read", "write"] {
                    let calls =
                        ["bench", work, &target, "--calls", "20", "--size", "4K", "--overwrite"];
                    done(&with_cache(&cache, &[&calls[..], &["--sec", sec]].concat()));
                }
            }
        });
    }
}

#[test]
fn calls_under_another_flavor_than_those_of_the_export_are_denied() {
    let test = "services::calls_under_another_flavor_than_those_of_the_export_are_denied";
    in_realm(test, AES256, |home| {
        let place = Place::new("krb5-flavors").unwrap();
        let memories = ["i", "p", "sys"].map(|name| {
            let sec = if name == "sys" { "sys".to_owned() } else { format!("krb5{name}") };
            format!("--memory={name}:client=local,sec={sec}")
        });
        let memories: Vec<&str> = memories.iter().map(String::as_str).collect();
        let server = serve(&place, home, &memories);
        assert!(server.said[0].ends_with("sec krb5i"), "{:?}", server.said);
        let cache = home.kinit("alice", &["-l", "3h"]);
        let target = |name: &str| format!("{}//{name}", place.address());
        for (name, taken) in [("i", "krb5i"), ("p", "krb5p"), ("sys", "sys")] {
            for sec in ["krb5", "krb5i", "krb5p"] {
                let output = with_cache(&cache, &["ls", &target(name), "--sec", sec]);
                if sec == taken {
                    done(&output);
                } else {
                    assert_refused(&output, 4, &["TooWeak"]);
                }
            }
        }
        let (code, line) = crate::server::refused(&["ls", &target("p")]).unwrap();
        assert_eq!((code, line.contains("TooWeak")), (Some(4), true), "{line}");
        crate::server::answer(&["ls", &target("sys")]).unwrap();
    });
}
