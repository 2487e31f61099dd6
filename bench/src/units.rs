//! Sizes and times as people write them, for the command line, and as people read them, for tables.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Parses a size in bytes: `64`, `4k`, `1MiB`. Units are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<usize, &'static str> {
    let units = [("b", 1), ("k kib", 1 << 10), ("m mib", 1 << 20), ("g gib", 1 << 30)];
    let text = text.to_ascii_lowercase();
    let (number, unit) = split(&text).ok_or(SIZE)?;
    let factor = factor(if unit.is_empty() { "b" } else { unit }, &units).ok_or(SIZE)?;
    let count: usize = number.parse().map_err(|_| SIZE)?;
    count.checked_mul(factor).ok_or(TOO_LARGE)
}

/// Parses a time: `500ms`, `3s`, `1.5s`. Rejects a bare number, whose unit would be ambiguous.
pub(crate) fn parse_time(text: &str) -> Result<Duration, &'static str> {
    let units =
        [("ns", 1e-9), ("us µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m min", 60.0), ("h", 3600.0)];
    let (number, unit) = split(text).ok_or(TIME)?;
    let unit_seconds = factor(unit, &units).ok_or(TIME)?;
    let count: f64 = number.parse().map_err(|_| TIME)?;
    Duration::try_from_secs_f64(count * unit_seconds).map_err(|_| TOO_LARGE)
}

/// Parses a rate in calls per second: `500`, `20k`, `1.5M`. Units are powers of 1000.
pub(crate) fn parse_rate(text: &str) -> Result<u64, &'static str> {
    let (number, unit) = split(text).ok_or(RATE)?;
    let factor = factor(unit, &[("", 1.0), ("k K", 1e3), ("m M", 1e6)]).ok_or(RATE)?;
    let rate: f64 = number.parse().map_err(|_| RATE)?;
    match (rate * factor).round() {
        rate if rate < 1.0 => Err(RATE),
        rate if rate > RATE_MAX => Err(TOO_LARGE),
        rate => Ok(rate as u64),
    }
}

/// The factor of a unit, which is one of the words of a row.
fn factor<T: Copy>(unit: &str, units: &[(&str, T)]) -> Option<T> {
    let mut rows = units.iter();
    rows.find(|(names, _)| names.split(' ').any(|name| name == unit)).map(|(_, factor)| *factor)
}

/// A size in the largest unit that keeps it whole: `64 B`, `4 KiB`, `1 MiB`.
pub(crate) fn show_size(bytes: usize) -> String {
    match bytes {
        0 => "0 B".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// A time in microseconds with about four digits; a dash for NaN.
pub(crate) fn show_us(ns: f64) -> String {
    let us = ns / 1000.0;
    match us {
        _ if us.is_nan() => "-".to_owned(),
        _ if us < 10.0 => format!("{us:.3}"),
        _ if us < 100.0 => format!("{us:.2}"),
        _ if us < 1000.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    }
}

/// A count or rate with a decimal suffix: `812`, `41.5k`, `12.3M`.
pub(crate) fn show_count(count: f64) -> String {
    match count {
        _ if count < 1e4 => format!("{count:.0}"),
        _ if count < 1e6 => format!("{:.1}k", count / 1e3),
        _ if count < 1e9 => format!("{:.2}M", count / 1e6),
        _ => format!("{:.2}G", count / 1e9),
    }
}

/// A point in time, given in seconds since 1970: `2026-11-21 13:57:03 UTC`.
pub(crate) fn show_utc(unix_s: u64) -> String {
    let rfc3339 = humantime::format_rfc3339_seconds(system_time(unix_s)).to_string();
    rfc3339.replace('T', " ").replace('Z', " UTC")
}

fn system_time(unix_s: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(unix_s.min(SHOWN_UNIX_S_MAX))
}

pub(crate) fn show_value(value: &serde_json::Value, unknown: &str) -> String {
    match value {
        serde_json::Value::Null => unknown.to_owned(),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

pub(crate) fn joined<T: ToString>(items: impl IntoIterator<Item = T>, by: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(by)
}

/// The items of each key, in order of appearance.
pub(crate) fn grouped<K: PartialEq, T>(items: impl Iterator<Item = (K, T)>) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for (key, item) in items {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    groups
}

fn split(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (end > 0).then(|| (&text[..end], text[end..].trim_start()))
}

const SIZE: &str =
    "not a size; expected bytes, or a number with k, M or G (powers of 1024): 64, 4k, 1MiB";
const TIME: &str = "not a time; expected a number with ns, us, ms, s, m or h: 500ms, 3s, 4h";
const RATE: &str =
    "not a rate; expected calls per second, with k or M for thousands or millions: 500, 20k";
const TOO_LARGE: &str = "too large";
/// More than any core can start.
const RATE_MAX: f64 = 1e9;
/// Last second of the year 9999, the last year that can be printed. A report is a file, which can contain any number.
const SHOWN_UNIX_S_MAX: u64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units_and_others_are_refused() {
        for (text, bytes) in
            [("64", 64), ("4k", 4096), ("4 KiB", 4096), ("1MiB", 1 << 20), ("2g", 2 << 30)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "4q", "-1", "1.5k", "four"] {
            assert_eq!(parse_size(text), Err(SIZE), "{text:?}");
        }
        assert_eq!(parse_size("99999999999G"), Err(TOO_LARGE));
        for (text, us) in [
            ("500ms", 500_000),
            ("3s", 3_000_000),
            ("1.5s", 1_500_000),
            ("20us", 20),
            ("1m", 60_000_000),
        ] {
            assert_eq!(parse_time(text), Ok(Duration::from_micros(us)), "{text}");
        }
        assert_eq!(parse_time("4h"), Ok(Duration::from_secs(4 * 3600)));
        for text in ["", "3", "s", "3 parsecs", "-1s"] {
            assert_eq!(parse_time(text), Err(TIME), "{text:?}");
        }
        for (text, rate) in [("500", 500), ("20k", 20_000), ("1.5M", 1_500_000)] {
            assert_eq!(parse_rate(text), Ok(rate), "{text}");
        }
        for text in ["", "k", "0", "0.1", "3/s", "-1"] {
            assert_eq!(parse_rate(text), Err(RATE), "{text:?}");
        }
        assert_eq!(parse_rate("2000M"), Err(TOO_LARGE));
    }

    #[test]
    fn shown_values_stay_short() {
        assert_eq!([1 << 20, 4096, 100].map(show_size), ["1 MiB", "4 KiB", "100 B"]);
        assert_eq!([234.0, 104_250.0, f64::NAN].map(show_us), ["0.234", "104.2", "-"]);
        assert_eq!([12_345_678.0, 950.0].map(show_count), ["12.35M", "950"]);
    }

    #[test]
    fn points_in_time_are_dates_of_the_gregorian_calendar() {
        for (unix_s, shown) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_826_154, "2000-02-29 12:09:14 UTC"),
            (1_798_761_599, "2026-12-31 23:59:59 UTC"),
            (u64::MAX, "9999-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(show_utc(unix_s), shown);
        }
    }
}
