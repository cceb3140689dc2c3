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
        /// The library's own words.
        message: String,
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
    /// The device has no room.
    #[error(
        "out of GPU memory: {wanted_mib} MiB more were asked for, {used_mib} MiB are in use by this program, \
         {free_mib} MiB are free on the device; use a smaller batch"
    )]
    OutOfMemory {
        /// Size of the refused request.
        wanted_mib: usize,
        /// Held by this process' tensors.
        used_mib: usize,
        /// Free on the device.
        free_mib: usize,
    },
}

impl Error {
    /// Shorthand for [`Error::Op`].
    pub fn op(op: &'static str, message: impl Into<String>) -> Error {
        Error::Op { op, message: message.into() }
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
