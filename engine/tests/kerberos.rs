//! Calls between two engines under contexts of Kerberos, in a realm that is made for the test.
//!
//! Needs krb5-kdc, krb5-admin-server and krb5-user.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;
#[allow(dead_code, reason = "what the tests of contexts need beyond this")]
#[path = "../gss/tests/kerberos/realm.rs"]
mod realm;

use common::prelude::*;
use realm::{Home, in_realm};
use spinrpc::gss::{AcceptorOptions, GssAcceptor, GssInitiator, GssService};
use spinrpc::gss::{InitiatorOptions, Kerberos};

/// The principal, the service and the argument come back.
struct Who;

impl Service for Who {
    fn call(&mut self, mut call: Call<'_>) {
        let who = match call.identity() {
            Identity::Gss { principal, service } => format!("{principal} {service:?} "),
            other => format!("{other:?} "),
        };
        let said = call.args().opaque(1 << 20).map(<[u8]>::to_vec).unwrap_or_default();
        call.reply(|results| results.opaque(&[who.as_bytes(), &said].concat()));
    }
}

fn connect(address: &str, options: &ConnectOptions) -> Caller<Vec<u8>> {
    let (engine, mut core) = with_core(client_config());
    let heard = SharedHeard::default();
    let handler = recorder(&heard, one_opaque);
    let client = core.connect_with(address, PROGRAM, VERSION, options, |_| handler).unwrap();
    let events = std::rc::Rc::clone(&heard);
    run_core(&mut core, "an event", || !events.borrow().events.is_empty());
    Caller { client, heard, core, engine }
}

fn serve(home: &Home) -> (Running, String) {
    let server = AcceptorOptions::new().keytab(home.path("nfs.keytab")).service("nfs");
    let engine = Engine::new(valid(small())).unwrap();
    engine.serve(PROGRAM, VERSION, |_| Who).unwrap();
    let acceptor = GssAcceptor::new(Kerberos::acceptor(server).unwrap());
    engine.gss(acceptor.require(GssService::None)).unwrap();
    let address = listening(&engine);
    (engine.start().unwrap(), address)
}

#[test]
fn engines_call_each_other_as_principals_of_a_realm() {
    in_realm("aes256-cts-hmac-sha1-96", |home| {
        let (_running, address) = serve(home);
        let cache = home.kinit("alice", &["-l", "3h"]);
        let user = |target: &str, service| {
            let user = Kerberos::initiator(InitiatorOptions::new().cache(&cache)).unwrap();
            ConnectOptions::new().gss(GssInitiator::new(user, target).service(service))
        };
        for service in [GssService::None, GssService::Integrity, GssService::Privacy] {
            let mut caller = connect(&address, &user("nfs@localhost", service));
            for length in [0, 100, 20_000] {
                let data = pattern(1, length);
                let mut spec = CallSpec::new().reply_bytes_max(length + 100);
                let write = |args: &mut spinrpc::Encoder<'_>| args.opaque(&data);
                caller.client.call(Procedure(1), Token(1), &mut spec, write).unwrap();
                let expected = format!("alice@SPIN.TEST {service:?} ");
                assert_eq!(caller.reply().unwrap(), [expected.as_bytes(), &data].concat());
            }
        }
        // A service that the KDC knows, and the server has no key of.
        let refused = connect(&address, &user("nfs@absent", GssService::Privacy));
        let heard = refused.heard.borrow();
        assert!(matches!(heard.events[..], [ConnectionEvent::ConnectFailed { .. }]));
    });
}

/// Each with a KDC of its own: a user of one calls the server of the other, which hears of which realm.
#[test]
fn a_user_of_another_realm_is_named_with_that_realm() {
    for enctype in ["aes256-cts-hmac-sha1-96", "aes256-cts-hmac-sha384-192"] {
        in_realm(enctype, |home| {
            let _other = home.trust_another(&["alice"]);
            let (_running, address) = serve(home);
            for user in ["alice@OTHER.TEST", "alice@SPIN.TEST"] {
                let cache = match user.strip_suffix("@SPIN.TEST") {
                    Some(own) => home.kinit(own, &["-l", "3h"]),
                    None => home.kinit(user, &["-l", "3h"]),
                };
                let mechanism = Kerberos::initiator(InitiatorOptions::new().cache(&cache)).unwrap();
                let with = GssInitiator::new(mechanism, "nfs@localhost");
                let with = ConnectOptions::new().gss(with.service(GssService::Privacy));
                let mut caller = connect(&address, &with);
                let data = pattern(1, 20_000);
                let mut spec = CallSpec::new().reply_bytes_max(data.len() + 100);
                let write = |args: &mut spinrpc::Encoder<'_>| args.opaque(&data);
                caller.client.call(Procedure(1), Token(1), &mut spec, write).unwrap();
                let expected = format!("{user} Privacy ");
                assert_eq!(caller.reply().unwrap(), [expected.as_bytes(), &data].concat());
            }
        });
    }
}
