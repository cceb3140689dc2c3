//! What addresses the noise of a batch: the examples' ids and the streams. On the device and overwritten in place, so that a
//! captured graph can be replayed for other examples and seeds.

use std::cell::RefCell;

use tweedie_engine::{Device, Noise, Tensor};

use super::{DRAWS, REMASKS, REVEALS, STREAM};
use crate::error::Result;

pub(super) struct Addresses {
    /// u32 \[B\].
    pub examples: Tensor,
    /// Of noisy vectors; step i of it is the noise of sampling step i.
    pub noise: Noise,
    /// Of drawn tokens.
    pub words: Noise,
    /// Of the order in which masked tokens are revealed.
    pub reveals: Noise,
    /// Of which are masked again.
    pub remasks: Noise,
    /// What lies on the device.
    known: RefCell<(Vec<u32>, u64)>,
}

impl Addresses {
    pub fn new(device: &Device, examples: &[u32], seed: u64) -> Result<Addresses> {
        let stream = |id| Noise::new(device, seed, id, 0);
        Ok(Addresses {
            examples: Tensor::from_u32(device, &[examples.len()], examples.to_vec())?,
            noise: stream(STREAM)?,
            words: stream(DRAWS)?,
            reveals: stream(REVEALS)?,
            remasks: stream(REMASKS)?,
            known: RefCell::new((examples.to_vec(), seed)),
        })
    }

    /// Seed and id of each example.
    pub fn each(&self) -> Vec<(u64, u32)> {
        let known = self.known.borrow();
        known.0.iter().map(|example| (known.1, *example)).collect()
    }

    /// As many other examples, and another seed, at the same place on a GPU.
    pub fn overwrite(&self, examples: &[u32], seed: u64) -> Result<()> {
        let mut known = self.known.borrow_mut();
        if known.0 != examples {
            self.examples.overwrite(&Tensor::from_u32(&Device::Cpu, &[examples.len()], examples.to_vec())?)?;
            known.0 = examples.to_vec();
        }
        if known.1 != seed {
            let all = [(&self.noise, STREAM), (&self.words, DRAWS), (&self.reveals, REVEALS), (&self.remasks, REMASKS)];
            for (noise, id) in all {
                noise.reset(seed, id, 0)?;
            }
            known.1 = seed;
        }
        Ok(())
    }
}
