//! Captured graphs: a loop of kernels recorded once and replayed with one call.

use std::sync::{Arc, Mutex};

use cudarc::driver::sys;

use super::alloc::{Buffer, Pool};
use super::{Cuda, cu, lock};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Held while a graph is recorded: waiting for a whole device spoils what is recorded there, whichever thread waits.
pub(super) static RECORDING: Mutex<()> = Mutex::new(());

/// A recorded sequence of kernels. It owns the memory its intermediate tensors lay in; tensors that the recording
/// returned stay valid and are written anew by each [`Graph::launch`].
pub struct Graph {
    exec: sys::CUgraphExec,
    device: Cuda,
    pool: Arc<Pool>,
    /// What the recorded kernels read and nothing writes.
    constants: Vec<Tensor>,
    nodes: usize,
}

impl Cuda {
    pub(crate) fn is_capturing(&self) -> bool {
        !Arc::ptr_eq(&lock(&self.0.current), &self.0.main)
    }

    /// Record what `f` queues, without running it, and return the graph with `f`'s result. Run `f` once before, so that
    /// kernels are compiled and products tuned.
    ///
    /// What `f` makes from host data ([`Tensor::from_f32`] and the like) are constants of the graph. Inputs that change must
    /// exist before, outlive the graph and keep their address: write them with [`Tensor::overwrite`]. Nothing else may use
    /// the device meanwhile, and `f` must not read results back.
    pub fn capture<T, E: From<Error>>(
        &self,
        f: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<(Graph, T), E> {
        if self.is_capturing() {
            return Err(Error::op("capture", "a graph is being captured already").into());
        }
        let _alone = lock(&RECORDING);
        // Constants are copied aside from the stream, into memory that kernels queued before may still be using.
        self.synchronize()?;
        self.copies()?; // made now rather than while the other stream is recorded
        let pool = Arc::new(Pool::of_graph(self));
        *lock(&self.0.current) = pool.clone();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let begun = cu!(cuStreamBeginCapture_v2(self.0.stream, mode));
        let began = begun.is_ok();
        let result = begun.map_err(E::from).and_then(|()| f());
        let mut graph = std::ptr::null_mut();
        let ended = if began { cu!(cuStreamEndCapture(self.0.stream, &mut graph)) } else { Ok(()) };
        *lock(&self.0.current) = self.0.main.clone();
        let constants = std::mem::take(&mut *lock(&self.0.constants));
        let made = match (result, ended) {
            (Ok(value), Ok(())) => instantiate(graph).map(|(exec, nodes)| (exec, nodes, value)).map_err(E::from),
            (Err(e), _) => Err(e),
            (_, Err(e)) => Err(e.into()),
        };
        if !graph.is_null() {
            cu!(cuGraphDestroy(graph))?;
        }
        let (exec, nodes, value) = made?;
        Ok((Graph { exec, device: self.clone(), pool, constants, nodes }, value))
    }

    /// Memory with `data` that no kernel of the graph under capture writes. The stream is being recorded, so the copy takes
    /// another way; it is done when this returns.
    pub(crate) fn constant<T: Copy>(&self, data: &[T]) -> Result<Buffer> {
        let buffer = self.alloc_in(self.0.main.clone(), std::mem::size_of_val(data))?;
        self.copy_aside(buffer.ptr(), data)?;
        Ok(buffer)
    }

    /// Keep a constant for as long as the graph under capture lives.
    pub(crate) fn keep(&self, constant: Tensor) {
        lock(&self.0.constants).push(constant);
    }
}

/// An executable graph and the number of its nodes.
fn instantiate(graph: sys::CUgraph) -> Result<(sys::CUgraphExec, usize)> {
    let (mut exec, mut nodes) = (std::ptr::null_mut(), 0);
    cu!(cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes))?;
    cu!(cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
    Ok((exec, nodes))
}

impl Graph {
    /// Queue one replay.
    pub fn launch(&self) -> Result<()> {
        self.device.bind()?;
        let replay = || cu!(cuGraphLaunch(self.exec, self.device.0.stream));
        self.device.queue(super::log::GRAPH, [self.nodes, 0, 0], 0, 0, replay)
    }

    /// Bytes of device memory that the graph keeps for its tensors.
    pub fn memory(&self) -> usize {
        let constants: usize = self.constants.iter().map(|t| t.len() * t.dtype().size()).sum();
        lock(&self.pool.0).usage().reserved + constants
    }

    /// Kernels, copies and fills that a replay runs.
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A replay may still run; errors at this point have no one to go to.
        let _ = self.device.synchronize();
        let _ = cu!(cuGraphExecDestroy(self.exec));
    }
}
