//! Images on their way to the device.

use tweedie_engine::cuda::Uploads;
use tweedie_engine::{Device, Tensor};

use crate::error::Result;

/// Where a trainer's images go through: on a GPU pinned buffers in turn, so that a batch travels while the one before it is
/// computed on.
pub(super) struct Images {
    device: Device,
    pinned: Option<Uploads>,
}

/// One batch travels, one is computed on.
const BUFFERS: usize = 2;

impl Images {
    pub fn new(device: &Device) -> Images {
        let pinned = match device {
            Device::Cuda(c) => Some(Uploads::new(c, BUFFERS)),
            Device::Cpu => None,
        };
        Images { device: device.clone(), pinned }
    }

    pub fn put(&mut self, shape: &[usize], values: &[f32]) -> Result<Tensor> {
        Ok(match &mut self.pinned {
            Some(u) => u.put(shape, values)?,
            None => Tensor::from_f32(&self.device, shape, values.to_vec())?,
        })
    }
}
