//! Checks that several ops make of their inputs.

use crate::error::{Result, ensure};
use crate::tensor::{DType, Tensor};

/// A type that the tensor's device computes in: f32 anywhere, bf16 on the GPU.
pub(crate) fn compute_type(op: &'static str, x: &Tensor, dtype: DType) -> Result<()> {
    let fits = dtype == DType::F32 || (dtype == DType::Bf16 && x.cuda_device().is_some());
    ensure!(fits, op, "{dtype} is not a type that {} computes in", x.device());
    Ok(())
}

/// All inputs have one type, which their device computes in, and lie on one device.
pub(crate) fn alike(op: &'static str, x: &Tensor, others: &[&Tensor]) -> Result<()> {
    compute_type(op, x, x.dtype())?;
    for o in others {
        ensure!(
            o.dtype() == x.dtype() && o.device() == x.device(),
            op,
            "inputs differ in type or device: {x:?} and {o:?}"
        );
    }
    Ok(())
}

/// `ids` are integers on the device of `x`.
pub(crate) fn integers(op: &'static str, what: &str, ids: &Tensor, x: &Tensor) -> Result<()> {
    ensure!(
        ids.dtype() == DType::U32 && ids.device() == x.device(),
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
        _ => Err(crate::Error::op(op, format!("x must be [B, N, d] and not empty, it is {:?}", x.shape()))),
    }
}
