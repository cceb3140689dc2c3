//! Kernels with their arguments, queued.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::kernels::{MAX_PARAMS, Params};
use super::{Cuda, Source, TileMap, check, cu, is_sticky, log};
use crate::error::{Error, Result, ensure};

/// A kernel argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    Ptr(u64),
    /// A size that the kernel takes as an `int`: refused where it does not fit.
    Size(usize),
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
        Arg::Size(x)
    }
}
impl From<u32> for Arg {
    fn from(x: u32) -> Arg {
        Arg::I32(x.cast_signed()) // the same bits
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
        Arg::I32(i32::from(x))
    }
}

/// `args![&x, &y, n, 0.5]`: kernel arguments of mixed types. `usize`, `u32` and `bool` travel as 32-bit integers (a `usize` that
/// does not fit is an error), `i64` as 64-bit, tensors and `u64` as addresses.
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

/// Most bytes of parameters that every driver takes.
const MAX_PARAM_BYTES: usize = 4096;
/// Most blocks along the axes of a grid.
const MAX_GRID: [usize; 3] = [i32::MAX as usize, 65_535, 65_535];
/// Most threads of a block.
const MAX_BLOCK: usize = 1024;

/// What a kernel is started with, in the types of the driver.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Dims {
    grid: [u32; 3],
    block: u32,
    shared: u32,
}

impl Dims {
    /// Sizes that the device takes: `limit` is the shared memory that a block can have.
    fn new(name: &'static str, grid: [usize; 3], block: usize, shared: usize, limit: usize) -> Result<Dims> {
        let fits = grid.iter().zip(MAX_GRID).all(|(n, most)| (1..=most).contains(n));
        ensure!(
            fits && (1..=MAX_BLOCK).contains(&block) && shared <= limit,
            name,
            "blocks {grid:?} of {block} threads with {shared} bytes of shared memory are more than the device takes \
             ({MAX_GRID:?} of {MAX_BLOCK} with {limit}): use smaller tensors"
        );
        // In range, as was just checked.
        Ok(Dims { grid: grid.map(|n| n as u32), block: block as u32, shared: shared as u32 })
    }
}

/// A size as a kernel's `int`.
fn int(name: &'static str, place: usize, size: usize) -> Result<i32> {
    i32::try_from(size).map_err(|_| {
        Error::op(name, format!("argument {place} is {size}, the kernel counts to {}: use smaller tensors", i32::MAX))
    })
}

