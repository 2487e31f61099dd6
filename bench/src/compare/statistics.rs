//! Decides whether two sets of repeats differ by more than repeats of the same program do.
//!
//! Deterministic: the same values give the same answer.

/// Minimum number of repeats on each side to tell noise from a difference: of all orders of 5 and 5
/// values, 2 in 252 separate the sides, which is just under 1 %.
pub(crate) const REPEATS_MIN: usize = 5;

/// Maximum percentage of comparisons of equals that report a difference by chance.
pub(crate) const FALSE_PERCENT: f64 = 1.0;

/// Confidence interval of the change from `before` to `after` in percent; the two differ exactly if
/// it excludes 0. The interval belongs to the Mann-Whitney test, applied to the ratios between the
/// sides. It assumes no distribution of the repeats, and an outlier weighs no more than any other
/// value. Values may be infinite, and are all alike then. `None` with too few repeats, or if a value before is not
/// positive.
pub(crate) fn change_percent(before: &[f64], after: &[f64]) -> Option<[f64; 2]> {
    let usable = before.len().min(after.len()) >= REPEATS_MIN && before.iter().all(|v| *v > 0.0);
    let cut = usable.then(|| extremes_to_drop(before.len(), after.len()))?.checked_sub(1)?;
    let ratio = |a: f64, b: f64| if a == b { 1.0 } else { a / b };
    let mut ratios: Vec<f64> =
        before.iter().flat_map(|b| after.iter().map(move |a| ratio(*a, *b))).collect();
    ratios.sort_by(f64::total_cmp);
    let (low, high) = (ratios.get(cut)?, ratios.get(ratios.len() - 1 - cut)?);
    Some([low, high].map(|ratio| (ratio - 1.0) * 100.0))
}

/// Number of ratios, counted from an end, that lie outside the interval or on its bound. For equal
/// sides, the statistic U is smaller in at most half of `FALSE_PERCENT` of all orders.
fn extremes_to_drop(n: usize, m: usize) -> usize {
    let orders = orders_by_u(n, m);
    let allowed = orders.iter().sum::<f64>() * FALSE_PERCENT / 200.0;
    let mut smaller = 0.0;
    let within = |count: &&f64| {
        smaller += **count;
        smaller <= allowed
    };
    orders.iter().take_while(within).count()
}

/// Number of orders of `n` and `m` values with U = 0, 1, and so on: the coefficients of the
/// Gaussian binomial, computed as the product of (1 - q^(m+i)) / (1 - q^i).
fn orders_by_u(n: usize, m: usize) -> Vec<f64> {
    let mut orders = vec![0.0; n * m + 1];
    orders[0] = 1.0;
    for i in 1..=n {
        (m + i..orders.len()).rev().for_each(|u| orders[u] -= orders[u - m - i]);
        (i..orders.len()).for_each(|u| orders[u] += orders[u - i]);
    }
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_counted_as_in_the_tables_of_mann_and_whitney() {
        assert_eq!(orders_by_u(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
        assert_eq!(orders_by_u(5, 5).iter().sum::<f64>(), 252.0);
        assert_eq!(orders_by_u(5, 5)[..4], [1.0, 1.0, 2.0, 3.0]);
        // Critical values of U for 1 %, two-sided: 5 and 5: 0; 6 and 6: 2; 8 and 10: 11; 20 and 20: 105.
        for (n, m, critical) in [(5, 5, 0), (6, 6, 2), (8, 10, 11), (20, 20, 105)] {
            assert_eq!(extremes_to_drop(n, m), critical + 1, "{n} and {m}");
        }
        assert_eq!(extremes_to_drop(4, 4), 0);
        assert!(extremes_to_drop(99, 99) > 3000);
    }

    #[test]
    fn sides_that_stay_apart_differ_and_sides_that_mix_do_not() {
        let before = [100.0, 101.0, 102.0, 103.0, 104.0];
        let [low, high] = change_percent(&before, &before.map(|v| v * 1.1)).unwrap();
        assert!(low > 0.0 && (5.0..10.0).contains(&low), "{low}");
        assert!((10.0..15.0).contains(&high), "{high}");
        let [low, high] = change_percent(&before, &[99.0, 100.5, 102.5, 103.5, 105.0]).unwrap();
        assert!(low < 0.0 && high > 0.0, "{low} {high}");
    }

    #[test]
    fn one_outlier_of_six_does_not_hide_a_difference() {
        let before = [100.0, 101.0, 100.5, 99.0, 100.2, 100.1];
        let after = [110.0, 111.0, 112.0, 110.5, 111.5, 5000.0];
        assert!(change_percent(&before, &after).unwrap()[0] > 0.0);
    }

    #[test]
    fn four_repeats_and_a_side_of_zeroes_tell_nothing() {
        assert_eq!(change_percent(&[1.0; 4], &[2.0; 9]), None);
        assert_eq!(change_percent(&[0.0; 5], &[2.0; 5]), None);
        assert_eq!(change_percent(&[], &[]), None);
    }

    #[test]
    fn infinite_values_rank_behind_all_others_and_are_alike() {
        let one = [1.0, 1.1, 1.2, 1.3, f64::INFINITY];
        let [low, high] = change_percent(&one, &[1.0, 1.1, 1.2, 1.3, f64::INFINITY]).unwrap();
        assert!(low < 0.0 && high > 0.0, "{low} {high}");
        let [low, _] = change_percent(&one[..4].repeat(2), &[f64::INFINITY; 5]).unwrap();
        assert_eq!(low, f64::INFINITY);
        assert_eq!(change_percent(&[f64::INFINITY; 5], &[f64::INFINITY; 5]), Some([0.0, 0.0]));
    }

    #[test]
    fn equal_values_are_no_difference() {
        assert_eq!(change_percent(&[3.0; 5], &[3.0; 5]), Some([0.0, 0.0]));
    }
}
