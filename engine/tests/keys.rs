//! Every key of the configuration has its documented effect: for each, the test that fails if the
//! engine ignores it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;
#[path = "keys/host.rs"]
mod host;
#[path = "keys/messages.rs"]
mod messages;
#[path = "keys/turns.rs"]
mod turns;

use spinrpc::config::{KEYS, Key};
use std::path::Path;

/// Key, file below `engine` and test: it sets the key to another value than its default and checks the
/// effect. Effects that show only on a device are checked in the attributes that its driver is
/// given, and in the guest (`fabric/src/verbs/tests`).
const EFFECTS: &str = "\
cores.list               tests/keys/host.rs::a_core_runs_on_the_cpu_of_the_list
cores.max                tests/keys/host.rs::auto_takes_as_many_cores_as_the_most
poll.mode                tests/keys/turns.rs::a_busy_core_never_sleeps_and_one_in_mode_sleep_does_at_once
poll.budget              tests/keys/turns.rs::a_turn_takes_no_more_events_of_a_source_than_the_budget
poll.spin_us             src/reactor/types/idle.rs::the_phases_are_as_long_as_configured
poll.park_us             tests/keys/turns.rs::an_idle_core_in_mode_sleep_leaves_its_cpu_to_others
mem.arena_mib            tests/keys/host.rs::an_arena_holds_as_many_blocks_as_its_size_has_room_for
mem.conn_arena_mib       tests/api/ddp.rs::a_client_short_of_memory_gets_no_buffer_and_goes_on_after_replies
mem.bulk                 tests/api/copies.rs::with_copies_the_application_never_sees_memory_that_the_peer_can_write
mem.hugepages            tests/keys/host.rs::an_arena_of_huge_pages_is_had_or_refused_by_name
mem.lock                 tests/keys/host.rs::an_arena_is_locked_or_refused_by_name
rpc.protocol             tests/api/reads.rs::an_rfc_8166_client_of_an_rfc_5666_server_loses_its_connection_for_a_reason
rpc.version              tests/api/versions.rs::ends_with_a_version_in_common_speak_the_highest
rpc.credits              tests/api/calls.rs::a_depth_of_one_or_of_many_credits_is_kept
rpc.reverse_calls        tests/api/reverse.rs::the_first_call_in_reverse_goes_alone_and_then_as_many_as_are_granted
rpc.ccp                  tests/api/config_protocol/both.rs::a_connection_is_configured_when_one_end_asks_and_the_other_serves
rpc.ccp_auth             tests/api/config_protocol/both.rs::a_client_with_a_weaker_flavor_goes_on_unconfigured
rpc.max_rdma_reads       tests/api/config_protocol/both.rs::a_server_that_takes_no_reads_gets_no_read_chunks
rpc.inline_send_bytes    tests/keys/messages.rs::what_is_longer_than_this_side_sends_inline_goes_by_chunk
rpc.inline_recv_bytes    tests/keys/messages.rs::what_is_longer_than_the_peer_receives_inline_goes_by_chunk
rpc.max_read_bytes       tests/api/ddp.rs::chunks_longer_in_all_than_this_side_takes_back_are_refused
rpc.max_write_bytes      tests/api/ddp.rs::chunks_longer_in_all_than_this_side_takes_back_are_refused
rpc.segment_bytes        tests/keys/messages.rs::a_buffer_longer_than_a_segment_becomes_several
rpc.max_segments         tests/keys/messages.rs::more_segments_than_a_chunk_may_have_are_refused_by_name
rpc.msgp_align_bytes     tests/api/msgp.rs::inline_data_arrive_aligned
rpc.timeout_ms           tests/api/time.rs::without_a_deadline_a_call_outlives_the_configured_one
rpc.stall_timeout_ms     tests/held_memory.rs::a_peer_that_posts_no_receives_loses_its_connection_and_the_memory_is_free
rpc.reply_cache_mib      tests/api/reply_cache/in_progress.rs::calls_in_progress_on_several_connections_expect_all_known_and_answered
rpc.on_panic             tests/panics.rs::panic_with_on_panic_end_expect_run_to_return_an_error_though_other_cores_live
fabric.driver            tests/api/drivers.rs::an_engine_on_shared_memory_refuses_addresses_of_rdma_devices
shm.ring_slots           src/api/engine/tests.rs::keys_of_shared_memory_reach_its_driver
verbs.device             fabric/src/verbs/tests/control.rs::a_device_of_another_name_is_refused
verbs.ack_timeout        src/api/engine/tests.rs::keys_of_queue_pairs_reach_the_driver_of_rdma_devices
verbs.tos                src/api/engine/tests.rs::keys_of_queue_pairs_reach_the_driver_of_rdma_devices
verbs.registration       src/api/engine/tests.rs::keys_of_memory_reach_the_driver_of_rdma_devices
verbs.connect_timeout_ms src/api/engine/tests.rs::keys_of_queue_pairs_reach_the_driver_of_rdma_devices
iwarp.crc                src/api/engine/tests.rs::keys_of_sockets_reach_their_driver
limits.conns             tests/api/calls.rs::more_connections_than_configured_are_refused_until_one_goes
limits.handshakes        tests/keys/messages.rs::one_handshake_more_than_configured_ends_the_oldest
limits.host_conns        src/api/engine/tests.rs::keys_of_connections_reach_the_driver_of_rdma_devices
limits.peer_slab_mib     tests/api/slabs.rs::more_bytes_of_slabs_than_the_server_accepts_are_refused_with_its_key
limits.peer_mib          src/api/engine/tests.rs::keys_of_shared_memory_reach_its_driver
limits.core_mib          src/api/engine/tests.rs::keys_of_shared_memory_reach_its_driver
host.cpu_dma_latency_us  tests/keys/host.rs::a_limit_of_wake_ups_is_held_as_long_as_the_engine_or_refused_by_name
stats.export             tests/control.rs::an_engine_that_exports_nothing_has_no_control_socket
";

/// Key, file and test of each line of [`EFFECTS`].
fn effects() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    EFFECTS.lines().map(|line| {
        let (key, test) = line.split_once(' ').unwrap();
        let (file, test) = test.trim_start().split_once("::").unwrap();
        (key, file, test)
    })
}

#[test]
fn every_key_has_a_test_of_its_effect() {
    for key in KEYS {
        let entries = effects().filter(|(name, ..)| *name == key.name).count();
        assert_eq!(entries, 1, "{}: write a test that fails if it is ignored", key.name);
    }
    for (name, ..) in effects() {
        assert!(Key::find(name).is_some(), "{name} is not a key any more");
    }
}

#[test]
fn every_test_of_an_effect_is_there_and_sets_its_key() {
    for (name, file, test) in effects() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(text.contains(&format!("fn {test}(")), "{name}: {file} has no {test}");
        let (_, field) = name.split_once('.').unwrap();
        assert!(text.contains(field), "{name}: {file} does not set it");
    }
}
