//! The tape: a record of the ops of one forward pass, run backwards for gradients.
//!
//! An op computes its output, then hands it to [`Tape::record`] together with a [`Backward`]. The trait is the only way to
//! make an output differentiable, so an op without a backward does not compile.

mod grads;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::comm::Reducer;
use crate::cpu::matmul::transpose;
use crate::cpu::pool::Buf;
use crate::device::Device;
use crate::error::{Error, Result, ensure};
use crate::params::{ParamId, Params, Transposed};
use crate::tensor::{DType, Tensor};

pub use grads::Grads;
use grads::Slot;
pub(crate) use grads::{Dst, FlatGrads, add_or_copy};

/// The backward half of an op: everything saved in the forward pass, and how gradients flow.
///
/// An op of one's own is a function that computes its output, and a struct of what its gradient needs:
///
/// ```
/// use tweedie_engine::{Backward, Device, Grads, Result, Tape, Tensor, Var, check};
///
/// /// x·σ(x).
/// fn swish(tape: &Tape, x: &Var) -> Result<Var> {
///     let y = x.value().as_f32()?.iter().map(|&x| x * sigmoid(x)).collect();
///     let y = Tensor::from_f32(&Device::Cpu, x.shape(), y)?;
///     Ok(tape.record(y, &[x], || Swish { x: x.clone() }))
/// }
///
/// fn sigmoid(x: f32) -> f32 {
///     1.0 / (1.0 + (-x).exp())
/// }
///
/// struct Swish {
///     x: Var,
/// }
///
/// impl Backward for Swish {
///     fn name(&self) -> &'static str {
///         "swish"
///     }
///
///     /// d/dx x·σ(x) = σ(x)·(1 + x·(1 − σ(x))).
///     fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
///         let slope = |x: f32| sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
///         let dx = self.x.value().as_f32()?.iter().zip(dy.as_f32()?).map(|(&x, dy)| dy * slope(x)).collect();
///         grads.give(&self.x, Tensor::from_f32(&Device::Cpu, self.x.shape(), dx)?)
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let x = Tensor::from_f32(&Device::Cpu, &[4], vec![-2.0, -0.5, 0.1, 1.5])?;
/// check::gradients(|tape, v| swish(tape, &v[0]), &[x], 2e-3)?;
/// # Ok(())
/// # }
/// ```
///
/// An op of several inputs gives to each of them, and may skip what an input without [`Var::needs_grad`] would cost.
/// [`Grads::write_cpu`] writes in place where that saves a buffer.
pub trait Backward {
    /// Name for error messages.
    fn name(&self) -> &'static str;
    /// Given the gradient of the output, add to the gradients of the inputs.
    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()>;
}

/// A value on a [`Tape`]: a [`Tensor`], and where its gradient goes.
///
/// ```
/// use tweedie_engine::{Device, Tape, Tensor, ops::elementwise};
///
/// # fn main() -> tweedie_engine::Result<()> {
/// let tape = Tape::new();
/// let x = tape.leaf(Tensor::from_f32(&Device::Cpu, &[2], vec![1.0, 2.0])?);
/// let one = tape.constant(Tensor::from_f32(&Device::Cpu, &[2], vec![1.0; 2])?);
/// let y = elementwise::add(&tape, &x, &one)?;
/// assert_eq!(y.value().to_vec()?, [2.0, 3.0]);
/// assert!(y.needs_grad() && !one.needs_grad());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Var {
    value: Tensor,
    /// bf16 copy of a parameter, for products.
    low: Option<Tensor>,
    /// A parameter transposed, where no gradients are wanted.
    transposed: Option<Transposed>,
    /// Where its gradient goes; `None` for constants.
    node: Option<Place>,
}

