//! Activity of engines between two snapshots: rates, and the state at the second one. `mod` makes
//! it, `table` shows it, and `--json` prints it as JSON: schema `spinperf-top/1`, described in
//! `bench/schema/spinperf-top-1.schema.json`.

use super::snapshot::{Blocks, Connection, Core, Requester, Responder, Snapshot};
use super::socket::Owner;
use super::target::{Found, total};
use clap::ValueEnum;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Name and version of the lines of `--json`.
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

#[derive(Debug, Serialize)]
pub(crate) struct View<'a> {
    schema: &'static str,
    unix_ms: u64,
    pub(super) engines: Vec<EngineView<'a>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct EngineView<'a> {
    #[serde(flatten)]
    pub(super) owner: Owner,
    pub(super) program: &'a str,
    #[serde(flatten)]
    pub(super) now: &'a Snapshot,
    pub(super) uptime_s: f64,
    pub(super) interval_s: f64,
    pub(super) cores: Vec<CoreView<'a>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct CoreView<'a> {
    #[serde(flatten)]
    pub(super) now: &'a Core,
    pub(super) busy_percent: f64,
    pub(super) empty_polls_percent: f64,
    pub(super) ticks_per_call: Option<f64>,
    pub(super) per_second: BTreeMap<&'a str, f64>,
    pub(super) memory: Vec<BlocksView>,
    pub(super) connections: Vec<ConnectionView<'a>>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct BlocksView {
    pub(super) block_bytes: usize,
    pub(super) used: u64,
    pub(super) total: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct ConnectionView<'a> {
    #[serde(flatten)]
    pub(super) now: &'a Connection,
    #[serde(flatten)]
    pub(super) requester: &'a Requester,
    #[serde(flatten)]
    pub(super) responder: &'a Responder,
    pub(super) served_per_second: f64,
    pub(super) called_per_second: f64,
    pub(super) read_bytes_per_second: f64,
    pub(super) written_bytes_per_second: f64,
    pub(super) receives_kept: u64,
    pub(super) receives: u64,
    pub(super) sends_out: u64,
    pub(super) sends_kept: u64,
    pub(super) sends: u64,
}

impl<'a> View<'a> {
    pub(super) fn between(before: &[Found], now: &'a [Found], order: Order) -> Self {
        let engines = now.iter().map(|now| {
            let before = before.iter().find(|before| is_same(before, now));
            EngineView::between(before.map(|before| &before.snapshot), now, order)
        });
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { schema: SCHEMA, unix_ms: unix_ms.as_millis() as u64, engines: engines.collect() }
    }
}

/// A process that restarted in the meantime is another engine.
fn is_same(before: &Found, now: &Found) -> bool {
    before.owner == now.owner
        && before.snapshot.engine == now.snapshot.engine
        && before.snapshot.uptime_ns < now.snapshot.uptime_ns
}

impl<'a> EngineView<'a> {
    fn between(before: Option<&Snapshot>, now: &'a Found, order: Order) -> Self {
        let Found { owner, program, snapshot, .. } = now;
        let since_ns = before.map_or(snapshot.uptime_ns, |before| before.uptime_ns);
        let span = Span {
            seconds: snapshot.uptime_ns.saturating_sub(since_ns) as f64 / 1e9,
            ticks_per_second: snapshot.ticks_per_second as f64,
        };
        let core = |now: &'a Core| {
            let same = |core: &&Core| core.index == now.index;
            let before = before.and_then(|before| before.cores.iter().find(same));
            span.core(before.unwrap_or(now), now, order)
        };
        Self {
            owner: *owner,
            program,
            now: snapshot,
            uptime_s: snapshot.uptime_ns as f64 / 1e9,
            interval_s: span.seconds,
            cores: snapshot.cores.iter().map(core).collect(),
        }
    }
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

    fn core<'a>(self, before: &Core, now: &'a Core, order: Order) -> CoreView<'a> {
        let rates = now.stats.iter().map(|(name, count)| {
            // Ticks are not events; the busy percentage is shown separately.
            (name.as_str(), self.rate(before.count(name), *count))
        });
        let grown = |name| now.count(name).saturating_sub(before.count(name)) as f64;
        let percent = |part, whole| 100.0 * ratio(part, whole).unwrap_or(0.0);
        let busy = grown("busy_ticks");
        let calls = grown("calls_received") + grown("replies_received");
        CoreView {
            now,
            busy_percent: percent(busy, self.seconds * self.ticks_per_second),
            empty_polls_percent: percent(grown("empty_polls"), grown("polls")),
            ticks_per_call: ratio(busy, calls),
            per_second: rates.filter(|(name, _)| *name != "busy_ticks").collect(),
            memory: now.memory.iter().map(BlocksView::of).collect(),
            connections: self.connections(before, now, order),
        }
    }

    fn connections<'a>(
        self,
        before: &Core,
        now: &'a Core,
        order: Order,
    ) -> Vec<ConnectionView<'a>> {
        let earlier: BTreeMap<&str, &Connection> =
            before.connections.iter().map(|c| (c.id.as_str(), c)).collect();
        let view = |now: &'a Connection| {
            self.connection(earlier.get(now.id.as_str()).copied().unwrap_or(now), now)
        };
        let mut views: Vec<_> = now.connections.iter().map(view).collect();
        match order {
            Order::Calls => {
                views.sort_by(|a, b| b.calls_per_second().total_cmp(&a.calls_per_second()))
            }
            Order::InFlight => views.sort_by_key(|c| {
                Reverse(c.requester.credits_in_flight.saturating_add(c.responder.in_progress))
            }),
            Order::Memory => views.sort_by_key(|c| Reverse(c.held())),
            Order::Place => views.sort_by_key(|c| place(&c.now.id)),
        }
        views
    }

    fn connection<'a>(self, before: &Connection, now: &'a Connection) -> ConnectionView<'a> {
        let (requester, responder) = (&now.requester, &now.responder);
        ConnectionView {
            now,
            requester,
            responder,
            served_per_second: self.rate(before.responder.calls, responder.calls),
            called_per_second: self.rate(before.requester.calls, requester.calls),
            read_bytes_per_second: self.rate(before.bytes.read, now.bytes.read),
            written_bytes_per_second: self.rate(before.bytes.written, now.bytes.written),
            receives_kept: now.receives.kept,
            receives: now.receives.total,
            sends_out: now.sends.total.saturating_sub(now.sends.free),
            sends_kept: now.sends.kept,
            sends: now.sends.total,
        }
    }
}

