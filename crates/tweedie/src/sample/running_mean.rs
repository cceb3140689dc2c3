//! The running mean of logits over the steps (`sample.running_mean`).

use tweedie_engine::ops::blend::{First, blend, guide};
use tweedie_engine::{DType, Tensor};

use crate::error::Result;

/// What the logits of step `i`, and the mean of those before, count for in the mean of all.
pub(crate) fn shares_of_mean(i: usize) -> [f64; 3] {
    let n = i as f64 + 1.0;
    [1.0 / n, i as f64 / n, 0.0]
}

/// The mean with the logits of one more step, or with pairs that `weight` guides: f32. `by` holds [`shares_of_mean`], for all rows or for each.
pub(crate) fn running_mean(
    logits: &Tensor,
    weight: Option<&Tensor>,
    before: Option<&Tensor>,
    by: &Tensor,
) -> Result<Tensor> {
    let logits = logits.cast(DType::F32)?;
    let now = weight.map_or(Ok(logits.clone()), |w| guide(&logits, w))?;
    match before {
        Some(before) => Ok(blend(by, First::Values(&now), Some(before), None)?),
        None => Ok(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie_engine::Device;

    /// Pairs of two classes over three steps, guided by 2: what is told is the mean of all so far.
    #[test]
    fn every_step_counts_the_same() {
        let of = |shape: &[usize], x: &[f32]| Tensor::from_f32(&Device::Cpu, shape, x.to_vec()).unwrap();
        let (w, mut mean) = (of(&[1], &[2.0]), None::<Tensor>);
        let guided = [[3.0, -1.0], [0.0, 7.0], [6.0, 0.0]];
        for (i, g) in guided.iter().enumerate() {
            let pairs = of(&[2, 1, 2], &[0.5 * (g[0] + 1.0), 0.5 * g[1], 1.0, 0.0]);
            let by = of(&[3], &shares_of_mean(i).map(|x| x as f32));
            mean = Some(running_mean(&pairs, Some(&w), mean.as_ref(), &by).unwrap());
            let told = mean.as_ref().unwrap();
            assert_eq!(told.shape(), [1, 1, 2]);
            for (c, x) in told.to_vec().unwrap().iter().enumerate() {
                let want = guided[..=i].iter().map(|g| g[c]).sum::<f32>() / (i + 1) as f32;
                assert!((x - want).abs() < 1e-5, "step {i}, class {c}: {x}, not {want}");
            }
        }
    }
}
