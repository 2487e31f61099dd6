//! Accepted and rejected values, the wording of rejections, and the values derived from accepted
//! ones.

use super::*;
use spinrpc_proto::dialect::Profile;

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

type Change = fn(&mut RawConfig);

fn validated(change: impl FnOnce(&mut RawConfig)) -> Result<Config, ConfigError> {
    let mut raw = RawConfig::default();
    change(&mut raw);
    raw.validate_for(&four_cpus())
}

fn valid(change: impl FnOnce(&mut RawConfig)) -> Config {
    validated(change).unwrap()
}

fn refusal(change: impl FnOnce(&mut RawConfig)) -> String {
    validated(change).unwrap_err().to_string()
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
    let config = valid(|raw| raw.cores.list = CoreList::Any);
    assert_eq!((config.pins_cores(), config.is_near_cpu()), (false, false));
    assert!(valid(|_| ()).pins_cores());
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
fn values_are_refused_by_name_with_what_is_expected() {
    let room = (16 << 20) - (64 << 10);
    let cases: [(Change, &str); 10] = [
        (|raw| raw.rpc.credits = 0, "rpc.credits = 0: expected an integer from 1 to 1024"),
        (
            |raw| raw.rpc.inline_send_bytes = 1500,
            "rpc.inline_send_bytes = 1500: expected a multiple of 1024 from 1024 to 65536",
        ),
        (
            |raw| raw.shm.ring_slots = 100,
            "shm.ring_slots = 100: expected a power of two from 64 to 4096",
        ),
        (
            |raw| raw.rpc.msgp_align_bytes = 1,
            "rpc.msgp_align_bytes = 1: expected 0, or a power of two from 512 to 4096",
        ),
        // Padded data begin within the inline message.
        (
            |raw| raw.rpc.msgp_align_bytes = 4096,
            "rpc.msgp_align_bytes = 4096: expected less than rpc.inline_send_bytes = 4096",
        ),
        // Bulk data and the message around it must fit the memory that they pass through.
        (
            |raw| raw.rpc.max_read_bytes = (16 << 20) - (64 << 10) + 1,
            "rpc.max_read_bytes = 16711681: expected at most 16711680, what mem.conn_arena_mib = \
             16 has room for",
        ),
        (
            |raw| (raw.rpc.max_write_bytes, raw.mem.arena_mib) = (2 << 20, 1),
            "rpc.max_read_bytes = 1048576: expected at most 983040, what mem.arena_mib = 1 has \
             room for",
        ),
        // A message of half a ring always finds room in the end, a longer one never does.
        (
            |raw| (raw.shm.ring_slots, raw.rpc.inline_send_bytes) = (64, 8192),
            "rpc.inline_send_bytes = 8192: expected at most 7932, what a ring of shm.ring_slots = \
             64 takes",
        ),
        (
            |raw| raw.rpc.inline_recv_bytes = 32768,
            "rpc.inline_recv_bytes = 32768: expected at most 31740, what a ring of \
             shm.ring_slots = 256 takes",
        ),
        // Keys of the driver that is not in use are checked by their limits only.
        (
            |raw| raw.verbs.tos = Some(256),
            "verbs.tos = 256: expected \"auto\", or an integer from 0 to 255",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(refusal(change), expected);
    }
    valid(|raw| (raw.rpc.max_read_bytes, raw.rpc.max_write_bytes) = (room, room));
    valid(|raw| {
        raw.shm.ring_slots = 64;
        (raw.rpc.inline_send_bytes, raw.rpc.inline_recv_bytes) = (7168, 7168);
    });
}

#[test]
fn only_a_protocol_with_padded_messages_pads_and_has_a_longer_header() {
    let with = |protocol, align_bytes| {
        valid(|raw| (raw.rpc.protocol, raw.rpc.msgp_align_bytes) = (protocol, align_bytes))
    };
    let plain = with(Profile::Rfc8166, 1024);
    assert_eq!(plain.msgp_alignment(), Alignment::NONE);
    let padded = with(Profile::Rfc5666, 1024);
    assert_eq!(padded.msgp_alignment(), Alignment::new(1024, 1024));
    assert_eq!(padded.header_bytes_max(), plain.header_bytes_max() + 8);
    assert_eq!(with(Profile::Rfc5666, 0).msgp_alignment(), Alignment::NONE);
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
    assert_eq!(valid(|_| ()).segment_bytes(), 16 << 20);
    assert_eq!(valid(|raw| raw.rpc.segment_bytes = 4096).segment_bytes(), 69_632);
}

#[test]
fn a_peer_may_send_what_this_side_may() {
    let limits = valid(|_| ()).peer_limits();
    assert!(limits.within_bounds());
    assert_eq!(limits, PeerLimits::DEFAULT);
    let limits = valid(|raw| (raw.fixed.max_chunks, raw.rpc.max_segments) = (2, 3)).peer_limits();
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
        for other in key.related {
            assert!(Key::find(other).is_some() && *other != key.name, "{}: {other}", key.name);
        }
        // What the protocol defines says where.
        let is_of_protocol = group == "rpc" && key.name != "rpc.timeout_ms";
        assert!(!(is_of_protocol && key.origin.is_empty()), "{}", key.name);
        if groups.last() != Some(&group) {
            assert!(!groups.contains(&group), "{group} is in two places");
            groups.push(group);
        }
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
    assert_eq!(valid(|raw| raw.rpc.timeout_ms = 0).timeout(), None);
    assert_eq!(Config::default().timeout(), Some(Duration::from_secs(10)));
}

/// A buffer for every credit, and for messages without one. RFC 8167 section 4: receives for the reverse direction come on
/// top of those of the forward one. Version two section 4.2.2: a client that takes no calls in reverse answers them. Sends
/// that a device has not reported take no credit's buffer.
#[test]
fn a_connection_has_buffers_for_all_its_messages() {
    let cases: [(Change, u64, u64); 5] = [
        (|_| (), 64 + 1 + 1, 64 + 2),
        (|raw| raw.rpc.reverse_calls = 8, 64 + 8 + 1 + 1, 64 + 8 + 2),
        (|raw| raw.rpc.version = Versions::Two, 64 + 1 + 1 + 1, 64 + 2),
        (|raw| raw.rpc.version = Versions::Both, 64 + 1 + 1 + 1, 64 + 2),
        (|raw| (raw.fabric.driver, raw.rpc.credits) = (Driver::Verbs, 1), 1 + 1 + 1, 1 + 2 + 15),
    ];
    for (change, receives, sends) in cases {
        let config = valid(change);
        assert_eq!(config.recv_budget().total(), receives);
        assert_eq!(config.requester_send_budget().total(), sends);
        assert_eq!(config.responder_send_budget().total(), sends);
    }
    assert_eq!(valid(|_| ()).slots_per_conn(), 64);
    let config = valid(|raw| raw.rpc.reverse_calls = 8);
    assert_eq!(config.send_queue_depth(), 72 * 4 + 2 * 288);
    assert_eq!(Config::default().send_queue_depth(), 64 * 4 + 9 * 16 * 4);
    assert_eq!(config.recv_budget_with(0), Config::default().recv_budget());
}

/// RFC 8166 section 4.1: four fixed words and three lists, each ended by one word.
#[test]
fn headroom_takes_the_longest_header() {
    let config = valid(|raw| (raw.fixed.max_chunks, raw.rpc.max_segments) = (1, 1));
    let words = 4 + (6 + 1) + (2 + 4 + 1) + (1 + 1 + 4);
    assert_eq!(config.header_bytes_max(), words * 4);
    assert_eq!(config.headroom_bytes(), 128);
    assert_eq!(config.send_buffer_bytes(), 128 + 4096);
    // No receive buffer takes a header with as many segments as the default allows.
    let config = valid(|_| ());
    assert!(config.header_bytes_max() > 3 * config.recv_buffer_bytes());
    assert_eq!(config.headroom_bytes(), config.recv_buffer_bytes() + 64);
}

#[test]
fn bulk_data_must_fit_the_arena_of_the_driver_in_use() {
    let too_long = |driver, registration| {
        validated(|raw| {
            (raw.mem.conn_arena_mib, raw.rpc.max_read_bytes) = (1, 1 << 20);
            (raw.fabric.driver, raw.verbs.registration) = (driver, registration);
        })
    };
    let error = too_long(Driver::Verbs, Registration::Auto).unwrap_err();
    assert_eq!(error.expected, "at most 983040, what mem.conn_arena_mib = 1 has room for");
    let error = too_long(Driver::Shm, Registration::Window).unwrap_err();
    assert_eq!(error.key, "rpc.max_read_bytes");
    let config = too_long(Driver::Verbs, Registration::Window).unwrap();
    assert_eq!(config.with_driver(Driver::Shm).unwrap_err().key, "rpc.max_read_bytes");
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
