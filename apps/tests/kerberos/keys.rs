//! Keys of the server: which keytab and realm it takes, and what it says about them.

use crate::common::run;
use crate::realm::{Home, in_realm};
use crate::server::{PROGRAM, Place, file};
use crate::{AES256, CHECK, assert_refused, done, owner, private_file, with_cache};
use std::process::Output;

const MEMORY: &str = "--memory=m:client=local,sec=krb5p";
const NOBODY: u32 = 65_534;

fn check(options: &[&str]) -> Output {
    run(PROGRAM, &[&CHECK[..], &[MEMORY], options].concat())
}

/// The line about Kerberos.
#[track_caller]
fn said(options: &[&str]) -> String {
    let text = String::from_utf8(done(&check(options))).unwrap();
    text.lines().find(|line| line.starts_with("kerberos: ")).unwrap().to_owned()
}

fn keytab(home: &Home, name: &str) -> String {
    format!("--keytab={}", home.path(name))
}

#[test]
fn the_check_names_keytab_principals_realm_and_map() {
    in_realm(AES256, |home| {
        let place = Place::new("krb5-check");
        // That of KRB5_KTNAME, here a file of the realm's directory.
        assert_refused(&check(&[]), 1, &["Kerberos", "does not exist"]);
        home.kadmin(&format!("ktadd -norandkey -k {} nfs/localhost", home.path("default-keytab")));
        let path = home.path("default-keytab");
        let expected = format!(
            "kerberos: keytab {path}, keys of nfs/localhost@SPIN.TEST; users of realm SPIN.TEST, no map"
        );
        assert_eq!(said(&[]), expected);
        let map = place.path("map");
        private_file(&map, "a@R 1 1\nb@R 2 2\n");
        let line = said(&[&format!("--gss-map={map}"), "--realm=OTHER.TEST"]);
        assert!(line.ends_with(&format!("realm OTHER.TEST, 2 principals of map {map}")), "{line}");
    });
}

/// A keytab may have keys of several realms, each of which could be that of the host's users.
#[test]
fn the_realm_is_that_of_the_keys_in_use_and_an_ambiguous_one_is_refused() {
    in_realm(AES256, |home| {
        home.kadmin("addprinc -pw other nfs/host@OTHER.TEST");
        let both = home.path("both.keytab");
        home.kadmin(&format!("ktadd -norandkey -k {both} nfs/host@OTHER.TEST nfs/localhost"));
        let keytab = keytab(home, "both.keytab");
        let refused = check(&[&keytab]);
        assert_refused(&refused, 1, &["several realms: OTHER.TEST, SPIN.TEST", "--realm"]);
        for principal in ["nfs/localhost", "nfs/localhost@SPIN.TEST"] {
            let line = said(&[&keytab, "--principal", principal]);
            let expected = "keys of nfs/localhost@SPIN.TEST; users of realm SPIN.TEST, no map";
            assert!(line.ends_with(expected), "{line}");
        }
        let line = said(&[&keytab, "--principal=nfs/host@OTHER.TEST"]);
        assert!(line.contains("users of realm OTHER.TEST"), "{line}");
        assert!(said(&[&keytab, "--realm=SPIN.TEST"]).contains("users of realm SPIN.TEST"));
    });
}

/// Debian has a user daemon, 1: of another realm it is somebody else.
#[test]
fn users_are_those_of_the_host_in_the_realm_that_is_named_only() {
    in_realm(AES256, |home| {
        let place = Place::new("krb5-realm");
        home.kadmin("addprinc -pw daemon daemon");
        let source = place.path("source");
        file(source.as_ref(), 10);
        let cache = home.kinit("daemon", &["-l", "3h"]);
        let target = format!("{}//m/file", place.address());
        for (realm, uid) in [("OTHER.TEST", NOBODY), ("SPIN.TEST", 1)] {
            let options = [MEMORY, &keytab(home, "nfs.keytab"), "--principal=nfs/localhost"];
            let realm = format!("--realm={realm}");
            let _server = place.serve(&[&options[..], &[&realm]].concat());
            done(&with_cache(&cache, &["put", &target, &source, "--sec", "krb5p"]));
            assert_eq!(owner(&cache, &target, "krb5p").0, uid, "{realm}");
        }
    });
}
