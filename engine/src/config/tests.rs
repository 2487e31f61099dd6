//! Accepted and rejected values, the wording of rejections, and the values derived from accepted
//! ones.

use super::*;
use crate::mem::budget::Budget;
use spinrpc_proto::profile::Profile;

fn host(allowed: &[usize], isolated: &[usize], siblings: &[&[usize]]) -> Host {
    Host {
        allowed: allowed.to_vec(),
        isolated: isolated.to_vec(),
        smt_siblings: siblings.iter().map(|core| core.to_vec()).collect(),
    }
}

fn four_cpus() -> Host {
    host(&[0, 1, 2, 3], &[], &[])
}

/// The CPUs of a default configuration after `change`.
fn cpus(host: &Host, change: impl FnOnce(&mut RawCores)) -> Vec<usize> {
    let mut raw = RawConfig::default();
    change(&mut raw.cores);
    raw.validate_for(host).unwrap().cpus().to_vec()
}

fn refusal(change: impl FnOnce(&mut RawConfig)) -> String {
    let mut raw = RawConfig::default();
    change(&mut raw);
    raw.validate_for(&four_cpus()).unwrap_err().to_string()
}

#[test]
fn the_defaults_are_valid_on_every_host() {
    let hosts = [
        host(&[0], &[], &[]),
        host(&[7], &[], &[]),
        host(&[0, 1], &[], &[&[0, 1]]),
        host(&[0, 1], &[0], &[]),
        four_cpus(),
        host(&[], &[], &[]), // a system that does not say
    ];
    for host in hosts {
        let config = RawConfig::default().validate_for(&host).unwrap();
        assert_eq!(config.cores(), 1, "{host:?}");
    }
}

#[test]
fn default_takes_one_of_the_cpus_of_this_host() {
    let config = Config::default();
    assert!(Host::current().allowed.contains(&config.cpus()[0]));
    assert_eq!(config.raw(), &RawConfig::default());
}

#[test]
fn auto_takes_only_isolated_cpus_that_are_allowed() {
    let host = host(&[0, 1, 2, 3], &[2, 3, 4], &[]);
    assert_eq!(cpus(&host, |cores| cores.max = 8), [2, 3]);
}

#[test]
fn auto_leaves_cpu_0_to_the_kernel_where_two_others_remain() {
    assert_eq!(cpus(&host(&[0, 1, 2], &[], &[]), |cores| cores.max = 8), [1, 2]);
    assert_eq!(cpus(&host(&[0, 1], &[], &[]), |cores| cores.max = 8), [1, 0]);
}

#[test]
fn auto_takes_the_thread_beside_cpu_0_after_those_of_other_physical_cores() {
    let threads: [&[usize]; 3] = [&[0, 1], &[2, 3], &[4, 5]];
    let host = |isolated| host(&[0, 1, 2, 3, 4, 5], isolated, &threads);
    assert_eq!(cpus(&host(&[]), |_| ()), [2]);
    assert_eq!(cpus(&host(&[]), |cores| cores.max = 8), [2, 4, 1]);
    assert_eq!(cpus(&host(&[1, 2]), |cores| cores.max = 8), [2, 1]);
}

#[test]
fn a_second_engine_of_a_two_cpu_host_has_another_cpu_to_take() {
    for host in [host(&[0, 1], &[], &[]), host(&[0, 1], &[], &[&[0, 1]])] {
        let config = RawConfig::default().validate_for(&host).unwrap();
        assert_eq!((config.cpus(), config.candidates()), (&[1][..], &[1, 0][..]));
    }
}

#[test]
fn auto_puts_no_two_cores_on_one_physical_core() {
    let host = host(&[0, 1, 2, 3, 4, 5], &[], &[&[0, 3], &[1, 4], &[2, 5]]);
    let mut raw = RawConfig::default();
    raw.cores.max = 8;
    let config = raw.validate_for(&host).unwrap();
    assert_eq!((config.cpus(), config.candidates()), (&[1, 2, 3][..], &[1, 2, 3, 4, 5][..]));
}

#[test]
fn a_list_is_obeyed_as_written() {
    let written = |cores: &mut RawCores| cores.list = "3,0-1".parse().unwrap();
    assert_eq!(cpus(&four_cpus(), written), [3, 0, 1]);

    let mut raw = RawConfig::default();
    Key::find("cores.list").unwrap().set(&mut raw, &Value::Integer(2)).unwrap();
    assert_eq!(raw.validate_for(&four_cpus()).unwrap().cpus(), [2]);
}

