//! RDMA2_OPTIONAL of version two, against raw peers: engines know no extension
//! (draft-cel-nfsv4-rpcrdma-version-two-01 section 3.1).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::caller::{Caller, SharedHeard, all_words, client_config, recorder, run_core};
use common::program::ECHO;
use common::raw::{RawListener, RawPeer};
use common::{LIMIT, PROGRAM, Server, VERSION, small_with, unique_address, valid};
use spinrpc::config::Versions;
use spinrpc::{CallSpec, Engine, Token};
use std::time::Instant;

const XID: u32 = 0x77;

/// RDMA2_OPTIONAL of an unknown option, with four bytes of information.
fn optional(xid: u32, direction: u32, payload: &[u32]) -> Vec<u32> {
    [&[xid, 2, 8, 5, direction, 99, 4, 0x6162_6364], payload].concat()
}

#[test]
fn receive_an_option_expect_invalid_option_and_the_next_call_served() {
    let server = Server::with(small_with(|raw| raw.rpc.version = Versions::Both));
    let mut peer = RawPeer::connect(&server.address);
    let rpc = [XID, 0, 2, PROGRAM.0, VERSION.0, 0, 0, 0, 0, 0];
    for payload in [&[][..], &[1], &rpc] {
        peer.send_words(&optional(XID, 0, payload));
        let answer = peer.hear().words();
        assert_eq!((&answer[..2], &answer[3..]), (&[XID, 2][..], &[4, 3][..]), "INVALID_OPTION");
    }
    peer.send_words(&optional(XID, 1, &[]));
    peer.send_words(&[&[XID, 2, 1, 0, 0, 0, 0, 0][..], &rpc].concat());
    assert_eq!(peer.hear().words()[3], 0, "one of direction REPLY is dropped");
}

#[test]
fn receive_an_option_for_a_call_expect_it_dropped_and_the_reply_taken() {
    let address = unique_address();
    let listener = RawListener::at(&address);
    let mut raw = client_config();
    raw.rpc.version = Versions::Two;
    let engine = Engine::new(valid(raw)).unwrap();
    let mut core = engine.core(0).unwrap();
    let heard = SharedHeard::<Vec<u32>>::default();
    let made = recorder(&heard, all_words);
    let client = core.connect(&address, PROGRAM, VERSION, |_| made).unwrap();
    let mut peer = listener.accept();
    let success = |xid| [xid, 2, 8, 0, 1, 0, 0, 0, xid, 1, 0, 0, 0, 0];
    let end = Instant::now() + LIMIT;
    while !client.is_up() {
        core.poll_once();
        if let Some(said) = peer.poll() {
            peer.send_words(&success(said.words()[0]));
        }
        assert!(Instant::now() < end, "the first call was not answered");
    }
    let mut caller = Caller { client, heard, core, engine };
    caller.client.call(ECHO, Token(5), &mut CallSpec::short(), |_| {}).unwrap();
    caller.core.poll_once();
    let xid = peer.hear().words()[0];
    peer.send_words(&optional(xid, 1, &[]));
    let engine = caller.engine.clone();
    run_core(&mut caller.core, "the drop", || engine.stats(0).unwrap().messages_dropped == 1);
    peer.send_words(&success(xid));
    assert!(caller.reply().is_ok());
}
