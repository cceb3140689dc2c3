//! Gradients on their way back: what a [`Backward`](super::Backward) writes to.

use super::Var;
use crate::cpu::pool::Buf;
use crate::device::Device;
use crate::error::{Error, Result, ensure};
use crate::params::ParamId;
use crate::tensor::{DType, Tensor};

pub(super) enum Slot {
    Empty,
    Have(Tensor),
    Param { id: ParamId, start: usize, shape: Vec<usize> },
}

/// The flat gradient buffer while a backward pass runs.
pub(crate) struct FlatGrads {
    pub data: Tensor,
    /// Whether a parameter has a gradient already: the first writer overwrites, later ones add.
    pub touched: Vec<bool>,
}

impl FlatGrads {
    /// A range of it reads as zero.
    pub fn zero(&mut self, range: std::ops::Range<usize>) -> Result<()> {
        match self.data.cuda_device() {
            Some(c) => c.memset_zero(self.data.view(range.start, &[range.len()]).ptr(), range.len() * 4),
            None => match self.data.f32s_mut() {
                Some(d) => {
                    d[range].fill(0.0);
                    Ok(())
                }
                None => Err(Error::op("optimizer", "a gradient is still held; drop it before the step")),
            },
        }
    }
}

/// Gradients by value of one tape: a [`Backward`](super::Backward) adds to those of its inputs, and when the pass is over
/// [`Grads::get`] has those of the leaves.
pub struct Grads {
    tape: u64,
    slots: Vec<Slot>,
    flat: Option<FlatGrads>,
    /// The op whose backward pass runs, for messages.
    op: &'static str,
}

/// Where a GPU kernel writes a gradient: `acc` says whether to add to what is there.
pub(crate) struct Dst {
    pub tensor: Tensor,
    pub acc: bool,
}

/// `g` can be the gradient of `v`: it has the shape, the type and the device of its value.
pub(super) fn check(op: &'static str, g: &Tensor, v: &Var) -> Result<()> {
    let value = v.value();
    ensure!(
        g.shape() == value.shape() && g.dtype() == value.dtype() && g.is_beside(value) && g.dtype() != DType::U32,
        op,
        "a gradient {g:?} does not fit the value {value:?}"
    );
    Ok(())
}

impl Grads {
    pub(super) fn new(tape: u64, slots: Vec<Slot>, flat: Option<FlatGrads>) -> Grads {
        Grads { tape, slots, flat, op: "backward" }
    }

    /// The backward pass of `op` begins.
    pub(super) fn enter(&mut self, op: &'static str) {
        self.op = op;
    }

    /// The backward pass is over: the flat buffer goes back to its parameters.
    pub(super) fn end(&mut self) -> Option<FlatGrads> {
        self.flat.take()
    }

    /// The flat buffer, while the pass runs.
    pub(super) fn flat(&mut self) -> Option<&mut FlatGrads> {
        self.flat.as_mut()
    }

    pub(super) fn put(&mut self, node: usize, g: Tensor) {
        self.slots[node] = Slot::Have(g);
    }

    /// The gradient of a node, which is forgotten.
    pub(super) fn take(&mut self, node: usize) -> Option<Tensor> {
        match std::mem::replace(&mut self.slots[node], Slot::Empty) {
            Slot::Have(g) => Some(g),
            _ => None,
        }
    }

    /// Where the gradient of `v` is collected; `None` where none is wanted.
    fn slot(&self, v: &Var) -> Result<Option<usize>> {
        let Some(at) = v.node else { return Ok(None) };
        ensure!(at.tape == self.tape, self.op, "the value {:?} was made on another tape", v.value());
        Ok(Some(at.node))
    }

    /// The gradient of a leaf, once the backward pass is over.
    pub fn get(&self, v: &Var) -> Option<&Tensor> {
        match self.slots.get(v.node.filter(|at| at.tape == self.tape)?.node)? {
            Slot::Have(t) => Some(t),
            _ => None,
        }
    }

    /// Hand over a freshly computed gradient of `v`, with its shape, type and device: kept if it is the first for `v`, else added
    /// to what is there. Does nothing where [`Var::needs_grad`] is false. Sharing `dy` is fine: `grads.give(&x, dy.clone())`
    /// copies nothing, and a shared tensor is copied before something is added to it.
    pub fn give(&mut self, v: &Var, g: Tensor) -> Result<()> {
        if !v.needs_grad() {
            return Ok(());
        }
        check(self.op, &g, v)?;
        self.add(v, g)
    }

