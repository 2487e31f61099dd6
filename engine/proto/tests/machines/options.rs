//! RDMA2_OPTIONAL where no extension is known (draft-cel-nfsv4-rpcrdma-version-two-01 sections 3.1 and 4.2).

use spinrpc_proto::rpc::Direction::{Call, Reply};

use crate::prelude::*;
use crate::two::{
    Proto, UNKNOWN, both_ways, call, end, optional, optional_with, plain_call, plain_reply, receive,
};

const XID: Xid = Xid(0xaabb_ccdd);
const REFUSED: Event = Event::Error(XID, 2, RdmaError::InvalidOption);

fn server() -> Proto {
    end(Side::Server, Versions::Both, 2)
}

/// A client that was granted two credits.
fn client() -> Proto {
    let mut client = end(Side::Client, Versions::Two, 2);
    let (first, _) = call(&mut client, 0);
    receive(&mut client, &plain_reply(first.xid));
    client
}

#[test]
fn receive_an_unknown_option_expect_invalid_option_with_its_xid() {
    // Section 3.1: "it MUST send an RPC-over-RDMA message with the `rdma_xid` field set to the same
    // value [...] and the `rdma_err` field set to `RDMA2_ERR_INVALID_OPTION`".
    for mut server in [server(), both_ways(Side::Server), both_ways(Side::Client)] {
        let long = [optional(Call, UNKNOWN, XID, &[]), vec![0; 900]].concat();
        for payload in [&[][..], &[0; 4], &rpc_call(XID)] {
            for option in [0, 1, UNKNOWN, u32::MAX] {
                assert_eq!(receive(&mut server, &optional(Call, option, XID, payload)), [REFUSED]);
            }
        }
        assert_eq!(receive(&mut server, &long), [REFUSED], "whatever stands in it");
        assert_eq!(server.responder.in_progress(), 0);
        delivered(&receive(&mut server, &plain_call(XID)));
    }
}

#[test]
fn receive_an_unknown_option_of_direction_reply_expect_it_dropped() {
    // An error would be taken for the answer to a call of the peer with the same XID.
    for option in [0, UNKNOWN, u32::MAX] {
        let mut client = client();
        let (started, _) = call(&mut client, 7);
        let events = receive(&mut client, &optional(Reply, option, started.xid, &[]));
        assert_eq!(events, [Event::Dropped(Dropped::UnknownOption)]);
        assert_eq!(replied(&receive(&mut client, &plain_reply(started.xid))), 7);
        let events = receive(&mut client, &optional(Reply, option, started.xid, &[]));
        assert_eq!(events, [Event::Dropped(Dropped::UnmatchedReply)]);
    }
}

#[test]
fn where_messages_go_one_way_an_option_of_the_other_is_dropped() {
    let dropped = [Event::Dropped(Dropped::WrongDirection)];
    assert_eq!(receive(&mut client(), &optional(Call, UNKNOWN, XID, &[])), dropped);
    assert_eq!(receive(&mut server(), &optional(Reply, UNKNOWN, XID, &[])), dropped);
}

#[test]
fn unknown_options_are_no_malformed_headers() {
    let mut server = server();
    for _ in 0..200 {
        assert_eq!(receive(&mut server, &optional(Call, UNKNOWN, XID, &[])), [REFUSED]);
    }
}

#[test]
fn receive_invalid_option_expect_the_call_to_end_with_it() {
    let mut client = client();
    let (started, _) = call(&mut client, 7);
    let events = receive(&mut client, &rdma_error(started.xid, 2, &[3]));
    let failure = CallFailure::Rdma(RdmaError::InvalidOption);
    assert_eq!(events, [Event::Failed { slot: started.slot, token: 7, failure, fenced: false }]);
}

#[test]
fn version_one_has_no_options() {
    let unknown_type = [Event::Error(XID, 1, RdmaError::Chunk)];
    assert_eq!(receive(&mut server(), &wire(&[XID.0, 1, 1, 5, 0, UNKNOWN, 0])), unknown_type);
}

#[test]
fn information_is_as_long_as_its_message() {
    // Version two section 3.1: its content "is not defined in the base [...] protocol", and its XDR has
    // no bound: `opaque rdma_optinfo<>`.
    for length in [0, 511, 512, 513, 996, 4068, 65_000] {
        let message = optional_with(Call, UNKNOWN, &vec![7; length], XID, &[]);
        assert_eq!(receive(&mut server(), &message), [REFUSED], "{length} bytes");
    }
}
