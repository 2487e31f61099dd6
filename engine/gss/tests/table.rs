//! The contexts of a process: handles, bounds, eviction.
#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use spinrpc_gss::context::{Context, Established};
use spinrpc_gss::table::{ContextTable, Handle, TableLimits};
use spinrpc_gss::{Enctype, Role, SessionKey};
use spinrpc_proto::ids::Instant;
use std::collections::HashSet;
use std::sync::Arc;

const IDLE: u64 = 1_000;
const LIMITS: TableLimits = TableLimits { contexts: 32, idle: IDLE, unused: u64::MAX };
const HOST: u64 = 7;

fn context(peer: &str, expires: u64) -> Arc<Context> {
    let key = SessionKey::new(Enctype::Aes128Sha1, &[1; 16]).unwrap();
    let (expires, peer) = (Instant(expires), peer.to_owned());
    let established = Established { key, acceptor_subkey: true, expires, peer };
    Arc::new(Context::new(Role::Acceptor, established))
}

fn table() -> ContextTable {
    ContextTable::new(LIMITS, *b"process1")
}

fn insert(table: &ContextTable, host: u64, now: u64) -> Handle {
    table.insert(context(&format!("user{host}"), u64::MAX), host, Instant(now))
}

fn peer(table: &ContextTable, handle: &Handle, now: u64) -> Option<String> {
    table.find(handle, Instant(now)).map(|context| context.peer().to_owned())
}

#[test]
fn a_context_is_found_by_its_handle_until_it_is_removed() {
    let table = table();
    assert!(table.is_empty());
    let (one, two) = (insert(&table, 1, 0), insert(&table, 2, 0));
    assert_eq!(peer(&table, &one, 1), Some("user1".to_owned()));
    assert_eq!(peer(&table, &two, 1), Some("user2".to_owned()));
    assert_eq!(table.len(), 2);
    assert!(table.remove(&one));
    assert!(!table.remove(&one));
    assert_eq!((peer(&table, &one, 1), table.len()), (None, 1));
}

#[test]
fn handles_of_others_find_nothing() {
    let (table, other) = (table(), ContextTable::new(LIMITS, *b"process2"));
    let handle = insert(&table, 1, 0);
    assert_eq!(peer(&other, &handle, 1), None, "a handle of the process before");
    for bit in 0..handle.len() * 8 {
        let mut altered = handle;
        altered[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(peer(&table, &altered, 1), None, "bit {bit}");
        assert!(!table.remove(&altered), "bit {bit}");
    }
    for length in 0..handle.len() {
        assert!(table.find(&handle[..length], Instant(1)).is_none());
    }
    assert!(table.find(&[&handle[..], &[0]].concat(), Instant(1)).is_none());
    assert!(peer(&table, &handle, 1).is_some());
}

#[test]
fn a_slot_used_again_has_another_handle() {
    let table = table();
    let mut handles = HashSet::new();
    for _ in 0..100 {
        let handle = insert(&table, 1, 0);
        assert!(handles.insert(handle), "a handle came twice");
        assert!(table.remove(&handle));
    }
    assert!(handles.iter().all(|handle| peer(&table, handle, 1).is_none()));
}

#[test]
fn contexts_expire_and_idle_ones_go() {
    let table = table();
    let handle = table.insert(context("short", 500), HOST, Instant(0));
    assert_eq!(peer(&table, &handle, 499), Some("short".to_owned()));
    assert_eq!(peer(&table, &handle, 500), None);
    let handle = insert(&table, 1, 0);
    assert!(peer(&table, &handle, IDLE - 1).is_some());
    assert!(peer(&table, &handle, 2 * IDLE - 2).is_some(), "it was used meanwhile");
    assert!(peer(&table, &handle, 3 * IDLE - 2).is_none());
    assert_eq!(table.len(), 2);
    assert_eq!(table.sweep(Instant(3 * IDLE)), 2);
    assert!(table.is_empty());
}

#[test]
fn a_full_table_gives_up_the_context_idle_longest() {
    let table = table();
    let handles: Vec<Handle> = (0..32).map(|host| insert(&table, host, host)).collect();
    assert!(peer(&table, &handles[0], 50).is_some(), "used last");
    let next = insert(&table, 100, 60);
    assert_eq!(table.len(), 32);
    assert!(peer(&table, &handles[1], 61).is_none(), "idle longest");
    assert!(peer(&table, &handles[0], 61).is_some() && peer(&table, &next, 61).is_some());
    assert!(handles[2..].iter().all(|handle| peer(&table, handle, 61).is_some()));
}

/// A dead context goes before one that is in use.
#[test]
fn a_full_table_gives_up_dead_contexts_first() {
    let table = table();
    let dead = table.insert(context("dead", 40), 200, Instant(39));
    let handles: Vec<Handle> = (0..31).map(|host| insert(&table, host, host)).collect();
    insert(&table, 100, 60);
    assert!(peer(&table, &dead, 39).is_none());
    assert!(handles.iter().all(|handle| peer(&table, handle, 61).is_some()));
}

/// A host that establishes contexts without end takes an eighth, its own.
#[test]
fn one_host_evicts_its_own_contexts() {
    let table = table();
    let others: Vec<Handle> = (0..8).map(|host| insert(&table, host, 0)).collect();
    let flood: Vec<Handle> = (1..=100).map(|now| insert(&table, HOST + 100, now)).collect();
    assert_eq!(table.len(), 8 + 4);
    assert!(others.iter().all(|handle| peer(&table, handle, 101).is_some()));
    let live = flood.iter().filter(|handle| peer(&table, handle, 101).is_some());
    assert_eq!(live.collect::<Vec<_>>(), flood[96..].iter().collect::<Vec<_>>());
}

#[test]
fn threads_find_what_others_insert() {
    let table =
        ContextTable::new(TableLimits { contexts: 1024, idle: u64::MAX, unused: u64::MAX }, [3; 8]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let table = &table;
            scope.spawn(move || {
                for number in 0..50 {
                    let host = thread * 1000 + number;
                    let handle = insert(table, host, 1);
                    assert_eq!(peer(table, &handle, 2), Some(format!("user{host}")));
                    assert_eq!(number % 2 == 0, number % 2 == 0 && table.remove(&handle));
                }
            });
        }
    });
    assert_eq!(table.len(), 4 * 25);
}

/// Forged calls name it, too, and do not keep it.
#[test]
fn a_context_that_no_call_has_proved_has_a_shorter_time() {
    let limits = TableLimits { contexts: 16, idle: 1_000, unused: 100 };
    let table = ContextTable::new(limits, [4; 8]);
    let handle = insert(&table, 1, 10);
    for now in [11, 60, 109] {
        assert!(table.find(&handle, Instant(now)).is_some(), "{now}");
    }
    assert!(table.find(&handle, Instant(110)).is_none());
    assert_eq!(table.sweep(Instant(110)), 1);
}
