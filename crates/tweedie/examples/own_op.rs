//! An op of one's own: a forward pass, a backward pass, and the check that they belong together. Swish with a learned slope, which no
//! op of the library is, put into a small regression.
//!
//!     cargo run --release -p tweedie --example own_op

use tweedie::Tensor;
use tweedie::engine::ops::{elementwise, mean_square};
use tweedie::engine::{Backward, Device, Grads, Result, Tape, Var, check};

/// What the backward pass needs: both inputs.
struct Saved {
    x: Var,
    slope: Var,
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// y = x·σ(a·x), with one slope a for all.
fn swish(tape: &Tape, x: &Var, slope: &Var) -> Result<Var> {
    let a = slope.value().as_f32()?[0];
    let y = x.value().as_f32()?.iter().map(|x| x * sigmoid(a * x)).collect();
    let y = Tensor::from_f32(&Device::Cpu, x.shape(), y)?;
    Ok(tape.record(y, &[x, slope], || Saved { x: x.clone(), slope: slope.clone() }))
}

impl Backward for Saved {
    fn name(&self) -> &'static str {
        "swish"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        let (x, dy, a) = (self.x.value().as_f32()?, dy.as_f32()?, self.slope.value().as_f32()?[0]);
        // d/dx x·σ(ax) = σ + a·x·σ·(1−σ), and d/da = x²·σ·(1−σ).
        let s: Vec<f32> = x.iter().map(|x| sigmoid(a * x)).collect();
        let dx = (0..x.len()).map(|i| dy[i] * (s[i] + a * x[i] * s[i] * (1.0 - s[i]))).collect();
        let da = (0..x.len()).map(|i| dy[i] * x[i] * x[i] * s[i] * (1.0 - s[i])).sum();
        grads.give(&self.x, Tensor::from_f32(&Device::Cpu, self.x.shape(), dx)?)?;
        grads.give(&self.slope, Tensor::from_f32(&Device::Cpu, self.slope.shape(), vec![da])?)
    }
}

fn main() -> Result<()> {
    let x = Tensor::from_f32(&Device::Cpu, &[8, 1], (0..8).map(|i| i as f32 - 3.5).collect())?;
    let scalar = |a: f32| Tensor::from_f32(&Device::Cpu, &[1], vec![a]);
    let compared = check::gradients(|tape, v| swish(tape, &v[0], &v[1]), &[x.clone(), scalar(0.7)?], 2e-3)?;
    println!("{compared} derivatives agree with finite differences");

    // Find the slope that made these values.
    let target =
        swish(&Tape::inference(), &Tape::inference().constant(x.clone()), &Tape::inference().constant(scalar(1.5)?))?;
    let mut a = 0.2;
    for _ in 0..1000 {
        let tape = Tape::new();
        let (x, slope) = (tape.constant(x.clone()), tape.leaf(scalar(a)?));
        let loss = mean_square::mean_square(&tape, &swish(&tape, &x, &slope)?, target.value(), None)?;
        let loss = elementwise::mean(&tape, &loss)?;
        let grads = tape.backward(&loss, None)?;
        a -= 0.3 * grads.get(&slope).map_or(Ok(0.0), |g| g.as_f32().map(|g| g[0]))?;
    }
    println!("slope {a:.3}, which was 1.5");
    assert!((a - 1.5).abs() < 0.02);
    Ok(())
}
