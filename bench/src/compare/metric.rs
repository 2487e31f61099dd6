//! Metrics that are compared: figures of a repeat, and its ratios to limits.

use super::document::{Repeat, Row};
use crate::report::columns::{FIGURES, Figure, Unit};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Metric {
    Figure(&'static Figure),
    /// A result as a multiple of a limit measured in the same second. An empty name stands for
    /// every limit.
    Ratio(String),
}

impl Metric {
    pub(crate) fn key(&self) -> String {
        match self {
            Self::Figure(figure) => figure.key.to_owned(),
            Self::Ratio(to) if to.is_empty() => "ratio".to_owned(),
            Self::Ratio(to) => format!("ratio:{to}"),
        }
    }

    pub(crate) fn from_key(key: &str) -> Option<Self> {
        match key.strip_prefix("ratio:") {
            Some(to) if !to.trim().is_empty() => Some(Self::Ratio(to.trim().to_owned())),
            Some(_) => None,
            None if key == "ratio" => Some(Self::Ratio(String::new())),
            None => FIGURES.iter().find(|figure| figure.key == key).map(Self::Figure),
        }
    }

    /// Returns whether a condition about this metric applies to `other`.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let every_ratio = *self == Self::Ratio(String::new());
        self == other || (every_ratio && matches!(other, Self::Ratio(_)))
    }

    fn plain(&self) -> Option<&'static Figure> {
        match self {
            Self::Figure(figure) => Some(figure),
            Self::Ratio(_) => None,
        }
    }

    pub(crate) fn label(&self) -> String {
        match self {
            Self::Figure(figure) => figure.label(),
            Self::Ratio(to) => format!("x {to}"),
        }
    }

    pub(crate) fn unit(&self) -> &'static str {
        self.plain().map_or("1", |figure| figure.unit.name())
    }

    pub(crate) fn show(&self, value: f64) -> String {
        self.plain().map_or_else(|| format!("{value:.2}"), |figure| figure.unit.show(value))
    }

    /// Value of the metric in a repeat, or what stands in for it, so that a repeat without it does not drop out of
    /// some figures of its row and stay in others. A latency is infinite if calls were lost or fell behind, as they
    /// rank behind all others. With too few calls for a percentile, it is the maximum. `None` if the metric was
    /// not measured.
    fn of(&self, repeat: &Repeat) -> Option<f64> {
        let instead = match self.plain().map(|figure| figure.unit) {
            Some(Unit::PerSecond | Unit::BytesPerSecond) => Some(0.0),
            Some(Unit::Ns) => Some(repeat.figure("max").unwrap_or(f64::INFINITY)),
            Some(Unit::Ticks) | None => None,
        };
        self.figure(repeat).or(instead)
    }

    fn figure(&self, repeat: &Repeat) -> Option<f64> {
        match self {
            Self::Figure(figure) => repeat.figure(figure.key),
            Self::Ratio(to) => repeat.ratios.iter().find(|ratio| ratio.to == *to)?.ratio,
        }
    }

    /// Values of the repeats, with what stands in for missing ones.
    pub(crate) fn values(&self, row: &Row) -> Vec<f64> {
        row.repeats.iter().filter_map(|repeat| self.of(repeat)).collect()
    }

    pub(crate) fn is_in(&self, row: &Row) -> bool {
        row.repeats.iter().any(|repeat| self.figure(repeat).is_some())
    }

    pub(crate) fn percent(&self) -> Option<f64> {
        self.plain()?.percent
    }

    /// True for times and other costs; a ratio may be either.
    pub(crate) fn is_cost(&self) -> bool {
        self.plain().is_some_and(|figure| figure.unit.is_cost())
    }

    pub(crate) fn is_for_people(&self) -> bool {
        self.plain().is_none_or(Figure::is_for_people)
    }

    /// Returns whether it is unreliable in most runs, because it takes more calls than they have.
    pub(crate) fn is_far_out(&self) -> bool {
        self.percent().is_some_and(|percent| percent > 99.9)
    }
}