#[test]
fn any_takes_at_most_a_core_for_each_cpu_and_pins_none() {
    let any = |cores: &mut RawCores| (cores.list, cores.max) = (CoreList::Any, 3);
    assert_eq!(cpus(&four_cpus(), any).len(), 3);
    assert_eq!(cpus(&host(&[4, 5], &[5], &[&[4, 5]]), any).len(), 2);
    assert_eq!(cpus(&Host::default(), any).len(), 1);
    let mut raw = RawConfig::default();
    raw.cores.list = CoreList::Any;
    let config = raw.validate_for(&four_cpus()).unwrap();
    assert_eq!((config.pins_cores(), config.is_near_cpu()), (false, false));
    assert!(RawConfig::default().validate_for(&four_cpus()).unwrap().pins_cores());
}

#[test]
fn a_list_must_lie_within_the_cpus_of_the_process() {
    let message = refusal(|raw| raw.cores.list = "1,9".parse().unwrap());
    assert_eq!(message, "cores.list = \"1,9\": expected CPUs that this process may use: 0-3");
}

#[test]
fn lists_of_cpus_read_back_as_they_are_shown() {
    for text in ["auto", "any", "0", "5,3", "0-2,7", "2-3,9-10"] {
        assert_eq!(text.parse::<CoreList>().unwrap().to_string(), text);
    }
    for text in ["", "x", "-1", "3-1", "1,1", "0-2,2", "1,", "0-99999999", "1.5"] {
        assert!(text.parse::<CoreList>().is_err(), "{text:?}");
    }
}

#[test]
fn a_list_made_in_code_is_checked_like_a_written_one() {
    let message = refusal(|raw| raw.cores.list = CoreList::Cpus(vec![]));
    assert!(
        message.starts_with("cores.list = \"\": expected \"auto\", \"any\", a CPU"),
        "{message}"
    );
    refusal(|raw| raw.cores.list = CoreList::Cpus(vec![1, 1]));
}

#[test]
fn numbers_outside_their_limits_are_refused_by_name() {
    assert_eq!(
        refusal(|raw| raw.rpc.credits = 0),
        "rpc.credits = 0: expected an integer from 1 to 1024"
    );
    assert_eq!(
        refusal(|raw| raw.rpc.inline_send_bytes = 1500),
        "rpc.inline_send_bytes = 1500: expected a multiple of 1024 from 1024 to 65536"
    );
    assert_eq!(
        refusal(|raw| raw.shm.ring_slots = 100),
        "shm.ring_slots = 100: expected a power of two from 64 to 4096"
    );
    assert_eq!(
        refusal(|raw| raw.rpc.msgp_align_bytes = 1),
        "rpc.msgp_align_bytes = 1: expected 0, or a power of two from 512 to 4096"
    );
}

#[test]
fn padded_data_begin_within_the_inline_message() {
    assert_eq!(
        refusal(|raw| raw.rpc.msgp_align_bytes = 4096),
        "rpc.msgp_align_bytes = 4096: expected less than rpc.inline_send_bytes = 4096"
    );
}

#[test]
fn only_a_protocol_with_padded_messages_pads_and_has_a_longer_header() {
    let mut raw = RawConfig::default();
    raw.rpc.msgp_align_bytes = 1024;
    let plain = raw.clone().validate_for(&four_cpus()).unwrap();
    assert_eq!(plain.msgp_alignment(), Alignment::NONE);
    raw.rpc.protocol = Profile::Rfc5666;
    let padded = raw.clone().validate_for(&four_cpus()).unwrap();
    assert_eq!(padded.msgp_alignment(), Alignment::new(1024, 1024));
    assert_eq!(padded.header_bytes_max(), plain.header_bytes_max() + 8);
    raw.rpc.msgp_align_bytes = 0;
    let silent = raw.validate_for(&four_cpus()).unwrap();
    assert_eq!(silent.msgp_alignment(), Alignment::NONE);
}

#[test]
fn both_limits_of_every_number_belong_to_it_and_nothing_beyond() {
    for key in KEYS {
        let words = key.allowed();
        let Some((from, to)) = words.split_once(" from ").and_then(|(_, r)| r.split_once(" to "))
        else {
            continue;
        };
        let (min, max): (u64, u64) = (from.parse().unwrap(), to.parse().unwrap());
        let mut raw = RawConfig::default();
        for inside in [min, max] {
            assert_eq!(key.set(&mut raw, &Value::Integer(inside)), Ok(()), "{}", key.name);
            assert_eq!(key.value(&raw), Value::Integer(inside), "{}", key.name);
        }
        for outside in [min.wrapping_sub(1), max + 1] {
            assert!(key.set(&mut raw, &Value::Integer(outside)).is_err(), "{}", key.name);
        }
    }
}

