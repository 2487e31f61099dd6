//! Two realms, each with a KDC: users of one call the server of the other.

use crate::realm::in_realm;
use crate::server::{Place, file};
use crate::{AES256, ALICE, done, owner, private_file, with_cache};

const NOBODY: u32 = 65_534;
/// User of bob of the other realm, by the map.
const BOB: u32 = 5555;

/// The administrator of a realm can give its principals any name: only those of the server's realm are users of its host.
#[test]
fn users_of_a_trusted_realm_are_anonymous_unless_the_map_names_them() {
    let test = "realms::users_of_a_trusted_realm_are_anonymous_unless_the_map_names_them";
    in_realm(test, AES256, |home| {
        let users = ["alice", "daemon", "root", "bob", "host/client"];
        let _other = home.trust_another(&users);
        let place = Place::new("krb5-realms").unwrap();
        let map = place.path("map");
        let lines = [
            format!("alice@SPIN.TEST {ALICE} {ALICE}"),
            format!("daemon@SPIN.TEST {ALICE} {ALICE}"),
            format!("bob@OTHER.TEST {BOB} {BOB}"),
        ];
        private_file(&map, &lines.join("\n"));
        let options = [format!("--keytab={}", home.path("nfs.keytab")), format!("--gss-map={map}")];
        let memory = "--memory=m:client=local,sec=krb5p,machine=root";
        let _server = place.serve(&[&options[0], &options[1], memory]).unwrap();
        let source = place.path("source");
        let content = file(source.as_ref(), 100_000).unwrap();
        home.kadmin("addprinc -pw daemon daemon");
        let names = users.map(|user| format!("{user}@OTHER.TEST"));
        let expected = [NOBODY, NOBODY, NOBODY, BOB, NOBODY];
        let own = [("alice".to_owned(), ALICE), ("daemon".to_owned(), ALICE)];
        for (name, uid) in names.into_iter().zip(expected).chain(own) {
            let cache = home.kinit(&name, &["-l", "3h"]);
            let target = format!("{}//m/{}", place.address(), name.replace('/', "-"));
            done(&with_cache(&cache, &["put", &target, &source, "--sec", "krb5p"]));
            assert_eq!(owner(&cache, &target, "krb5p").0, uid, "{name}");
            assert!(done(&with_cache(&cache, &["cat", &target, "--sec", "krb5p"])) == content);
        }
    });
}
