//! What the CPU kernels share: recycled buffers, work splitting, vector math and matrix products.

pub(crate) mod math;
pub(crate) mod matmul;
pub(crate) mod par;
pub(crate) mod pool;

/// Set the number of CPU threads for this process. Call it before the first op; later calls are refused.
pub fn set_threads(n: usize) -> crate::Result<()> {
    crate::error::ensure!(n > 0, "set_threads", "the number of threads must be at least 1");
    rayon::ThreadPoolBuilder::new()
        .num_threads(n)
        .build_global()
        .map_err(|e| crate::Error::op("set_threads", format!("set it before any work is done: {e}")))
}

/// Threads that CPU kernels use.
pub fn threads() -> usize {
    rayon::current_num_threads()
}