#[test]
fn bulk_and_the_message_around_it_must_fit_the_memory_they_pass_through() {
    let room = (16 << 20) - (64 << 10);
    assert_eq!(
        refusal(|raw| raw.rpc.max_read_bytes = room + 1),
        "rpc.max_read_bytes = 16711681: expected at most 16711680, what mem.conn_arena_mib = 16 \
         has room for"
    );
    let message = refusal(|raw| {
        raw.rpc.max_write_bytes = 2 << 20;
        raw.mem.arena_mib = 1;
    });
    assert!(message.ends_with("at most 983040, what mem.arena_mib = 1 has room for"), "{message}");

    let mut raw = RawConfig::default();
    (raw.rpc.max_read_bytes, raw.rpc.max_write_bytes) = (room, room);
    raw.validate_for(&four_cpus()).unwrap();
}

/// A message of half a ring always finds room in the end, a longer one never does.
#[test]
fn inline_messages_must_fit_the_ring_they_pass_through() {
    assert_eq!(
        refusal(|raw| (raw.shm.ring_slots, raw.rpc.inline_send_bytes) = (64, 8192)),
        "rpc.inline_send_bytes = 8192: expected at most 7932, what a ring of shm.ring_slots = 64 \
         takes"
    );
    let message = refusal(|raw| raw.rpc.inline_recv_bytes = 32768);
    assert!(message.ends_with("what a ring of shm.ring_slots = 256 takes"), "{message}");
    let mut raw = RawConfig::default();
    (raw.shm.ring_slots, raw.rpc.inline_send_bytes, raw.rpc.inline_recv_bytes) = (64, 7168, 7168);
    raw.validate_for(&four_cpus()).unwrap();
}

