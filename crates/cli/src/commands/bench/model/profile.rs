//! What a GPU spends a step on, kernel by kernel.

use tweedie_engine::Device;

use crate::failure::{Failure, Result};
use crate::report::{Align, Table};

/// Whether what was asked for can be shown.
pub fn check(device: &Device, top: usize) -> Result<()> {
    match device {
        Device::Cpu if top > 0 => {
            Err(Failure::input("--profile is for GPUs; on the CPU use perf or another sampling profiler"))
        }
        _ => Ok(()),
    }
}

/// Run `f` `times` times and show the `top` kernels that took longest, per run.
pub fn show(device: &Device, top: usize, times: usize, mut f: impl FnMut() -> Result<()>) -> Result<String> {
    let Device::Cuda(cuda) = device else { return Ok(String::new()) };
    let mut done = Ok(());
    let ((), all) = cuda.profile(|| {
        done = (0..times).try_for_each(|_| f());
        Ok(())
    })?;
    done?;
    let per = |x: f64| x / times as f64;
    let total: f64 = all.iter().map(|s| per(s.ms)).sum();
    let mut t =
        Table::new(&[("kernel", Align::Left), ("calls", Align::Right), ("ms", Align::Right), ("share", Align::Right)]);
    for s in all.iter().take(top) {
        let share = format!("{:.1} %", 100.0 * per(s.ms) / total);
        t.row(vec![s.name.clone(), format!("{:.0}", per(s.calls as f64)), format!("{:.3}", per(s.ms)), share]);
    }
    let calls = all.iter().map(|s| per(s.calls as f64)).sum::<f64>();
    t.row(vec!["all".into(), format!("{calls:.0}"), format!("{total:.3}"), "100 %".into()]);
    Ok(t.render())
}
