//! Whether certainty tells right from wrong.

/// The chance that a right answer is surer than a wrong one, ties counting half (the area under the ROC curve), of certainties and
/// whether each was right. None where all are right or all are wrong: there is nothing to tell apart.
///
/// ```
/// use tweedie::metrics::auroc;
///
/// assert_eq!(auroc(&[(0.9, true), (0.8, true), (0.6, false)]), Some(1.0));
/// assert_eq!(auroc(&[(0.9, false), (0.9, true)]), Some(0.5));
/// assert_eq!(auroc(&[(0.9, true)]), None);
/// ```
pub fn auroc(answers: &[(f64, bool)]) -> Option<f64> {
    let right = answers.iter().filter(|a| a.1).count();
    let pairs = right * (answers.len() - right);
    if pairs == 0 {
        return None;
    }
    let mut sorted = answers.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut wrong_below, mut won) = (0.0, 0.0);
    for equals in sorted.chunk_by(|a, b| a.0 == b.0) {
        let right = equals.iter().filter(|a| a.1).count() as f64;
        let wrong = equals.len() as f64 - right;
        won += right * (wrong_below + wrong / 2.0);
        wrong_below += wrong;
    }
    Some(won / pairs as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the definition: all pairs, one by one.
    #[test]
    fn it_is_the_share_of_pairs_in_order() {
        let answers: Vec<(f64, bool)> = (0..97).map(|i| ((i * 37 % 11) as f64, i * 53 % 7 < 4)).collect();
        let (mut won, mut pairs) = (0.0, 0.0);
        for right in answers.iter().filter(|a| a.1) {
            for wrong in answers.iter().filter(|a| !a.1) {
                pairs += 1.0;
                won += if right.0 > wrong.0 {
                    1.0
                } else if right.0 == wrong.0 {
                    0.5
                } else {
                    0.0
                };
            }
        }
        assert!((auroc(&answers).unwrap() - won / pairs).abs() < 1e-12);
        assert_eq!((auroc(&[]), auroc(&[(0.1, false)])), (None, None));
    }
}
