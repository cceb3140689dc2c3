//! How long each kernel and product takes: events around every launch, read when the work is done.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use cudarc::driver::sys;

use super::{Cuda, cu, lock};
use crate::error::Result;

/// All launches of one kernel, or of products of one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Spent {
    /// The kernel's name, or the product's sizes.
    pub name: String,
    /// Launches.
    pub calls: usize,
    /// Milliseconds on the device, all launches together.
    pub ms: f64,
}

/// A launch between two events.
pub(super) struct Launch {
    name: String,
    from: sys::CUevent,
    to: sys::CUevent,
}

impl Cuda {
    /// What the device spends its time on while `f` runs, the largest first. Launches are timed one by one, which keeps them
    /// from overlapping at their ends: the sum is a little more than the time without.
    pub fn profile<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<(T, Vec<Spent>)> {
        self.bind()?;
        self.0.profiling.store(true, Ordering::Relaxed);
        let done = f();
        self.0.profiling.store(false, Ordering::Relaxed);
        let launches = std::mem::take(&mut *lock(&self.0.launches));
        self.synchronize()?;
        let mut all: HashMap<String, Spent> = HashMap::new();
        for Launch { name, from, to } in launches {
            let mut ms = 0.0;
            cu!(cuEventElapsedTime_v2(&mut ms, from, to))?;
            cu!(cuEventDestroy_v2(from))?;
            cu!(cuEventDestroy_v2(to))?;
            let spent = all.entry(name.clone()).or_insert(Spent { name, calls: 0, ms: 0.0 });
            spent.calls += 1;
            spent.ms += f64::from(ms);
        }
        let mut all: Vec<Spent> = all.into_values().collect();
        all.sort_by(|a, b| b.ms.total_cmp(&a.ms).then_with(|| a.name.cmp(&b.name)));
        Ok((done?, all))
    }

    /// Queue work by `f`, timed under `name` if a profile is taken.
    pub(super) fn timed(&self, name: impl FnOnce() -> String, f: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.0.profiling.load(Ordering::Relaxed) || self.is_capturing() {
            return f();
        }
        let (mut from, mut to) = (std::ptr::null_mut(), std::ptr::null_mut());
        cu!(cuEventCreate(&mut from, 0))?;
        cu!(cuEventCreate(&mut to, 0))?;
        cu!(cuEventRecord(from, self.0.stream))?;
        f()?;
        cu!(cuEventRecord(to, self.0.stream))?;
        lock(&self.0.launches).push(Launch { name: name(), from, to });
        Ok(())
    }
}
