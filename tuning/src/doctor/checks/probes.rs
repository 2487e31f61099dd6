//! Measurements on the CPUs themselves.

use super::{not_tried, some_of};
use crate::doctor::{CheckInput, Finding, Jitter};

pub(super) fn jitter(input: &CheckInput<'_>) -> Finding {
    let Some(tried) = input.tried else { return not_tried() };
    let measured: Vec<&Jitter> = tried.jitter.iter().flatten().collect();
    let Some(worst) = measured.iter().max_by_key(|jitter| jitter.longest_ns) else {
        let error = tried.jitter.iter().find_map(|one| one.as_ref().err());
        return Finding::unknown(error.map_or("no poll core could be tested", String::as_str));
    };
    let rows = some_of(measured.iter().map(|one| one.show()), 16);
    let source = format!("clock watched for {} ms on each poll core", tried.watched.as_millis());
    let longest = micros(worst.longest_ns);
    if worst.longest_ns < GAP_NS {
        let says = format!("no gap longer than {longest} µs");
        return Finding::ok(says).seen(source, rows);
    }
    let says = format!("CPU {} lost {longest} µs at once", worst.cpu);
    Finding::new(input.interference(), says).seen(source, rows).remedy(
        "Other work ran there: see cpus.isolated, cpus.tick, irqs.cores, load.cores and \
         kernel.watchdogs",
    )
}

impl Jitter {
    fn show(&self) -> String {
        format!(
            "CPU {}: longest {} µs, {} gaps over {} µs, {} µs lost in total",
            self.cpu,
            micros(self.longest_ns),
            self.gaps,
            GAP_NS / 1000,
            micros(self.lost_ns)
        )
    }
}

/// A round trip takes a tenth of a microsecond: two such gaps in a thousand calls are the whole tail.
pub(in crate::doctor) const GAP_NS: u64 = 20_000;

fn micros(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1000.0)
}
