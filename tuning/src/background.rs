//! Facts about keys that the table of keys does not hold: the defining document and the related
//! keys.

use spinrpc::config::Key;

/// Origin of a key and its related keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Background {
    /// Document that defines the key; empty for keys that only concern this engine.
    pub origin: &'static str,
    /// Full names of keys that limit this key or that it limits.
    pub related: &'static [&'static str],
}

/// Returns the background of a key.
pub fn background(key: &Key) -> Background {
    let (_, origin, related) =
        BACKGROUNDS.iter().find(|(name, ..)| *name == key.name).unwrap_or(&("", "", &[]));
    Background { origin, related }
}

/// Key, origin, related keys; in the order of the table of keys.
const BACKGROUNDS: &[(&str, &str, &[&str])] = &[
    ("cores.list", "", &["cores.max", "cores.skip", "cores.smt"]),
    ("cores.max", "", &["cores.list", "cores.smt", "mem.arena_mib"]),
    ("cores.skip", "", &["cores.list"]),
    ("cores.smt", "", &["cores.list", "cores.max"]),
    (
        "poll.mode",
        "",
        &["poll.spin_us", "poll.yield_us", "poll.park_us", "host.cpu_dma_latency_us"],
    ),
    ("poll.budget", "", &["verbs.signal_every"]),
    ("poll.spin_us", "", &["poll.mode", "poll.yield_us"]),
    ("poll.yield_us", "", &["poll.mode", "poll.spin_us", "poll.park_us"]),
    ("poll.park_us", "", &["poll.mode", "poll.yield_us"]),
    (
        "mem.arena_mib",
        "",
        &["rpc.max_read_bytes", "rpc.max_write_bytes", "mem.hugepages", "mem.lock"],
    ),
    ("mem.hugepages", "", &["mem.arena_mib", "mem.prefault"]),
    ("mem.prefault", "", &["mem.arena_mib", "mem.lock"]),
    ("mem.lock", "", &["mem.arena_mib", "mem.prefault"]),
    ("mem.numa", "", &["cores.list", "mem.arena_mib"]),
    (
        "rpc.protocol",
        "RFC 8166, RFC 5666, draft-ietf-nfsv4-rpcrdma-03 and -00",
        &["rpc.msgp_align_bytes", "rpc.done_timeout_ms", "limits.exports", "rpc.ccp"],
    ),
    (
        "rpc.version",
        "draft-cel-nfsv4-rpcrdma-version-two-01",
        &["rpc.version_memory_ms", "rpc.propagate_deadlines"],
    ),
    ("rpc.version_memory_ms", "draft-cel-nfsv4-rpcrdma-version-two-01", &["rpc.version"]),
    (
        "rpc.propagate_deadlines",
        "an extension of draft-cel-nfsv4-rpcrdma-version-two-01",
        &["rpc.version", "rpc.timeout_ms"],
    ),
    (
        "rpc.credits",
        "RFC 8166 section 3.3.1",
        &[
            "rpc.reverse_calls",
            "rpc.inline_recv_bytes",
            "rpc.reply_cache_entries",
            "verbs.cq_depth",
        ],
    ),
    (
        "rpc.credits_idle",
        "RFC 5666 section 3.3",
        &["rpc.credits", "rpc.credits_shared", "rpc.credits_period_ms"],
    ),
    (
        "rpc.credits_shared",
        "RFC 5666 section 3.3",
        &["rpc.credits_idle", "limits.conns", "rpc.inline_recv_bytes"],
    ),
    ("rpc.credits_period_ms", "RFC 5666 section 3.3", &["rpc.credits_idle"]),
    (
        "rpc.reverse_calls",
        "RFC 8167 section 4",
        &["rpc.credits", "rpc.inline_recv_bytes", "verbs.cq_depth"],
    ),
    (
        "rpc.ccp",
        "RFC 5666 section 6",
        &["rpc.ccp_auth", "rpc.max_rdma_reads", "rpc.inline_recv_bytes"],
    ),
    ("rpc.ccp_auth", "RFC 5666 section 11", &["rpc.ccp"]),
    ("rpc.max_rdma_reads", "RFC 5666 section 6", &["rpc.ccp", "verbs.ird"]),
    (
        "rpc.inline_send_bytes",
        "RFC 8166 section 3.3.2; RFC 8797 section 4",
        &["rpc.inline_recv_bytes", "shm.ring_slots", "verbs.max_inline_bytes"],
    ),
    (
        "rpc.inline_recv_bytes",
        "RFC 8166 section 3.3.2; RFC 8797 section 4",
        &["rpc.inline_send_bytes", "rpc.credits", "shm.ring_slots"],
    ),
    (
        "rpc.max_read_bytes",
        "RFC 8166 section 3.4",
        &[
            "rpc.max_write_bytes",
            "rpc.segment_bytes",
            "mem.arena_mib",
            "shm.arena_mib",
            "verbs.arena_mib",
        ],
    ),
    (
        "rpc.max_write_bytes",
        "RFC 8166 section 3.4",
        &[
            "rpc.max_read_bytes",
            "rpc.segment_bytes",
            "mem.arena_mib",
            "shm.arena_mib",
            "verbs.arena_mib",
        ],
    ),
    (
        "rpc.segment_bytes",
        "RFC 8166 section 3.4.3",
        &["rpc.max_segments", "rpc.max_read_bytes", "rpc.max_write_bytes", "verbs.keys"],
    ),
    ("rpc.max_segments", "RFC 8166 section 3.4.3", &["rpc.segment_bytes", "rpc.max_chunks"]),
    ("rpc.max_chunks", "RFC 8166 section 3.4.4", &["rpc.max_segments", "verbs.cq_depth"]),
    (
        "rpc.msgp_align_bytes",
        "RFC 5666 section 3.9",
        &["rpc.msgp_threshold_bytes", "rpc.protocol", "rpc.inline_send_bytes"],
    ),
    ("rpc.msgp_threshold_bytes", "RFC 5666 section 3.9", &["rpc.msgp_align_bytes"]),
    ("rpc.timeout_ms", "", &["rpc.propagate_deadlines", "rpc.done_timeout_ms"]),
    (
        "rpc.done_timeout_ms",
        "RFC 5666 section 11",
        &["rpc.protocol", "limits.exports", "rpc.timeout_ms", "rpc.memory_wait_ms"],
    ),
    ("rpc.memory_wait_ms", "", &["mem.arena_mib", "rpc.timeout_ms", "rpc.done_timeout_ms"]),
    (
        "rpc.reply_cache_clients",
        "RFC 5666 section 8; RFC 5531 section 4",
        &["rpc.reply_cache_entries", "rpc.reply_cache_bytes", "rpc.reply_cache_keep_ms"],
    ),
    ("rpc.reply_cache_entries", "RFC 5666 section 8", &["rpc.reply_cache_clients", "rpc.credits"]),
    ("rpc.reply_cache_bytes", "RFC 5666 section 8", &["rpc.reply_cache_clients"]),
    ("rpc.reply_cache_keep_ms", "RFC 5666 section 8", &["rpc.reply_cache_clients"]),
    ("rpc.on_panic", "RFC 5531 section 9", &[]),
    ("rpc.handle_calls", "", &["rpc.credits"]),
    ("gss.step_bytes", "RFC 2203 section 5.3.2", &["poll.budget"]),
    ("gss.unused_ms", "RFC 2203 section 5.3.3.3", &["gss.mechanism_ms"]),
    ("gss.mechanism_ms", "RFC 2203 section 5.2", &["rpc.timeout_ms"]),
    ("fabric.driver", "", &["verbs.device", "shm.ring_slots"]),
    ("shm.ring_slots", "", &["rpc.inline_send_bytes", "rpc.inline_recv_bytes", "rpc.credits"]),
    ("shm.arena_mib", "", &["rpc.max_read_bytes", "rpc.max_write_bytes"]),
    ("shm.bulk", "", &["verbs.bulk"]),
    ("shm.rnr_timeout_ms", "", &["rpc.credits"]),
    ("shm.fetch_timeout_ms", "", &["shm.rnr_timeout_ms", "limits.peer_slabs"]),
    ("verbs.device", "", &["fabric.driver"]),
    (
        "verbs.cq_depth",
        "",
        &["rpc.credits", "rpc.reverse_calls", "rpc.max_chunks", "rpc.max_segments"],
    ),
    ("verbs.signal_every", "", &["rpc.credits", "poll.budget"]),
    ("verbs.max_inline_bytes", "", &["rpc.inline_send_bytes"]),
    ("verbs.ord", "RFC 5666 sections 3.3 and 6", &["verbs.ird"]),
    ("verbs.ird", "RFC 5666 sections 3.3 and 6", &["verbs.ord", "rpc.max_rdma_reads"]),
    ("verbs.retry", "", &["verbs.ack_timeout"]),
    ("verbs.rnr_retry", "", &["verbs.min_rnr_timer"]),
    ("verbs.min_rnr_timer", "", &["verbs.rnr_retry"]),
    ("verbs.ack_timeout", "", &["verbs.retry"]),
    ("verbs.tos", "", &[]),
    ("verbs.thread_domain", "", &[]),
    (
        "verbs.registration",
        "RFC 8166 section 8.1",
        &["verbs.arena_mib", "verbs.keys", "verbs.bulk", "verbs.remote_invalidate"],
    ),
    (
        "verbs.remote_invalidate",
        "RFC 8166 section 4.4; RFC 8797 section 4",
        &["verbs.registration"],
    ),
    ("verbs.arena_mib", "", &["verbs.registration", "rpc.max_read_bytes", "rpc.max_write_bytes"]),
    ("verbs.keys", "", &["verbs.registration", "rpc.credits", "rpc.segment_bytes"]),
    ("verbs.backlog", "", &["limits.handshakes", "limits.conns"]),
    ("verbs.connect_timeout_ms", "", &["limits.handshakes"]),
    ("verbs.bulk", "", &["verbs.registration", "shm.bulk"]),
    ("limits.conns", "", &["limits.handshakes", "limits.host_conns", "rpc.credits"]),
    ("limits.handshakes", "", &["limits.conns", "limits.host_conns", "verbs.backlog"]),
    ("limits.host_conns", "", &["limits.conns", "limits.handshakes"]),
    (
        "limits.exports",
        "RFC 5666 section 3.8",
        &["rpc.protocol", "rpc.done_timeout_ms", "rpc.credits"],
    ),
    ("limits.peer_arena_mib", "", &["shm.arena_mib", "limits.peer_mib"]),
    ("limits.peer_slabs", "", &["limits.peer_slab_mib", "shm.bulk"]),
    ("limits.peer_slab_mib", "", &["limits.peer_slabs", "limits.peer_mib", "limits.core_mib"]),
    (
        "limits.peer_mib",
        "",
        &["limits.core_mib", "limits.peer_arena_mib", "limits.peer_slab_mib", "shm.arena_mib"],
    ),
    ("limits.core_mib", "", &["limits.conns", "limits.peer_mib", "shm.arena_mib"]),
    ("host.cpu_dma_latency_us", "", &["poll.mode"]),
    ("stats.export", "", &[]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use spinrpc::config::KEYS;

    #[test]
    fn every_key_has_a_background_in_the_order_of_the_table() {
        let names = |list: &mut dyn Iterator<Item = &'static str>| list.collect::<Vec<_>>();
        let here = names(&mut BACKGROUNDS.iter().map(|(name, ..)| *name));
        assert_eq!(here, names(&mut KEYS.iter().map(|key| key.name)));
    }

    #[test]
    fn related_keys_are_others_that_exist() {
        for (name, _, related) in BACKGROUNDS {
            for other in *related {
                assert!(Key::find(other).is_some() && other != name, "{name}: {other}");
            }
        }
    }

    #[test]
    fn what_the_protocol_defines_says_where() {
        let own = ["rpc.timeout_ms", "rpc.memory_wait_ms", "rpc.handle_calls"];
        for (name, origin, _) in BACKGROUNDS.iter().filter(|(name, ..)| name.starts_with("rpc.")) {
            assert_eq!(origin.is_empty(), own.contains(name), "{name}");
        }
    }
}
