//! Text formats of HdrHistogram, for its plotter and other tools: percentile spectra, and interval logs.

use super::Report;
use crate::failure::Failure;
use crate::latency::MISSING_NS;
use crate::units::system_time;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The spectrum of samples in nanoseconds, in microseconds, and of calls that are missing: it ends at the first of these, and
/// has neither maximum nor mean then.
pub(crate) fn spectrum(samples: &Histogram<u64>, missing: u64) -> String {
    let mut ranked = samples.clone();
    // Cannot fail: the histogram grows as needed.
    let _ = ranked.record_n(MISSING_NS, missing);
    let mut text = format!(
        "{:>12} {:>14} {:>10} {:>14}\n\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    );
    let mut total = 0;
    let is_known = |ns: u64| missing == 0 || ns < MISSING_NS;
    let steps = ranked.iter_quantiles(TICKS_PER_HALF_DISTANCE);
    for step in steps.take_while(|step| is_known(step.value_iterated_to())) {
        total += step.count_since_last_iteration();
        let (us, quantile) = (step.value_iterated_to() as f64 / 1e3, step.quantile_iterated_to());
        // Writing to a string cannot fail. The last line lacks the last column, which would be
        // infinite.
        let _ = match quantile < 1.0 {
            true => writeln!(
                text,
                "{us:12.3} {quantile:14.12} {total:10} {:14.2}",
                1.0 / (1.0 - quantile)
            ),
            false => writeln!(text, "{us:12.3} {quantile:14.12} {total:10}"),
        };
    }
    let (mean, deviation) = (samples.mean() / 1e3, samples.stdev() / 1e3);
    let (max, count) = (samples.max() as f64 / 1e3, ranked.len());
    let _ = match missing {
        0 => writeln!(
            text,
            "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]\n\
             #[Max     = {max:12.3}, Total count    = {count:12}]"
        ),
        _ => writeln!(text, "#[Missing = {missing:12}, Total count    = {count:12}]"),
    };
    text
}

/// The file for one row of several: `out.hgrm` becomes `out.2-null-depth-32.hgrm`.
pub(crate) fn path_of_row(path: &Path, number: usize, name: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let end =
        path.extension().map_or_else(String::new, |end| format!(".{}", end.to_string_lossy()));
    path.with_file_name(format!("{stem}.{number}-{}{end}", slug(name)))
}

/// A name without characters that are special in shells or logs.
fn slug(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { ' ' };
    let plain: String = name.chars().map(plain).collect();
    plain.split_whitespace().collect::<Vec<_>>().join("-")
}

/// Every interval of every row as an HdrHistogram interval log, version 2, for HistogramLogAnalyzer and other tools. Values
/// are nanoseconds; the tag of a line names its row and repeat; maxima are in milliseconds, as the format requires.
/// Repeats follow each other without their warm-ups.
pub(crate) fn interval_log(report: &Report) -> Result<String, Failure> {
    let mut serializer = V2DeflateSerializer::new();
    let mut bytes = Vec::new();
    let start = system_time(report.environment.started_unix_s);
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("[Histogram log format version 1.3]")
        .add_comment("spinperf, values in nanoseconds")
        .with_start_time(start)
        .with_base_time(start)
        .with_max_value_divisor(NS_PER_MS)
        .begin_log_with(&mut bytes, &mut serializer)
        .map_err(|error| unwritten(&error))?;
    for (number, row) in report.rows.iter().enumerate() {
        let mut offset_s = 0.0;
        for (repeat_number, repeat) in row.repeats.iter().enumerate() {
            let tag = format!("{}-{}.r{}", number + 1, slug(&row.name), repeat_number + 1);
            let (missing, intervals) =
                (repeat.measurement.latency.missing, &repeat.measurement.samples.intervals);
            if missing > 0 && !intervals.is_empty() {
                let comment = format!(
                    "{tag}: {missing} calls that were never answered, or never sent, are in its last \
                     interval, as an hour"
                );
                log.write_comment(&comment).map_err(|error| unwritten(&error))?;
            }
            for (number, interval) in intervals.iter().enumerate() {
                let mut ranked = interval.histogram.clone();
                if number + 1 == intervals.len() {
                    // Cannot fail: the histogram grows as needed.
                    let _ = ranked.record_n(MISSING_NS, missing);
                }
                let start = Duration::from_secs_f64((offset_s + interval.start_s).max(0.0));
                let elapsed = Duration::from_secs_f64(interval.elapsed_s.max(0.0));
                log.write_histogram(&ranked, start, elapsed, Tag::new(&tag))
                    .map_err(|error| unwritten(&error))?;
            }
            offset_s += repeat.measurement.elapsed_s;
        }
    }
    String::from_utf8(bytes).map_err(|error| unwritten(&error))
}

fn unwritten(error: &impl std::fmt::Debug) -> Failure {
    Failure::Measurement(format!("cannot create the interval log: {error:?}"))
}

/// Lines for each halving of the distance to 100 %; HdrHistogram's default.
const TICKS_PER_HALF_DISTANCE: u32 = 5;
const NS_PER_MS: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Operation, Workload, nanoseconds};
    use crate::report::tests::{empty, sampled};
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn percentiles_rise_to_the_maximum_and_count_every_sample() {
        let mut samples = nanoseconds().unwrap();
        (1..=1000).for_each(|n| samples.record(n * 1000).unwrap());
        let text = spectrum(&samples, 0);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .skip(2)
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert!(lines.iter().rev().skip(1).all(|line| line.len() == 4), "{text}");
        let last = &lines[lines.len() - 1];
        assert_eq!((last[1], last[2], last.len()), ("1.000000000000", "1000", 3));
        let us: f64 = last[0].parse().unwrap();
        assert!((us - 1000.0).abs() < 1.0, "{us}");
        let median = lines.iter().find(|line| line[1] == "0.500000000000").unwrap();
        assert_eq!((median[2], median[3]), ("500", "2.00"));
        assert!(text.contains("Total count    =         1000]"), "{text}");
    }

    /// Rank 1000 calls that were never sent behind 1000 samples. Expect the median of all calls to be the
    /// longest sample, and nothing beyond it.
    #[test]
    fn calls_that_are_missing_rank_behind_all_samples() {
        let mut samples = nanoseconds().unwrap();
        (1..=1000).for_each(|n| samples.record(n * 1000).unwrap());
        let text = spectrum(&samples, 1000);
        let values: Vec<&str> = text.lines().filter(|line| line.contains("0.5000")).collect();
        assert!(values.len() == 1 && values[0].contains(" 1000 "), "{text}");
        let beyond = |line: &&str| line.contains(" 0.55");
        assert!(!text.lines().any(|line| beyond(&line)) && !text.contains("Max"), "{text}");
        assert!(text.contains("Total count    =         2000]"), "{text}");
    }

    #[test]
    fn each_of_several_rows_has_a_file_of_its_own() {
        let path = path_of_row(Path::new("/tmp/a.b/out.hgrm"), 2, "echo 64 B -> 1 KiB, depth 8");
        assert_eq!(path, Path::new("/tmp/a.b/out.2-echo-64-B-1-KiB-depth-8.hgrm"));
        assert_eq!(path_of_row(Path::new("out"), 1, "null"), Path::new("out.1-null"));
    }

    /// Log two repeats, of which the second has seven calls that were never sent. Expect these, too.
    #[test]
    fn what_was_written_can_be_read_and_has_every_call() {
        let mut report = empty();
        let null = Workload::ping_pong(Operation::Null, 0);
        let mut row = sampled(null.at_depth(2), &[1000, 500]);
        row.repeats[1].measurement.latency.missing = 7;
        report.rows.push(row);
        let text = interval_log(&report).unwrap();
        let (mut lines, mut samples, mut tags) = (0, 0, Vec::new());
        for entry in IntervalLogIterator::new(text.as_bytes()) {
            let LogEntry::Interval(interval) = entry.unwrap() else { continue };
            let encoded = STANDARD.decode(interval.encoded_histogram()).unwrap();
            let histogram: Histogram<u64> =
                Deserializer::new().deserialize(&mut &encoded[..]).unwrap();
            lines += 1;
            samples += histogram.len();
            tags.push(interval.tag().unwrap().as_str().to_owned());
        }
        tags.dedup();
        assert_eq!((lines, samples), (20, 1507));
        assert_eq!(tags, ["1-null-depth-2.r1", "1-null-depth-2.r2"]);
        assert!(text.contains("#[BaseTime: "), "{text}");
    }
}
