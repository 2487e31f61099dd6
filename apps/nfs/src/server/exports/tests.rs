//! Sets of exports, and identities of callers.

use super::*;
use crate::server::memfs::{Memory, MemoryOptions};
use spinrpc::Groups;

/// An export of an empty tree.
pub(in crate::server) fn export(id: u32, path: &str, options: &str) -> Export {
    let options = Settings::parse(options).unwrap().options;
    Export {
        id,
        path: path.to_owned(),
        file_system: Memory::new(&MemoryOptions::default()).unwrap(),
        options,
        named: NamedHosts::default(),
    }
}

fn sys_body(uid: u32, gid: u32, groups: &[u32]) -> Vec<u8> {
    let groups = Groups::new(groups).unwrap();
    let user = AuthSys { stamp: 0, machine_name: b"client", uid, gid, groups };
    let mut body = [0; 400];
    let length = user.emit(&mut body).unwrap();
    body[..length].to_vec()
}

fn admitted(options: &str, uid: u32, gid: u32, groups: &[u32]) -> (u32, u32, Vec<u32>) {
    let body = sys_body(uid, gid, groups);
    let credential = OpaqueAuth { flavor: AuthFlavor::Sys, body: &body };
    let export = export(1, "/", &format!("client=any,{options}"));
    let caller = export.admit(&Peer::Unknown, credential).unwrap();
    (caller.uid, caller.gid, caller.groups.as_slice().to_vec())
}

const NOBODY: u32 = 65_534;
const NOT_A_CLIENT: Refusal = Refusal::Status(Nfsstat3::Nfs3errAcces);
const TOO_WEAK: Refusal = Refusal::Denied(AuthStat::TooWeak);
const BAD_CREDENTIAL: Refusal = Refusal::Denied(AuthStat::BadCred);

#[test]
fn root_alone_is_squashed_by_default_in_groups_too() {
    assert_eq!(admitted("rw", 1000, 100, &[4, 24]), (1000, 100, vec![4, 24]));
    assert_eq!(admitted("rw", 0, 0, &[0, 24]), (NOBODY, NOBODY, vec![NOBODY, 24]));
    assert_eq!(admitted("anon=7:8", 0, 100, &[]), (7, 100, vec![]));
    assert_eq!(admitted("squash=none", 0, 0, &[0]), (0, 0, vec![0]));
    assert_eq!(admitted("squash=all,anon=7:8", 1000, 100, &[4]), (7, 8, vec![]));
}

#[test]
fn the_highest_number_is_always_squashed() {
    let highest = u32::MAX;
    for squash in ["root", "none"] {
        let caller = admitted(&format!("squash={squash}"), highest, highest, &[highest]);
        assert_eq!(caller, (NOBODY, NOBODY, vec![NOBODY]), "{squash}");
    }
}

#[test]
fn who_was_not_named_does_not_come_in() {
    let host = |text: &str| Peer::Host(text.parse().unwrap());
    let body = sys_body(1000, 100, &[]);
    let credential = OpaqueAuth { flavor: AuthFlavor::Sys, body: &body };
    let none = export(1, "/", "rw");
    let some = export(1, "/", "client=192.0.2.0/24,client=local:7");
    for peer in [host("192.0.2.1"), Peer::Local { uid: 7 }] {
        assert_eq!(none.admit(&peer, credential), Err(NOT_A_CLIENT));
        assert!(some.admit(&peer, credential).is_ok());
    }
    for peer in [host("198.51.100.1"), Peer::Local { uid: 0 }, Peer::Unknown] {
        assert_eq!(some.admit(&peer, credential), Err(NOT_A_CLIENT));
    }
}

#[test]
fn credentials_are_of_a_flavor_that_the_export_takes() {
    let body = sys_body(1000, 100, &[]);
    let sys = OpaqueAuth { flavor: AuthFlavor::Sys, body: &body };
    let of = |flavor| OpaqueAuth { flavor, body: &body };
    let by_sys = export(1, "/", "client=any");
    let by_none = export(1, "/", "client=any,sec=none");
    let by_both = export(1, "/", "client=any,sec=sys,sec=none,anon=7:8");
    assert_eq!(by_sys.caller(OpaqueAuth::NONE), Err(TOO_WEAK));
    assert_eq!(by_none.caller(sys), Err(TOO_WEAK));
    let anonymous = by_both.caller(OpaqueAuth::NONE).unwrap();
    assert_eq!((anonymous.uid, anonymous.gid, anonymous.groups.as_slice()), (7, 8, &[][..]));
    assert_eq!(by_both.caller(sys).map(|caller| caller.uid), Ok(1000));
    for flavor in [AuthFlavor::Short, AuthFlavor::Gss, AuthFlavor::Other(99)] {
        assert_eq!(by_both.caller(of(flavor)), Err(TOO_WEAK), "{flavor:?}");
    }
}

