//! Gradients summed over ranks while the backward pass goes on.

use std::sync::Arc;

use super::{Comm, Layout, Pending};
use crate::error::{Error, Result};
use crate::params::{ParamId, Params};
use crate::tape::FlatGrads;

/// Sums gradients bucket by bucket, each as soon as the backward pass is done with its parameters
/// ([`Tape::backward_reduced`](crate::Tape::backward_reduced)).
///
/// Buckets are begun in one order on all ranks, whatever the tapes of each: one that is ready early waits for those before it.
pub struct Reducer {
    comm: Comm,
    layout: Arc<Layout>,
    /// The bucket of each parameter.
    bucket_of: Vec<Option<usize>>,
    /// Uses of each bucket's parameters that the backward pass has not come to.
    left: Vec<usize>,
    /// The first bucket that is not begun.
    next: usize,
    under_way: Vec<Pending>,
}

impl Reducer {
    /// For the gradients that `layout` was made for.
    pub fn new(comm: Comm, layout: Arc<Layout>) -> Reducer {
        let count = layout.buckets.iter().flat_map(|b| &b.members).map(|m| m.0 + 1).max().unwrap_or(0);
        let mut bucket_of = vec![None; count];
        for (i, bucket) in layout.buckets.iter().enumerate() {
            bucket.members.iter().for_each(|m| bucket_of[m.0] = Some(i));
        }
        let left = vec![0; layout.buckets.len()];
        Reducer { comm, layout, bucket_of, left, next: 0, under_way: Vec::new() }
    }

    /// A backward pass over a tape that takes these parameters begins.
    pub(crate) fn start(&mut self, taken: impl Iterator<Item = ParamId>) {
        self.left.fill(0);
        self.next = 0;
        self.under_way.clear();
        for id in taken {
            if let Some(bucket) = self.bucket(id) {
                self.left[bucket] += 1;
            }
        }
    }

    fn bucket(&self, id: ParamId) -> Option<usize> {
        self.bucket_of.get(id.0).copied().flatten()
    }

    /// The backward pass has come to where a tape took `id`: nothing before that used it there.
    pub(crate) fn passed(&mut self, id: ParamId, grads: &mut FlatGrads) -> Result<()> {
        if let Some(bucket) = self.bucket(id) {
            self.left[bucket] = self.left[bucket].saturating_sub(1);
            while self.left.get(self.next) == Some(&0) {
                self.begin_next(grads)?;
            }
        }
        Ok(())
    }

    /// The backward pass is over: what was not begun is.
    pub(crate) fn end(&mut self, grads: &mut FlatGrads) -> Result<()> {
        while self.next < self.left.len() {
            self.begin_next(grads)?;
        }
        Ok(())
    }

    fn begin_next(&mut self, grads: &mut FlatGrads) -> Result<()> {
        let bucket = &self.layout.buckets[self.next];
        self.next += 1;
        for (number, place) in &bucket.members {
            // Others may have a gradient of what nothing here wrote to.
            if !grads.touched[*number] {
                grads.zero(place.clone())?;
            }
        }
        bucket.begin(&self.comm, &grads.data, &mut self.under_way)
    }

    /// The sums are in the gradients of `params` from here on, ready for [`AdamW::apply`](crate::optim::AdamW::apply).
    pub fn finish(&mut self, params: &mut Params) -> Result<()> {
        if self.next < self.left.len() {
            return Err(Error::op("ranks", "gradients were not summed: no backward pass came to its end"));
        }
        let mut grads = params.take_grads()?;
        let summed = self.under_way.drain(..).try_for_each(|p| p.finish(&mut grads.data));
        grads.touched.fill(false);
        params.return_grads(grads);
        summed
    }
}
