//! Token sequences \[B, N, d\]: joining, cutting, repeating, averaging, replacing; and rows of a table by id.

mod cpu;
mod cuda;
mod embed;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub(crate) use embed::SOURCE as EMBED_SOURCE;
pub use embed::embed;

use super::check;
use crate::cases::{Case, Role, Size};
use crate::cpu::pool::Buf;
use crate::error::{Error, Result, ensure};
use crate::tape::{Backward, Grads, Tape, Var, add_or_copy};
use crate::tensor::{DType, Tensor};

crate::cuda::source!("tokens.cu");

struct Concat {
    parts: Vec<Var>,
    batch: usize,
    tokens: usize,
}

/// Join `parts` \[B, Nᵢ, d\] along the tokens. A part \[1, Nᵢ, d\] is shared by all examples (a class token). The result
/// is bf16 if any part is, so that f32 parameters join activations.
pub fn concat(tape: &Tape, parts: &[&Var]) -> Result<Var> {
    let Some(first) = parts.first() else { return Err(Error::op("concat", "there are no parts")) };
    let [_, _, d] = check::tokens("concat", first.value())?;
    let low = parts.iter().any(|p| p.value().dtype() == DType::Bf16);
    let dtype = if low { DType::Bf16 } else { DType::F32 };
    let batch = parts.iter().map(|p| p.shape().first().copied().unwrap_or(0)).max().unwrap_or(0);
    let (mut tokens, mut values) = (0, Vec::new());
    for p in parts {
        let [b, n, width] = check::tokens("concat", p.value())?;
        ensure!(
            (b == batch || b == 1) && width == d,
            "concat",
            "a part {:?} does not fit a batch of {batch} with width {d}: it must be [{batch} or 1, N, {d}]",
            p.shape()
        );
        check::beside("concat", "a part", p.value(), first.value())?;
        tokens += n;
        values.push(p.value_as(dtype)?);
    }
    check::alike("concat", &values[0], &values.iter().collect::<Vec<_>>())?;
    let shape = [batch, tokens, d];
    check::elements("concat", &shape)?;
    let y = match first.value().cuda_device() {
        Some(c) => cuda::concat(c, &values, shape, dtype)?,
        None => {
            let mut y = Buf::scratch(batch * tokens * d);
            let slices: Vec<(&[f32], bool)> = values.iter().map(|v| (v.f32s(), v.shape()[0] == batch)).collect();
            cpu::concat(&slices, batch, &mut y);
            Tensor::from_buf(y, &shape)
        }
    };
    let keep = || Concat { parts: parts.iter().map(|&p| p.clone()).collect(), batch, tokens };
    Ok(tape.record(y, parts, keep))
}

impl Backward for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        let (d, mut end) = (dy.width(), 0);
        let stride = self.tokens * d;
        for p in &self.parts {
            let n = p.shape()[1] * d;
            let at = end;
            end += n;
            match dy.cuda_device() {
                _ if !p.needs_grad() => {}
                Some(c) => {
                    let Some(dst) = grads.dst_cuda(p, p.value().dtype())? else { continue };
                    let dy = dy.view(at, &[(self.batch - 1) * stride + n]);
                    if p.shape()[0] == 1 {
                        cuda::sum_examples(c, &dy, stride, self.batch, None, &dst)?;
                    } else {
                        cuda::strips(c, &dy, stride, &dst.tensor, n, n, self.batch, dst.acc)?;
                    }
                }
                None if p.shape()[0] == self.batch => {
                    grads.write_cpu(p, |dst, acc| cpu::take_strips(dy.f32s(), stride, at, n, dst, acc))?;
                }
                None => {
                    let sum = cpu::sum_examples(dy.f32s(), stride, at, n, None);
                    grads.write_cpu(p, |dst, acc| add_or_copy(dst, &sum, acc))?;
                }
            }
        }
        Ok(())
    }
}

fn within(op: &'static str, x: &Var, range: &Range<usize>) -> Result<[usize; 3]> {
    let shape = check::tokens(op, x.value())?;
    ensure!(
        range.start < range.end && range.end <= shape[1],
        op,
        "tokens {range:?} are empty or not among the {} of {:?}",
        shape[1],
        x.shape()
    );
    check::alike(op, x.value(), &[])?;
    Ok(shape)
}

