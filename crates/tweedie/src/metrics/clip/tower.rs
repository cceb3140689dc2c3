//! The transformer that both sides of CLIP are: pre-norm blocks, with or without a causal mask.

use std::collections::HashMap;
use std::path::Path;

use rayon::prelude::*;
use tweedie_engine::ops::attention::{Mask, attention};
use tweedie_engine::ops::{linear, norm};
use tweedie_engine::{Device, Tape, Tensor, Var};

use super::config::TowerConfig;
use crate::error::{Error, Result};
use crate::tensors::NamedTensor;

/// Weights by name, each taken once.
pub struct Weights<'a> {
    pub folder: &'a Path,
    pub device: &'a Device,
    pub tensors: HashMap<String, NamedTensor<'static>>,
}

impl Weights<'_> {
    fn values(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let wrong = |what: String| Error::Input(format!("{}: {what}", self.folder.display()));
        let t = self.tensors.remove(name).ok_or_else(|| wrong(format!("the weights have no '{name}'")))?;
        match t.shape == shape {
            true => Ok(t.data.into_owned()),
            false => Err(wrong(format!("'{name}' is {:?}, config.json makes it {shape:?}", t.shape))),
        }
    }

    /// The shape of a tensor that is still there.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|t| t.shape.as_slice())
    }

    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let values = self.values(name, shape)?;
        Ok(Tensor::from_f32(self.device, shape, values)?)
    }

    /// A tensor under another shape of as many values.
    pub fn take_as(&mut self, name: &str, shape: &[usize], to: &[usize]) -> Result<Tensor> {
        Ok(self.take(name, shape)?.reshape(to)?)
    }

    fn scaled(&mut self, name: &str, shape: &[usize], by: f32) -> Result<Tensor> {
        let values = self.values(name, shape)?.into_iter().map(|v| v * by).collect();
        Ok(Tensor::from_f32(self.device, shape, values)?)
    }

    pub fn norm(&mut self, name: &str, width: usize) -> Result<Norm> {
        Ok(Norm {
            gain: self.take(&format!("{name}.weight"), &[width])?,
            bias: self.take(&format!("{name}.bias"), &[width])?,
        })
    }

    /// Queries, keys and values as one layer.
    fn packed(&mut self, name: &str, d: usize) -> Result<(Tensor, Tensor)> {
        let (mut w, mut b) = (Vec::new(), Vec::new());
        for part in ["q_proj", "k_proj", "v_proj"] {
            w.extend(self.values(&format!("{name}.{part}.weight"), &[d, d])?);
            b.extend(self.values(&format!("{name}.{part}.bias"), &[d])?);
        }
        Ok((Tensor::from_f32(self.device, &[3 * d, d], w)?, Tensor::from_f32(self.device, &[3 * d], b)?))
    }
}

pub struct Norm {
    gain: Tensor,
    bias: Tensor,
}

impl Norm {
    pub fn forward(&self, t: &Tape, x: &Var, eps: f32) -> Result<Var> {
        Ok(norm::layer_norm(t, x, &t.constant(self.gain.clone()), &t.constant(self.bias.clone()), eps)?)
    }
}

struct Block {
    norm1: Norm,
    qkv: (Tensor, Tensor),
    out: (Tensor, Tensor),
    norm2: Norm,
    up: (Tensor, Tensor),
    down: (Tensor, Tensor),
}

pub struct Tower {
    pub config: TowerConfig,
    blocks: Vec<Block>,
    causal: bool,
}

impl Tower {
    /// The blocks called `{name}.encoder.layers.…`.
    pub fn load(w: &mut Weights, name: &str, config: &TowerConfig, causal: bool) -> Result<Tower> {
        let d = config.width;
        let block = |i: usize, w: &mut Weights| -> Result<Block> {
            let at = format!("{name}.encoder.layers.{i}");
            let inner = w.shape(&format!("{at}.mlp.fc1.bias")).and_then(|s| s.first().copied()).unwrap_or(4 * d);
            let k = config.act_scale;
            Ok(Block {
                norm1: w.norm(&format!("{at}.layer_norm1"), d)?,
                qkv: w.packed(&format!("{at}.self_attn"), d)?,
                out: (
                    w.take(&format!("{at}.self_attn.out_proj.weight"), &[d, d])?,
                    w.take(&format!("{at}.self_attn.out_proj.bias"), &[d])?,
                ),
                norm2: w.norm(&format!("{at}.layer_norm2"), d)?,
                up: (
                    w.scaled(&format!("{at}.mlp.fc1.weight"), &[inner, d], k)?,
                    w.scaled(&format!("{at}.mlp.fc1.bias"), &[inner], k)?,
                ),
                down: (
                    w.scaled(&format!("{at}.mlp.fc2.weight"), &[d, inner], 1.0 / k)?,
                    w.take(&format!("{at}.mlp.fc2.bias"), &[d])?,
                ),
            })
        };
        let blocks = (0..config.depth).map(|i| block(i, w)).collect::<Result<_>>()?;
        Ok(Tower { config: config.clone(), blocks, causal })
    }