#[test]
fn a_proved_user_calls_under_a_flavor_of_the_export_and_is_squashed_as_any() {
    let services = [GssService::None, GssService::Integrity, GssService::Privacy];
    let user = |uid| Principal::User { uid, gid: uid, groups: CallerGroups::of_user(&[0, 24]) };
    let by = |options: &str, principal, service| {
        let caller = export(1, "/", options).caller(Claim::Proved(principal, service));
        caller.map(|caller| (caller.uid, caller.gid, caller.groups.as_slice().to_vec()))
    };
    for (at, name) in ["krb5", "krb5i", "krb5p"].into_iter().enumerate() {
        for (other, service) in services.into_iter().enumerate() {
            let caller = by(&format!("sec={name}"), user(1000), service);
            let taken = Ok((1000, 1000, vec![NOBODY, 24]));
            assert_eq!(caller, if at == other { taken } else { Err(TOO_WEAK) }, "{name}");
        }
        assert_eq!(by("sec=sys:none", user(1000), services[at]), Err(TOO_WEAK));
        let export = export(1, "/", &format!("sec={name}"));
        assert_eq!(export.caller(OpaqueAuth::NONE), Err(TOO_WEAK));
        let sys = OpaqueAuth { flavor: AuthFlavor::Sys, body: &sys_body(1000, 100, &[]) };
        assert_eq!(export.caller(sys), Err(TOO_WEAK));
    }
    let privacy = GssService::Privacy;
    assert_eq!(by("sec=krb5p,anon=7:8", user(0), privacy), Ok((7, 8, vec![8, 24])));
    assert_eq!(by("sec=krb5p,squash=none", user(0), privacy), Ok((0, 0, vec![0, 24])));
    assert_eq!(by("sec=krb5p,squash=all,anon=7:8", user(1000), privacy), Ok((7, 8, vec![])));
    let other = GssService::Other(9);
    assert_eq!(by("sec=krb5:krb5i:krb5p", user(1000), other), Err(TOO_WEAK));
}

#[test]
fn hosts_and_strangers_are_anonymous_unless_hosts_are_root() {
    let by = |options: &str, principal| {
        let claim = Claim::Proved(principal, GssService::None);
        export(1, "/", &format!("sec=krb5,anon=7:8,{options}")).caller(claim).unwrap().uid
    };
    assert_eq!((by("squash=none", Principal::Machine), by("rw", Principal::Unknown)), (7, 7));
    assert_eq!(by("machine=root", Principal::Machine), 0);
    assert_eq!(by("machine=root,squash=all", Principal::Machine), 7);
    assert_eq!(by("machine=root,squash=none", Principal::Unknown), 7);
}

#[test]
fn receive_a_malformed_credential_expect_badcred_not_a_user() {
    let export = export(1, "/", "client=any,squash=none");
    let body = sys_body(1000, 100, &[1, 2]);
    for length in 0..body.len() {
        let cut = OpaqueAuth { flavor: AuthFlavor::Sys, body: &body[..length] };
        assert_eq!(export.caller(cut), Err(BAD_CREDENTIAL), "{length} bytes");
    }
    let mut crowded = body;
    crowded[24..28].copy_from_slice(&17_u32.to_be_bytes());
    let crowded = OpaqueAuth { flavor: AuthFlavor::Sys, body: &crowded };
    assert_eq!(export.caller(crowded), Err(BAD_CREDENTIAL));
}

#[test]
fn an_export_is_found_by_its_id_and_path() {
    let all = [(7, "/srv/data"), (3, "/"), (5, "/srv")].map(|(id, path)| export(id, path, "ro"));
    let exports = Exports::new(all.to_vec()).unwrap();
    for (id, path) in [(7, "/srv/data"), (3, "/"), (5, "/srv")] {
        assert_eq!(exports.by_id(id).map(|export| &export.path[..]), Some(path));
        assert_eq!(exports.by_path(path).map(|export| export.id), Some(id));
    }
    assert_eq!(exports.iter().map(|export| export.id).collect::<Vec<_>>(), [3, 5, 7]);
    assert!(exports.by_id(4).is_none());
    let only = Exports::new(vec![export(7, "/a", "ro")]).unwrap();
    assert!(only.by_id(7).is_some() && only.by_id(6).is_none());
}

/// Test vectors published with the algorithm.
#[test]
fn an_id_is_fnv_1a_of_the_path() {
    assert_eq!((id_of(""), id_of("a"), id_of("foobar")), (0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968));
}

#[test]
fn a_path_may_have_more_slashes_but_not_go_below_or_up() {
    let exports = Exports::new(vec![export(1, "/srv/data", "ro")]).unwrap();
    for path in ["/srv/data", "/srv/data/", "//srv//data//"] {
        assert!(exports.by_path(path).is_some(), "{path}");
    }
    for path in ["", "/", "srv/data", "/srv", "/srv/data/x", "/srv/./data", "/srv/x/../data"] {
        assert!(exports.by_path(path).is_none(), "{path}");
    }
}

#[test]
fn exports_that_cannot_be_together_are_refused() {
    let together = |a: (u32, &str), b: (u32, &str)| {
        Exports::new(vec![export(a.0, a.1, "ro"), export(b.0, b.1, "ro")]).unwrap_err().to_string()
    };
    let same = together((1, "/a"), (2, "/a"));
    assert!(same.contains("/a") && same.contains("path="), "{same}");
    let same = together((1, "/a"), (1, "/b"));
    assert!(same.contains("/a") && same.contains("/b") && same.contains("id="), "{same}");
    let long = format!("/{}", "x".repeat(MNTPATHLEN as usize));
    for path in ["", "a", "/a/", "//a", "/a/./b", "/..", "/a\0", &long] {
        let error = Exports::new(vec![export(1, path, "ro")]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{path:?} cannot be mounted")), "{error}");
    }
    let many = (0..=EXPORTS_MAX as u32).map(|id| export(id, &format!("/{id}"), "ro")).collect();
    assert!(Exports::new(many).unwrap_err().to_string().starts_with("257 exports are too many"));
}
