//! How much of a text a step of a commit order commits, and how much it takes back (remasking).

use crate::process::Times;

/// What a step does, as shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shares {
    /// Of the open tokens: so many are committed.
    pub commit: f64,
    /// Of the committed ones: so many are open again after the step.
    pub free: f64,
}

/// From time `t` to `s` of `of`, where a token is open with chance t/`of` at time t.
///
/// Without correction that is (t − s)/t. With it, a committed token is freed with chance σ and more are committed in return, so that as many
/// are open at each time as without: t/of·(1 − commit) + (1 − t/of)·σ = s/of. No more can be freed than are open afterwards, σ ≤ s/(of − t):
/// none before the first tokens are committed and none at the end (ReMDM, Wang et al. 2025, with a capped rate).
pub(crate) fn shares(Times { t, s }: Times, of: usize, correction: f32) -> Shares {
    let commit = (t - s) as f64 / t.max(1) as f64;
    let done = of.saturating_sub(t) as f64;
    if correction == 0.0 || done == 0.0 {
        return Shares { commit, free: 0.0 };
    }
    let free = f64::from(correction).min(s as f64 / done);
    Shares { commit: (commit + free * done / t.max(1) as f64).min(1.0), free }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_open_as_without_correction() {
        for (correction, steps) in [(0.0, 7), (0.05, 10), (0.3, 4), (0.99, 50), (0.5, 1)] {
            let mut open = 1.0;
            for i in 0..steps {
                let (t, s) = (steps - i, steps - i - 1);
                let of = shares(Times { t, s }, steps, correction);
                assert!((0.0..=1.0).contains(&of.commit) && (0.0..=f64::from(correction)).contains(&of.free), "{of:?}");
                assert_eq!(of.free > 0.0, correction > 0.0 && i > 0 && s > 0, "{of:?}");
                open += (1.0 - open) * of.free - open * of.commit;
                assert!((open - s as f64 / steps as f64).abs() < 1e-12, "{open} at {s} of {steps}");
            }
        }
        // Steps need not be even.
        let of = shares(Times { t: 600, s: 100 }, 1000, 0.2);
        assert!((0.6 * (1.0 - of.commit) + 0.4 * of.free - 0.1).abs() < 1e-12 && of.free == f64::from(0.2_f32));
        assert_eq!(shares(Times { t: 10, s: 10 }, 1000, 0.5).free, 10.0 / 990.0);
    }
}
