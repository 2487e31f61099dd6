//! Figures of the rows of a report, which are those of a repeat and its ratios to limits, and conditions on their changes.

use super::document::{Repeat, Row};
use crate::report::figures::{FIGURES, Figure, RATIO, Unit};
use std::fmt;
use std::str::FromStr;

impl Figure {
    /// Value of the figure in a repeat, or what stands in for it, so that a repeat without it does not drop out of
    /// some figures of its row and stay in others. A latency is infinite if calls were lost or fell behind, as they
    /// rank behind all others. With too few calls for a percentile, it is the maximum. `None` if the figure was
    /// not measured.
    fn of(&self, repeat: &Repeat) -> Option<f64> {
        let instead = match self.unit {
            Unit::PerSecond | Unit::BytesPerSecond => Some(0.0),
            Unit::Ns => Some(repeat.figure("max").unwrap_or(f64::INFINITY)),
            Unit::Ticks | Unit::Ratio { .. } => None,
        };
        repeat.figure(&self.key).or(instead)
    }

    pub(super) fn values(&self, row: &Row) -> Vec<f64> {
        row.repeats.iter().filter_map(|repeat| self.of(repeat)).collect()
    }

    pub(super) fn is_in(&self, row: &Row) -> bool {
        row.repeats.iter().any(|repeat| repeat.figure(&self.key).is_some())
    }
}

/// `--fail-if "p99>+10%"`: a condition on the change of one metric.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Condition {
    /// Key of a figure; `ratio` stands for the ratio to every limit.
    pub(crate) metric: String,
    /// Met above the bound rather than below it.
    pub(crate) above: bool,
    pub(crate) bound_percent: f64,
    /// Applies to rows whose name contains this text; to all if empty.
    pub(crate) rows: String,
}

impl Condition {
    pub(crate) fn is_met(&self, change_percent: f64) -> bool {
        match self.above {
            true => change_percent > self.bound_percent,
            false => change_percent < self.bound_percent,
        }
    }

    pub(crate) fn is_about(&self, row: &str) -> bool {
        row.contains(&self.rows)
    }

    pub(crate) fn covers(&self, figure: &Figure) -> bool {
        let is_ratio = matches!(figure.unit, Unit::Ratio { .. });
        self.metric == figure.key || (format!("{}:", self.metric) == RATIO && is_ratio)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (metric, sign) = (&self.metric, if self.above { '>' } else { '<' });
        write!(f, "{metric}{sign}{:+}%", self.bound_percent)?;
        if self.rows.is_empty() { Ok(()) } else { write!(f, " in {}", self.rows) }
    }
}

impl FromStr for Condition {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let at = text.find(['<', '>']).ok_or(EXPECTED)?;
        let metric = key_of(text[..at].trim()).ok_or(EXPECTED)?;
        let (bound, rows) = text[at + 1..].split_once('%').ok_or(EXPECTED)?;
        let rows = match rows.trim() {
            "" => "",
            rest => rest.strip_prefix("in ").ok_or(EXPECTED)?.trim(),
        };
        Ok(Self {
            metric,
            above: text[at..].starts_with('>'),
            bound_percent: signed(bound.trim()).ok_or(EXPECTED)?,
            rows: rows.to_owned(),
        })
    }
}

fn key_of(text: &str) -> Option<String> {
    match text.strip_prefix(RATIO).map(str::trim) {
        Some("") => None,
        Some(limit) => Some(format!("{RATIO}{limit}")),
        None => {
            let is_known = text == "ratio" || FIGURES.iter().any(|figure| figure.key == text);
            is_known.then(|| text.to_owned())
        }
    }
}

/// A number with its sign: without one, `<5%` could mean a loss or a small gain.
fn signed(text: &str) -> Option<f64> {
    let number = text.strip_prefix(['+', '-'])?;
    let plain = number.starts_with(|c: char| c.is_ascii_digit())
        && number.chars().all(|c| c.is_ascii_digit() || c == '.');
    plain.then(|| text.parse().ok())?
}

const EXPECTED: &str = "not a condition; expected METRIC, < or >, and a signed change in percent, such as \
     \"p99>+10%\", \"rate<-5%\" or \"p50>+3% in echo\"; METRIC is rate, bytes, p50, p90, p99, \
     p99.9, p99.99, p99.999, max, mean, client-ticks or server-ticks (per call), or ratio (to a limit of the machine, such as \"ratio:memcpy<-5%\")";

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(text: &str) -> Condition {
        text.parse().unwrap()
    }

    #[test]
    fn a_condition_names_metric_side_and_signed_percentage() {
        let growth = condition("p99>+10%");
        assert_eq!(
            (growth.metric.as_str(), growth.above, growth.bound_percent),
            ("p99", true, 10.0)
        );
        assert!(growth.is_met(10.1) && !growth.is_met(10.0) && !growth.is_met(-50.0));
        let loss = condition(" rate < -2.5% ");
        assert!(loss.is_met(-3.0) && !loss.is_met(-2.0));
        assert!(loss.is_about("anything"));
    }

    #[test]
    fn a_condition_can_be_about_some_rows_only() {
        let echo = condition("p50>+3% in echo 64");
        assert!(echo.is_about("echo 64 B, depth 2") && !echo.is_about("null"));
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        for text in [
            "p99.9>+10%",
            "p99.99>+20%",
            "max>+50% in echo",
            "client-ticks>+3%",
            "rate<-2.5% in echo",
            "ratio:memcpy<-5%",
            "ratio>+1%",
            "bytes<-1%",
        ] {
            assert_eq!(condition(text).to_string(), text);
        }
    }

    #[test]
    fn a_wrong_condition_is_told_what_is_allowed() {
        for text in [
            "",
            "p99",
            "p98>+1%",
            "p99>10%",
            "p99>+10",
            "p99>+%",
            "p99=+1%",
            "p99>+1% echo",
            "p99>+inf%",
            "p99>+1e3%",
        ] {
            let error = text.parse::<Condition>().unwrap_err();
            assert!(error.contains("p99>+10%") && !error.contains('\n'), "{text}: {error}");
        }
    }
}