struct Slice {
    x: Var,
    range: Range<usize>,
}

/// Tokens `range` of `x` \[B, N, d\].
pub fn slice(tape: &Tape, x: &Var, range: Range<usize>) -> Result<Var> {
    let [b, n, d] = within("slice", x, &range)?;
    let shape = [b, range.len(), d];
    let len = range.len() * d;
    let y = match x.value().cuda_device() {
        Some(c) => {
            let y = Tensor::cuda(c, &shape, x.value().dtype())?;
            let from = x.value().view(range.start * d, &[(b - 1) * n * d + len]);
            cuda::strips(c, &from, n * d, &y, len, len, b, false)?;
            y
        }
        None => {
            let mut y = Buf::scratch(b * len);
            cpu::take_strips(x.value().f32s(), n * d, range.start * d, len, &mut y, false);
            Tensor::from_buf(y, &shape)
        }
    };
    Ok(tape.record(y, &[x], || Slice { x: x.clone(), range }))
}

impl Backward for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        let (stride, d) = (self.x.value().len() / self.x.shape()[0], dy.width());
        let (at, len) = (self.range.start * d, self.range.len() * d);
        match dy.cuda_device() {
            Some(c) => {
                let Some(dst) = grads.dst_cuda(&self.x, dy.dtype())? else { return Ok(()) };
                cuda::put_strips(c, dy, &dst, stride, at, len)
            }
            None => grads.write_cpu(&self.x, |dst, acc| cpu::put_strips(dy.f32s(), len, dst, stride, at, acc)),
        }
    }
}

struct Repeat {
    x: Var,
    k: usize,
}

/// Each example of `x` \[B, …\] `k` times in a row: \[B·k, …\], as `torch.repeat_interleave(x, k, 0)`.
pub fn repeat(tape: &Tape, x: &Var, k: usize) -> Result<Var> {
    ensure!(k > 0 && !x.shape().is_empty(), "repeat", "cannot repeat the examples of {:?} {k} times", x.shape());
    ensure!(!x.value().is_empty(), "repeat", "{:?} has no elements", x.shape());
    check::alike("repeat", x.value(), &[])?;
    if k == 1 {
        return Ok(x.clone());
    }
    let (shape, inner) = repeated("repeat", x.value(), k)?;
    let y = match x.value().cuda_device() {
        Some(c) => cuda::repeat(c, x.value(), &shape, k, inner)?,
        None => {
            let mut y = Buf::scratch(x.value().len() * k);
            cpu::repeat(x.value().f32s(), k, inner, &mut y);
            Tensor::from_buf(y, &shape)
        }
    };
    Ok(tape.record(y, &[x], || Repeat { x: x.clone(), k }))
}

/// The shape of `x` with each example `k` times, and elements in an example.
fn repeated(op: &'static str, x: &Tensor, k: usize) -> Result<(Vec<usize>, usize)> {
    check::elements(op, &[x.len(), k])?;
    let mut shape = x.shape().to_vec();
    let inner = x.len() / shape[0];
    shape[0] *= k;
    Ok((shape, inner))
}

/// As [`repeat`], for ids (u32).
pub fn repeat_ids(x: &Tensor, k: usize) -> Result<Tensor> {
    check::integers("repeat_ids", "ids", x, x)?;
    ensure!(k > 0 && !x.is_empty() && !x.shape().is_empty(), "repeat_ids", "cannot repeat {:?} {k} times", x.shape());
    let (shape, inner) = repeated("repeat_ids", x, k)?;
    match x.cuda_device() {
        Some(c) => cuda::repeat(c, x, &shape, k, inner),
        None => {
            let copies = x.u32s().chunks_exact(inner).flat_map(|row| std::iter::repeat_n(row, k).flatten().copied());
            Tensor::from_u32(&crate::Device::Cpu, &shape, copies.collect())
        }
    }
}

