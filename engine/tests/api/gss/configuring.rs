//! The Connection Configuration Protocol under a security context (RFC 5666 section 11), with `rpc.ccp_auth = "gss"`.

use super::*;

fn server(demanded: Protection) -> Server {
    let raw =
        small_with(|raw| (raw.rpc.ccp, raw.rpc.ccp_auth) = (ConfigRole::Serve, Some(demanded)));
    Server::start_as(raw, Some(GssAcceptor::new(keys(ENCTYPE, "server"))))
}

fn asking(protection: Protection) -> RawConfig {
    client_with(|raw| (raw.rpc.ccp, raw.rpc.ccp_auth) = (ConfigRole::Ask, Some(protection)))
}

/// A client that is up, and whether the server has configured its connection.
fn connected(raw: RawConfig, address: &str, with: &ConnectOptions) -> (Caller<Vec<u8>>, bool) {
    let mut caller = Caller::asked(engine(raw), address, with, one_opaque);
    caller.come_up();
    let configured = is_configured(&caller);
    (caller, configured)
}

fn is_configured(caller: &Caller<Vec<u8>>) -> bool {
    let heard = caller.heard.borrow();
    let mut up = heard.events.iter().filter_map(|event| match event {
        ConnectionEvent::Up { negotiated, .. } => Some(negotiated.is_configured()),
        _ => None,
    });
    up.next().unwrap()
}

#[test]
fn a_connection_is_configured_under_a_context_that_protects_it() {
    let server = server(Protection::Gss);
    for service in SERVICES {
        let with = options(keys(ENCTYPE, "alice"), service);
        let (mut caller, configured) = connected(asking(Protection::Gss), &server.address, &with);
        assert_eq!(configured, service != GssService::None, "{service:?}");
        for bytes in [64, 5000, 100_000] {
            let data = pattern(3, bytes);
            assert_eq!(call(&mut caller, ECHO, &data).unwrap(), data, "{service:?}");
        }
    }
    let stats = server.engine.gss_stats();
    assert_eq!((stats.calls_none, stats.calls_integrity, stats.calls_privacy), (3, 4, 4));
}

/// Somebody on the way would lower a connection's limits, or raise them.
#[test]
fn an_answer_that_is_not_the_servers_configures_nothing() {
    let all = [
        Spoils::Nothing,
        Spoils::Verifier,
        Spoils::Number,
        Spoils::VerifierBit,
        Spoils::BodyBit,
        Spoils::Frame,
        Spoils::Body,
    ];
    for service in [GssService::Integrity, GssService::Privacy] {
        for spoils in all {
            let client = FalseServer::configure(asking(Protection::Gss), service, spoils);
            let is_whole = spoils == Spoils::Nothing;
            assert_eq!(is_configured(&client), is_whole, "{service:?} {spoils:?}");
            let forged = client.engine.gss_stats().replies_forged;
            assert_eq!(forged, u64::from(!is_whole), "{service:?} {spoils:?}");
        }
    }
}
