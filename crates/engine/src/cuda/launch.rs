//! Kernels with their arguments, queued.

use std::ffi::c_void;

use super::{Cuda, Source, TileMap, cu};
use crate::error::{Error, Result};

/// A kernel argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    Ptr(u64),
    I32(i32),
    I64(i64),
    F32(f32),
}

impl From<&crate::Tensor> for Arg {
    fn from(t: &crate::Tensor) -> Arg {
        Arg::Ptr(t.ptr())
    }
}
impl From<Option<&crate::Tensor>> for Arg {
    fn from(t: Option<&crate::Tensor>) -> Arg {
        Arg::Ptr(t.map_or(0, crate::Tensor::ptr))
    }
}
impl From<usize> for Arg {
    fn from(x: usize) -> Arg {
        Arg::I32(x as i32)
    }
}
impl From<u32> for Arg {
    fn from(x: u32) -> Arg {
        Arg::I32(x as i32)
    }
}
impl From<u64> for Arg {
    fn from(x: u64) -> Arg {
        Arg::Ptr(x)
    }
}
impl From<i64> for Arg {
    fn from(x: i64) -> Arg {
        Arg::I64(x)
    }
}
impl From<f32> for Arg {
    fn from(x: f32) -> Arg {
        Arg::F32(x)
    }
}
impl From<bool> for Arg {
    fn from(x: bool) -> Arg {
        Arg::I32(x as i32)
    }
}

/// `args![&x, &y, n, 0.5]`: kernel arguments of mixed types. `usize`, `u32` and `bool` travel as 32-bit integers,
/// `i64` as 64-bit, tensors and `u64` as addresses.
macro_rules! args {
    ($($a:expr),* $(,)?) => { &[$($crate::cuda::Arg::from($a)),*] };
}
pub(crate) use args;

/// `by_type!(dtype, "norm_fwd")`: the kernel's name for an element type. Integers are refused.
macro_rules! by_type {
    ($dtype:expr, $name:literal) => {
        match $dtype {
            $crate::DType::F32 => concat!($name, "_f32"),
            $crate::DType::Bf16 => concat!($name, "_bf16"),
            $crate::DType::U32 => return Err($crate::Error::op($name, "integers have no such op")),
        }
    };
}
pub(crate) use by_type;

impl Cuda {
    /// Queue a kernel. `variant` is the file's compile-time parameter (0: none).
    pub(crate) fn launch(
        &self,
        source: &'static Source,
        variant: u32,
        name: &'static str,
        grid: (usize, usize, usize),
        block: usize,
        shared: usize,
        args: &[Arg],
    ) -> Result<()> {
        self.launch_mapped(source, variant, name, grid, block, shared, &[], args)
    }

    /// As [`Cuda::launch`], for a kernel whose first parameters are maps of tiles.
    pub(crate) fn launch_mapped(
        &self,
        source: &'static Source,
        variant: u32,
        name: &'static str,
        grid: (usize, usize, usize),
        block: usize,
        shared: usize,
        maps: &[TileMap],
        args: &[Arg],
    ) -> Result<()> {
        if grid.0 == 0 || grid.1 == 0 || grid.2 == 0 {
            return Ok(());
        }
        self.bind()?;
        let f = self.kernel(source, variant, name, shared)?;
        let mut params = [std::ptr::null_mut::<c_void>(); 32];
        debug_assert!(maps.len() + args.len() <= 32);
        for (p, map) in params.iter_mut().zip(maps) {
            *p = std::ptr::from_ref(&map.0) as *mut c_void;
        }
        for (p, a) in params.iter_mut().skip(maps.len()).zip(args) {
            *p = match a {
                Arg::Ptr(x) => std::ptr::from_ref(x) as *mut c_void,
                Arg::I32(x) => std::ptr::from_ref(x) as *mut c_void,
                Arg::I64(x) => std::ptr::from_ref(x) as *mut c_void,
                Arg::F32(x) => std::ptr::from_ref(x) as *mut c_void,
            };
        }
        self.count();
        let (gx, gy, gz) = (grid.0 as u32, grid.1 as u32, grid.2 as u32);
        let queue = || {
            cu!(cuLaunchKernel(
                f,
                gx,
                gy,
                gz,
                block as u32,
                1,
                1,
                shared as u32,
                self.0.stream,
                params.as_mut_ptr(),
                std::ptr::null_mut()
            ))
        };
        self.timed(|| name.into(), queue).map_err(|e| Error::Cuda {
            call: "cuLaunchKernel",
            message: format!("{name} with grid ({gx}, {gy}, {gz}) × {block}, {shared} bytes shared: {e}"),
        })
    }
}
