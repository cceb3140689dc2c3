//! Tables and figures.

use std::path::Path;

use super::quantity::Quantity;
use super::{Curve, Point, Report};
use crate::failure::Result;
use crate::figures::{self, Axis, Figure, LinesSpec, Series};
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

/// `growth-PRESET.{md,csv,json}`, and for each quantity a figure of time and one of memory.
pub fn write(r: &Report, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let stem = format!("growth-{}", r.preset);
    let file = |end: &str| dir.join(format!("{stem}.{end}"));
    std::fs::write(file("md"), markdown(r))?;
    std::fs::write(file("csv"), csv(r))?;
    std::fs::write(file("json"), serde_json::to_string_pretty(r)? + "\n")?;
    for q in Quantity::ALL {
        let curves: Vec<&Curve> = r.curves.iter().filter(|c| c.over == q && c.points.len() > 1).collect();
        if curves.is_empty() {
            continue;
        }
        let time = draw(r, q, &curves, "time", "fastest time (ms)", |p| p.fastest, |c| c.time_exponent)?;
        figures::save(&time, dir, &format!("{stem}-{}-time", q.flag()))?;
        let mib = |p: &Point| p.peak / (1 << 20) as f64;
        let memory = draw(r, q, &curves, "memory", "peak memory (MiB)", mib, |c| c.memory_exponent)?;
        figures::save(&memory, dir, &format!("{stem}-{}-memory", q.flag()))?;
    }
    Ok(())
}

fn draw(
    r: &Report,
    q: Quantity,
    curves: &[&Curve],
    of: &str,
    label: &str,
    y: fn(&Point) -> f64,
    exponent: fn(&Curve) -> Option<f64>,
) -> Result<figures::Drawing> {
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
