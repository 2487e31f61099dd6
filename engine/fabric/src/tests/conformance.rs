//! Requirements on every driver, as tests: one suite, instantiated per driver.
//!
//! A driver's tests implement [`Provider`] and call [`fabric_conformance!`], which makes one test of
//! each function here. Both ends live on one thread and take turns, so every run goes the same way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test suite")]

mod connections;
mod endings;
mod keys;
mod messages;
mod pair;
mod shorts;
mod traffic;
mod transfers;

pub(crate) use connections::*;
pub(crate) use endings::*;
pub(crate) use keys::*;
pub(crate) use messages::*;
pub(crate) use pair::*;
pub(crate) use shorts::*;
pub(crate) use traffic::*;
pub(crate) use transfers::*;

use crate::mem::{Bulk, BulkClass};
use crate::*;
use std::time::{Duration, Instant};

/// Memory of a connection, as much as the suite needs.
pub(crate) fn arena() -> Vec<BulkClass> {
    [(4096, 16), (64 << 10, 16), (1 << 20, 2)]
        .map(|(block_bytes, count)| BulkClass { block_bytes, count })
        .into()
}

/// Makes a `#[test]` of every function of the suite, over the given [`Provider`].
macro_rules! fabric_conformance {
    ($provider:expr) => {
        $crate::tests::conformance::fabric_conformance!(@tests $provider;
            messages_of_every_length_arrive_as_they_were_sent,
            messages_arrive_in_the_order_of_posting,
            messages_in_both_directions_do_not_disturb_each_other,
            a_message_waits_for_a_receive_that_comes_in_time,
            a_full_send_queue_gives_the_request_back_and_loses_nothing,
            a_full_receive_queue_gives_the_buffer_back,
            a_message_fills_its_receive,
            short_messages_arrive_in_order_with_long_ones,
            a_short_message_gives_its_receive_to_who_keeps_it,
            no_more_short_messages_come_than_receives_are_posted,
            a_burst_of_short_messages_waits_for_its_receives,
            a_short_message_does_not_overtake_what_was_posted_before,
            bytes_written_before_a_send_are_there_when_it_arrives,
            a_read_brings_what_the_peer_exposes,
            reads_complete_in_order_and_with_their_ids,
            parts_of_an_exposure_can_be_read_and_written,
            a_long_transfer_does_not_hold_up_another_connection,
            a_transfer_of_nothing_completes,
            a_read_without_the_right_fails_and_ends_the_connection,
            a_write_without_the_right_ends_the_connection,
            a_transfer_beyond_the_exposed_bytes_fails,
            a_key_that_never_was_fails,
            a_key_means_nothing_on_another_connection,
            a_revoked_key_is_dead,
            an_invalidated_key_is_dead_and_reported_once,
            an_unknown_key_is_not_reported_as_invalidated,
            keys_differ_and_do_not_come_back_soon,
            keys_that_nobody_knows_are_dead_at_once,
            foreign_memory_is_not_exposed,
            exposed_memory_is_leased_until_its_key_dies,
            a_message_longer_than_its_receive_ends_the_connection,
            no_receive_for_too_long_ends_the_connection,
            closing_gives_back_what_was_posted_and_then_says_down,
            what_was_sent_before_a_close_arrives_before_the_end,
            what_has_left_a_full_queue_arrives_before_the_end,
            a_close_after_many_messages_blames_no_end,
            the_first_cause_is_the_one_that_is_told,
            nothing_can_be_posted_after_the_end,
            an_old_name_does_not_reach_a_new_connection,
            an_endpoint_that_nobody_adopts_is_an_end_for_its_peer,
            a_data_plane_that_goes_ends_its_connections,
            private_data_goes_both_ways,
            many_connections_are_served_side_by_side,
            long_messages_of_one_connection_do_not_hold_up_others,
            reads_of_one_connection_do_not_hold_up_messages_of_others,
            a_connection_that_was_idle_for_long_still_works,
            connecting_to_nobody_says_so,
            a_refused_connection_says_so,
            an_acceptor_that_panics_refuses_one_connection,
            an_address_can_be_used_again_when_its_listener_is_gone,
            a_parked_core_wakes_for_a_message,
            a_parked_core_wakes_when_it_is_told_to,
            a_core_with_work_does_not_sleep,
            traffic_between_two_threads_is_whole,
        );
    };
    (@tests $provider:expr; $($name:ident,)+) => {
        $(
            #[test]
            fn $name() {
                $crate::tests::conformance::$name(&$provider);
            }
        )+
    };
}

pub(crate) use fabric_conformance;
