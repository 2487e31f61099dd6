//! Metrics of the application: their descriptions, and one reading of their series. The api keeps the metrics, and
//! `snapshot` shows the readings.

/// Most metrics that an engine publishes for its application.
pub const METRICS_MAX: usize = 64;
/// Most series of all these metrics together ([`Metric::series_max`]).
pub const SERIES_MAX: usize = 1024;
/// Most labels of a metric.
pub const LABELS_MAX: usize = 4;
/// Longest name of a metric or a label, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest value of a label that is shown, in bytes: a longer one is cut. Also the longest help.
pub const LABEL_BYTES_MAX: usize = 256;
/// Value of every label of the series that counts for those beyond [`Metric::series_max`].
pub const OTHER: &str = "other";

/// Endings that formats give to names, or that tell units.
const RESERVED_ENDINGS: [&str; 7] =
    ["_total", "_seconds", "_bucket", "_count", "_sum", "_created", "_info"];
const RESERVED_LABELS: [&str; 6] = ["program", "pid", "engine", "user", "le", "quantile"];

/// Description of a metric of the application, for [`Engine::publish_metric`](crate::Engine::publish_metric).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name: small letters, digits and `_`, at most [`NAME_BYTES_MAX`]. `spinperf metrics` shows counts as
    /// `spinrpc_app_NAME_total`, and durations as the histogram `spinrpc_app_NAME_seconds`; so it must not end in
    /// `_total`, `_seconds` and the like.
    pub name: &'static str,
    /// What it counts, in one line of at most [`LABEL_BYTES_MAX`] bytes.
    pub help: &'static str,
    /// Names of its labels, at most [`LABELS_MAX`]. Readers add `program`, `pid`, `engine` and `user`.
    pub labels: &'static [&'static str],
    /// Most series with different values of the labels. All further ones are counted as one, whose values are
    /// [`OTHER`].
    pub series_max: usize,
}

impl Metric {
    pub(crate) fn problem(&self) -> Option<&'static str> {
        let is_twice = |(at, label): (usize, &&str)| self.labels[..at].contains(label);
        if !is_metric_name(self.name) {
            Some("its name is not one of a metric")
        } else if self.help.len() > LABEL_BYTES_MAX {
            Some("its help is too long")
        } else if self.labels.len() > LABELS_MAX {
            Some("it has too many labels")
        } else if !self.labels.iter().all(|label| is_label_name(label)) {
            Some("a label has a reserved name, or one with other characters")
        } else if self.labels.iter().enumerate().any(is_twice) {
            Some("it has a label twice")
        } else {
            None
        }
    }
}

/// Returns true for a name that a [`Metric`] may have.
pub fn is_metric_name(name: &str) -> bool {
    is_name(name) && !RESERVED_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Returns true for a name that a label of a [`Metric`] may have.
pub fn is_label_name(name: &str) -> bool {
    is_name(name) && !RESERVED_LABELS.contains(&name)
}

fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(is_allowed)
}

pub use crate::reactor::{Durations, LatencyHistogram};

/// Takes the series of one metric while it is read. Those of the same values, as far as these are shown, add up.
#[derive(Debug)]
pub struct MetricSeries {
    pub(crate) metric: Metric,
    rows: Vec<Row>,
    other: Option<Row>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) values: Vec<String>,
    pub(crate) count: u64,
    /// Sum of durations, unless it only counts.
    pub(crate) sum_ns: Option<u64>,
    /// Empty without a histogram.
    pub(crate) buckets: Vec<u64>,
}

impl MetricSeries {
    pub(crate) fn new(metric: Metric) -> Self {
        Self { metric, rows: Vec::new(), other: None }
    }

    /// A count since the start, which only grows.
    pub fn count(&mut self, values: &[&str], count: u64) {
        self.add(values, Row { count, ..Row::default() });
    }

    /// A histogram of durations.
    pub fn durations(&mut self, values: &[&str], durations: &Durations) {
        let (count, sum_ns) = (durations.count(), Some(durations.sum_ns));
        self.add(
            values,
            Row { count, sum_ns, buckets: durations.buckets.into(), ..Row::default() },
        );
    }

