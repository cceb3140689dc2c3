//! Blending on the CPU.

use super::First;
use crate::cpu::par;
use crate::cpu::pool::Buf;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

pub(super) fn blend(
    by: &Tensor,
    first: First,
    second: Option<&Tensor>,
    third: Option<&Tensor>,
    like: &Tensor,
) -> Result<Tensor> {
    let (by, each) = (by.f32s(), by.shape().len() == 2);
    let d = like.width();
    if let First::Columns { matrix, ids } = first {
        let v = matrix.shape()[1];
        if let Some((at, id)) = ids.u32s().iter().enumerate().find(|(_, id)| **id as usize >= v) {
            return Err(Error::op("blend", format!("id {id} at position {at} is not below {v}")));
        }
    }
    let mut out = Buf::scratch(like.len());
    par::rows(&mut out, d, 4 * d, |start, out| {
        for (r, out) in out.chunks_exact_mut(d).enumerate() {
            let row = start + r;
            let by = &by[if each { 3 * row } else { 0 }..];
            let (a, b, c) = (by[0], by[1], by[2]);
            match first {
                First::Columns { matrix, ids } => {
                    let (m, v, id) = (matrix.f32s(), matrix.shape()[1], ids.u32s()[row] as usize);
                    out.iter_mut().enumerate().for_each(|(k, o)| *o = a * m[k * v + id]);
                }
                First::Values(x) => {
                    out.iter_mut().zip(&x.f32s()[row * d..]).for_each(|(o, x)| *o = a * x);
                }
            }
            for (by, term) in [(b, second), (c, third)] {
                if let Some(t) = term {
                    out.iter_mut().zip(&t.f32s()[row * d..]).for_each(|(o, t)| *o = by.mul_add(*t, *o));
                }
            }
        }
    });
    Ok(Tensor::from_buf(out, like.shape()))
}

pub(super) fn guide(pairs: &[f32], weight: &[f32], shape: &[usize]) -> Tensor {
    let each: usize = shape[1..].iter().product();
    let mut out = Buf::scratch(shape[0] * each);
    par::rows(&mut out, each, 4 * each, |first, out| {
        for (i, (out, pair)) in
            out.chunks_exact_mut(each).zip(pairs[first * 2 * each..].chunks_exact(2 * each)).enumerate()
        {
            let w = weight[if weight.len() > 1 { first + i } else { 0 }];
            let (c, u) = pair.split_at(each);
            out.iter_mut().zip(c).zip(u).for_each(|((o, c), u)| *o = w.mul_add(c - u, *u));
        }
    });
    Tensor::from_buf(out, shape)
}
