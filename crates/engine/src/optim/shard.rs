//! What one rank keeps of an optimizer's state (ZeRO-1): its buffers hold some ranges of the flat ones, one behind the other.

use std::ops::Range;
use std::sync::Arc;

use crate::comm::{Comm, Layout};
use crate::error::Result;
use crate::tensor::{DType, Tensor};

/// A range of the flat buffers, and where it lies in those of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub flat: Range<usize>,
    pub at: usize,
}

/// Of one rank.
pub(super) struct Shard {
    pub comm: Comm,
    pub layout: Arc<Layout>,
    pub parts: Vec<Part>,
    /// What this rank adds to the norm of the gradient: what only it keeps, and of the rest one rank all.
    pub counted: Vec<Range<usize>>,
    /// Every rank has the gradient of everything, and its norm.
    pub whole_gradient: bool,
}

impl Shard {
    pub fn new(comm: Comm, layout: Arc<Layout>, whole_gradient: bool) -> Shard {
        let (mut parts, mut counted, mut at) = (Vec::new(), Vec::new(), 0);
        for (flat, alone) in layout.kept_by(comm.rank()) {
            if alone || comm.rank() == 0 {
                counted.push(flat.clone());
            }
            at += flat.len();
            parts.push(Part { at: at - flat.len(), flat });
        }
        Shard { comm, layout, parts, counted, whole_gradient }
    }

    /// Values that it keeps of each buffer.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|p| p.flat.len()).sum()
    }

    /// What it keeps of a flat buffer.
    pub fn cut(&self, flat: &[f32]) -> Vec<f32> {
        self.parts.iter().flat_map(|p| &flat[p.flat.clone()]).copied().collect()
    }

    /// A whole flat buffer of `len` values out of what all ranks keep of it. All of them call this.
    pub fn whole(&self, own: &Tensor, len: usize) -> Result<Tensor> {
        let mut flat = Tensor::zeros(&own.device(), &[len], DType::F32)?;
        for p in &self.parts {
            flat.write_at(p.flat.start, &own.view(p.at, &[p.flat.len()]))?;
        }
        self.layout.gather(&self.comm, &mut flat)?;
        Ok(flat)
    }

    /// The sum of squares over all ranks in place of this rank's: one value.
    pub fn sum(&self, squares: &mut Tensor) -> Result<()> {
        self.comm.begin_all_reduce(squares, 0..1)?.finish(squares)
    }
}
