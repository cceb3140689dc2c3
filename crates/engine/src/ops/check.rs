//! Checks that ops make of their inputs before anything is computed. Each takes a few comparisons.

use crate::error::{Error, Result, ensure};
use crate::tensor::{DType, Tensor};

pub(crate) use crate::tensor::elements;

/// A type that the tensor's device computes in: f32 anywhere, bf16 on the GPU.
pub(crate) fn compute_type(op: &'static str, x: &Tensor, dtype: DType) -> Result<()> {
    let fits = dtype == DType::F32 || (dtype == DType::Bf16 && x.cuda_device().is_some());
    ensure!(fits, op, "{dtype} is not a type that {} computes in, beside {x:?}", x.device());
    Ok(())
}

/// There are values to compute on, in a type that their device computes in.
pub(crate) fn values(op: &'static str, what: &str, x: &Tensor) -> Result<()> {
    ensure!(!x.is_empty(), op, "{what} has no elements: {x:?}");
    computes(op, what, x)
}

fn computes(op: &'static str, what: &str, x: &Tensor) -> Result<()> {
    let fits = x.dtype() == DType::F32 || (x.dtype() == DType::Bf16 && x.cuda_device().is_some());
    ensure!(fits, op, "{what} is {x:?}; {} does not compute in {}", x.device(), x.dtype());
    Ok(())
}

/// `t` is in a type that its device computes in, and lies on the device of `x`.
pub(crate) fn beside(op: &'static str, what: &str, t: &Tensor, x: &Tensor) -> Result<()> {
    ensure!(t.is_beside(x), op, "{what} is {t:?}, on another device than {x:?}");
    computes(op, what, t)
}

/// `t` is f32, whatever the type of `x`, and lies on its device.
pub(crate) fn f32s(op: &'static str, what: &str, t: &Tensor, x: &Tensor) -> Result<()> {
    ensure!(t.dtype() == DType::F32 && t.is_beside(x), op, "{what} must be f32 on {}, it is {t:?}", x.device());
    Ok(())
}

/// All inputs have one type, which their device computes in, and lie on one device.
pub(crate) fn alike(op: &'static str, x: &Tensor, others: &[&Tensor]) -> Result<()> {
    computes(op, "an input", x)?;
    for o in others {
        ensure!(o.dtype() == x.dtype() && o.is_beside(x), op, "inputs differ in type or device: {x:?} and {o:?}");
    }
    Ok(())
}

/// `ids` are integers on the device of `x`.
pub(crate) fn integers(op: &'static str, what: &str, ids: &Tensor, x: &Tensor) -> Result<()> {
    ensure!(
        ids.dtype() == DType::U32 && ids.is_beside(x),
        op,
        "{what} must be u32 on {}, they are {ids:?}",
        x.device()
    );
    Ok(())
}

/// The axes of x \[B, N, d\], none of them 0.
pub(crate) fn tokens(op: &'static str, x: &Tensor) -> Result<[usize; 3]> {
    match *x.shape() {
        [b, n, d] if b * n * d > 0 => Ok([b, n, d]),
        _ => Err(Error::op(op, format!("x must be [B, N, d] and not empty, it is {:?}", x.shape()))),
    }
}
