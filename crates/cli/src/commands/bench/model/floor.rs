//! The products of a training step by themselves: no step can be faster than these.

use tweedie::config::{Config, Method};
use tweedie::data::Task;
use tweedie::model::{ConditionAttention, Pool};
use tweedie_engine::Device;
use tweedie_engine::ops::linear;

use super::super::ops::{Setup, TapeOp, Timer};
use crate::failure::Result;

/// rows × inner → outer, and how many of them there are.
struct Product {
    rows: usize,
    inner: usize,
    outer: usize,
    count: usize,
}

impl Product {
    fn flops(&self) -> f64 {
        6.0 * self.rows as f64 * (self.inner * self.outer * self.count) as f64
    }
}

/// Four products of a block over `rows` tokens of width `d`.
fn block(rows: usize, d: usize, count: usize) -> [Product; 4] {
    [(d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)].map(|(inner, outer)| Product { rows, inner, outer, count })
}

fn products(c: &Config) -> Vec<Product> {
    let (e, d, sizes, b) = (&c.model.encoder, &c.model.denoiser, c.sizes(), c.train.batch);
    let (mut all, mut cond) = (Vec::new(), 0);
    if c.model.is_conditional() {
        let patches = e.grid().pow(2);
        all.push(Product { rows: b * patches, inner: e.patch * e.patch * e.channels, outer: e.width, count: 1 });
        all.extend(block(b * e.tokens(), e.width, e.depth));
        cond = match c.model.pool {
            Pool::All => e.tokens(),
            Pool::Cls => e.class_tokens,
            Pool::Mean => 1,
        };
        all.push(Product { rows: b * cond, inner: e.width, outer: d.width, count: 1 });
    }
    if c.data.task == Task::Class && c.model.method == Method::Mdd {
        return all; // a linear head
    }
    let rows = b * c.train.noisy_copies;
    if d.condition_attention == ConditionAttention::Prefix {
        all.extend(block(b * cond, d.width, d.depth));
        all.extend(block(rows * sizes.tokens, d.width, d.depth));
    } else {
        all.extend(block(rows * (cond + sizes.tokens), d.width, d.depth));
    }
    let n = rows * sizes.tokens;
    all.push(Product { rows: n, inner: sizes.vocab, outer: d.width, count: 1 });
    all.push(Product { rows: n, inner: d.width, outer: sizes.vocab, count: 1 });
    all
}

/// Seconds of all products of a step, forward and backward, each timed alone; and how many operations they are.
pub fn measure(c: &Config, setup: &Setup, timer: &Timer) -> Result<(f64, f64)> {
    let (mut seconds, mut flops) = (0.0, 0.0);
    for p in products(c) {
        let mut op = TapeOp::make(setup, &[&[p.rows, p.inner]], &[&[p.outer, p.inner]], |t, v| {
            linear::linear(t, &v[0], &v[1], None, None, None)
        })?;
        let one = timer.seconds(|| op.both().unwrap_or(Ok(())))?;
        seconds += one * p.count as f64;
        flops += p.flops();
    }
    Ok((seconds, flops))
}

/// About how many seconds all products of a step take, by the speed of the largest, of which only some rows are timed: a fraction of a
/// second is enough for a network of any size.
pub fn estimate(c: &Config, device: &Device) -> Result<f64> {
    const TIMED: f64 = 1e9;
    let all = products(c);
    let Some(largest) = all.iter().max_by(|a, b| a.flops().total_cmp(&b.flops())) else { return Ok(0.0) };
    let row = 6.0 * (largest.inner * largest.outer) as f64;
    let rows = largest.rows.min((TIMED / row) as usize).max(16);
    let setup = Setup::new(device.clone(), true);
    let mut op = TapeOp::make(&setup, &[&[rows, largest.inner]], &[&[largest.outer, largest.inner]], |t, v| {
        linear::linear(t, &v[0], &v[1], None, None, None)
    })?;
    let timer = Timer { device: device.clone(), repeats: 7 };
    let seconds = timer.seconds(|| op.both().unwrap_or(Ok(())))?;
    Ok(all.iter().map(Product::flops).sum::<f64>() * seconds / (rows as f64 * row))
}
