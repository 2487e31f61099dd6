//! A straight line through points by least squares, with its standard error.

/// Properties of a fitted line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    /// Mean of the values.
    pub(super) mean: f64,
    /// Change along the line from the first point to the last.
    pub(super) change: f64,
    /// Standard error of the change.
    pub(super) change_error: f64,
}

impl Line {
    /// Fits points in order of time, ignoring NaN; `None` with fewer than three points, or with all
    /// at one time.
    pub(super) fn through(points: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let points: Vec<(f64, f64)> = points.filter(|(_, value)| !value.is_nan()).collect();
        let (first, last) = (points.first()?.0, points.last()?.0);
        let count = points.len() as f64;
        let mean_of = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (mean_at, mean) = (mean_of(|point| point.0), mean_of(|point| point.1));
        let spread: f64 = points.iter().map(|(at, _)| (at - mean_at).powi(2)).sum();
        if points.len() < 3 || spread <= 0.0 {
            return None;
        }
        let both: f64 = points.iter().map(|(at, value)| (at - mean_at) * (value - mean)).sum();
        let slope = both / spread;
        let off = |(at, value): &(f64, f64)| (value - mean - slope * (at - mean_at)).powi(2);
        let scatter = points.iter().map(off).sum::<f64>() / (count - 2.0);
        let span = last - first;
        let change_error = (scatter / spread).sqrt() * span;
        Some(Self { mean, change: slope * span, change_error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_exactly_and_without_doubt() {
        let line =
            Line::through((0..10).map(|x| (f64::from(x), 5.0 + 2.0 * f64::from(x)))).unwrap();
        assert!((line.change - 18.0).abs() < 1e-9 && line.change_error < 1e-6, "{line:?}");
        assert!((line.mean - 14.0).abs() < 1e-9);
    }

    #[test]
    fn noise_has_a_change_within_its_error() {
        let values = [3.0, 5.0, 4.0, 6.0, 4.0, 5.0, 3.0, 6.0, 4.0, 5.0];
        let points = values.iter().enumerate().map(|(index, value)| (index as f64, *value));
        let line = Line::through(points).unwrap();
        assert!(line.change.abs() < 2.0 * line.change_error, "{line:?}");
    }

    #[test]
    fn no_line_goes_through_too_little() {
        assert_eq!(Line::through([(0.0, 1.0), (1.0, 2.0)].into_iter()), None);
        assert_eq!(Line::through([(1.0, 1.0); 4].into_iter()), None);
        assert_eq!(Line::through((0..5).map(|x| (f64::from(x), f64::NAN))), None);
    }
}