impl BlocksView {
    fn of(blocks: &Blocks) -> Self {
        let Blocks { block_bytes, total, free } = *blocks;
        Self { block_bytes, used: total.saturating_sub(free), total }
    }
}

impl ConnectionView<'_> {
    fn calls_per_second(&self) -> f64 {
        self.served_per_second + self.called_per_second
    }

    fn held(&self) -> u64 {
        total(
            [self.receives_kept, self.sends_out]
                .into_iter()
                .chain(self.now.blocks.values().copied()),
        )
    }
}

/// The place in `12.3` (place and generation), as a sort key.
fn place(id: &str) -> u64 {
    id.split('.').next().and_then(|place| place.parse().ok()).unwrap_or(u64::MAX)
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::schema;
    use serde_json::{Value, json};

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

    fn shown(before: &[Found], now: &[Found], order: Order) -> Value {
        serde_json::to_value(View::between(before, now, order)).unwrap()
    }

    #[test]
    fn rates_are_of_the_engines_own_time() {
        let view = shown(&[found(10)], &[found(14)], Order::Calls);
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
            let view = shown(&before, &[found(14)], Order::Calls);
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
            let view = shown(&[found(1)], &[found(2)], order);
            assert_eq!(view["engines"][0]["cores"][0]["connections"][0]["id"], first, "{order:?}");
        }
        for order in [Order::InFlight, Order::Memory] {
            let mut now = found(2);
            let last = &mut now.snapshot.cores[0].connections[1];
            (last.responder.in_progress, last.receives.kept) = (9, 9);
            let now = [now];
            let view = View::between(&[found(1)], &now, order);
            assert_eq!(view.engines[0].cores[0].connections[0].now.id, "5.1", "{order:?}");
        }
    }

    #[test]
    fn a_line_has_what_its_schema_describes_and_nothing_else() {
        let described = include_str!("../../schema/spinperf-top-1.schema.json");
        let line = shown(&[found(1)], &[found(2)], Order::Calls);
        assert_eq!(schema::violations(&line, described), [""; 0]);
    }
}