    /// As [`Grads::give`], of a gradient whose type may be another than the value's, as those of weights in bf16 are.
    pub(super) fn add(&mut self, v: &Var, g: Tensor) -> Result<()> {
        let Some(i) = self.slot(v)? else { return Ok(()) };
        if matches!(self.slots[i], Slot::Empty) {
            self.put(i, g);
            return Ok(());
        }
        match g.cuda_device() {
            None => {
                let src = g.as_f32()?;
                self.write_cpu(v, |dst, acc| add_or_copy(dst, src, acc))
            }
            Some(c) => {
                let dst = self.dst_cuda(v, g.dtype())?;
                dst.map_or(Ok(()), |d| crate::ops::elementwise::add_into_cuda(c, &d.tensor, &g, d.acc))
            }
        }
    }

    /// Let `f` write the gradient of `v`, an f32 value on the CPU, where it is collected: its first argument has as many elements
    /// as `v`, in their order, and its second says whether to add to what is there (`true`) or to overwrite it. Without an
    /// allocation where a gradient is there already. `f` is not called where [`Var::needs_grad`] is false.
    pub fn write_cpu(&mut self, v: &Var, f: impl FnOnce(&mut [f32], bool)) -> Result<()> {
        let Some(i) = self.slot(v)? else { return Ok(()) };
        let value = v.value();
        ensure!(
            value.dtype() == DType::F32 && value.cuda_device().is_none(),
            self.op,
            "write_cpu writes gradients of f32 values on the CPU, this is {value:?}"
        );
        if matches!(self.slots[i], Slot::Empty) {
            let mut buf = Buf::scratch(value.len());
            f(&mut buf, false);
            self.put(i, Tensor::from_buf(buf, v.shape()));
            return Ok(());
        }
        match &mut self.slots[i] {
            Slot::Have(t) => {
                if t.f32s_mut().is_none() {
                    // Shared with another slot (an op passed one gradient to two inputs): write a copy.
                    *t = Tensor::from_f32(&Device::Cpu, t.shape(), t.as_f32()?.to_vec())?;
                }
                if let Some(dst) = t.f32s_mut() {
                    f(dst, true);
                }
            }
            Slot::Param { id, start, shape } => {
                let n: usize = shape.iter().product();
                if let Some(flat) = &mut self.flat {
                    let acc = std::mem::replace(&mut flat.touched[id.0], true);
                    let Some(all) = flat.data.f32s_mut() else {
                        return Err(Error::op("backward", "the gradient buffer is still in use elsewhere"));
                    };
                    f(&mut all[*start..*start + n], acc);
                }
            }
            Slot::Empty => {}
        }
        Ok(())
    }

    /// Where the gradient of `v` goes on the GPU; a new tensor of `dtype` if it is the first. `None`: not wanted.
    pub(crate) fn dst_cuda(&mut self, v: &Var, dtype: DType) -> Result<Option<Dst>> {
        let Some(i) = self.slot(v)? else { return Ok(None) };
        if matches!(self.slots[i], Slot::Empty) {
            let Some(c) = v.value().cuda_device() else {
                return Err(Error::op(self.op, format!("a gradient on a GPU for the value {:?}", v.value())));
            };
            let t = Tensor::cuda(c, v.shape(), dtype)?;
            self.put(i, t.clone());
            return Ok(Some(Dst { tensor: t, acc: false }));
        }
        Ok(match &mut self.slots[i] {
            Slot::Have(t) => {
                if let (false, Some(c)) = (t.is_unique(), t.cuda_device().cloned()) {
                    // As on the CPU: never write what another slot shares.
                    let copy = Tensor::cuda(&c, t.shape(), t.dtype())?;
                    copy.overwrite(t)?;
                    *t = copy;
                }
                Some(Dst { tensor: t.clone(), acc: true })
            }
            Slot::Param { id, start, shape } => self.flat.as_mut().map(|flat| {
                let acc = std::mem::replace(&mut flat.touched[id.0], true);
                Dst { tensor: flat.data.view(*start, shape), acc }
            }),
            Slot::Empty => None,
        })
    }
}

/// `dst = src` or `dst += src`.
pub(crate) fn add_or_copy(dst: &mut [f32], src: &[f32], acc: bool) {
    if !acc {
        return dst.copy_from_slice(src);
    }
    crate::cpu::par::rows(dst, 1, 1, |first, d| {
        let s = &src[first..first + d.len()];
        crate::cpu::math::simd(
            #[inline(always)]
            || d.iter_mut().zip(s).for_each(|(d, s)| *d += s),
        );
    });
}
