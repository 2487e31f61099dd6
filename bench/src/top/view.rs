//! Activity of engines between two snapshots: rates, and the state at the second one. A document of the schema
//! `spinperf-top/1` (`bench/schema/spinperf-top-1.schema.json`), which `--json` prints and `table` shows.

use super::snapshot::{Blocks, Connection, Core, Snapshot};
use super::target::{Found, total};
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

const SCHEMA: &str = "spinperf-top/1";

/// Sort order of connections, largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Calls per second, in both directions
    #[default]
    Calls,
    /// Calls in flight: sent and unanswered, or received and not answered yet
    InFlight,
    /// Message buffers and blocks of memory held
    Memory,
    /// Position at the core, lowest first
    Place,
}

pub(super) fn between(before: &[Found], now: &[Found], order: Order) -> Value {
    let engines = now.iter().map(|now| {
        let before = before.iter().find(|before| is_same(before, now));
        engine(before.map(|before| &before.snapshot), now, order)
    });
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_ms = since_1970.as_millis() as u64;
    json!({"schema": SCHEMA, "unix_ms": unix_ms, "engines": engines.collect::<Vec<_>>()})
}

/// A process that restarted in the meantime is another engine.
fn is_same(before: &Found, now: &Found) -> bool {
    before.owner == now.owner
        && before.snapshot.engine == now.snapshot.engine
        && before.snapshot.uptime_ns < now.snapshot.uptime_ns
}

fn engine(before: Option<&Snapshot>, now: &Found, order: Order) -> Value {
    let Found { owner, program, snapshot, .. } = now;
    let since_ns = before.map_or(snapshot.uptime_ns, |before| before.uptime_ns);
    let span = Span {
        seconds: snapshot.uptime_ns.saturating_sub(since_ns) as f64 / 1e9,
        ticks_per_second: snapshot.ticks_per_second as f64,
    };
    let core = |now: &Core| {
        let same = |core: &&Core| core.index == now.index;
        let before = before.and_then(|before| before.cores.iter().find(same));
        span.core(before.unwrap_or(now), now, order)
    };
    json!({
        "pid": owner.pid, "user": owner.user, "program": program,
        "engine": snapshot.engine, "version": snapshot.version, "fabric": snapshot.fabric,
        "listens": snapshot.listens, "settings": snapshot.settings,
        "uptime_s": snapshot.uptime_ns as f64 / 1e9, "interval_s": span.seconds,
        "cores": snapshot.cores.iter().map(core).collect::<Vec<_>>(),
    })
}

#[derive(Clone, Copy, Debug)]
struct Span {
    seconds: f64,
    ticks_per_second: f64,
}

impl Span {
    fn rate(self, before: u64, now: u64) -> f64 {
        ratio(now.saturating_sub(before) as f64, self.seconds).unwrap_or(0.0)
    }

    fn core(self, before: &Core, now: &Core, order: Order) -> Value {
        // Ticks are not events; the busy percentage is shown separately.
        let events = now.stats.iter().filter(|(name, _)| *name != "busy_ticks");
        let rates =
            events.map(|(name, count)| (name.clone(), self.rate(before.count(name), *count)));
        let grown = |name| now.count(name).saturating_sub(before.count(name)) as f64;
        let percent = |part, whole| 100.0 * ratio(part, whole).unwrap_or(0.0);
        let busy = grown("busy_ticks");
        let calls = grown("calls_received") + grown("replies_received");
        let blocks = |Blocks { block_bytes, total, free }: &Blocks| json!({"block_bytes": block_bytes, "used": total.saturating_sub(*free), "total": total});
        json!({
            "index": now.index, "cpu": now.cpu, "idle": now.idle,
            "running": now.running, "answered": now.answered,
            "busy_percent": percent(busy, self.seconds * self.ticks_per_second),
            "empty_polls_percent": percent(grown("empty_polls"), grown("polls")),
            "ticks_per_call": ratio(busy, calls),
            "per_second": rates.map(|(name, rate)| (name, rate.into())).collect::<Map<_, _>>(),
            "totals": now.stats, "deferred": now.deferred, "put_off": now.put_off,
            "memory": now.memory.iter().map(blocks).collect::<Vec<_>>(),
            "connections_open": now.connections_open,
            "connections": self.connections(before, now, order),
        })
    }