impl Backward for Repeat {
    fn name(&self) -> &'static str {
        "repeat"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        let inner = self.x.value().len() / self.x.shape()[0];
        match dy.cuda_device() {
            Some(c) => {
                let Some(dst) = grads.dst_cuda(&self.x, dy.dtype())? else { return Ok(()) };
                cuda::repeat_backward(c, dy, &dst, self.k, inner)
            }
            None => grads.write_cpu(&self.x, |dst, acc| cpu::repeat_backward(dy.f32s(), self.k, inner, dst, acc)),
        }
    }
}

struct MeanTokens {
    x: Var,
    range: Range<usize>,
}

/// The mean over tokens `range` of `x` \[B, N, d\]: \[B, 1, d\]. The range leaves out a class token.
pub fn mean_tokens(tape: &Tape, x: &Var, range: Range<usize>) -> Result<Var> {
    let [b, n, d] = within("mean_tokens", x, &range)?;
    let y = match x.value().cuda_device() {
        Some(c) => cuda::mean(c, x.value(), &range)?,
        None => {
            let mut y = Buf::scratch(b * d);
            cpu::mean(x.value().f32s(), n, d, &range, &mut y);
            Tensor::from_buf(y, &[b, 1, d])
        }
    };
    Ok(tape.record(y, &[x], || MeanTokens { x: x.clone(), range }))
}

impl Backward for MeanTokens {
    fn name(&self) -> &'static str {
        "mean_tokens"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        let (n, d) = (self.x.shape()[1], dy.width());
        match dy.cuda_device() {
            Some(c) => {
                let Some(dst) = grads.dst_cuda(&self.x, dy.dtype())? else { return Ok(()) };
                cuda::mean_backward(c, dy, &dst, &self.range)
            }
            None => grads.write_cpu(&self.x, |dst, acc| cpu::mean_backward(dy.f32s(), n, d, &self.range, dst, acc)),
        }
    }
}

struct Select {
    x: Var,
    other: Var,
    mask: Tensor,
}

/// `x` \[B, N, d\] with the examples whose `mask` (u32 \[B\]) is not 0 replaced by `other` \[1, N, d\]: the learned null
/// condition of classifier-free guidance.
pub fn select(tape: &Tape, x: &Var, other: &Var, mask: &Tensor) -> Result<Var> {
    let [b, n, d] = check::tokens("select", x.value())?;
    ensure!(
        other.shape() == [1, n, d] && mask.shape() == [b],
        "select",
        "other {:?} and mask {:?} must be [1, {n}, {d}] and [{b}] to go with x {:?}",
        other.shape(),
        mask.shape(),
        x.shape()
    );
    check::integers("select", "masks", mask, x.value())?;
    check::values("select", "x", x.value())?;
    check::beside("select", "the other value", other.value(), x.value())?;
    let o = other.value_as(x.value().dtype())?;
    check::alike("select", x.value(), &[&o])?;
    let y = match x.value().cuda_device() {
        Some(c) => cuda::select(c, x.value(), &o, mask)?,
        None => {
            let mut y = Buf::scratch(x.value().len());
            cpu::select(x.value().f32s(), o.f32s(), mask.u32s(), &mut y);
            Tensor::from_buf(y, x.shape())
        }
    };
    Ok(tape.record(y, &[x, other], || Select { x: x.clone(), other: other.clone(), mask: mask.clone() }))
}