/// Whether so many maps and these arguments are what a launch can carry, and what the kernel takes: the driver would read whatever
/// lies behind too few of them.
fn check_params(name: &'static str, maps: usize, args: &[Arg], kernel: Option<&Params>) -> Result<()> {
    let count = maps + args.len();
    let size = |a: &Arg| if matches!(a, Arg::Ptr(_) | Arg::I64(_)) { 8 } else { 4 };
    // Each lies at a multiple of its size.
    let bytes = maps * size_of::<TileMap>() + args.iter().map(size).fold(0, |at: usize, n| at.next_multiple_of(n) + n);
    ensure!(
        count <= MAX_PARAMS && bytes <= MAX_PARAM_BYTES,
        name,
        "{count} parameters of {bytes} bytes; a launch takes {MAX_PARAMS} of {MAX_PARAM_BYTES}"
    );
    if let Some((sizes, wanted)) = kernel {
        let given = std::iter::repeat_n(size_of::<TileMap>(), maps).chain(args.iter().map(size));
        let fits = count == *wanted && given.zip(sizes).all(|(n, w)| n == usize::from(*w));
        ensure!(fits, name, "engine bug: {count} parameters {args:?}, the kernel takes {:?}", &sizes[..*wanted]);
    }
    Ok(())
}

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
        let dims = Dims::new(name, grid.into(), block, shared, self.info().shared_per_block)?;
        self.bind()?;
        let kernel = self.kernel(source, variant, name, shared)?;
        check_params(name, maps.len(), args, kernel.params.as_ref())?;
        let f = kernel.handle;
        let mut params = [std::ptr::null_mut::<c_void>(); MAX_PARAMS];
        let mut ints = [0_i32; MAX_PARAMS];
        for (p, map) in params.iter_mut().zip(maps) {
            *p = std::ptr::from_ref(&map.0) as *mut c_void;
        }
        for (i, ((p, own), a)) in params.iter_mut().skip(maps.len()).zip(&mut ints).zip(args).enumerate() {
            *p = match a {
                Arg::Ptr(x) => std::ptr::from_ref(x) as *mut c_void,
                Arg::Size(x) => {
                    *own = int(name, i, *x)?;
                    std::ptr::from_mut(own).cast()
                }
                Arg::I32(x) => std::ptr::from_ref(x) as *mut c_void,
                Arg::I64(x) => std::ptr::from_ref(x) as *mut c_void,
                Arg::F32(x) => std::ptr::from_ref(x) as *mut c_void,
            };
        }
        let Dims { grid: [gx, gy, gz], block: threads, shared: bytes } = dims;
        let none = std::ptr::null_mut();
        let params = params.as_mut_ptr();
        let queue = || cu!(cuLaunchKernel(f, gx, gy, gz, threads, 1, 1, bytes, self.0.stream, params, none));
        self.queue(name, grid.into(), block, shared, queue)
    }

    /// Queue work by `f`: written down, timed where a profile is taken, waited for where that is asked for.
    pub(super) fn queue(
        &self,
        name: &'static str,
        size: [usize; 3],
        block: usize,
        shared: usize,
        f: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (device, captured) = (self.info().ordinal, self.is_capturing());
        let entry = log::LaunchRecord { name, size, block, shared, device, captured };
        self.queue_as(entry, || entry.title(), f)
    }

    /// As [`Cuda::queue`], with a title for a profile.
    pub(super) fn queue_as(
        &self,
        entry: log::LaunchRecord,
        title: impl FnOnce() -> String,
        f: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        log::note(entry);
        if entry.block > 0 {
            self.count();
        }
        // An error at this point may be that of an earlier kernel; what was launched before is in its message.
        self.timed(title, f).map_err(|e| self.seen_at(&entry, e))?;
        if log::waits() && !entry.captured {
            self.synchronize().map_err(|e| self.seen_at(&entry, e))?;
        }
        Ok(())
    }

    /// The error of a launch, with the launch that it was seen at. Other libraries say less than the driver does: it is asked too.
    fn seen_at(&self, entry: &log::LaunchRecord, e: Error) -> Error {
        let e = match e {
            Error::Cuda { sticky: false, .. } if !self.is_capturing() => {
                // SAFETY: the stream lives as long as the device; the call only asks.
                let state = unsafe { sys::cuStreamQuery(self.0.stream) };
                if is_sticky(state) { check("cuStreamQuery", state).err().unwrap_or(e) } else { e }
            }
            e => e,
        };
        match e {
            Error::Cuda { call, message, sticky } => {
                Error::Cuda { call, message: format!("{message}, seen at {entry}"), sticky }
            }
            e => e,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_an_int_or_a_grid_is_refused_by_name() {
        assert_eq!(int("norm_fwd", 3, i32::MAX as usize).unwrap(), i32::MAX);
        let e = int("norm_fwd", 3, 1 << 31).unwrap_err().to_string();
        assert!(e.starts_with("norm_fwd: argument 3 is 2147483648"), "{e}");
        let dims = |grid, block, shared| Dims::new("norm_fwd", grid, block, shared, 232_448);
        let most = Dims { grid: [i32::MAX as u32, 65_535, 65_535], block: 1024, shared: 232_448 };
        assert_eq!(dims(MAX_GRID, 1024, 232_448).unwrap(), most);
        let wrong = [
            ([1 << 31, 1, 1], 32, 0),
            ([1, 65_536, 1], 32, 0),
            ([1, 1, 65_536], 32, 0),
            ([usize::MAX, 1, 1], 32, 0),
            ([1, 1, 1], 1025, 0),
            ([1, 1, 1], 0, 0),
            ([1, 1, 1], 32, 232_449),
            ([1, 1, 1], 32, (1 << 32) + 64),
        ];
        for (grid, block, shared) in wrong {
            let e = dims(grid, block, shared).unwrap_err().to_string();
            assert!(e.starts_with(&format!("norm_fwd: blocks {grid:?} of {block} threads with {shared} bytes")), "{e}");
        }
    }

    #[test]
    fn parameters_of_a_launch_are_limited() {
        let all = vec![Arg::from(1_i64); MAX_PARAMS];
        let check = |maps, args: &[Arg]| check_params("norm_fwd", maps, args, None);
        assert!(check(0, &all).is_ok() && check(6, &all[..26]).is_ok());
        let e = check(1, &all).unwrap_err().to_string();
        assert_eq!(e, "norm_fwd: 33 parameters of 384 bytes; a launch takes 32 of 4096");
        assert!(check(32, &[]).is_ok(), "32 maps are 4096 bytes");
    }

    #[test]
    fn too_few_or_other_parameters_are_refused() {
        let mut sizes = [0; MAX_PARAMS];
        sizes[..4].copy_from_slice(&[128, 8, 4, 8]);
        let kernel = (sizes, 4);
        let check = |maps, args: &[Arg]| check_params("norm_fwd", maps, args, Some(&kernel));
        assert!(check(1, args![7_u64, 5_usize, 5_i64]).is_ok());
        let wrong: [(usize, &[Arg]); 4] = [
            (0, args![7_u64, 5_usize, 5_i64]),
            (1, args![7_u64, 5_usize]),
            (1, args![7_u64, 5_usize, 5_usize]),
            (1, args![7_u64, 5_usize, 5_i64, 1.0_f32]),
        ];
        for (maps, args) in wrong {
            let e = check(maps, args).unwrap_err().to_string();
            assert!(e.contains("the kernel takes [128, 8, 4, 8]"), "{e}");
        }
    }
}