    /// A number of events and the sum of their durations, without a histogram.
    pub fn time(&mut self, values: &[&str], count: u64, sum_ns: u64) {
        self.add(values, Row { count, sum_ns: Some(sum_ns), ..Row::default() });
    }

    /// The series that were given, and last the one for others.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().chain(&self.other)
    }

    fn add(&mut self, values: &[&str], row: Row) {
        let is_other = !values.is_empty() && values.iter().all(|value| *value == OTHER);
        let values: Vec<_> = values.iter().map(|value| cut(value).to_owned()).collect();
        if let Some(own) = self.rows.iter_mut().find(|own| own.values == values) {
            return own.add(row);
        }
        if !is_other && self.rows.len() < self.metric.series_max {
            return self.rows.push(Row { values, ..row });
        }
        let values = vec![OTHER.to_owned(); self.metric.labels.len()];
        self.other.get_or_insert_with(|| Row { values, ..Row::default() }).add(row);
    }
}

impl Row {
    fn add(&mut self, row: Self) {
        self.count = self.count.wrapping_add(row.count);
        self.sum_ns = row.sum_ns.map(|ns| self.sum_ns.unwrap_or(0).wrapping_add(ns));
        self.buckets.resize(row.buckets.len(), 0);
        for (sum, count) in self.buckets.iter_mut().zip(row.buckets) {
            *sum = sum.wrapping_add(count);
        }
    }
}

fn cut(value: &str) -> &str {
    value.get(..value.floor_char_boundary(LABEL_BYTES_MAX)).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    const METRIC: Metric = Metric { name: "calls", help: "", labels: &["who"], series_max: 2 };

    fn rows(series: &MetricSeries) -> Vec<(&str, u64)> {
        series.rows().map(|row| (&row.values[0][..], row.count)).collect()
    }

    #[test]
    fn series_beyond_the_limit_are_counted_as_one() {
        let mut series = MetricSeries::new(METRIC);
        for (who, count) in [("a", 1), (OTHER, 2), ("b", 3), ("c", 4), ("d", 5)] {
            series.count(&[who], count);
        }
        assert_eq!(rows(&series), [("a", 1), ("b", 3), (OTHER, 11)]);
    }

    #[test]
    fn durations_beyond_the_limit_add_up_in_every_bucket() {
        let mut series = MetricSeries::new(Metric { series_max: 0, ..METRIC });
        let histogram = LatencyHistogram::default();
        [1, 200].iter().for_each(|ns| histogram.record(*ns));
        series.durations(&["a"], &histogram.read());
        series.durations(&["b"], &histogram.read());
        let other = series.rows().next().unwrap();
        assert_eq!(
            (other.count, other.sum_ns, &other.buckets[..3]),
            (4, Some(402), &[2, 2, 0][..])
        );
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        let mut series = MetricSeries::new(METRIC);
        let value = "x".to_owned() + &"µ".repeat(LABEL_BYTES_MAX);
        series.count(&[&value], 1);
        assert_eq!(rows(&series)[0].0.len(), LABEL_BYTES_MAX - 1);
        // Two that are shown alike are one series: a reader would keep the last.
        series.count(&[&(value + "y")], 2);
        assert_eq!((series.rows().count(), rows(&series)[0].1), (1, 3));
    }

    #[test]
    fn names_that_a_format_or_a_reader_uses_are_refused() {
        assert_eq!(METRIC.problem(), None);
        // Of a static: the address sanitizer reports what is leaked.
        static HELP: LazyLock<String> = LazyLock::new(|| "a".repeat(LABEL_BYTES_MAX + 1));
        let (help, long) = (HELP.as_str(), &HELP[..=NAME_BYTES_MAX]);
        for name in ["", "Calls", "1calls", "a-b", "calls_total", "x_seconds", "x_bucket", long] {
            assert!(Metric { name, ..METRIC }.problem().is_some(), "{name}");
        }
        for labels in [&["pid"][..], &["le"], &["a", "a"], &["a", "b", "c", "d", "e"], &["é"]] {
            assert!(Metric { labels, ..METRIC }.problem().is_some(), "{labels:?}");
        }
        assert_eq!(Metric { help: &help[1..], ..METRIC }.problem(), None);
        assert!(Metric { help, ..METRIC }.problem().is_some(), "readers leave it out");
    }
}
