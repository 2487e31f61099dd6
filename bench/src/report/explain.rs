//! The bottleneck of a row: the reason why its rate was not higher, with evidence.

use super::{Row, Summary};
use crate::units::{joined, show_count};
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Bound {
    pub(crate) limit: Limit,
    pub(crate) evidence: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Limit {
    /// An open loop that kept its rate: no more was requested.
    OfferedRate,
    /// The responder grants fewer calls at a time than were wanted.
    Credits,
    /// Send queues or rings had no room.
    Queue,
    /// Copying the payload takes all the time.
    Memory,
    /// The device's link is at its capacity in one direction.
    Wire,
    ClientCore,
    ServerCore,
    BothCores,
    /// Nothing is saturated: each call only waits for its reply.
    RoundTrip,
}

impl Limit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OfferedRate => "the requested rate",
            Self::Credits => "credits",
            Self::Queue => "full queues",
            Self::Memory => "memory",
            Self::Wire => "wire",
            Self::ClientCore => "client core",
            Self::ServerCore => "server core",
            Self::BothCores => "both cores",
            Self::RoundTrip => "round trip",
        }
    }
}

impl Bound {
    pub(crate) fn of(row: &Row, wire_bytes_per_second: Option<f64>) -> Self {
        let median = &row.median;
        let carried = median.bytes_per_second * row.workload.larger_direction();
        let link_percent = wire_bytes_per_second.map(|wire| carried / wire * 100.0);
        let limit = match () {
            () if kept_up(row) => Limit::OfferedRate,
            () if median.credit_stalls_per_call > STALLS_NOTICED => Limit::Credits,
            () if median.queue_full_per_call > STALLS_NOTICED => Limit::Queue,
            () if link_percent.is_some_and(|percent| percent >= LINK_FULL_PERCENT) => Limit::Wire,
            () if copy_ratio(median).is_some_and(|ratio| ratio >= COPY_BOUND) => Limit::Memory,
            () => saturated_core(median),
        };
        Self { limit, evidence: evidence(row, limit, link_percent) }
    }
}

fn saturated_core(median: &Summary) -> Limit {
    let saturated = |busy: Option<f64>| busy.is_some_and(|percent| percent >= SATURATED_PERCENT);
    match (saturated(median.client_busy_percent), saturated(median.server_busy_percent)) {
        (true, true) => Limit::BothCores,
        (true, false) => Limit::ClientCore,
        (false, true) => Limit::ServerCore,
        (false, false) => Limit::RoundTrip,
    }
}

fn kept_up(row: &Row) -> bool {
    let mut loops = row.repeats.iter().map(|repeat| repeat.measurement.open);
    loops.all(|open| open.is_some_and(|open| open.adherence_percent >= ADHERENCE_PERCENT))
        && !row.repeats.is_empty()
}

fn copy_ratio(median: &Summary) -> Option<f64> {
    median.ratios.iter().find(|ratio| ratio.to == "memcpy").map(|ratio| ratio.median)
}

fn evidence(row: &Row, limit: Limit, link_percent: Option<f64>) -> String {
    let median = &row.median;
    let first = match limit {
        Limit::OfferedRate => {
            let target = row.repeats.first().and_then(|repeat| repeat.measurement.open);
            target.map(|open| format!("{} calls/s requested", show_count(open.target_per_second)))
        }
        Limit::Credits => Some(format!(
            "{:.2} stalls per call: rpc.credits of both ends",
            median.credit_stalls_per_call
        )),
        Limit::Queue => Some(format!("{:.2} rejections per call", median.queue_full_per_call)),
        Limit::Wire => link_percent.map(|percent| format!("{percent:.0}% of the link")),
        Limit::Memory => copy_ratio(median).map(|ratio| format!("{ratio:.2} x memcpy")),
        _ => None,
    };
    let core = |name: &str, busy_percent: Option<f64>, cpu: Option<f64>, ticks: Option<f64>| {
        let busy_percent = busy_percent?;
        let cpu = cpu.map_or_else(String::new, |percent| format!(", {percent:.0}% CPU"));
        let ticks = ticks.map_or_else(String::new, |ticks| format!(", {ticks:.0} ticks/call"));
        Some(format!("{name} {busy_percent:.0}% busy{cpu}{ticks}"))
    };
    let m = median;
    let client =
        core("client", m.client_busy_percent, m.client_cpu_percent, m.client_ticks_per_call);
    let server =
        core("server", m.server_busy_percent, m.server_cpu_percent, m.server_ticks_per_call);
    joined([first, client, server].into_iter().flatten(), "; ")
}

