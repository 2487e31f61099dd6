//! Every interval of every row as an HdrHistogram interval log, version 2, for HistogramLogAnalyzer
//! and other HdrHistogram tools. Values are nanoseconds; the tag of a line names its row and
//! repeat; maxima are in milliseconds, as the format requires.

use super::Report;
use super::hgrm::slug;
use crate::failure::Failure;
use crate::latency::MISSING_NS;
use crate::units::system_time;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use std::time::Duration;

/// The log of a report. Repeats follow each other without their warm-ups.
pub(crate) fn render(report: &Report) -> Result<String, Failure> {
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

const NS_PER_MS: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Operation, Workload};
    use crate::report::html::tests::sampled;
    use crate::report::tests::empty;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    /// Log two repeats, of which the second has seven calls that were never sent. Expect these, too.
    #[test]
    fn what_was_written_can_be_read_and_has_every_call() {
        let mut report = empty();
        let null = Workload::ping_pong(Operation::Null, 0);
        let mut row = sampled(null.at_depth(2), &[1000, 500]);
        row.repeats[1].measurement.latency.missing = 7;
        report.rows.push(row);
        let text = render(&report).unwrap();
        let (mut lines, mut samples, mut tags) = (0, 0, Vec::new());
        for entry in IntervalLogIterator::new(text.as_bytes()) {
            let LogEntry::Interval(interval) = entry.unwrap() else { continue };
            let encoded = decode(interval.encoded_histogram());
            let histogram: hdrhistogram::Histogram<u64> =
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

    /// Base 64 with padding (RFC 4648 section 4).
    fn decode(text: &str) -> Vec<u8> {
        let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
        for character in text.trim_end_matches('=').chars() {
            bits = bits << 6 | alphabet.find(character).unwrap() as u32;
            count += 6;
            if count >= 8 {
                count -= 8;
                bytes.push((bits >> count) as u8);
                bits &= (1 << count) - 1;
            }
        }
        bytes
    }
}
