//! From principals to users.

use crate::realm::in_realm;
use crate::server::{Place, file};
use crate::{AES256, ALICE, assert_refused, done, owner, private_file, serve, with_cache};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

const NOBODY: u32 = 65_534;

#[test]
fn users_are_those_of_the_map_and_the_host_and_others_are_anonymous() {
    in_realm(AES256, |home| {
        let place = Place::new("krb5-users");
        let memories =
            ["--memory=m:client=local,sec=krb5p", "--memory=r:client=local,sec=krb5p,machine=root"];
        let _server = serve(&place, home, &memories);
        home.kadmin("addprinc -pw daemon daemon");
        let source = place.path("source");
        file(source.as_ref(), 10);
        // Debian has a user daemon, 1, and none that is called bob.
        for (name, uid) in [("alice", ALICE), ("daemon", 1), ("bob", NOBODY)] {
            let cache = home.kinit(name, &["-l", "3h"]);
            let target = format!("{}//m/{name}", place.address());
            done(&with_cache(&cache, &["put", &target, &source, "--sec", "krb5p"]));
            assert_eq!(owner(&cache, &target, "krb5p").0, uid, "{name}");
        }
        let cache = home.kinit("bob", &["-l", "3h"]);
        // A host is nobody, or root.
        let keytab = home.path("client.keytab");
        for (export, uid) in [("m", NOBODY), ("r", 0)] {
            let target = format!("{}//{export}/host", place.address());
            let put = ["put", &target, &source, "--sec", "krb5p", "--keytab", &keytab];
            done(&with_cache("FILE:/nonexistent", &put));
            assert_eq!(owner(&cache, &target, "krb5p").0, uid, "{export}");
        }
    });
}

/// Two users of the same server, each with what is the user's own.
#[test]
fn a_user_who_is_not_allowed_to_is_refused() {
    in_realm(AES256, |home| {
        let place = Place::new("krb5-rights");
        if !rustix::process::geteuid().is_root() {
            let keytab = format!("--keytab={}", home.path("nfs.keytab"));
            let mut refused = place.command(&[&keytab, &place.export(",sec=krb5i")]);
            assert_refused(&refused.output().unwrap(), 2, &["sec=krb5", "needs root"]);
            println!("NOT TESTED: rights of others, which takes root");
            return;
        }
        let _server = serve(&place, home, &[&place.export(",sec=krb5i")]);
        let (alice, bob) = (home.kinit("alice", &["-l", "3h"]), home.kinit("bob", &["-l", "3h"]));
        let source = place.path("source");
        let content = file(source.as_ref(), 1000);
        let target = place.target("/secret");
        done(&with_cache(&alice, &["put", &target, &source, "--sec", "krb5i"]));
        let path = place.data().join("secret");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(done(&with_cache(&alice, &["cat", &target, "--sec", "krb5i"])), content);
        assert_eq!(path.metadata().unwrap().uid(), ALICE);
        let refused = with_cache(&bob, &["cat", &target, "--sec", "krb5i"]);
        assert_refused(&refused, 4, &["NFS3ERR_ACCES"]);
    });
}

/// AUTH_SYS carries 16 groups, and a context as many as its user has.
#[test]
fn all_groups_of_a_user_count() {
    const FIRST: u32 = 7000;
    const GROUPS: u32 = 100;
    in_realm(AES256, |home| {
        if !rustix::process::geteuid().is_root() {
            println!("NOT TESTED: rights of groups, which takes root");
            return;
        }
        let place = Place::new("krb5-groups");
        let map = place.path("map");
        let ids: Vec<String> = (FIRST..FIRST + GROUPS).map(|id| id.to_string()).collect();
        private_file(&map, &format!("alice@SPIN.TEST {ALICE} {ALICE},{}\n", ids.join(",")));
        let options = [format!("--keytab={}", home.path("nfs.keytab")), format!("--gss-map={map}")];
        let export = place.export(",sec=krb5i");
        let _server = place.serve(&[&options[0][..], &options[1], &export]);
        let (alice, bob) = (home.kinit("alice", &["-l", "3h"]), home.kinit("bob", &["-l", "3h"]));
        for group in [FIRST, FIRST + 16, FIRST + GROUPS - 1, FIRST + GROUPS] {
            let path = place.data().join(group.to_string());
            let content = file(&path, 1000);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o040)).unwrap();
            chown(&path, Some(0), Some(group)).unwrap();
            let target = place.target(&format!("/{group}"));
            let read = |cache: &str| with_cache(cache, &["cat", &target, "--sec", "krb5i"]);
            if group < FIRST + GROUPS {
                assert_eq!(done(&read(&alice)), content, "{group}");
            } else {
                assert_refused(&read(&alice), 4, &["NFS3ERR_ACCES"]);
            }
            assert_refused(&read(&bob), 4, &["NFS3ERR_ACCES"]);
        }
    });
}
