//! Captured graphs: a loop of kernels recorded once and replayed with one call.

use std::sync::Arc;

use cudarc::driver::sys;

use super::alloc::Pool;
use super::{Cuda, cu, lock};
use crate::error::{Error, Result};

/// A recorded sequence of kernels. It owns the memory its intermediate tensors lay in; tensors that the recording
/// returned stay valid and are written anew by each [`Graph::launch`].
pub struct Graph {
    exec: sys::CUgraphExec,
    device: Cuda,
    pool: Arc<Pool>,
}

impl Cuda {
    pub(crate) fn is_capturing(&self) -> bool {
        !Arc::ptr_eq(&lock(&self.0.current), &self.0.main)
    }

    /// Record what `f` queues, without running it, and return the graph with `f`'s result. Run `f` once before, so that
    /// kernels are compiled and products tuned. Inputs must exist already and keep their address: write them with
    /// [`crate::Tensor::overwrite`]. `f` must not read results back.
    pub fn capture<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<(Graph, T)> {
        if self.is_capturing() {
            return Err(Error::op("capture", "a graph is being captured already"));
        }
        self.bind()?;
        let pool = Arc::new(Pool::default());
        *lock(&self.0.current) = pool.clone();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let begun = cu!(cuStreamBeginCapture_v2(self.0.stream, mode));
        let result = begun.and_then(|()| f());
        let mut graph = std::ptr::null_mut();
        let ended = cu!(cuStreamEndCapture(self.0.stream, &mut graph));
        *lock(&self.0.current) = self.0.main.clone();
        let value = result?;
        ended?;
        let mut exec = std::ptr::null_mut();
        let made = cu!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        cu!(cuGraphDestroy(graph))?;
        made?;
        Ok((Graph { exec, device: self.clone(), pool }, value))
    }
}

impl Graph {
    /// Queue one replay.
    pub fn launch(&self) -> Result<()> {
        self.device.bind()?;
        cu!(cuGraphLaunch(self.exec, self.device.0.stream))
    }

    /// Bytes of device memory that the graph keeps for its tensors.
    pub fn memory(&self) -> usize {
        lock(&self.pool.0).usage().reserved
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A replay may still run; errors at this point have no one to go to.
        let _ = self.device.synchronize();
        let _ = cu!(cuGraphExecDestroy(self.exec));
    }
}
