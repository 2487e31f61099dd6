//! Metrics that the application publishes by the control socket of its engine.

use super::engine::Engine;
use super::errors::EngineError;
use crate::control::{METRICS_MAX, Metric, MetricSeries, SERIES_MAX};
use crate::sync::lock;
use crate::sys::journal::event;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

type Read = Box<dyn Fn(&mut MetricSeries) + Send>;

#[derive(Clone, Default)]
pub(super) struct Metrics(Arc<Mutex<Vec<(Metric, Read)>>>);

impl Metrics {
    fn add(&self, metric: Metric, read: Read) -> Result<(), EngineError> {
        let mut all = lock(&self.0);
        let series: usize = all.iter().map(|(known, _)| known.series_max).sum();
        let problem = if all.iter().any(|(known, _)| known.name == metric.name) {
            Some("it is published already")
        } else if all.len() == METRICS_MAX {
            Some("there are too many metrics")
        } else if metric.series_max > SERIES_MAX - series {
            Some("all metrics together have too many series")
        } else {
            metric.problem()
        };
        if let Some(problem) = problem {
            return Err(EngineError::ApiMisuse(format!("metric {:?}: {problem}", metric.name)));
        }
        all.push((metric, read));
        Ok(())
    }

    /// The series of all metrics. A metric that panics is left out.
    pub(super) fn read(&self) -> Vec<MetricSeries> {
        let read = |(metric, read): &(Metric, Read)| {
            let mut series = MetricSeries::new(*metric);
            match catch_unwind(AssertUnwindSafe(|| read(&mut series))) {
                Ok(()) => Some(series),
                Err(_) => {
                    event!(ERROR, "reading metric {} panicked", metric.name);
                    None
                }
            }
        };
        lock(&self.0).iter().filter_map(read).collect()
    }
}

impl Engine {
    /// Publishes a metric of the application by the [control socket](crate::control), from which `spinperf metrics`
    /// takes it for Prometheus. The application counts where it works, in memory of its own, such as a
    /// [`LatencyHistogram`](crate::control::LatencyHistogram) for each thread; `read` is called when a process asks,
    /// at most a hundred times a second, on the socket's thread. It must not wait for long, call this function, or hold
    /// a clone of the engine, which would never be dropped. Without a control socket it is never called.
    ///
    /// # Errors
    /// [`EngineError::ApiMisuse`] if the name or a label is not allowed or is there already, or for more than
    /// [`METRICS_MAX`] metrics, or [`SERIES_MAX`] series of all metrics.
    ///
    /// ```
    /// use spinrpc::control::Metric;
    /// use spinrpc::{Config, Engine};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// let engine = Engine::new(Config::default())?;
    /// let hits = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    /// let counted = Arc::clone(&hits);
    /// let help = "Blocks found in the cache";
    /// let metric = Metric { name: "cache_hits", help, labels: &["tier"], series_max: 2 };
    /// engine.publish_metric(metric, move |series| {
    ///     for (tier, hits) in ["memory", "disk"].iter().zip(&*hits) {
    ///         series.count(&[tier], hits.load(Ordering::Relaxed));
    ///     }
    /// })?;
    /// counted[0].fetch_add(1, Ordering::Relaxed);
    /// # Ok::<(), spinrpc::EngineError>(())
    /// ```
    pub fn publish_metric(
        &self,
        metric: Metric,
        read: impl Fn(&mut MetricSeries) + Send + 'static,
    ) -> Result<(), EngineError> {
        self.0.metrics.add(metric, Box::new(read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    const METRIC: Metric = Metric { name: "m", help: "", labels: &[], series_max: SERIES_MAX - 1 };

    #[test]
    fn names_and_series_are_limited_when_they_are_published() {
        let metrics = Metrics::default();
        let add = |name: &'static str, series_max| {
            metrics.add(Metric { name, series_max, ..METRIC }, Box::new(|_| {})).is_ok()
        };
        assert!(add("m", SERIES_MAX - 1));
        assert!(!add("m", 0) && !add("n", 2) && !add("n", usize::MAX) && !add("n_total", 1));
        // Of a static: the address sanitizer reports what is leaked.
        static NAMES: LazyLock<Vec<String>> =
            LazyLock::new(|| (1..METRICS_MAX).map(|number| format!("m{number}")).collect());
        assert!(NAMES.iter().enumerate().all(|(at, name)| add(name, usize::from(at == 0))));
        assert!(!add("n", 0));
    }

    #[test]
    fn a_metric_whose_reading_panics_leaves_the_others() {
        let metrics = Metrics::default();
        let first = Metric { series_max: 1, ..METRIC };
        metrics.add(first, Box::new(|_| std::panic::panic_any("planted"))).unwrap();
        let second = Metric { name: "n", ..first };
        metrics.add(second, Box::new(|series| series.count(&[], 7))).unwrap();
        let read = metrics.read();
        let counts = read.iter().map(|of| (of.metric.name, of.rows().next().unwrap().count));
        assert_eq!(counts.collect::<Vec<_>>(), [("n", 7)]);
    }
}
