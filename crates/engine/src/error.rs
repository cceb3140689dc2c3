//! What can go wrong, in words that name the op, the shapes and what to do.

/// Every fallible call of the engine returns this.
pub type Result<T> = std::result::Result<T, Error>;

/// An engine error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Shapes, types or devices do not fit the op.
    #[error("{op}: {message}")]
    Op {
        /// The op that refused its input.
        op: &'static str,
        /// What does not fit, with the shapes.
        message: String,
    },
    /// No usable CUDA device or library.
    #[error("CUDA is not usable: {0}")]
    NoCuda(String),
    /// A CUDA call failed.
    #[error("{call} failed: {message}")]
    Cuda {
        /// The library call.
        call: &'static str,
        /// The library's own words, and what was launched before.
        message: String,
        /// Nothing on this device works any more in this process: see [`Error::is_sticky`].
        sticky: bool,
    },
    /// A kernel did not compile.
    #[error("kernel file {file} does not compile for {arch}:\n{log}")]
    Compile {
        /// Kernel file.
        file: String,
        /// Target such as `sm_90`.
        arch: String,
        /// The compiler's log.
        log: String,
    },
    /// Ranks that train together could not go on: one ended, does not answer, or does something else.
    #[error("{op}: {message}")]
    Comm {
        /// What they were doing.
        op: &'static str,
        /// What came of it, with the rank.
        message: String,
    },
    /// The device has no room.
    #[error(
        "out of GPU memory: {by} asked for {}, {} would fit; this program's tensors hold {}, {} of the device's {} are free",
        bytes(*.wanted), bytes(*.fits), bytes(*.used), bytes(*.free), bytes(*.total)
    )]
    OutOfMemory {
        /// The op or the part of the program that asked, and for what.
        by: String,
        /// Bytes of the refused request.
        wanted: usize,
        /// Bytes held by this process' tensors.
        used: usize,
        /// Bytes free on the device.
        free: usize,
        /// Bytes of the whole device.
        total: usize,
        /// The largest request that would have been granted.
        fits: usize,
    },
}

/// A size in words: bytes below a MiB, then MiB, then GiB.
fn bytes(n: usize) -> String {
    match n {
        n if n < 1 << 20 => format!("{n} bytes"),
        n if n < 1 << 30 => format!("{:.1} MiB", n as f64 / (1 << 20) as f64),
        n => format!("{:.2} GiB", n as f64 / (1 << 30) as f64),
    }
}

impl Error {
    /// Shorthand for [`Error::Comm`].
    pub fn comm(op: &'static str, message: impl Into<String>) -> Error {
        Error::Comm { op, message: message.into() }
    }

    /// Shorthand for [`Error::Op`].
    pub fn op(op: &'static str, message: impl Into<String>) -> Error {
        Error::Op { op, message: message.into() }
    }

    /// Whether the device is lost to this process: a kernel failed on it, and every later call fails too. What lies on the host can
    /// still be saved; tensors on the device cannot be read.
    pub fn is_sticky(&self) -> bool {
        matches!(self, Error::Cuda { sticky: true, .. })
    }

    /// What the user can do about it, where there is something.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::OutOfMemory { .. } => Some(
                "raise train.accumulate: the batch is cut into so many parts, and the result is the same; or lower train.batch. \
                 nvidia-smi shows who else uses the device",
            ),
            Error::Cuda { sticky: true, .. } => Some(
                "start again: a run goes on from its last checkpoint (--resume). If it fails again: TWEEDIE_CUDA_SYNC=1 names the \
                 kernel, TWEEDIE_LAUNCH_LOG=FILE keeps the launches before it, tweedie selftest --device cuda looks at all of them",
            ),
            Error::Cuda { .. } | Error::Compile { .. } => Some("tweedie selftest --device cuda"),
            Error::NoCuda(_) => Some("tweedie devices"),
            Error::Comm { .. } => Some("start all ranks again with --resume: the run goes on from its last checkpoint"),
            Error::Op { .. } => None,
        }
    }

    /// The same where memory for a tensor of `shape` was asked for.
    pub(crate) fn for_tensor(mut self, shape: &[usize], dtype: crate::DType) -> Error {
        if let Error::OutOfMemory { by, .. } = &mut self {
            *by = format!("{by} (a tensor {shape:?} of {dtype})");
        }
        self
    }
}

/// `ensure!(cond, "op", "message {}", x)`: return an [`Error::Op`] unless `cond` holds.
macro_rules! ensure {
    ($cond:expr, $op:expr, $($arg:tt)+) => {
        if !$cond {
            return Err($crate::error::Error::op($op, format!($($arg)+)));
        }
    };
}
pub(crate) use ensure;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_room_names_who_asked_and_what_fits() {
        let mib = 1 << 20;
        let (wanted, used, free, total, fits) = (3 << 30, 100 * mib, 512 * mib, 1 << 33, 500);
        let e = Error::OutOfMemory { by: "norm".into(), wanted, used, free, total, fits };
        assert_eq!(
            e.for_tensor(&[3, 1 << 28], crate::DType::F32).to_string(),
            "out of GPU memory: norm (a tensor [3, 268435456] of f32) asked for 3.00 GiB, 500 bytes would fit; this program's \
             tensors hold 100.0 MiB, 512.0 MiB of the device's 8.00 GiB are free"
        );
    }

    #[test]
    fn a_lost_device_is_told_from_a_refused_call() {
        let e = |sticky| Error::Cuda { call: "cuStreamSynchronize", message: "x".into(), sticky };
        assert!(e(true).is_sticky() && !e(false).is_sticky() && !Error::op("norm", "x").is_sticky());
        assert!(e(true).hint().is_some_and(|h| h.contains("--resume") && h.contains("TWEEDIE_CUDA_SYNC=1")));
        assert_eq!(Error::op("norm", "x").hint(), None);
    }
}
