//! The tape: a record of the ops of one forward pass, run backwards for gradients.
//!
//! An op computes its output, then hands it to [`Tape::record`] together with a [`Backward`]. The trait is the only way to
//! make an output differentiable, so an op without a backward does not compile.

use std::cell::{Cell, RefCell};

use crate::cpu::matmul::transpose;
use crate::cpu::pool::Buf;
use crate::device::Device;
use crate::error::{Result, ensure};
use crate::params::{ParamId, Params, Turned};
use crate::tensor::{DType, Tensor};

/// The backward half of an op: everything saved in the forward pass, and how gradients flow.
pub trait Backward {
    /// Name for error messages.
    fn name(&self) -> &'static str;
    /// Given the gradient of the output, add to the gradients of the inputs.
    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()>;
}

/// A value on the tape.
#[derive(Clone, Debug)]
pub struct Var {
    value: Tensor,
    /// bf16 copy of a parameter, for products.
    low: Option<Tensor>,
    /// A parameter transposed, where no gradients are wanted.
    turned: Option<Turned>,
    /// Where its gradient goes; `None` for constants.
    node: Option<usize>,
}

impl Var {
    /// The value (f32 master copy for parameters).
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The value, for an op that owns its input and may overwrite it.
    pub(crate) fn value_mut(&mut self) -> &mut Tensor {
        &mut self.value
    }

    /// The value in type `dtype`: a parameter's bf16 shadow where there is one, else a conversion.
    pub(crate) fn value_as(&self, dtype: DType) -> Result<Tensor> {
        match &self.low {
            Some(low) if low.dtype() == dtype => Ok(low.clone()),
            _ => self.value.cast(dtype),
        }
    }

    /// A weight \[out, in\] on the CPU as \[in, out\], if it is a parameter outside of training: kept until its values change.
    pub(crate) fn turned(&self) -> Option<&Tensor> {
        let &[out, inner] = self.shape() else { return None };
        Some(self.turned.as_ref()?.get_or_init(|| {
            let mut to = Buf::scratch(out * inner);
            transpose(self.value.f32s(), inner, out, inner, &mut to);
            Tensor::from_buf(to, &[inner, out])
        }))
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        self.value.shape()
    }

    /// Whether a gradient flows here.
    pub fn needs_grad(&self) -> bool {
        self.node.is_some()
    }
}

enum Node {
    /// An input whose gradient is kept.
    Leaf,
    /// A parameter: its gradient is added into the flat buffer.
    Param(ParamId),
    /// An op's output.
    Op(Box<dyn Backward>),
}

/// The record of one forward pass.
pub struct Tape {
    nodes: RefCell<Vec<Node>>,
    recording: bool,
    /// Bytes that ops keep to save time in the backward pass.
    kept: Cell<usize>,
}

impl Default for Tape {
    fn default() -> Tape {
        Tape::new()
    }
}

impl Tape {
    /// A tape that records for a backward pass.
    pub fn new() -> Tape {
        Tape { nodes: RefCell::default(), recording: true, kept: Cell::new(0) }
    }

    /// A tape that records nothing: forward only, nothing is kept alive.
    pub fn inference() -> Tape {
        Tape { nodes: RefCell::default(), recording: false, kept: Cell::new(0) }
    }

    fn push(&self, node: Node) -> usize {
        let mut nodes = self.nodes.borrow_mut();
        nodes.push(node);
        nodes.len() - 1
    }

    /// A value without gradient.
    pub fn constant(&self, value: Tensor) -> Var {
        Var { value, low: None, turned: None, node: None }
    }

    /// An input whose gradient [`Tape::backward`] returns.
    pub fn leaf(&self, value: Tensor) -> Var {
        let node = self.recording.then(|| self.push(Node::Leaf));
        Var { value, low: None, turned: None, node }
    }

    /// A parameter. Frozen parameters take part without gradient.
    pub fn param(&self, params: &Params, id: ParamId) -> Var {
        let (value, low) = params.view(id);
        let node = (self.recording && !params.is_frozen(id)).then(|| self.push(Node::Param(id)));
        let turned = (!self.recording).then(|| params.turned(id));
        Var { value, low, turned, node }
    }

