//! The reply cache with many clients: it helps those that an export lists, and keeps no client out.

use crate::once::start_mkdir;
use crate::*;

fn returning(host: &Host) -> Session {
    Session::connect_with(host.address(), &ConnectOptions::new().reconnect(Reconnect::default()))
}

/// Each stays connected, as mounts do.
#[test]
fn more_clients_of_one_user_than_the_cache_once_had_shares_expect_all_served() {
    let host = Host::start(back_end::memory());
    let sessions: Vec<Session> = (0..20).map(|_| returning(&host)).collect();
    for (number, session) in sessions.iter().enumerate() {
        session.getattr(&host.root()).unwrap();
        session.mkdir(&host.root(), &format!("of-{number}"));
    }
    assert_eq!(host.server.stats().jukebox, 0);
}

/// No export lists the test's user.
#[test]
fn a_peer_that_no_export_lists_expect_acces_and_a_listed_one_the_same_again() {
    let back_end = back_end::memory();
    let exports = vec![host::export(MAIN, &back_end, host::open())];
    let others = ExportOptions { clients: vec![Client::Local { uid: 4_000_000 }], ..host::open() };
    let changed = || Exports::new(vec![host::export(MAIN, &back_end, others.clone())]).unwrap();
    let again = || Exports::new(vec![host::export(MAIN, &back_end, host::open())]).unwrap();
    let (without, with) = (changed(), again());
    let host = Host::with(exports, vec![back_end], &host::options());
    let session = returning(&host);
    session.mkdir(&host.root(), "before");
    host.server.replace_exports(without).unwrap();
    assert_eq!(status(session.try_mkdir(&host.root(), "refused")), nfsstat3::NFS3ERR_ACCES);
    host.server.replace_exports(with).unwrap();
    session.mkdir(&host.root(), "after");
}

/// 256 calls of one user, and a frozen export: the next call is to be tried again.
#[test]
fn as_many_calls_in_progress_as_a_user_has_places_expect_jukebox_for_the_next_until_they_are_done()
{
    let gate = Gate::closed();
    let back_end = back_end::gated(&gate);
    let exports = vec![host::export(MAIN, &back_end, host::open())];
    let mut raw = host::config().raw().clone();
    // Memory for the replies of all of them.
    raw.mem.arena_mib = 64;
    let config = raw.validate().unwrap();
    let host = Host::with_config(config, exports, vec![back_end], &host::options());
    let sessions: Vec<Session> = (0..16).map(|_| returning(&host)).collect();
    let calls = || host.server.stats().procedures[9].calls;
    let names = |client: usize| (0..16).map(move |number| format!("of-{client}-{number}"));
    for (client, session) in sessions.iter().enumerate() {
        names(client).for_each(|name| drop(start_mkdir(&host, session, &name)));
        let wanted = 16 * (client as u64 + 1);
        session.run_until("its calls to have begun", || calls() == wanted);
    }
    let last = returning(&host);
    assert_eq!(status(last.try_mkdir(&host.root(), "later")), nfsstat3::NFS3ERR_JUKEBOX);
    assert_eq!(host.server.stats().jukebox, 1);
    gate.let_in();
    // The others end one after the other meanwhile.
    while let Err((told, _)) = last.try_mkdir(&host.root(), "later") {
        assert_eq!(told, nfsstat3::NFS3ERR_JUKEBOX);
    }
    for name in (0..16).flat_map(names) {
        last.lookup(&host.root(), &name).unwrap();
    }
    let stats = host.server.stats();
    assert_eq!(stats.procedures[9].errors, stats.jukebox, "only those to be tried again");
}
