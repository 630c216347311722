//! What a number of failed requests proves: an upper bound of the true loss at 95 % confidence.
//!
//! Without a failure the rule of three applies: 0 of n requests proves a loss of at most 3/n. With failures the bound is
//! Wilson's.

/// 95 % confidence, one-sided.
const Z: f64 = 1.644_853_626_951_472_2;
/// -ln(0.05), rounded up: the three of the rule of three.
const RULE_OF_THREE: f64 = 3.0;

/// The highest loss (0 to 1) that these figures are consistent with.
pub(crate) fn loss_upper_bound(failed: usize, total: usize) -> f64 {
    if total == 0 {
        return 1.0;
    }
    let n = total as f64;
    if failed == 0 {
        return (RULE_OF_THREE / n).min(1.0);
    }
    let (center, spread) = wilson(failed.min(total) as f64 / n, n);
    (center + spread).min(1.0)
}

/// The lowest loss that these figures are consistent with.
pub(crate) fn loss_lower_bound(failed: usize, total: usize) -> f64 {
    if total == 0 || failed == 0 {
        return 0.0;
    }
    let n = total as f64;
    let (center, spread) = wilson(failed.min(total) as f64 / n, n);
    (center - spread).max(0.0)
}

/// How many requests without a failure prove that at most `loss` (0 to 1) is lost. None: no number proves zero.
pub(crate) fn requests_needed(loss: f64) -> Option<u64> {
    // A share such as 1 - 0.999 is not exact; without rounding it would need one request more.
    (loss > 0.0).then(|| (RULE_OF_THREE / loss - 1e-6).ceil() as u64)
}

fn wilson(share: f64, n: f64) -> (f64, f64) {
    let z2 = Z * Z;
    let below = 1.0 + z2 / n;
    let center = (share + z2 / (2.0 * n)) / below;
    let spread = Z * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt() / below;
    (center, spread)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-5
    }

    #[test]
    fn no_failure_proves_at_most_three_in_n() {
        assert_eq!(loss_upper_bound(0, 3000), 0.001);
        assert_eq!(loss_upper_bound(0, 0), 1.0);
        assert_eq!(loss_upper_bound(0, 2), 1.0);
        assert_eq!(requests_needed(1.0 - 0.999), Some(3000));
        assert_eq!(requests_needed(0.0), None);
    }

    /// Values of Wilson's interval at z = 1.6449, computed independently from its formula.
    #[test]
    fn failures_give_an_interval_around_their_share() {
        for (failed, total, low, high) in [
            (1, 1000, 0.00022, 0.00447),
            (10, 1000, 0.00599, 0.01666),
            (500, 1000, 0.47403, 0.52597),
        ] {
            assert!(close(loss_lower_bound(failed, total), low), "{failed} of {total}");
            assert!(close(loss_upper_bound(failed, total), high), "{failed} of {total}");
        }
    }

    proptest! {
        #[test]
        fn the_bounds_contain_the_measured_share(total in 1usize..100_000, part in 0.0f64..=1.0) {
            let failed = (total as f64 * part) as usize;
            let share = failed as f64 / total as f64;
            prop_assert!(loss_lower_bound(failed, total) <= share + 1e-12);
            prop_assert!(loss_upper_bound(failed, total) >= share - 1e-12);
            prop_assert!((0.0..=1.0).contains(&loss_upper_bound(failed, total)));
        }
    }
}
