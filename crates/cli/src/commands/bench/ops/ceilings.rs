//! What the device can do at best, measured in the same run: its fastest copy and its fastest product.

use rayon::prelude::*;
use serde::Serialize;
use tweedie_engine::{DType, Device, Result, Tensor};

use super::calls::Setup;
use super::ops_list;
use super::rate;
use super::timing::Timer;

#[derive(Serialize)]
pub struct Ceilings {
    /// Bytes read and written per second.
    pub memory: f64,
    memory_by: String,
    /// Floating-point operations per second in the compute type.
    pub product: f64,
    product_by: String,
}

impl Ceilings {
    pub fn text(&self) -> String {
        let memory = format!("{} ({})", rate(self.memory, "byte"), self.memory_by);
        format!("{memory}, {} ({})", rate(self.product, "FLOP"), self.product_by)
    }
}

pub fn measure(setup: &Setup, timer: &Timer) -> Result<Ceilings> {
    let (memory, memory_by) = match &setup.device {
        Device::Cpu => triad(timer, if setup.quick { 16 } else { 256 })?,
        Device::Cuda(c) => {
            let most = if setup.quick { 256 << 20 } else { 2 << 30 };
            copy(&setup.device, timer, most.min(c.memory()?.0 / 4))?
        }
    };
    let largest = ops_list::largest_product(setup);
    let mut calls = (largest.make)(setup)?;
    let flops = largest.work.flops.map_or(0.0, |f| f[0]);
    let product = flops / timer.seconds(|| calls.forward())?;
    let product_by = format!("product {}", largest.shape);
    Ok(Ceilings { memory, memory_by, product, product_by })
}

/// Copy within the GPU's memory.
fn copy(device: &Device, timer: &Timer, bytes: usize) -> Result<(f64, String)> {
    let [to, from] = [0, 1].map(|_| Tensor::zeros(device, &[bytes / 4], DType::F32));
    let (to, from) = (to?, from?);
    let seconds = timer.seconds(|| to.overwrite(&from))?;
    Ok((2.0 * bytes as f64 / seconds, format!("copy of {}", crate::report::bytes(bytes))))
}

/// a = b + s·c over arrays of `mib` MiB together, on all threads.
fn triad(timer: &Timer, mib: usize) -> Result<(f64, String)> {
    let n = (mib << 20) / 12;
    let (mut a, b, c) = (vec![0_f32; n], vec![1_f32; n], vec![2_f32; n]);
    let per = n.div_ceil(tweedie_engine::cpu::threads() * 4);
    let seconds = timer.seconds(|| {
        a.par_chunks_mut(per).zip(b.par_chunks(per)).zip(c.par_chunks(per)).for_each(|((a, b), c)| {
            a.iter_mut().zip(b).zip(c).for_each(|((a, b), c)| *a = *b + 0.5 * *c);
        });
        std::hint::black_box(&a);
        Ok(())
    })?;
    Ok((12.0 * n as f64 / seconds, format!("triad over {mib} MiB")))
}
