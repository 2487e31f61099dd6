//! Histograms in HdrHistogram's own encoding (V2, not compressed): in a report in base 64, so that other tools can read
//! them and `spinperf merge` can add them up, and in what a server says of its calls in reverse.

use super::measurement::nanoseconds;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer as Decoder, Serializer, V2Serializer};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Writes the samples of a measurement; null without any, as where percentiles were refused.
pub(super) fn serialize<S: serde::Serializer>(
    samples: &Histogram<u64>,
    to: S,
) -> Result<S::Ok, S::Error> {
    if samples.is_empty() {
        return to.serialize_none();
    }
    to.serialize_str(&STANDARD.encode(to_bytes(samples)))
}

pub(super) fn to_bytes(histogram: &Histogram<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Cannot fail: a vector takes everything, and no count exceeds the encoding.
    let _ = V2Serializer::new().serialize(histogram, &mut bytes);
    bytes
}

/// Reads the samples of a measurement.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Histogram<u64>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else {
        return nanoseconds().map_err(D::Error::custom);
    };
    let decoded = STANDARD.decode(text).ok().and_then(|bytes| from_bytes(&bytes));
    decoded.ok_or_else(|| D::Error::custom("a histogram is not valid"))
}

/// A histogram of nanoseconds from a file or a peer; `None` if it is not one of spinperf's.
pub(super) fn from_bytes(bytes: &[u8]) -> Option<Histogram<u64>> {
    let word = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    // The decoder allocates what these lengths say.
    let is_whole = bytes.len().checked_sub(HEADER_BYTES) == Some(word(LENGTH_AT)? as usize);
    if word(0)? != COOKIE || !is_whole || word(DIGITS_AT)? > DIGITS_MAX {
        return None;
    }
    let decoded: Histogram<u64> = Decoder::new().deserialize(&mut &*bytes).ok()?;
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

    fn samples(values: &[(u64, u64)]) -> Histogram<u64> {
        let mut samples = nanoseconds().unwrap();
        values.iter().for_each(|(ns, count)| samples.record_n(*ns, *count).unwrap());
        samples
    }

    #[test]
    fn samples_survive_a_report() {
        let report = |samples| serialize(&samples, serde_json::value::Serializer).unwrap();
        let back = deserialize(report(samples(&[(250, 3), (40_000_000, 2)]))).unwrap();
        assert_eq!((back.len(), back.count_at(250)), (5, 3));
        assert!((39_900_000..40_100_000).contains(&back.max()), "{}", back.max());
        assert!(report(samples(&[])).is_null());
        assert!(deserialize(serde_json::json!("****")).is_err());
    }

    #[test]
    fn what_is_no_histogram_or_claims_more_than_it_has_is_refused() {
        let good = to_bytes(&samples(&[(250, 3)]));
        assert!(from_bytes(&good).is_some() && from_bytes(&good[..good.len() - 1]).is_none());
        for (at, byte) in [(0, 0), (4, 0xff), (15, 5), (20, 0xff)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(from_bytes(&bad).is_none(), "byte {at}");
        }
        assert!(from_bytes(b"").is_none());
        assert!(from_bytes(&to_bytes(&samples(&[(250, 1 << 61)]))).is_none());
    }
}