    /// Put an op's output on the tape. `op` is only called, and what it saves only kept, if a gradient is wanted.
    pub fn record<B: Backward + 'static>(&self, value: Tensor, inputs: &[&Var], op: impl FnOnce() -> B) -> Var {
        let wanted = self.recording && inputs.iter().any(|v| v.needs_grad());
        let node = wanted.then(|| self.push(Node::Op(Box::new(op()))));
        Var { value, low: None, turned: None, node }
    }

    /// Whether an op may keep so many bytes that it could compute again: all of them together keep at most `limit`.
    pub(crate) fn spares(&self, bytes: usize, limit: usize) -> bool {
        let kept = self.kept.get() + bytes;
        let fits = self.recording && kept <= limit;
        if fits {
            self.kept.set(kept);
        }
        fits
    }

    /// Run `f` keeping only its inputs and its output; the backward pass runs it again for what lies between. Costs a second
    /// forward pass of `f` and saves its memory. `f` must compute the same both times.
    pub fn recompute(&self, inputs: &[&Var], f: impl Fn(&Tape, &[Var]) -> Result<Var> + 'static) -> Result<Var> {
        let plain: Vec<Var> = inputs.iter().map(|v| Var { node: None, ..(*v).clone() }).collect();
        let out = f(&Tape::inference(), &plain)?;
        Ok(self.record(out.value, inputs, || Recompute {
            inputs: inputs.iter().map(|v| (*v).clone()).collect(),
            f: Box::new(f),
        }))
    }

    /// Run the tape backwards from the scalar `loss`. Parameter gradients are added to those in `params`; gradients of
    /// leaves are in the returned [`Grads`].
    pub fn backward(self, loss: &Var, params: Option<&mut Params>) -> Result<Grads> {
        ensure!(loss.value.len() == 1, "backward", "the loss must be one number, it is {:?}", loss.value);
        let one = Tensor::from_f32(&Device::Cpu, loss.shape(), vec![1.0])?.to_device(&loss.value.device())?;
        self.backward_from(loss, one, params)
    }

    /// As [`Tape::backward`], from any output with the given gradient.
    pub fn backward_from(self, output: &Var, dy: Tensor, mut params: Option<&mut Params>) -> Result<Grads> {
        let Some(last) = output.node else {
            return Err(crate::Error::op("backward", "nothing that needs a gradient leads to this output"));
        };
        ensure!(
            dy.shape() == output.shape(),
            "backward",
            "gradient {:?} for an output {:?}",
            dy.shape(),
            output.shape()
        );
        let mut nodes = self.nodes.into_inner();
        let mut grads = Grads { slots: Vec::new(), flat: params.as_mut().map(|p| p.take_grads()) };
        grads.slots.resize_with(nodes.len(), || Slot::Empty);
        for (slot, node) in grads.slots.iter_mut().zip(&nodes) {
            if let (Node::Param(id), Some(p)) = (node, &params) {
                let (start, shape) = p.place(*id);
                *slot = Slot::Param { id: *id, start, shape: shape.to_vec() };
            }
        }
        grads.slots[last] = Slot::Have(dy);
        nodes.truncate(last + 1);
        let mut result = Ok(());
        while let Some(node) = nodes.pop() {
            let Node::Op(op) = node else { continue };
            let i = nodes.len();
            if let Slot::Have(dy) = std::mem::replace(&mut grads.slots[i], Slot::Empty) {
                result = op.backward(&dy, &mut grads);
                if result.is_err() {
                    break;
                }
            }
        }
        if let (Some(p), Some(flat)) = (params, grads.flat.take()) {
            p.return_grads(flat);
        }
        result.map(|()| grads)
    }
}

type Segment = Box<dyn Fn(&Tape, &[Var]) -> Result<Var>>;

struct Recompute {
    inputs: Vec<Var>,
    f: Segment,
}

impl Backward for Recompute {
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        let tape = Tape::new();
        let node = |v: &Var| v.node.map(|_| tape.push(Node::Leaf));
        let vars: Vec<Var> = self.inputs.iter().map(|v| Var { node: node(v), ..v.clone() }).collect();
        let out = (self.f)(&tape, &vars)?;
        let mut inner = tape.backward_from(&out, dy.clone(), None)?;
        for (outer, v) in self.inputs.iter().zip(&vars) {
            if let Some(i) = v.node
                && let Slot::Have(g) = std::mem::replace(&mut inner.slots[i], Slot::Empty)
            {
                grads.give(outer, g)?;
            }
        }
        Ok(())
    }
}

enum Slot {
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

/// Gradients by node.
pub struct Grads {
    slots: Vec<Slot>,
    flat: Option<FlatGrads>,
}

/// Where a GPU kernel writes a gradient: `acc` says whether to add to what is there.
pub(crate) struct Dst {
    pub tensor: Tensor,
    pub acc: bool,
}

impl Grads {
    /// The gradient of a leaf, once the backward pass is over.
    pub fn get(&self, v: &Var) -> Option<&Tensor> {
        match self.slots.get(v.node?)? {
            Slot::Have(t) => Some(t),
            _ => None,
        }
    }

