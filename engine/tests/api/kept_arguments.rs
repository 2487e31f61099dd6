//! Arguments that are kept for another thread, which answers the call.

use crate::common::prelude::*;
use std::sync::mpsc::{Receiver, sync_channel};

/// Bytes in, the same out.
const SAME: Procedure = Procedure(1);

#[test]
fn arguments_of_every_length_expect_them_whole() {
    echo_all(|_| {});
}

/// RFC 5666 section 3.9: in an RDMA_MSGP, data have padding before them.
#[test]
fn padded_arguments_expect_them_whole() {
    echo_all(|raw| {
        raw.rpc.protocol = Profile::Rfc5666;
        (raw.rpc.msgp_align_bytes, raw.fixed.msgp_threshold_bytes) = (1024, 512);
    });
}

fn echo_calls(calls: &Receiver<(KeptArguments, Deferred)>) {
    for (mut arguments, deferred) in calls {
        // Twice: the arguments can be read again.
        assert!(arguments.args().opaque(1 << 20).is_ok());
        let bytes = arguments.args().opaque(1 << 20).unwrap().to_vec();
        deferred.reply(|results| results.opaque(&bytes));
    }
}

fn echo_all(change: fn(&mut RawConfig)) {
    let changed = |mut raw: RawConfig| {
        change(&mut raw);
        raw
    };
    let engine = Engine::new(valid(changed(small_with(|_| {})))).unwrap();
    let (calls, taken) = sync_channel(4);
    let keep = move |mut call: Call<'_>| {
        // The engine's own, when it connects.
        if call.procedure() == Procedure(0) {
            return call.reply(|_| {});
        }
        let user = AuthSys::parse(call.credential().body).map(|user| user.uid);
        assert_eq!((call.credential().flavor, user), (AuthFlavor::Sys, Ok(1234)));
        let arguments = call.keep_args();
        calls.send((arguments, call.defer().unwrap())).unwrap();
    };
    engine.serve(PROGRAM, VERSION, move |_| keep.clone()).unwrap();
    let server = Server::started(engine, Default::default());
    let echo = std::thread::spawn(move || echo_calls(&taken));
    let mut caller = Caller::connect_with(changed(client_config()), &server.address, one_opaque);
    let user =
        AuthSys { stamp: 0, machine_name: b"here", uid: 1234, gid: 5, groups: Groups::default() };
    caller.client.set_auth_sys(Some(&user)).unwrap();
    for length in [0, 1, 100, 3000, 5000, 70_000] {
        for by_chunk in [false, true] {
            let bytes = pattern(length as u32, length);
            let mut spec = CallSpec::new().reply_bytes_max(length + 64);
            if by_chunk {
                let mut item = caller.client.bulk(length.max(1)).unwrap();
                item.set_len(length);
                item.bytes_mut().copy_from_slice(&bytes);
                spec = spec.argument(item);
            }
            let encode = |args: &mut Encoder<'_>| match by_chunk {
                true => args.bulk(),
                false => args.opaque(&bytes),
            };
            caller.client.call(SAME, Token(1), &mut spec, encode).unwrap();
            let echoed = caller.reply().unwrap();
            assert!(is_pattern(length as u32, &echoed) && echoed.len() == length, "{length}");
        }
    }
    server.stop();
    echo.join().unwrap();
}
