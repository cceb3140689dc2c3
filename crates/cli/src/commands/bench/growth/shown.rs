//! Tables and figures.

use std::path::Path;

use tweedie::files::write_atomic;
use tweedie_figures::{Axis, Drawing, Figure, LinesSpec, Series};

use super::gather::Kept;
use super::quantity::Quantity;
use super::{Curve, Point, Report};
use crate::failure::Result;
use crate::report::{self, Align, Table};

fn some(x: Option<f64>) -> String {
    x.map_or("–".into(), |x| format!("{:.2}", (100.0 * x).round() / 100.0 + 0.0)) // + 0.0: no "-0.00"
}

pub fn markdown(r: &Report) -> String {
    use Align::{Left, Right};
    let mut sums = Table::new(&[
        ("what", Left),
        ("over", Left),
        ("range", Left),
        ("time exponent", Right),
        ("explained up to", Right),
        ("memory exponent", Right),
        ("stopped", Left),
    ]);
    let mut points = Table::new(&[
        ("what", Left),
        ("over", Left),
        ("value", Right),
        ("fastest ms", Right),
        ("median", Right),
        ("slowest", Right),
        ("peak memory", Right),
    ]);
    for c in &r.curves {
        let ends = c.points.first().zip(c.points.last());
        sums.row(vec![
            c.what.clone(),
            c.over.words().into(),
            ends.map_or("–".into(), |(a, b)| format!("{} to {}", a.value, b.value)),
            some(c.time_exponent),
            format!("{}", c.time_bound),
            some(c.memory_exponent),
            c.stopped.clone().unwrap_or_else(|| "–".into()),
        ]);
        for p in &c.points {
            points.row(vec![
                c.what.clone(),
                c.over.flag().into(),
                p.value.to_string(),
                format!("{:.2}", p.fastest),
                format!("{:.2}", p.ms),
                format!("{:.2}", p.slowest),
                report::bytes(p.peak as usize),
            ]);
        }
    }
    let about = format!(
        "tweedie {}, {} on {}, {}; batch {} and {} sampling steps where they do not grow; {} timings of each point, exponents of the fastest.",
        r.version,
        r.preset,
        r.device,
        report::threads(r.threads),
        r.batch,
        r.steps,
        r.repeats
    );
    format!("{about}\n\n{}\n{}", sums.render(), points.render())
}

pub fn csv(r: &Report) -> String {
    let mut out = String::from("preset,device,what,over,value,ms,fastest,slowest,peak_bytes\n");
    for c in &r.curves {
        for p in &c.points {
            let device = r.device.replace(',', ";");
            out += &format!("{},{device},{},{},", r.preset, c.what, c.over.flag());
            out += &format!("{},{},{},{},{}\n", p.value, p.ms, p.fastest, p.slowest, p.peak);
        }
    }
    out
}

fn stem(r: &Report) -> String {
    format!("growth-{}", r.preset)
}

/// Write what there is: tables after every point, figures after every series.
pub fn keep(r: &Report, kept: Kept, dir: &Path) -> Result<()> {
    write_data(r, dir)?;
    match kept {
        Kept::Point => Ok(()),
        Kept::Series(q) => write_figures(r, q, dir),
    }
}

/// `growth-PRESET.{md,csv,json}`, each replaced in one step.
fn write_data(r: &Report, dir: &Path) -> Result<()> {
    let write = |end: &str, text: String| write_atomic(&dir.join(format!("{}.{end}", stem(r))), text.as_bytes());
    write("md", markdown(r))?;
    write("csv", csv(r))?;
    write("json", serde_json::to_string_pretty(r)? + "\n")?;
    Ok(())
}

/// A figure of time over one quantity and one of memory, once there is a line to draw.
fn write_figures(r: &Report, q: Quantity, dir: &Path) -> Result<()> {
    let curves: Vec<&Curve> = r.curves.iter().filter(|c| c.over == q && c.points.len() > 1).collect();
    if curves.is_empty() {
        return Ok(());
    }
    let time = draw(r, q, &curves, "time", "fastest time (ms)", |p| p.fastest, |c| c.time_exponent)?;
    report::save_figure(&time, dir, &format!("{}-{}-time", stem(r), q.flag()))?;
    let mib = |p: &Point| p.peak / (1 << 20) as f64;
    let memory = draw(r, q, &curves, "memory", "peak memory (MiB)", mib, |c| c.memory_exponent)?;
    report::save_figure(&memory, dir, &format!("{}-{}-memory", stem(r), q.flag()))
}

fn draw(
    r: &Report,
    q: Quantity,
    curves: &[&Curve],
    of: &str,
    label: &str,
    y: fn(&Point) -> f64,
    exponent: fn(&Curve) -> Option<f64>,
) -> Result<Drawing> {
    let series = curves.iter().map(|c| {
        let name = format!("{} (exponent {})", c.what, some(exponent(c)));
        Series::new(name, c.points.iter().map(|p| p.value as f64).collect(), c.points.iter().map(y).collect())
    });
    // Something that does not grow must look so: the axis spans a factor of four at least.
    let values = || curves.iter().flat_map(|c| c.points.iter().map(y)).filter(|v| *v > 0.0);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let margin = (4.0 * low / high).sqrt().max(1.15);
    let axis = Axis::log(label);
    Ok(Figure::lines(&LinesSpec {
        title: format!("Growth of {of} with {}: {}", q.words(), r.preset),
        x: Axis::log(q.words()),
        y: if high > 0.0 { axis.range(low / margin, high * margin) } else { axis },
        series: series.collect(),
        size: None,
    })?)
}
