//! Inputs that an op must refuse, or at least not panic on: every case with one of its inputs made wrong.

use super::{Case, Role, random};
use crate::device::Device;
use crate::error::Result;
use crate::tape::Tape;
use crate::tensor::{DType, Tensor, f32_to_bf16};

/// What is wrong with an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Another element type, of the same shape.
    Type(DType),
    /// Another shape: many ops take it, but then with a sensible result.
    Shape,
    /// Values that are not numbers, or ids beyond any table.
    Values,
}

/// One input of a [`Case`], spoilt.
pub struct Wrong {
    /// Which of [`Case::inputs`].
    pub input: usize,
    /// What is wrong with it.
    pub fault: Fault,
    /// What to put in its place, on the CPU.
    pub value: Tensor,
}

/// `t` as another type, with values that any op could take.
fn retyped(t: &Tensor, dtype: DType) -> Result<Tensor> {
    let n = t.len();
    match dtype {
        DType::F32 => Tensor::from_f32(&Device::Cpu, t.shape(), vec![1.0; n]),
        DType::Bf16 => Tensor::from_bf16(&Device::Cpu, t.shape(), vec![f32_to_bf16(1.0); n]),
        DType::U32 => Tensor::from_u32(&Device::Cpu, t.shape(), vec![0; n]),
    }
}

fn reshaped(t: &Tensor, shape: &[usize]) -> Result<Tensor> {
    match t.dtype() {
        DType::U32 => Tensor::zeros(&Device::Cpu, shape, DType::U32),
        _ => Ok(random(7, shape, 1.0)),
    }
}

/// Shapes near `shape`: an axis more or less, longer, or empty.
fn shapes_near(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![], vec![0], [&[1], shape].concat(), [shape, &[1]].concat(), vec![shape.iter().product()]];
    for (axis, size) in shape.iter().enumerate() {
        for other in [0, size + 1, 2 * size] {
            let mut near = shape.to_vec();
            near[axis] = other;
            all.push(near);
        }
        let mut less = shape.to_vec();
        less.remove(axis);
        all.push(less);
    }
    all.retain(|s| s != shape);
    all
}

impl Case {
    /// Each input spoilt in each way.
    pub fn wrong(&self) -> Result<Vec<Wrong>> {
        let mut all = Vec::new();
        for (input, i) in self.inputs.iter().enumerate() {
            let of = i.value.dtype();
            for dtype in [DType::F32, DType::Bf16, DType::U32].into_iter().filter(|d| *d != of) {
                all.push(Wrong { input, fault: Fault::Type(dtype), value: retyped(&i.value, dtype)? });
            }
            for shape in shapes_near(i.value.shape()) {
                all.push(Wrong { input, fault: Fault::Shape, value: reshaped(&i.value, &shape)? });
            }
            let (n, shape) = (i.value.len(), i.value.shape());
            let values = match of {
                DType::U32 => Tensor::from_u32(&Device::Cpu, shape, vec![u32::MAX; n])?,
                _ => Tensor::from_f32(&Device::Cpu, shape, vec![f32::NAN; n])?,
            };
            all.push(Wrong { input, fault: Fault::Values, value: values });
        }
        Ok(all)
    }

    /// Run forward and, where there is a gradient, backward, on other inputs than those of the case.
    pub fn attempt(&self, values: &[Tensor]) -> Result<()> {
        let tape = Tape::new();
        let mut vars = Vec::new();
        for (i, value) in self.inputs.iter().zip(values) {
            vars.push(match i.role {
                Role::Activation | Role::Weight => tape.leaf(value.clone()),
                Role::Data | Role::Type => tape.constant(value.clone()),
            });
        }
        let out = self.forward(&tape, &vars)?;
        if out.needs_grad() && out.value().dtype() != DType::U32 {
            let dy = self.output_gradient(out.shape()).to_device(&out.value().device())?;
            tape.backward_from(&out, dy.cast(out.value().dtype())?, None)?;
        }
        Ok(())
    }
}