    fn connections(self, before: &Core, now: &Core, order: Order) -> Vec<Value> {
        let earlier: BTreeMap<&str, &Connection> =
            before.connections.iter().map(|one| (&*one.id, one)).collect();
        let view = |now: &Connection| {
            let earlier = earlier.get(&*now.id).copied();
            let view = self.connection(earlier.unwrap_or(now), now);
            (rank(now, &view, order), view)
        };
        let mut views: Vec<(f64, Value)> = now.connections.iter().map(view).collect();
        views.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        views.into_iter().map(|(_, view)| view).collect()
    }

    fn connection(self, before: &Connection, now: &Connection) -> Value {
        let Connection { requester, responder, bytes, receives, sends, .. } = now;
        json!({
            "id": now.id, "peer": now.peer, "made_by": now.made_by, "state": now.state,
            "version": now.version, "served": responder.calls, "called": requester.calls,
            "served_per_second": self.rate(before.responder.calls, responder.calls),
            "called_per_second": self.rate(before.requester.calls, requester.calls),
            "read_bytes_per_second": self.rate(before.bytes.read, bytes.read),
            "written_bytes_per_second": self.rate(before.bytes.written, bytes.written),
            "credits_in_flight": requester.credits_in_flight,
            "credits_granted": requester.credits_granted,
            "serving": responder.in_progress, "credits_given": responder.credits_granted,
            "receives": receives.total, "receives_kept": receives.kept,
            "sends": sends.total, "sends_out": sends.out(), "sends_kept": sends.kept,
            "blocks": now.blocks,
            "memory_used_bytes": now.memory_used_bytes, "memory_bytes": now.memory_bytes,
        })
    }
}

/// The first in this order has the largest number.
fn rank(now: &Connection, view: &Value, order: Order) -> f64 {
    let rate = |name: &str| view[name].as_f64().unwrap_or(0.0);
    let sum = |counts: &[u64]| total(counts.iter().copied()) as f64;
    match order {
        Order::Calls => rate("served_per_second") + rate("called_per_second"),
        Order::InFlight => sum(&[now.requester.credits_in_flight, now.responder.in_progress]),
        Order::Memory => {
            sum(&[now.receives.kept, now.sends.out(), total(now.blocks.values().copied())])
        }
        Order::Place => -place(&now.id),
    }
}