impl Backward for Select {
    fn name(&self) -> &'static str {
        "select"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        let Select { x, other, mask } = self;
        let (b, n) = (mask.len(), other.value().len());
        if let Some(c) = dy.cuda_device() {
            if let Some(dst) = grads.dst_cuda(x, dy.dtype())? {
                cuda::select_backward(c, dy, mask, &dst)?;
            }
            let Some(dst) = grads.dst_cuda(other, other.value().dtype())? else { return Ok(()) };
            return cuda::sum_examples(c, dy, n, b, Some(mask), &dst);
        }
        grads.write_cpu(x, |dst, acc| cpu::select_backward(dy.f32s(), mask.u32s(), n, dst, acc))?;
        if other.needs_grad() {
            let sum = cpu::sum_examples(dy.f32s(), n, 0, n, Some(mask.u32s()));
            grads.write_cpu(other, |dst, acc| add_or_copy(dst, &sum, acc))?;
        }
        Ok(())
    }
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    use Role::{Activation, Weight};
    let shapes: &[[usize; 3]] = match size {
        Size::Tiny => &[[2, 3, 4], [1, 1, 1]],
        Size::Full => &[[1, 1, 1], [1, 197, 64], [3, 5, 7], [4, 197, 192], [70, 9, 33], [33, 17, 768]],
    };
    let mut out = embed::cases(size);
    for &s in shapes {
        let [b, n, d] = s;
        let l = format!("{s:?}");
        let range = n / 3..n.div_ceil(2).max(n / 3 + 1);
        let (r1, r2, r3) = (range.clone(), range.clone(), range.clone());
        out.extend([
            Case::new("concat", format!("{l} + 2 tokens + itself"), |t, v| concat(t, &[&v[0], &v[1], &v[0]]))
                .normal("a", Activation, &s, 1.0)
                .normal("b", Activation, &[b, 2, d], 1.0),
            Case::new("concat", format!("shared token + {l}"), |t, v| concat(t, &[&v[0], &v[1]]))
                .normal("class", Weight, &[1, 1, d], 1.0)
                .normal("x", Activation, &s, 1.0),
            Case::new("concat", format!("{l} + shared activation"), |t, v| concat(t, &[&v[0], &v[1]]))
                .normal("x", Activation, &s, 1.0)
                .normal("shared", Activation, &[1, 3, d], 1.0),
            Case::new("slice", format!("{l} {range:?}"), move |t, v| slice(t, &v[0], r1.clone()))
                .normal("x", Activation, &s, 1.0),
            // Two windows onto one value: the second gradient is added to the first.
            Case::new("slice", format!("{l} {range:?} and all"), move |t, v| {
                concat(t, &[&slice(t, &v[0], r2.clone())?, &slice(t, &v[0], 0..n)?, &slice(t, &v[0], 0..1)?])
            })
            .normal("x", Activation, &s, 1.0),
            Case::new("repeat", format!("{l} ×3"), |t, v| repeat(t, &v[0], 3)).normal("x", Activation, &s, 1.0),
            Case::new("repeat", format!("{l} ×2, and itself"), |t, v| {
                concat(t, &[&repeat(t, &v[0], 2)?, &repeat(t, &v[0], 2)?])
            })
            .normal("x", Activation, &s, 1.0),
            Case::new("repeat", format!("ids {l} ×3"), |t, v| {
                let y = repeat_ids(v[0].value(), 3)?;
                let values: Vec<f32> = y.to_vec_u32()?.into_iter().map(|x| x as f32).collect();
                Ok(t.constant(Tensor::from_f32(&crate::Device::Cpu, y.shape(), values)?))
            })
            .ids("ids", &s, 1 << 24),
            Case::new("mean_tokens", format!("{l} {range:?}"), move |t, v| mean_tokens(t, &v[0], r3.clone()))
                .normal("x", Activation, &s, 1.0),
            Case::new("mean_tokens", format!("{l} after itself"), move |t, v| {
                concat(t, &[&mean_tokens(t, &v[0], 0..n)?, &mean_tokens(t, &v[0], 0..1)?])
            })
            .normal("x", Activation, &s, 1.0),
            Case::new("select", &l, |t, v| select(t, &v[0], &v[1], v[2].value()))
                .normal("x", Activation, &s, 1.0)
                .normal("other", Weight, &[1, n, d], 1.0)
                .ids("mask", &[b], 2),
            Case::new("select", format!("{l}, other an activation"), |t, v| select(t, &v[0], &v[1], v[2].value()))
                .normal("x", Activation, &s, 1.0)
                .normal("other", Activation, &[1, n, d], 1.0)
                .ids("mask", &[b], 2),
            Case::new("select", format!("{l}, added to itself"), |t, v| {
                let y = select(t, &v[0], &v[1], v[2].value())?;
                concat(t, &[&v[0], &y, &select(t, &v[0], &v[1], v[2].value())?])
            })
            .normal("x", Activation, &s, 1.0)
            .normal("other", Weight, &[1, n, d], 1.0)
            .ids("mask", &[b], 2),
        ]);
    }
    out
}
