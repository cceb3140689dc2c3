//! `tweedie runs compare`: metrics side by side, settings that differ, curves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tweedie::runs::{Curve, Summary};
use tweedie::settings;
use tweedie_figures::{Axis, Drawing, Figure, LinesSpec, Series};

use super::{bytes, score, steps};
use crate::failure::{Failure, Result};
use crate::report::{self, Align, Table, write_figure};

/// Points of a curve of loss, each the mean of a stretch.
const POINTS: usize = 60;

#[derive(clap::Args)]
pub struct Args {
    /// Folders of runs, at least two
    #[arg(required = true, num_args = 2.., value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Draw loss and validation metric over steps into this file (.svg or .png)
    #[arg(long, value_name = "FILE", value_parser = picture)]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A file whose name says how a figure is written. For clap.
fn picture(name: &str) -> std::result::Result<PathBuf, String> {
    match Path::new(name).extension().and_then(|e| e.to_str()) {
        Some("svg" | "png") => Ok(name.into()),
        _ => Err("a figure is .svg or .png".into()),
    }
}

#[derive(Serialize)]
struct Compared<'a> {
    runs: &'a [Summary],
    /// Settings that are not the same in all, in the order of the runs; none where a run does not have it.
    differ: BTreeMap<String, Vec<Option<String>>>,
}

pub fn run(args: &Args) -> Result<()> {
    let runs = args.runs.iter().map(|p| Summary::read(p)).collect::<tweedie::Result<Vec<Summary>>>()?;
    if let Some(path) = &args.out {
        draw(&runs, path)?;
    }
    let compared = Compared { runs: &runs, differ: differ(&runs)? };
    if args.json {
        return report::print_json(&compared);
    }
    let mut text = metrics(&runs);
    text += &match compared.differ.is_empty() {
        true => "\nall settings are the same\n".to_string(),
        false => format!("\nsettings that differ:\n{}", differences(&runs, &compared.differ)),
    };
    report::print(&text)
}

/// Names of columns: the paths as they were given.
fn columns<'a>(first: &'a str, runs: &'a [Summary], align: Align) -> Vec<(&'a str, Align)> {
    std::iter::once((first, Align::Left)).chain(runs.iter().map(|r| (r.name.as_str(), align))).collect()
}

fn metrics(runs: &[Summary]) -> String {
    let mut table = Table::new(&columns("", runs, Align::Right));
    let mut row = |name: &str, cell: &dyn Fn(&Summary) -> String| {
        table.row(std::iter::once(name.to_string()).chain(runs.iter().map(cell)).collect());
    };
    let shown = |r: &Summary, value: Option<f64>| {
        value.map_or("–".into(), |v| score(r.metric.as_deref().unwrap_or_default(), v))
    };
    let names: BTreeSet<&str> = runs.iter().filter_map(|r| r.metric.as_deref()).collect();
    for name in names {
        let of = |r: &Summary, v| if r.metric.as_deref() == Some(name) { shown(r, v) } else { "–".into() };
        row(&format!("best {name}"), &|r| of(r, r.best));
        row(&format!("last {name}"), &|r| of(r, r.last));
    }
    row("last loss", &|r| last_loss(&r.loss).map_or("–".into(), |l| format!("{l:.4}")));
    row("steps", &steps);
    row("state", &|r| r.state.to_string());
    row("size", &|r| bytes(r.bytes));
    table.shown()
}

/// Mean of the last tenth of the losses, which jump about.
fn last_loss(loss: &Curve) -> Option<f64> {
    let n = loss.values.len();
    let tail = &loss.values[n - n.div_ceil(10)..];
    (!tail.is_empty()).then(|| tail.iter().sum::<f64>() / tail.len() as f64)
}

fn differ(runs: &[Summary]) -> Result<BTreeMap<String, Vec<Option<String>>>> {
    let all = runs.iter().map(|r| settings::flat(&r.config)).collect::<tweedie::Result<Vec<_>>>()?;
    let keys: BTreeSet<&String> = all.iter().flat_map(|s| s.keys()).collect();
    let of = |key: &String| all.iter().map(|s| s.get(key).cloned()).collect::<Vec<Option<String>>>();
    let rows = keys.into_iter().map(|key| (key.clone(), of(key)));
    Ok(rows.filter(|(_, values)| values.windows(2).any(|w| w[0] != w[1])).collect())
}

fn differences(runs: &[Summary], differ: &BTreeMap<String, Vec<Option<String>>>) -> String {
    let mut table = Table::new(&columns("setting", runs, Align::Left));
    for (key, values) in differ {
        let cells = values.iter().map(|v| v.clone().unwrap_or_else(|| "–".into()));
        table.row(std::iter::once(key.clone()).chain(cells).collect());
    }
    table.shown()
}

fn draw(runs: &[Summary], path: &Path) -> Result<()> {
    let series = |r: &Summary, c: &Curve| Series::new(r.name.clone(), c.steps.clone(), c.values.clone());
    let with = |pick: fn(&Summary) -> &Curve| runs.iter().filter(move |r| !pick(r).values.is_empty());
    let losses: Vec<Series> = with(|r| &r.loss).map(|r| series(r, &r.loss).averaged(POINTS)).collect();
    let mut figures = Vec::new();
    if !losses.is_empty() {
        figures.push(lines("Training loss (band: one standard deviation)", "loss", losses)?);
    }
    let names: BTreeSet<&str> = runs.iter().filter_map(|r| r.metric.as_deref()).collect();
    for name in names {
        let these = with(|r| &r.scores).filter(|r| r.metric.as_deref() == Some(name));
        figures.push(lines("On the validation split", name, these.map(|r| series(r, &r.scores)).collect())?);
    }
    if figures.is_empty() {
        return Err(Failure::input(
            "none of these runs has told a loss or an evaluation yet: there is nothing to draw",
        ));
    }
    let drawing = Drawing::stacked("Runs compared", figures);
    write_figure(path, &drawing)
}

fn lines(title: &str, y: &str, series: Vec<Series>) -> Result<Drawing> {
    let (x, y) = (Axis::linear("step"), Axis::linear(y));
    Ok(Figure::lines(&LinesSpec { title: title.into(), x, y, series, size: Some((480.0, 280.0)) })?)
}