/// A node of a tape.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The tape's number: no two tapes have the same.
    tape: u64,
    node: usize,
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
    pub(crate) fn transposed(&self) -> Option<&Tensor> {
        let &[out, inner] = self.shape() else { return None };
        Some(self.transposed.as_ref()?.get_or_init(|| {
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
    Param { id: ParamId, params: u64 },
    /// An op's output.
    Op(Box<dyn Backward>),
}

impl Node {
    fn param(&self) -> Option<ParamId> {
        match self {
            Node::Param { id, .. } => Some(*id),
            _ => None,
        }
    }
}

/// The record of one forward pass. A value belongs to the tape that it was made on.
///
/// ```
/// use tweedie_engine::{Device, Tape, Tensor, ops::elementwise};
///
/// # fn main() -> tweedie_engine::Result<()> {
/// let x = Tensor::from_f32(&Device::Cpu, &[4], vec![1.0, 2.0, 3.0, 6.0])?;
/// let tape = Tape::new();
/// let leaf = tape.leaf(x.clone());
/// let loss = elementwise::mean(&tape, &elementwise::scale(&tape, &leaf, 2.0)?)?;
/// assert_eq!(loss.value().item()?, 6.0);
/// let grads = tape.backward(&loss, None)?; // the tape is used up
/// assert_eq!(grads.get(&leaf).map(Tensor::to_vec).transpose()?, Some(vec![0.5; 4]));
///
/// let tape = Tape::inference(); // records nothing
/// assert!(!elementwise::mean(&tape, &tape.leaf(x))?.needs_grad());
/// # Ok(())
/// # }
/// ```
pub struct Tape {
    number: u64,
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
        Tape::numbered(true)
    }

    fn numbered(recording: bool) -> Tape {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Tape { number, nodes: RefCell::default(), recording, kept: Cell::new(0) }
    }

    /// A tape that records nothing: forward only, nothing is kept alive.
    pub fn inference() -> Tape {
        Tape::numbered(false)
    }

    fn push(&self, node: Node) -> Place {
        let mut nodes = self.nodes.borrow_mut();
        nodes.push(node);
        Place { tape: self.number, node: nodes.len() - 1 }
    }

    /// A value without gradient.
    pub fn constant(&self, value: Tensor) -> Var {
        Var { value, low: None, transposed: None, node: None }
    }

    /// An input whose gradient [`Tape::backward`] returns.
    pub fn leaf(&self, value: Tensor) -> Var {
        let node = self.recording.then(|| self.push(Node::Leaf));
        Var { value, low: None, transposed: None, node }
    }

    /// A parameter. Frozen parameters take part without gradient.
    pub fn param(&self, params: &Params, id: ParamId) -> Var {
        let (value, low) = params.view(id);
        let node =
            (self.recording && !params.is_frozen(id)).then(|| self.push(Node::Param { id, params: params.number() }));
        let transposed = (!self.recording).then(|| params.transposed(id));
        Var { value, low, transposed, node }
    }

    /// Put an op's output on the tape. `op` is only called, and what it saves only kept, if a gradient is wanted.
    pub fn record<B: Backward + 'static>(&self, value: Tensor, inputs: &[&Var], op: impl FnOnce() -> B) -> Var {
        let wanted = self.recording && inputs.iter().any(|v| v.needs_grad());
        let node = wanted.then(|| self.push(Node::Op(Box::new(op()))));
        Var { value, low: None, transposed: None, node }
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
        self.run(loss, one_for(loss)?, params, None)
    }

    /// As [`Tape::backward`], where gradients of parameters are summed over ranks on the way: `reducer` begins with a bucket of them as
    /// soon as nothing of the tape that is left uses its parameters.
    pub fn backward_reduced(self, loss: &Var, params: &mut Params, reducer: &mut Reducer) -> Result<Grads> {
        self.run(loss, one_for(loss)?, Some(params), Some(reducer))
    }

    /// As [`Tape::backward`], from any output with the given gradient, which has its shape, type and device.
    pub fn backward_from(self, output: &Var, dy: Tensor, params: Option<&mut Params>) -> Result<Grads> {
        self.run(output, dy, params, None)
    }

    fn run(
        self,
        output: &Var,
        dy: Tensor,
        mut params: Option<&mut Params>,
        mut reducer: Option<&mut Reducer>,
    ) -> Result<Grads> {
        let Some(last) = output.node else {
            return Err(Error::op("backward", "nothing that needs a gradient leads to this output"));
        };
        ensure!(last.tape == self.number, "backward", "the output {:?} was recorded on another tape", output.value);
        grads::check("backward", &dy, output)?;
        let mut nodes = self.nodes.into_inner();
        let slots = slots(&nodes, params.as_deref())?;
        let flat = params.as_mut().map(|p| p.take_grads()).transpose()?;
        let mut grads = Grads::new(self.number, slots, flat);
        grads.put(last.node, dy);
        nodes.truncate(last.node + 1);
        if let Some(r) = &mut reducer {
            r.start(nodes.iter().filter_map(Node::param));
        }
        let mut result = Ok(());
        while let (Some(node), true) = (nodes.pop(), result.is_ok()) {
            match node {
                Node::Leaf => {}
                Node::Param { id, .. } => {
                    if let (Some(r), Some(flat)) = (&mut reducer, grads.flat()) {
                        result = r.passed(id, flat);
                    }
                }
                Node::Op(op) => {
                    if let Some(dy) = grads.take(nodes.len()) {
                        grads.enter(op.name());
                        result = op.backward(&dy, &mut grads);
                    }
                }
            }
        }
        if let (true, Some(r), Some(flat)) = (result.is_ok(), reducer, grads.flat()) {
            result = r.end(flat);
        }
        if let (Some(p), Some(flat)) = (params, grads.end()) {
            p.return_grads(flat);
        }
        result.map(|()| grads)
    }
}

/// The gradient of a loss with respect to itself.
fn one_for(loss: &Var) -> Result<Tensor> {
    let fits = loss.value.len() == 1 && loss.value.dtype() != DType::U32;
    ensure!(fits, "backward", "the loss must be one number, it is {:?}", loss.value);
    let one = Tensor::from_f32(&Device::Cpu, loss.shape(), vec![1.0])?.to_device(&loss.value.device())?;
    one.cast(loss.value.dtype())
}

/// Where the gradient of each node goes: those of `params` into their flat buffer.
fn slots(nodes: &[Node], params: Option<&Params>) -> Result<Vec<Slot>> {
    let slot = |node: &Node| match (node, params) {
        (Node::Param { id, params: number }, Some(p)) => {
            ensure!(*number == p.number(), "backward", "the tape holds parameters that are not among those given");
            let (start, shape) = p.place(*id);
            Ok(Slot::Param { id: *id, start, shape: shape.to_vec() })
        }
        _ => Ok(Slot::Empty),
    };
    nodes.iter().map(slot).collect()
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
            if let Some(g) = v.node.and_then(|at| inner.take(at.node)) {
                grads.add(outer, g)?;
            }
        }
        Ok(())
    }
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
