//! Every op with inputs to try it on. One list serves the finite-difference tests, the self-test of a device against the
//! CPU, and whatever comes next; an op that is not in it is not tested anywhere.

mod wrong;

pub use wrong::{Fault, Wrong};

use crate::device::Device;
use crate::error::{Result, ensure};
use crate::rng::Noise;
use crate::tape::{Tape, Var};
use crate::tensor::{DType, Tensor};

/// Which shapes to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A few dozen elements, for finite differences.
    Tiny,
    /// Odd and realistic shapes, for comparing devices.
    Full,
}

/// What an input is to its op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Has a gradient; in the compute type.
    Activation,
    /// Has a gradient; f32 master copy.
    Weight,
    /// No gradient; kept as it is.
    Data,
    /// No gradient; in the compute type: an input of an op that has no backward, or one that only tells others the type.
    Type,
}

impl Role {
    /// Whether the op must yield a gradient for it.
    pub fn has_grad(self) -> bool {
        matches!(self, Role::Activation | Role::Weight)
    }
}

/// One input, on the CPU.
pub struct Input {
    /// Its name in the op's signature.
    pub name: &'static str,
    /// Its role.
    pub role: Role,
    /// Its value.
    pub value: Tensor,
}

type OpFn = Box<dyn Fn(&Tape, &[Var]) -> Result<Var>>;

/// An op with inputs.
pub struct Case {
    /// The op.
    pub op: &'static str,
    /// Shapes and options in words.
    pub label: String,
    /// The inputs.
    pub inputs: Vec<Input>,
    run: OpFn,
}

/// Output and gradients of one run, brought back to the host.
pub struct Outcome {
    /// The op's output.
    pub output: Vec<f32>,
    /// Gradient of each input that has one: name and values.
    pub grads: Vec<(&'static str, Vec<f32>)>,
}

impl Case {
    /// An op called `op` on inputs that are added next.
    pub fn new(
        op: &'static str,
        label: impl Into<String>,
        run: impl Fn(&Tape, &[Var]) -> Result<Var> + 'static,
    ) -> Case {
        Case { op, label: label.into(), inputs: Vec::new(), run: Box::new(run) }
    }

    /// Add a normally distributed input of the given scale.
    pub fn normal(mut self, name: &'static str, role: Role, shape: &[usize], scale: f32) -> Case {
        let value = random(self.inputs.len() as u32, shape, scale);
        self.inputs.push(Input { name, role, value });
        self
    }

    /// Add an input without gradient.
    pub fn data(mut self, name: &'static str, value: Tensor) -> Case {
        self.inputs.push(Input { name, role: Role::Data, value });
        self
    }

    /// Add an input whose only use is to tell the op the compute type.
    pub fn compute_type(self, name: &'static str) -> Case {
        self.normal(name, Role::Type, &[1], 1.0)
    }

    /// Random u32 below `bound` (0 counts as 1).
    pub fn ids(self, name: &'static str, shape: &[usize], bound: u32) -> Case {
        let n: usize = shape.iter().product();
        let v = (0..n as u32).map(|i| crate::rng::philox([i, 0, 0, 77], [1, 2])[0] % bound.max(1)).collect();
        match Tensor::from_u32(&Device::Cpu, shape, v) {
            Ok(t) => self.data(name, t),
            Err(e) => unreachable!("the length is that of the shape: {e}"),
        }
    }

    /// Forward only, on the given inputs.
    pub fn forward(&self, tape: &Tape, vars: &[Var]) -> Result<Var> {
        ensure!(vars.len() == self.inputs.len(), self.op, "{} inputs, not {}", self.inputs.len(), vars.len());
        (self.run)(tape, vars)
    }

    /// OpFn forward and backward on `device` in compute type `dtype`, against a fixed random output gradient.
    pub fn outcome(&self, device: &Device, dtype: DType) -> Result<Outcome> {
        self.outcome_of(device, dtype, false)
    }

    /// As [`Case::outcome`], with activations, weights and the output gradient rounded to bf16 first. A bf16 run is
    /// compared with an f32 run of this: both then start from the same numbers, and what differs is the op's doing.
    pub fn outcome_rounded(&self, device: &Device, dtype: DType) -> Result<Outcome> {
        self.outcome_of(device, dtype, true)
    }

    fn outcome_of(&self, device: &Device, dtype: DType, rounded: bool) -> Result<Outcome> {
        let round = |t: &Tensor| if rounded { t.cast(DType::Bf16)?.cast(DType::F32) } else { Ok(t.clone()) };
        let tape = Tape::new();
        let mut vars = Vec::new();
        for i in &self.inputs {
            let value = if i.role == Role::Data { i.value.clone() } else { round(&i.value)? };
            let t = value.to_device(device)?;
            vars.push(match i.role {
                Role::Activation => tape.leaf(t.cast(dtype)?),
                Role::Weight => tape.leaf(t),
                Role::Data => tape.constant(t),
                Role::Type => tape.constant(t.cast(dtype)?),
            });
        }
        let out = self.forward(&tape, &vars)?;
        let output = out.value().to_vec()?;
        if !out.needs_grad() && !self.inputs.iter().any(|i| i.role.has_grad()) {
            return Ok(Outcome { output, grads: Vec::new() }); // an op for inference alone
        }
        let dy = round(&self.output_gradient(out.shape()))?.to_device(device)?.cast(out.value().dtype())?;
        let grads = tape.backward_from(&out, dy, None)?;
        let mut found = Vec::new();
        for (i, v) in self.inputs.iter().zip(&vars) {
            if let Some(g) = grads.get(v) {
                found.push((i.name, g.to_vec()?));
            }
        }
        Ok(Outcome { output, grads: found })
    }

    /// The output gradient that [`Case::outcome`] uses.
    pub fn output_gradient(&self, shape: &[usize]) -> Tensor {
        random(1000, shape, 1.0)
    }
}

/// Reproducible normal values, for tests: `stream` tells one tensor from another. Panics where no memory could hold the shape.
pub fn random(stream: u32, shape: &[usize], scale: f32) -> Tensor {
    let n: usize = shape.iter().product();
    let made = || -> Result<Tensor> {
        let ids = Tensor::from_u32(&Device::Cpu, &[1], vec![0])?;
        let z = Noise::new(&Device::Cpu, 2024, stream, 0)?.normal(&ids, n)?;
        Tensor::from_f32(&Device::Cpu, shape, z.to_vec()?.iter().map(|z| z * scale).collect())
    };
    match made() {
        Ok(t) => t,
        Err(e) => unreachable!("plain CPU tensors of matching length: {e}"),
    }
}

/// All cases of one size.
pub fn all(size: Size) -> Vec<Case> {
    crate::ops::cases(size)
}
