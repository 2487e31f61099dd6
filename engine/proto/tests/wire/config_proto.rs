//! The Connection Configuration Protocol (RFC 5666 section 6).

use super::prelude::*;
use spinrpc_proto::config_proto::{
    ALIGN_MAX_BYTES, BODY_BYTES, CONFIGURE, ConfigReply, ConfigRequest, PROGRAM, Protection,
    VERSION,
};

const REQUEST: ConfigRequest = ConfigRequest { call_bytes: 4096, reply_bytes: 8192, reads: 16 };
const REPLY: ConfigReply = ConfigReply { call_bytes: 2048, align_bytes: 64, reads: 4 };

/// R5666-73: "program 100417", "= 1" for its version and for CONF_RDMA. RFC 5666 section 6.2: "maxcall_sendsize;
/// maxreply_sendsize; maxrdmaread" are a request, "maxcall_sendsize; align; maxrdmaread" its reply.
#[test]
fn request_and_reply_of_program_100417_are_three_words_each() {
    assert_eq!((PROGRAM.0, VERSION.0, CONFIGURE.0), (100_417, 1, 1));
    assert_eq!(REQUEST.emit()[..], wire(&[4096, 8192, 16]));
    assert_eq!(ConfigRequest::parse(&REQUEST.emit()), Ok(REQUEST));
    assert_eq!(REPLY.emit()[..], wire(&[2048, 64, 4]));
    assert_eq!(ConfigReply::parse(&REPLY.emit()), Ok(REPLY));
}

#[test]
fn receive_a_body_cut_short_or_too_long_expect_an_error_and_where() {
    for length in 0..BODY_BYTES {
        let at = length / 4 * 4;
        let cut = Err(DecodeError::Truncated { at, wanted: 4 });
        assert_eq!(ConfigRequest::parse(&REQUEST.emit()[..length]).map(|_| ()), cut);
        assert_eq!(ConfigReply::parse(&REPLY.emit()[..length]).map(|_| ()), cut);
    }
    let long = wire(&[1, 2, 3, 4]);
    let trailing = Err(DecodeError::TrailingBytes { at: BODY_BYTES });
    assert_eq!(ConfigRequest::parse(&long).map(|_| ()), trailing);
    assert_eq!(ConfigReply::parse(&long).map(|_| ()), trailing);
}

/// R5666-58: "The client MAY use this value to compute the number of prepended pad bytes".
#[test]
fn receive_an_align_expect_it_used_only_when_pad_bytes_can_be_computed_with_it() {
    let usable = |align_bytes| ConfigReply { align_bytes, ..REPLY }.usable_align_bytes();
    for align in [4, 8, 64, ALIGN_MAX_BYTES] {
        assert_eq!(usable(align), Some(align));
    }
    for align in [0, 1, 2, 3, 12, 65, 2 * ALIGN_MAX_BYTES, 1 << 31, u32::MAX] {
        assert_eq!(usable(align), None);
    }
}

/// R5666-70: "MUST be protected by an appropriate RPC security flavor".
#[test]
fn receive_a_credential_expect_it_weighed_against_the_flavor_demanded() {
    let user = AuthSys {
        stamp: 1,
        machine_name: b"client",
        uid: 1000,
        gid: 100,
        groups: Groups::default(),
    };
    let mut body = [0; 64];
    let length = user.emit(&mut body).unwrap();
    let credential = |flavor, body| OpaqueAuth { flavor, body };
    let sys = credential(AuthFlavor::Sys, &body[..length]);
    let broken = credential(AuthFlavor::Sys, &body[..length - 4]);

    assert_eq!(Protection::None.check(&OpaqueAuth::NONE), Ok(()));
    assert_eq!(Protection::Sys.check(&OpaqueAuth::NONE), Err(AuthStat::TooWeak));
    for weak in [OpaqueAuth::NONE, sys, broken] {
        assert_eq!(Protection::Gss.check(&weak), Err(AuthStat::TooWeak));
    }
    for demanded in [Protection::None, Protection::Sys, Protection::Gss] {
        for service in [GssService::Integrity, GssService::Privacy] {
            assert_eq!(demanded.check_verified(service), Ok(()));
        }
        let unprotected = demanded.check_verified(GssService::None);
        assert_eq!(unprotected.is_ok(), demanded != Protection::Gss);
        assert_eq!(demanded.check_verified(GssService::Other(9)), Err(AuthStat::TooWeak));
    }
    for demanded in [Protection::None, Protection::Sys] {
        assert_eq!(demanded.check(&sys), Ok(()));
        assert_eq!(demanded.check(&broken), Err(AuthStat::BadCred));
        for flavor in [AuthFlavor::Short, AuthFlavor::Gss, AuthFlavor::Other(99)] {
            let strange = demanded.check(&credential(flavor, &body[..length]));
            assert_eq!(strange, Err(AuthStat::RejectedCred), "{flavor:?}");
        }
    }
}