/// The place in `12.3` (place and generation).
fn place(id: &str) -> f64 {
    id.split('.').next().and_then(|place| place.parse().ok()).unwrap_or(f64::MAX)
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::schema;
    use crate::top::Owner;

    /// An engine after this many seconds, each of which had the same activity.
    pub(in super::super) fn found(seconds: u64) -> Found {
        let connection = |id: &str, served: u64| {
            json!({"id": id, "peer": "user 7, process 8", "made_by": "peer", "state": "up",
                "version": 1,
                "requester": {"calls": 0, "credits_requested": 1, "credits_granted": 1,
                    "credits_in_flight": 0},
                "responder": {"calls": served, "credits_granted": 64, "in_progress": 3},
                "bytes": {"read": 0, "written": served},
                "receives": {"bytes": 4096, "total": 66, "free": 0, "kept": 2},
                "sends": {"bytes": 9600, "total": 66, "free": 65, "kept": 0},
                "blocks": {"calls": 0, "fetches": 1, "pulls": 0, "exports": 0},
                "memory_used_bytes": 8192, "memory_bytes": 1 << 20})
        };
        let snapshot = json!({"schema": "spinrpc-control/1", "pid": 1, "engine": 0,
            "version": "0.1.0", "fabric": "shm", "uptime_ns": seconds * 1_000_000_000,
            "ticks_per_second": 1_000_000, "listens": ["shm:x"], "settings": {"poll.mode": "busy"},
            "member_of_a_later_release": 1,
            "cores": [{"index": 0, "cpu": 3, "idle": "busy", "running": true, "answered": true,
                "stats": {"polls": seconds * 1000, "empty_polls": seconds * 250,
                    "busy_ticks": seconds * 500_000, "calls_received": seconds * 100,
                    "replies_received": 0, "credit_stalls": seconds * 7},
                "deferred": 1, "put_off": 0,
                "memory": [{"block_bytes": 8192, "total": 64, "free": 60}],
                "connections_open": 2,
                "connections": [connection("0.0", seconds * 20), connection("5.1", seconds * 80)]}]});
        let owner = Owner { pid: 1, user: 7 };
        Found {
            owner,
            program: "spin".to_owned(),
            snapshot: serde_json::from_value(snapshot).unwrap(),
            latencies: None,
        }
    }

    #[test]
    fn rates_are_of_the_engines_own_time() {
        let view = between(&[found(10)], &[found(14)], Order::Calls);
        assert_eq!(view["schema"], "spinperf-top/1");
        let engine = &view["engines"][0];
        assert_eq!(engine["interval_s"], 4.0);
        let core = &engine["cores"][0];
        assert_eq!(core["per_second"]["calls_received"], 100.0);
        assert_eq!(core["per_second"]["credit_stalls"], 7.0);
        assert_eq!(core["totals"]["calls_received"], 1400);
        assert_eq!(
            (&core["busy_percent"], &core["empty_polls_percent"]),
            (&json!(50.0), &json!(25.0))
        );
        assert_eq!(core["ticks_per_call"], 5000.0);
        assert_eq!(core["memory"][0], json!({"block_bytes": 8192, "used": 4, "total": 64}));
        assert_eq!(core["connections"][0]["id"], "5.1");
        assert_eq!(core["connections"][0]["served_per_second"], 80.0);
        assert_eq!(core["connections"][0]["written_bytes_per_second"], 80.0);
        assert_eq!(core["connections"][0]["sends_out"], 1);
    }

    #[test]
    fn an_engine_seen_for_the_first_time_or_begun_anew_has_no_rates() {
        for before in [vec![], vec![found(20)]] {
            let view = between(&before, &[found(14)], Order::Calls);
            let engine = &view["engines"][0];
            assert_eq!(engine["interval_s"], 0.0);
            let core = &engine["cores"][0];
            assert_eq!(core["per_second"]["calls_received"], 0.0);
            assert_eq!(core["ticks_per_call"], Value::Null);
            assert_eq!(core["connections"][0]["served_per_second"], 0.0);
        }
    }

    #[test]
    fn connections_come_in_the_order_asked_for() {
        for (order, first) in [(Order::Calls, "5.1"), (Order::Place, "0.0")] {
            let view = between(&[found(1)], &[found(2)], order);
            assert_eq!(view["engines"][0]["cores"][0]["connections"][0]["id"], first, "{order:?}");
        }
        for order in [Order::InFlight, Order::Memory] {
            let mut now = found(2);
            let last = &mut now.snapshot.cores[0].connections[1];
            (last.responder.in_progress, last.receives.kept) = (9, 9);
            let view = between(&[found(1)], &[now], order);
            assert_eq!(view["engines"][0]["cores"][0]["connections"][0]["id"], "5.1", "{order:?}");
        }
    }

    #[test]
    fn a_line_has_what_its_schema_describes_and_nothing_else() {
        let described = include_str!("../../schema/spinperf-top-1.schema.json");
        let line = between(&[found(1)], &[found(2)], Order::Calls);
        assert_eq!(schema::violations(&line, described), [""; 0]);
    }
}
