//! The time of one call.

use std::time::Instant;

use tweedie_engine::{Device, Result};

pub struct Timer {
    pub device: Device,
    pub repeats: usize,
}

/// Short calls are timed several at a time, so that a GPU does not wait for the host and the clock's grain is small.
const LEAST_SECONDS: f64 = 2e-3;
const MOST_CALLS: f64 = 64.0;

impl Timer {
    /// Median seconds of one call of `f`, after warm-up (kernels compiled, products tuned, memory cached).
    pub fn seconds(&self, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
        self.once(1, &mut f)?;
        let rough = self.once(2, &mut f)?;
        let calls = (LEAST_SECONDS / rough).ceil().clamp(1.0, MOST_CALLS) as usize;
        self.once(calls, &mut f)?;
        let mut all = Vec::new();
        for _ in 0..self.repeats {
            all.push(self.once(calls, &mut f)?);
        }
        Ok(median(all))
    }

    fn once(&self, calls: usize, f: &mut impl FnMut() -> Result<()>) -> Result<f64> {
        let mut all = || (0..calls).try_for_each(|_| f());
        let total = match &self.device {
            Device::Cpu => {
                let start = Instant::now();
                all()?;
                start.elapsed().as_secs_f64()
            }
            Device::Cuda(c) => c.time(all)? as f64 * 1e-3,
        };
        Ok(total / calls as f64)
    }
}

/// The middle of `v`.
pub fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    let n = v.len();
    (v[(n - 1) / 2] + v[n / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(vec![3.0, 1.0, 9.0]), 3.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), 3.0);
    }
}
