//! Files under each of the three services, and the flavors of an export.

use crate::realm::in_realm;
use crate::server::{Place, file};
use crate::{AES256, ALICE, done, owner, serve, with_cache};

#[test]
fn files_go_and_come_back_under_each_service_as_the_user_who_is_proved() {
    for enctype in [AES256, "aes256-cts-hmac-sha384-192"] {
        in_realm(enctype, |home| {
            let place = Place::new("krb5-services");
            let memory = "--memory=m:client=local,sec=krb5:krb5i:krb5p";
            let _server = serve(&place, home, &[memory]);
            let cache = home.kinit("alice", &["-l", "3h"]);
            let source = place.root.join("source");
            for sec in ["krb5", "krb5i", "krb5p"] {
                for bytes in [0, 700, 3_000_001] {
                    let content = file(&source, bytes);
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
