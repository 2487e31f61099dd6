//! Metrics of NFS by procedure, client and export, which `spinperf metrics` takes from the control socket of the engine.

use crate::stats;
use spinrpc::control::{Metric, MetricSeries, OTHER};
use spinrpc::{Engine, EngineError};
use spinrpc_nfs::nfs3::PROCEDURES;
use spinrpc_nfs::server::Server;
use spinrpc_nfs::server::client_table::CLIENTS_MAX;
use spinrpc_nfs::server::exports::EXPORTS_MAX;
use spinrpc_nfs::server::mount::Registry;
use spinrpc_nfs::server::stats::Usage;
use std::sync::Arc;

struct Counted {
    server: Arc<Server>,
    registry: Arc<Registry>,
}

/// Name, label, most series, and description.
type Row = (&'static str, [&'static str; 1], usize, &'static str, Read);
type Read = fn(&Counted, &mut MetricSeries);

static METRICS: [Row; 6] = [
    (
        "nfs_procedure",
        ["procedure"],
        PROCEDURES,
        "Executed NFS calls, by procedure",
        Counted::procedures,
    ),
    (
        "nfs_errors",
        ["procedure"],
        PROCEDURES,
        "Executed NFS calls that failed, by procedure",
        Counted::errors,
    ),
    ("nfs_client", ["client"], CLIENTS_MAX, "Answered NFS calls, by client", Counted::clients),
    ("nfs_export", ["export"], EXPORTS_MAX, "Answered NFS calls, by export", Counted::exports),
    ("nfs_refused", ["reason"], 5, "Refused NFS calls and mounts", Counted::refused),
    ("nfs_data_bytes", ["direction"], 2, "Bytes of files that were moved", Counted::bytes),
];

pub(crate) fn publish(
    server: &Arc<Server>,
    registry: &Arc<Registry>,
    engine: &Engine,
) -> Result<(), EngineError> {
    for (name, labels, series_max, help, read) in &METRICS {
        let metric = Metric { name, help, labels, series_max: *series_max };
        let counted = Counted { server: Arc::clone(server), registry: Arc::clone(registry) };
        engine.publish_metric(metric, move |series| read(&counted, series))?;
    }
    Ok(())
}

impl Counted {
    fn procedures(&self, series: &mut MetricSeries) {
        for (number, of) in self.server.stats().procedures.iter().enumerate() {
            if of.calls > 0 {
                series.durations(&[&stats::name(number)], &of.durations);
            }
        }
    }

    fn errors(&self, series: &mut MetricSeries) {
        for (number, of) in self.server.stats().procedures.iter().enumerate() {
            if of.calls > 0 {
                series.count(&[&stats::name(number)], of.failed);
            }
        }
    }

    /// Those answered with NFS3ERR_JUKEBOX are to be tried again.
    fn refused(&self, series: &mut MetricSeries) {
        let stats = self.server.stats();
        series.count(&["jukebox"], stats.jukebox);
        series.count(&["bad_handle"], stats.bad_handles);
        series.count(&["denied"], stats.denied);
        series.count(&["garbage"], stats.garbage);
        series.count(&["mount"], self.registry.refused());
    }

    fn bytes(&self, series: &mut MetricSeries) {
        let stats = self.server.stats();
        series.count(&["read"], stats.bytes_read);
        series.count(&["written"], stats.bytes_written);
    }

    fn clients(&self, series: &mut MetricSeries) {
        let (clients, others) = self.server.client_usage();
        for (peer, usage) in clients {
            add(series, &peer.to_string(), &usage);
        }
        add(series, OTHER, &others);
    }

    /// Those that are gone are left out: in a sum they would make it jump, and fall when one comes back.
    fn exports(&self, series: &mut MetricSeries) {
        let exports = self.server.exports();
        for (id, usage) in self.server.export_usage() {
            if let Some(export) = exports.by_id(id) {
                add(series, &export.path, &usage);
            }
        }
    }
}

fn add(series: &mut MetricSeries, value: &str, usage: &Usage) {
    series.time(&[value], usage.calls, usage.ns);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in the dashboard and the alert rules, which operators install from the package.
    #[test]
    fn metrics_that_operators_are_shown_are_published() {
        let shown = concat!(
            include_str!("../../../monitoring/spin-nfsd.dashboard.json"),
            include_str!("../../../monitoring/spin-nfsd.rules.yml")
        );
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let names = shown.split(|letter| !is_name(letter));
        let names: Vec<_> = names.filter_map(|name| name.strip_prefix("spinrpc_app_")).collect();
        let base = |name: &str| {
            let endings = ["_total", "_seconds_bucket", "_seconds_count", "_seconds_sum"];
            let found = endings.iter().find_map(|ending| name.strip_suffix(ending));
            found.map(str::to_owned)
        };
        for (metric, ..) in METRICS {
            let is_of = |name: &&str| base(name).as_deref() == Some(metric);
            assert!(names.iter().any(is_of), "{metric} is shown nowhere");
        }
        for name in names {
            let is_its = |(metric, ..): &Row| base(name).as_deref() == Some(*metric);
            assert!(METRICS.iter().any(is_its), "{name}");
        }
    }
}
