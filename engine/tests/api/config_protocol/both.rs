//! Two engines: every combination of serving and asking, and the agreed parameters.

use crate::common::prelude::*;
fn pair(
    server: impl FnOnce(&mut RawConfig),
    client: impl FnOnce(&mut RawConfig),
) -> (Server, Caller<crate::common::caller::MixAnswer>) {
    let stated = |raw: &mut RawConfig| raw.rpc.ccp_auth = Some(Protection::Sys);
    let server = Server::with(small_with(|raw| {
        stated(raw);
        server(raw);
    }));
    let mut raw = client_config();
    stated(&mut raw);
    client(&mut raw);
    let caller = Caller::connect_with(raw, &server.address, MixCall::read);
    (server, caller)
}

/// Parameters in the client's only event, that its connection came up.
#[track_caller]
fn up<T>(caller: &Caller<T>) -> Negotiated {
    match &caller.heard.borrow().events[..] {
        [ConnectionEvent::Up { negotiated, .. }] => *negotiated,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn expect_traffic(caller: &mut Caller<crate::common::caller::MixAnswer>) {
    let call = MixCall {
        seed: 9,
        arguments: vec![60_000, 3],
        results: vec![50_000],
        offers: vec![50_000],
        tail: 5000,
        reply_bytes_max: 6000,
    };
    for _ in 0..20 {
        call.start(&caller.client, 1).unwrap();
        let answer = caller.reply().unwrap();
        call.check(&answer);
        assert_eq!((answer.in_memory & 1, answer.placed), (1, 1));
    }
}

#[test]
fn a_connection_is_configured_when_one_end_asks_and_the_other_serves() {
    use ConfigRole::{Ask, Both, Off, Serve};
    for (serves, asks, configured) in [
        (Serve, Ask, true),
        (Both, Both, true),
        (Off, Ask, false),
        (Ask, Ask, false),
        (Serve, Off, false),
        (Serve, Serve, false),
    ] {
        let (server, mut caller) = pair(|raw| raw.rpc.ccp = serves, |raw| raw.rpc.ccp = asks);
        assert_eq!(up(&caller).is_configured(), configured, "{serves:?} {asks:?}");
        expect_traffic(&mut caller);
        server.wait_for("one connection", |stats| stats.connections_opened == 1);
    }
}

/// draft-ietf-nfsv4-rpcrdma-00 and -03 section 6.1: "This protocol will be used for connection setup
/// prior to the use of another RPC protocol".
#[test]
fn under_the_drafts_a_connection_is_configured_unless_it_is_switched_off() {
    use ConfigRole::{Auto, Off};
    for (protocol, ccp, configured) in [
        (Profile::Draft00, Auto, true),
        (Profile::Draft03, Auto, true),
        (Profile::Draft03, Off, false),
        (Profile::Rfc5666, Auto, false),
        (Profile::Rfc8166, Auto, false),
    ] {
        let set = |raw: &mut RawConfig| (raw.rpc.protocol, raw.rpc.ccp) = (protocol, ccp);
        let (_server, mut caller) = pair(set, set);
        assert_eq!(up(&caller).is_configured(), configured, "{protocol:?} {ccp:?}");
        expect_traffic(&mut caller);
    }
}

#[test]
fn a_client_with_a_weaker_flavor_goes_on_unconfigured() {
    let (_server, mut caller) = pair(
        |raw| raw.rpc.ccp = ConfigRole::Serve,
        |raw| (raw.rpc.ccp, raw.rpc.ccp_auth) = (ConfigRole::Ask, Some(Protection::None)),
    );
    assert!(!up(&caller).is_configured());
    expect_traffic(&mut caller);
}

/// The values of RFC 8797 and of this protocol come from the same configuration: neither raises the
/// values of the other, and both ends see the same.
#[test]
fn sizes_are_the_minimum_of_all_that_was_said() {
    for (server_bytes, client_bytes) in [(1024, 8192), (8192, 1024), (2048, 2048)] {
        let (_server, mut caller) = pair(
            |raw| {
                raw.rpc.ccp = ConfigRole::Serve;
                (raw.rpc.inline_recv_bytes, raw.rpc.inline_send_bytes) = (server_bytes, 4096);
            },
            |raw| {
                raw.rpc.ccp = ConfigRole::Ask;
                (raw.rpc.inline_send_bytes, raw.rpc.inline_recv_bytes) = (client_bytes, 3072);
            },
        );
        let negotiated = up(&caller);
        assert_eq!(negotiated.send_bytes_max() as u64, server_bytes.min(client_bytes));
        assert_eq!(negotiated.recv_bytes_max(), 3072);
        assert_eq!(negotiated.msgp_align_bytes(), Some(64));
        expect_traffic(&mut caller);
    }
}

/// R5666-56: with one RDMA Read at a time, chunks of many segments still arrive whole.
#[test]
fn one_read_at_a_time_fetches_every_segment() {
    let many_segments = |raw: &mut RawConfig| {
        (raw.rpc.max_read_bytes, raw.rpc.max_write_bytes) = (65_536, 65_536);
        raw.rpc.segment_bytes = 8192;
        raw.rpc.max_rdma_reads = 1;
    };
    let (server, mut caller) = pair(
        |raw| raw.rpc.ccp = ConfigRole::Serve,
        |raw| {
            many_segments(raw);
            raw.rpc.ccp = ConfigRole::Ask;
        },
    );
    expect_traffic(&mut caller);
    server.wait_for("all bytes read", |stats| stats.bytes_read >= 20 * 60_000);
}

#[test]
fn a_server_that_takes_no_reads_gets_no_read_chunks() {
    let (_server, caller) = pair(
        |raw| (raw.rpc.ccp, raw.rpc.max_rdma_reads) = (ConfigRole::Serve, 0),
        |raw| raw.rpc.ccp = ConfigRole::Ask,
    );
    assert!(!up(&caller).takes_read_chunks());
    let call = MixCall { seed: 1, arguments: vec![9000], ..MixCall::default() };
    let refused = call.start(&caller.client, 1);
    assert!(matches!(refused, Err(Backpressure::NoRdmaRead { .. })), "{refused:?}");
}