#[test]
fn an_optional_number_is_a_number_or_off() {
    let key = Key::find("host.cpu_dma_latency_us").unwrap();
    assert_eq!(key.allowed(), "\"off\", or an integer from 0 to 1000000");
    let mut raw = RawConfig::default();
    key.set(&mut raw, &Value::Integer(0)).unwrap();
    assert_eq!((key.value(&raw), raw.host.cpu_dma_latency_us), (Value::Integer(0), Some(0)));
    key.set(&mut raw, &Value::Text("off".into())).unwrap();
    assert_eq!(raw, RawConfig::default());
    for wrong in [Value::Integer(1_000_001), Value::Text("on".into()), Value::Flag(false)] {
        assert!(key.set(&mut raw, &wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_largest_transfer_is_expressible_in_segments() {
    let mut raw = RawConfig::default();
    assert_eq!(raw.clone().validate_for(&four_cpus()).unwrap().segment_bytes(), 16 << 20);
    raw.rpc.segment_bytes = 4096;
    assert_eq!(raw.validate_for(&four_cpus()).unwrap().segment_bytes(), 69_632);
}

#[test]
fn a_peer_may_send_what_this_side_may() {
    let limits = RawConfig::default().validate_for(&four_cpus()).unwrap().peer_limits();
    assert!(limits.within_bounds());
    assert_eq!(limits, PeerLimits::DEFAULT);

    let mut raw = RawConfig::default();
    (raw.fixed.max_chunks, raw.rpc.max_segments) = (2, 3);
    let limits = raw.validate_for(&four_cpus()).unwrap().peer_limits();
    assert_eq!((limits.read_chunks_max, limits.write_chunks_max), (2, 2));
    assert_eq!(limits.segments_max, 3);
}

#[test]
fn a_value_of_another_type_is_refused_and_changes_nothing() {
    let mut raw = RawConfig::default();
    for key in KEYS {
        let wrong = match key.default_value() {
            Value::Flag(_) => Value::Integer(1),
            _ => Value::Flag(true),
        };
        let refused = key.set(&mut raw, &wrong).unwrap_err();
        assert_eq!((refused.key, refused.value), (key.name, wrong.to_string()));
    }
    assert_eq!(raw, RawConfig::default());
}

#[test]
fn a_name_that_is_a_number_needs_no_quotes() {
    let (mut raw, version) = (RawConfig::default(), Key::find("rpc.version").unwrap());
    version.set(&mut raw, &Value::Integer(2)).unwrap();
    assert_eq!(raw.rpc.version, Versions::Two);
    assert!(version.set(&mut raw, &Value::Integer(3)).is_err());
}

#[test]
fn every_name_of_every_choice_can_be_set() {
    for key in KEYS {
        let words = key.allowed();
        let Some(names) = words.strip_prefix("one of ") else { continue };
        for name in names.split(", ").map(|quoted| quoted.trim_matches('"')) {
            let mut raw = RawConfig::default();
            key.set(&mut raw, &Value::Text(name.to_owned())).unwrap();
            assert_eq!(key.value(&raw), Value::Text(name.to_owned()));
        }
        assert!(key.set(&mut RawConfig::default(), &Value::Text("other".into())).is_err());
    }
}

#[test]
fn keys_are_unique_described_and_kept_together_by_group() {
    let mut groups = Vec::new();
    for key in KEYS {
        let (group, name) = key.parts();
        assert!(!group.is_empty() && !name.is_empty(), "{}", key.name);
        assert!(key.effect.ends_with('.') && key.reason.ends_with('.'), "{}", key.name);
        assert_eq!(KEYS.iter().filter(|other| other.name == key.name).count(), 1, "{}", key.name);
        if groups.last() != Some(&group) {
            assert!(!groups.contains(&group), "{group} is in two places");
            groups.push(group);
        }
    }
}

#[test]
fn related_keys_are_others_that_exist() {
    for key in KEYS {
        for other in key.related {
            assert!(Key::find(other).is_some() && *other != key.name, "{}: {other}", key.name);
        }
    }
}

#[test]
fn what_the_protocol_defines_says_where() {
    for key in KEYS.iter().filter(|key| key.name.starts_with("rpc.")) {
        assert_eq!(key.origin.is_empty(), key.name == "rpc.timeout_ms", "{}", key.name);
    }
}

/// A key must be the accessor of its own field: setting one must not change another.
#[test]
fn every_key_has_a_place_of_its_own() {
    for key in KEYS {
        let mut raw = RawConfig::default();
        let others = other_values(&key.default_value());
        let changed = others.iter().any(|value| key.set(&mut raw, value).is_ok());
        assert!(changed && key.value(&raw) != key.default_value(), "{}", key.name);
        for unchanged in KEYS.iter().filter(|other| other.name != key.name) {
            assert_eq!(unchanged.value(&raw), unchanged.default_value(), "{}", key.name);
        }
    }
}

/// One name of each choice that is not its default.
const OTHER_NAMES: &[&str] =
    &["0", "2", "off", "allow", "busy", "copy", "rfc5666", "ask", "none", "verbs", "buffer", "end"];

/// Values of the same type, one of which any key with this default takes.
fn other_values(default: &Value) -> Vec<Value> {
    let text = |name: &&str| Value::Text((*name).to_owned());
    let others = match default {
        Value::Integer(number) => {
            [number * 2, number / 2, number + 1, 512].map(Value::Integer).into()
        }
        Value::Flag(flag) => vec![Value::Flag(!flag)],
        Value::Text(_) => OTHER_NAMES.iter().map(text).chain([Value::Integer(7)]).collect(),
    };
    others.into_iter().filter(|other| other != default).collect()
}

#[test]
fn zero_is_no_deadline() {
    let mut raw = RawConfig::default();
    raw.rpc.timeout_ms = 0;
    assert_eq!(raw.validate_for(&four_cpus()).unwrap().timeout(), None);
    assert_eq!(Config::default().timeout(), Some(Duration::from_secs(10)));
}

#[test]
fn a_connection_has_a_buffer_for_every_credit_and_for_messages_without_one() {
    let config = RawConfig::default().validate_for(&four_cpus()).unwrap();
    assert_eq!(config.slots_per_conn(), 64);
    assert_eq!(config.recv_budget().total(), 64 + 1 + 1);
    assert_eq!(config.requester_send_budget().total(), 64 + 2);
    assert_eq!(config.responder_send_budget().total(), 64 + 2);
}

/// RFC 8167 section 4: receives for the reverse direction come on top of those of the forward one.
#[test]
fn calls_in_reverse_have_buffers_of_their_own() {
    let mut raw = RawConfig::default();
    raw.rpc.reverse_calls = 8;
    let config = raw.validate_for(&four_cpus()).unwrap();
    assert_eq!(config.reverse_calls(), 8);
    assert_eq!(config.recv_budget().total(), 64 + 8 + 1 + 1);
    assert_eq!(config.requester_send_budget().total(), 64 + 8 + 2);
    assert_eq!(config.responder_send_budget().total(), 64 + 8 + 2);
    assert_eq!(config.send_queue_depth(), 72 * 4 + 2 * 288);
    assert_eq!(config.recv_budget_with(0), Config::default().recv_budget());
}

/// Version two section 4.2.2: a client that takes no calls in reverse answers them.
#[test]
fn where_version_two_is_spoken_a_call_in_reverse_has_a_buffer() {
    for version in [Versions::Two, Versions::Both] {
        let mut raw = RawConfig::default();
        raw.rpc.version = version;
        let config = raw.validate_for(&four_cpus()).unwrap();
        assert_eq!(config.recv_budget().reverse, 1, "{version:?}");
        assert_eq!(config.requester_send_budget().total(), 64 + 2);
    }
}

#[test]
fn sends_that_a_device_has_not_reported_take_no_credits_buffer() {
    let mut raw = RawConfig::default();
    (raw.fabric.driver, raw.rpc.credits) = (Driver::Verbs, 1);
    let config = raw.validate_for(&four_cpus()).unwrap();
    assert_eq!(config.requester_send_budget().total(), 1 + 2 + 15);
    assert_eq!(config.responder_send_budget().total(), 1 + 2 + 15);
}

/// RFC 8166 section 4.1: four fixed words and three lists, each ended by one word.
#[test]
fn headroom_takes_the_longest_header() {
    let mut raw = RawConfig::default();
    (raw.fixed.max_chunks, raw.rpc.max_segments) = (1, 1);
    let config = raw.validate_for(&four_cpus()).unwrap();
    let words = 4 + (6 + 1) + (2 + 4 + 1) + (1 + 1 + 4);
    assert_eq!(config.header_bytes_max(), words * 4);
    assert_eq!(config.headroom_bytes(), 128);
    assert_eq!(config.send_buffer_bytes(), 128 + 4096);
    // No receive buffer takes a header with as many segments as the default allows.
    let config = RawConfig::default().validate_for(&four_cpus()).unwrap();
    assert!(config.header_bytes_max() > 3 * config.recv_buffer_bytes());
    assert_eq!(config.headroom_bytes(), config.recv_buffer_bytes() + 64);
}

fn verbs_refusal(change: impl FnOnce(&mut RawConfig)) -> String {
    refusal(|raw| {
        raw.fabric.driver = Driver::Verbs;
        change(raw);
    })
}

#[test]
fn queues_of_an_rdma_connection_hold_all_its_work_requests() {
    let config = Config::default();
    let (sends, receives) = (config.send_queue_depth(), config.recv_budget().total());
    assert_eq!((sends, receives), (64 * 4 + 9 * 16 * 4, 66));
}

#[test]
fn bulk_data_must_fit_the_arena_of_the_driver_in_use() {
    let too_long = |raw: &mut RawConfig| {
        (raw.mem.conn_arena_mib, raw.rpc.max_read_bytes) = (1, 1 << 20);
    };
    let message = verbs_refusal(too_long);
    assert!(
        message.ends_with("at most 983040, what mem.conn_arena_mib = 1 has room for"),
        "{message}"
    );
    let mut windows = RawConfig::default();
    too_long(&mut windows);
    windows.verbs.registration = Registration::Window;
    assert_eq!(windows.clone().validate_for(&four_cpus()).unwrap_err().key, "rpc.max_read_bytes");
    windows.fabric.driver = Driver::Verbs;
    let config = windows.validate_for(&four_cpus()).unwrap();
    assert_eq!(config.with_driver(Driver::Shm).unwrap_err().key, "rpc.max_read_bytes");
}

#[test]
fn keys_of_the_driver_not_in_use_are_checked_by_their_limits_only() {
    assert!(refusal(|raw| raw.verbs.tos = Some(256)).starts_with("verbs.tos = 256: "));
}

#[test]
fn a_device_has_the_name_it_has_in_the_system() {
    let device = Key::find("verbs.device").unwrap();
    let mut raw = RawConfig::default();
    assert_eq!(raw.verbs.device.name(), None);
    device.set(&mut raw, &Value::Text("rxe0".into())).unwrap();
    assert_eq!(raw.verbs.device.name(), Some("rxe0"));
    for wrong in ["", "a b", "a/b", "\n", &"x".repeat(64)] {
        assert!(device.set(&mut raw, &Value::Text(wrong.into())).is_err(), "{wrong:?}");
    }
    device.set(&mut raw, &Value::Text("auto".into())).unwrap();
    assert_eq!(raw, RawConfig::default());
}
