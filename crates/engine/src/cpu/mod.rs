//! What the CPU kernels share: recycled buffers, work splitting, vector math and matrix products.

mod direct;
pub(crate) mod math;
pub(crate) mod matmul;
pub(crate) mod par;
pub(crate) mod pool;

pub use matmul::batch_invariant;

/// Set the number of CPU threads for this process (0: one per core). Call it before the first op; later calls are refused. The
/// calling thread becomes one of them: handing every op over to another thread and waiting for it costs as much as a small op.
pub fn set_threads(n: usize) -> crate::Result<()> {
    build_global(rayon::ThreadPoolBuilder::new().num_threads(n).use_current_thread())
}

/// As [`set_threads`], for work that is done on threads of their own: whoever calls is none of the `n`.
pub fn set_worker_threads(n: usize) -> crate::Result<()> {
    build_global(rayon::ThreadPoolBuilder::new().num_threads(n))
}

fn build_global(pool: rayon::ThreadPoolBuilder) -> crate::Result<()> {
    pool.build_global().map_err(|e| crate::Error::op("set_threads", format!("set it before any work is done: {e}")))
}

/// Threads that CPU kernels use.
pub fn threads() -> usize {
    rayon::current_num_threads()
}

/// Run `f` on a pool of `n` threads of its own: to see that results do not depend on their number.
pub fn with_threads<T: Send>(n: usize, f: impl FnOnce() -> T + Send) -> crate::Result<T> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(n)
        .build()
        .map_err(|e| crate::Error::op("with_threads", e.to_string()))?;
    Ok(pool.install(f))
}

/// The vector instructions that CPU kernels use on this machine: AVX-512, AVX2, NEON, or no.
pub fn vectors() -> &'static str {
    match pulp::Arch::new() {
        #[cfg(target_arch = "x86_64")]
        pulp::Arch::V4(_) => "AVX-512",
        #[cfg(target_arch = "x86_64")]
        pulp::Arch::V3(_) => "AVX2",
        #[cfg(target_arch = "aarch64")]
        pulp::Arch::Neon(_) => "NEON",
        _ => "no",
    }
}
