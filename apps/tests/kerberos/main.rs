//! spin-nfs and spin-nfsd with Kerberos, over shared memory, in a realm that is made for each test.
//!
//! Needs krb5-kdc, krb5-admin-server and krb5-user.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod by_tcp;
#[path = "../common/mod.rs"]
mod common;
mod contexts;
mod errors;
mod keys;
#[allow(dead_code, reason = "what other tests of it need beyond this")]
#[path = "../../../engine/gss/tests/kerberos/realm.rs"]
mod realm;
#[allow(dead_code, reason = "what other tests of it need beyond this")]
#[path = "../nfsd_program/server.rs"]
mod server;
mod services;
mod users;

use realm::Home;
use serde_json::Value;
use server::{Place, Server};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

pub(crate) const AES256: &str = "aes256-cts-hmac-sha1-96";
pub(crate) const CLIENT: &str = env!("CARGO_BIN_EXE_spin-nfs");

/// A check that depends on no file of this host: that of the usual key of handles can be of another user, or be replaced meanwhile.
pub(crate) const CHECK: [&str; 3] =
    ["--listen=shm:unused", "--check", "--state=/nonexistent/state"];

/// User and group of alice, by the map.
pub(crate) const ALICE: u32 = 4242;

/// A server in the realm, with more options.
pub(crate) fn serve(place: &Place, home: &Home, options: &[&str]) -> Server {
    let map = place.path("map");
    private_file(&map, &format!("alice@SPIN.TEST {ALICE} {ALICE},7\n"));
    let keytab = format!("--keytab={}", home.path("nfs.keytab"));
    let map = format!("--gss-map={map}");
    place.serve(&[&[&keytab[..], &map], options].concat())
}

/// A file that no other user may read or change, whatever the umask.
pub(crate) fn private_file(path: &str, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// spin-nfs with the tickets of this cache.
pub(crate) fn with_cache(cache: &str, arguments: &[&str]) -> Output {
    client(cache, arguments).output().unwrap()
}

/// The same before it is started.
pub(crate) fn client(cache: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(CLIENT);
    command.env("KRB5CCNAME", cache).args(arguments);
    if !arguments.contains(&"--gss-host") {
        command.args(["--gss-host", "localhost"]);
    }
    command
}

/// Standard output of one that must succeed.
#[track_caller]
pub(crate) fn done(output: &Output) -> Vec<u8> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout.clone()
}

/// One that must fail with this code and these words.
#[track_caller]
pub(crate) fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert!(words.iter().all(|word| line.contains(word)), "{line}: not {words:?}");
}

pub(crate) fn owner(cache: &str, target: &str, sec: &str) -> (Value, Value) {
    let output = with_cache(cache, &["getattr", "--json", target, "--sec", sec]);
    let shown: Value = serde_json::from_slice(&done(&output)).unwrap();
    (shown["uid"].clone(), shown["gid"].clone())
}