/// A core this busy has no time left for more calls.
const SATURATED_PERCENT: f64 = 90.0;
/// With at least this many stalls per call, stalls limit the rate instead of a core.
const STALLS_NOTICED: f64 = 0.01;
/// Minimum percentage of the requested rate for an open loop to count as kept.
const ADHERENCE_PERCENT: f64 = 99.9;
/// Fraction of the rate of a bare copy; the rest is the cost of a call.
const COPY_BOUND: f64 = 0.7;
/// Headers and gaps take the rest of a link.
const LINK_FULL_PERCENT: f64 = 85.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::Probe;
    use crate::load::{OpenLoop, Operation, Workload};
    use crate::report::Repeat;
    use crate::report::tests::{open_loop, repeat};

    fn bound(repeat: Repeat, wire: Option<f64>) -> Bound {
        Bound::of(&Row::new(Workload::ping_pong(Operation::Echo, 64), vec![repeat]), wire)
    }

    #[test]
    fn a_saturated_core_is_named_unless_credits_or_queues_ran_out_first() {
        let mut one = repeat(100, 1.0, &[]);
        let by_core = bound(one.clone(), None);
        assert_eq!(by_core.limit, Limit::ClientCore);
        assert_eq!(by_core.evidence, "client 95% busy; server 40% busy");
        one.measurement.server.as_mut().unwrap().queue_full = 50;
        assert_eq!(bound(one.clone(), None).limit, Limit::Queue);
        one.measurement.client.credit_stalls = 50;
        let by_credits = bound(one.clone(), None);
        assert_eq!(by_credits.limit, Limit::Credits);
        assert!(by_credits.evidence.contains("rpc.credits"), "{by_credits:?}");
        one.measurement.client.busy_percent = Some(10.0);
        one.measurement.client.credit_stalls = 0;
        one.measurement.server.as_mut().unwrap().queue_full = 0;
        assert_eq!(bound(one, None).limit, Limit::RoundTrip);
    }

    #[test]
    fn a_copy_as_fast_as_memcpy_is_bound_by_memory_and_a_full_link_by_the_wire() {
        let copy = Probe::Copy { block_bytes: 1 << 20, blocks: 2 };
        let fast = repeat(100, 1.0, &[(copy, 100.0 * 128.0)]);
        assert_eq!(bound(fast.clone(), None).limit, Limit::Memory);
        assert_eq!(bound(fast.clone(), Some(100.0 * 64.0)).limit, Limit::Wire);
        // Half of the bytes are calls, and half are replies.
        assert_eq!(bound(fast, Some(100.0 * 128.0)).limit, Limit::Memory);
    }

    #[test]
    fn an_open_loop_that_keeps_up_is_bound_by_what_it_was_asked_for() {
        let mut one = repeat(100, 1.0, &[]);
        let open = |adherence_percent| OpenLoop { adherence_percent, ..open_loop(1000) };
        one.measurement.open = Some(open(99.95));
        assert_eq!(bound(one.clone(), None).limit, Limit::OfferedRate);
        one.measurement.open = Some(open(90.0));
        assert_eq!(bound(one, None).limit, Limit::ClientCore);
    }
}