    /// Hand over a freshly computed gradient: kept if it is the first for `v`, else added.
    pub(crate) fn give(&mut self, v: &Var, g: Tensor) -> Result<()> {
        let Some(i) = v.node else { return Ok(()) };
        debug_assert_eq!(g.shape(), v.shape());
        if matches!(self.slots[i], Slot::Empty) {
            self.slots[i] = Slot::Have(g);
            return Ok(());
        }
        match g.cuda_device() {
            None => self.write_cpu(v, |dst, acc| add_or_copy(dst, g.f32s(), acc)),
            Some(c) => {
                let dst = self.dst_cuda(v, g.dtype())?;
                dst.map_or(Ok(()), |d| crate::ops::elementwise::add_into_cuda(c, &d.tensor, &g, d.acc))
            }
        }
    }

    /// Let `f` write the gradient of `v` on the CPU; its second argument says whether to add.
    pub(crate) fn write_cpu(&mut self, v: &Var, f: impl FnOnce(&mut [f32], bool)) -> Result<()> {
        let Some(i) = v.node else { return Ok(()) };
        if matches!(self.slots[i], Slot::Empty) {
            let mut buf = crate::cpu::pool::Buf::scratch(v.value.len());
            f(&mut buf, false);
            self.slots[i] = Slot::Have(Tensor::from_buf(buf, v.shape()));
            return Ok(());
        }
        match &mut self.slots[i] {
            Slot::Have(t) => {
                if t.f32s_mut().is_none() {
                    // Shared with another slot (an op passed one gradient to two inputs): write a copy.
                    *t = Tensor::from_f32(&Device::Cpu, t.shape(), t.f32s().to_vec())?;
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
                        return Err(crate::Error::op("backward", "the gradient buffer is still in use elsewhere"));
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
        let Some(i) = v.node else { return Ok(None) };
        if matches!(self.slots[i], Slot::Empty) {
            let Some(c) = v.value.cuda_device() else {
                return Err(crate::Error::op("backward", "a CPU value on a GPU tape"));
            };
            let t = Tensor::cuda(c, v.shape(), dtype)?;
            self.slots[i] = Slot::Have(t.clone());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::random;
    use crate::ops::{elementwise, linear};
    use crate::{Act, Group, ParamsBuilder};

    /// Two layers with a shared input, parameters and a leaf; with or without keeping what lies between.
    fn gradients(recompute: bool) -> Vec<Vec<f32>> {
        let mut b = ParamsBuilder::default();
        let w = b.add("w", &[4, 4], Group::Decay, random(1, &[4, 4], 1.0).to_vec().unwrap()).unwrap();
        let bias = b.add("b", &[4], Group::NoDecay, random(2, &[4], 1.0).to_vec().unwrap()).unwrap();
        let mut params = b.build(&Device::Cpu, false).unwrap();
        let tape = Tape::new();
        let x = tape.leaf(random(3, &[3, 4], 1.0));
        let (wv, bv) = (tape.param(&params, w), tape.param(&params, bias));
        let layer = |t: &Tape, v: &[Var]| {
            let h = linear::linear(t, &v[0], &v[1], Some(&v[2]), Some(Act::GeluErf), None)?;
            linear::linear(t, &h, &v[1], Some(&v[2]), None, Some(&v[0]))
        };
        let mut y = x.clone();
        for _ in 0..2 {
            y = match recompute {
                true => tape.recompute(&[&y, &wv, &bv], layer).unwrap(),
                false => layer(&tape, &[y, wv.clone(), bv.clone()]).unwrap(),
            };
        }
        let loss = elementwise::mean(&tape, &y).unwrap();
        drop((wv, bv));
        let grads = tape.backward(&loss, Some(&mut params)).unwrap();
        let grad = |id| params.grad(id).unwrap().to_vec().unwrap();
        vec![loss.value().to_vec().unwrap(), grads.get(&x).unwrap().to_vec().unwrap(), grad(w), grad(bias)]
    }

    #[test]
    fn what_is_kept_to_save_time_has_a_limit() {
        let tape = Tape::new();
        assert!(tape.spares(90, 100) && !tape.spares(11, 100) && tape.spares(10, 100) && !tape.spares(1, 100));
        assert!(!Tape::inference().spares(1, 100));
    }

    #[test]
    fn recomputed_gradients_agree_with_kept_ones() {
        for (a, b) in gradients(false).into_iter().zip(gradients(true)) {
            // The same terms, added in another order where a parameter is used twice.
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-6 * a.abs().max(1.0)), "{a:?}\n{b:?}");
        }
    }

    #[test]
    fn backward_refuses_what_has_no_gradient() {
        let tape = Tape::new();
        let x = tape.constant(random(0, &[1], 1.0));
        assert!(tape.backward(&x, None).err().unwrap().to_string().contains("nothing that needs a gradient"));
        let tape = Tape::new();
        let x = tape.leaf(random(0, &[2], 1.0));
        assert!(tape.backward(&x, None).err().unwrap().to_string().contains("must be one number"));
    }
}
