//! Long calls that end in any turn, by their client or with their connection, while threads seal and open their arguments and
//! results at both ends.

use super::long_bodies::{AT_ONCE, LONG, Turned};
use super::*;

/// Turns in which calls end. How far a call has come by then is up to the threads; the last ones have time for all of it.
const TURNS: usize = 350;
/// So few MiB that memory which is not given back is missed: each call takes one or two blocks of 256 KiB at each end.
const ARENA_MIB: u64 = 16;

/// Turns between the ends of two calls. Each takes a new connection and context, for which sanitizers need long.
const EVERY: usize = if cfg!(sanitized) { 15 } else { 5 };

/// A call ends in this way in one turn of each [`EVERY`]; nothing that it held is missing afterwards.
fn end_in_any_turn(service: GssService, end: impl Fn(&Turned, usize, spinrpc::CallId)) {
    let data = pattern(3, LONG);
    let mut all = Turned::start_as(|raw| {
        raw.fixed.gss_at_once_bytes = AT_ONCE as u64;
        raw.mem.arena_mib = ARENA_MIB;
    });
    let engine = engine(small_with(|raw| {
        raw.fixed.gss_at_once_bytes = AT_ONCE as u64;
        raw.mem.arena_mib = ARENA_MIB;
    }));
    let with = options(keys(Enctype::Aes256Sha1, "alice"), service);
    let index = all.join(engine, &with.reconnect(Reconnect::default()));
    let other = all.connect(service, AT_ONCE as u64);
    let client = all.callers[index].client.clone();
    let (mut calls, mut whole) = (0, 0);
    for turns in (0..TURNS).step_by(EVERY) {
        let mut spec = CallSpec::new().reply_bytes_max(LONG + 64);
        let call = client.call(ECHO, Token(7), &mut spec, |args| args.opaque(&data)).unwrap();
        let mut left = turns;
        all.turn_until("its turn", |_| {
            left = left.saturating_sub(1);
            left == 0
        });
        end(&all, index, call);
        calls += 1;
        all.wait_until("its end", |all| all.answered(index) == calls);
        all.wait_until("a context", |all| all.callers[index].client.is_up());
        whole += usize::from(all.heard(index).pop() == Some(Ok(data.clone())));
    }
    let heard = all.heard(index);
    assert_eq!(heard.iter().filter(|heard| heard.is_ok()).count(), whole, "{service:?}");
    // The first ones could not have ended before.
    assert!(whole < calls, "{service:?}: {whole} of {calls}");
    for index in [index, other] {
        let before = all.answered(index);
        all.call(index, ECHO, &data);
        all.turn_until("a reply", |all| all.answered(index) > before);
        assert_eq!(all.heard(index).pop(), Some(Ok(data.clone())), "{service:?}");
    }
    assert_eq!((client.in_flight(), all.answered(index)), (0, calls + 1), "{service:?}");
    assert_eq!(all.engine.gss_stats().refused_replay, 0);
}

#[test]
fn a_call_that_is_cancelled_in_any_turn_leaves_nothing_behind_at_either_end() {
    for service in [GssService::Integrity, GssService::Privacy] {
        // One that has ended cannot be cancelled.
        end_in_any_turn(service, |all, index, call| {
            let _ = all.callers[index].client.cancel(call);
        });
    }
}

#[test]
fn a_connection_that_ends_in_any_turn_of_a_long_call_leaves_nothing_behind_at_either_end() {
    for service in [GssService::Integrity, GssService::Privacy] {
        end_in_any_turn(service, |all, index, _| all.callers[index].client.reconnect());
    }
}
