//! Histograms in a report: HdrHistogram's own encoding (V2, not compressed) in base 64, so that other
//! tools can read them and `spinperf merge` can add them up.

use super::measurement::{Samples, nanoseconds};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer as Decoder, Serializer, V2Serializer};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Writes the samples of a measurement; null without any, as where percentiles were refused.
pub(super) fn serialize<S: serde::Serializer>(samples: &Samples, to: S) -> Result<S::Ok, S::Error> {
    if samples.latency.is_empty() {
        return to.serialize_none();
    }
    let mut bytes = Vec::new();
    let encoded = V2Serializer::new().serialize(&samples.latency, &mut bytes);
    encoded.map_err(|error| serde::ser::Error::custom(format!("{error:?}")))?;
    to.serialize_str(&STANDARD.encode(bytes))
}

/// Reads the samples of a measurement, of which a report does not have the intervals.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Samples, D::Error> {
    let mut samples = Samples::none().map_err(D::Error::custom)?;
    if let Some(text) = Option::<String>::deserialize(from)? {
        let decoded = decode(&text);
        samples.latency = decoded.ok_or_else(|| D::Error::custom("a histogram is not valid"))?;
    }
    Ok(samples)
}

/// The histogram of a report, in nanoseconds; `None` if it is not one of spinperf's.
fn decode(text: &str) -> Option<Histogram<u64>> {
    let bytes = STANDARD.decode(text).ok()?;
    let word = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    // The decoder allocates what these lengths say.
    let is_whole = bytes.len().checked_sub(HEADER_BYTES) == Some(word(LENGTH_AT)? as usize);
    if word(0)? != COOKIE || !is_whole || word(DIGITS_AT)? > DIGITS_MAX {
        return None;
    }
    let decoded: Histogram<u64> = Decoder::new().deserialize(&mut &bytes[..]).ok()?;
    // Sums of untrusted counts must not overflow.
    let counts = decoded.iter_recorded().map(|step| u128::from(step.count_at_value()));
    if counts.sum::<u128>() > CALLS_MAX {
        return None;
    }
    let mut histogram = nanoseconds().ok()?;
    histogram.add(&decoded).ok()?;
    Some(histogram)
}

/// HdrHistogram V2: cookie, length of the counts, offset, digits, bounds, ratio.
const HEADER_BYTES: usize = 40;
const COOKIE: u32 = 0x1c84_9303 | 0x10;
const LENGTH_AT: usize = 4;
const DIGITS_AT: usize = 12;
const DIGITS_MAX: u32 = 3;
/// A million calls a second for thirty thousand years.
const CALLS_MAX: u128 = 1 << 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(values: &[(u64, u64)]) -> String {
        let mut samples = Samples::none().unwrap();
        for (value, count) in values {
            samples.latency.record_n(*value, *count).unwrap();
        }
        let value = serialize(&samples, serde_json::value::Serializer).unwrap();
        value.as_str().unwrap_or_default().to_owned()
    }

    #[test]
    fn samples_survive_a_report() {
        let back = decode(&encode(&[(250, 3), (40_000_000, 2)])).unwrap();
        assert_eq!((back.len(), back.count_at(250)), (5, 3));
        assert!((39_900_000..40_100_000).contains(&back.max()), "{}", back.max());
        assert_eq!(encode(&[]), "");
    }

    #[test]
    fn what_is_no_histogram_or_claims_more_than_it_has_is_refused() {
        let good = STANDARD.decode(encode(&[(250, 3)])).unwrap();
        assert!(decode(&STANDARD.encode(&good)).is_some());
        for (at, byte) in [(0, 0), (4, 0xff), (15, 5), (20, 0xff)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(decode(&STANDARD.encode(&bad)).is_none(), "byte {at}");
        }
        assert!(decode("****").is_none() && decode("").is_none());
        assert!(decode(&STANDARD.encode(&good[..good.len() - 1])).is_none());
        assert!(decode(&encode(&[(250, 1 << 61)])).is_none());
    }
}