    /// x \[B, L, width\] through all blocks.
    pub fn forward(&self, t: &Tape, mut x: Var) -> Result<Var> {
        let c = |v: &Tensor| t.constant(v.clone());
        for b in &self.blocks {
            let h = b.norm1.forward(t, &x, self.config.eps)?;
            let qkv = linear::linear(t, &h, &c(&b.qkv.0), Some(&c(&b.qkv.1)), None, None)?;
            let h = match self.causal {
                true => t.constant(causal_attention(qkv.value(), self.config.heads)?),
                false => attention(t, &qkv, self.config.heads, &Mask::default())?,
            };
            x = linear::linear(t, &h, &c(&b.out.0), Some(&c(&b.out.1)), None, Some(&x))?;
            let h = b.norm2.forward(t, &x, self.config.eps)?;
            let (up, down) = ((&c(&b.up.0), &c(&b.up.1)), (&c(&b.down.0), &c(&b.down.1)));
            x = linear::mlp(t, &h, up, self.config.act, down, Some(&x))?;
        }
        Ok(x)
    }
}

/// Attention where a token sees itself and those before it. Captions are short, so this is a small part of the work and
/// runs on the host wherever the weights are.
fn causal_attention(qkv: &Tensor, heads: usize) -> Result<Tensor> {
    let &[batch, len, row] = qkv.shape() else {
        return Err(Error::Input(format!("causal attention over {:?}", qkv.shape())));
    };
    let width = row / 3;
    let size = width / heads;
    let scale = 1.0 / (size as f32).sqrt();
    let x = qkv.to_vec()?;
    let mut out = vec![0.0; batch * len * width];
    out.par_chunks_mut(len * width).zip(x.par_chunks(len * row)).for_each(|(out, x)| {
        let part = |token: usize, which: usize, head: usize| &x[token * row + which * width + head * size..][..size];
        let mut weights = vec![0.0f32; len];
        for head in 0..heads {
            for q in 0..len {
                let query = part(q, 0, head);
                for k in 0..=q {
                    weights[k] = scale * query.iter().zip(part(k, 1, head)).map(|(a, b)| a * b).sum::<f32>();
                }
                let top = weights[..=q].iter().copied().fold(f32::NEG_INFINITY, f32::max);
                weights[..=q].iter_mut().for_each(|w| *w = (*w - top).exp());
                let total: f32 = weights[..=q].iter().sum();
                let to = &mut out[q * width + head * size..][..size];
                for k in 0..=q {
                    let w = weights[k] / total;
                    to.iter_mut().zip(part(k, 2, head)).for_each(|(o, v)| *o += w * v);
                }
            }
        }
    });
    Ok(Tensor::from_f32(&qkv.device(), &[batch, len, width], out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last token sees everything, so it agrees with attention without a mask; so does each prefix's last token.
    #[test]
    fn causal_attention_is_attention_over_each_prefix() {
        let (batch, len, heads, size) = (2, 5, 3, 4);
        let row = 3 * heads * size;
        let data: Vec<f32> = (0..batch * len * row).map(|i| ((i * 7919 % 997) as f32 - 498.0) / 300.0).collect();
        let x = Tensor::from_f32(&Device::Cpu, &[batch, len, row], data.clone()).unwrap();
        let got = causal_attention(&x, heads).unwrap().to_vec().unwrap();
        for n in 1..=len {
            let prefix: Vec<f32> = data.chunks(len * row).flat_map(|e| e[..n * row].to_vec()).collect();
            let t = Tape::inference();
            let p = t.constant(Tensor::from_f32(&Device::Cpu, &[batch, n, row], prefix).unwrap());
            let want = attention(&t, &p, heads, &Mask::default()).unwrap().value().to_vec().unwrap();
            let width = heads * size;
            for b in 0..batch {
                for i in 0..width {
                    let (g, w) = (got[(b * len + n - 1) * width + i], want[(b * n + n - 1) * width + i]);
                    assert!((g - w).abs() < 1e-5, "{g} {w}"); // rounding of sums over five keys
                }
            }
        }
    }
}
