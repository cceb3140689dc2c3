//! What a call of the network buys: a score over the passes that an answer takes, a line for each way of sampling.

use std::path::Path;

use tweedie_figures::{Axis, Band, Figure, LinesSpec, Series};

use super::eval::Args;
use crate::failure::{Failure, Result};
use crate::report::write_figure;

/// More bands than this would hide each other.
const BANDS: usize = 2;

/// A score, with its 95 % interval.
#[derive(Clone)]
pub struct Point {
    /// All settings but the steps: what is the same is a line.
    pub way: String,
    /// None where a way takes one pass and no more: its line is level.
    pub passes: Option<usize>,
    pub score: f64,
    pub interval: [f64; 2],
}

/// Refuse what cannot be drawn, before anything is measured.
pub fn check(args: &Args) -> Result<()> {
    match args.figure.as_ref().map(|f| f.extension().and_then(|e| e.to_str())) {
        None => Ok(()),
        Some(Some("svg" | "png")) if args.steps.len() > 1 => Ok(()),
        Some(Some("svg" | "png")) => {
            Err(Failure::input("a curve needs more than one number of steps; give --steps 1,2,4,8,16"))
        }
        Some(_) => Err(Failure::input("--figure writes FILE.svg or FILE.png")),
    }
}

/// Draw what was measured into a file, as PNG or SVG by its name.
pub fn draw((title, passes, score): (&str, &str, &str), points: Vec<Point>, path: &Path) -> Result<()> {
    let drawing = Figure::lines(&LinesSpec {
        title: title.into(),
        x: Axis::log(passes),
        y: Axis::linear(score),
        series: lines(points),
        size: Some((460.0, 300.0)),
    })?;
    write_figure(path, &drawing)
}

fn lines(points: Vec<Point>) -> Vec<Series> {
    let taken = || points.iter().filter_map(|p| p.passes);
    let (least, most) = (taken().min().unwrap_or(1), taken().max().unwrap_or(1));
    let mut ways: Vec<(String, Vec<(usize, Point)>)> = Vec::new();
    for point in points {
        let index = ways.iter().position(|w| w.0 == point.way).unwrap_or_else(|| {
            ways.push((point.way.clone(), Vec::new()));
            ways.len() - 1
        });
        match point.passes {
            Some(passes) => ways[index].1.push((passes, point)),
            None => ways[index].1.extend([(least, point.clone()), (most, point)]),
        }
    }
    let few = ways.len() <= BANDS;
    let line = |(way, mut points): (String, Vec<(usize, Point)>)| {
        points.sort_by_key(|p| p.0);
        let of = |f: fn(&Point) -> f64| points.iter().map(|p| f(&p.1)).collect::<Vec<_>>();
        let line = Series::new(way, points.iter().map(|p| p.0 as f64).collect(), of(|p| p.score));
        let band = Band { low: of(|p| p.interval[0]), high: of(|p| p.interval[1]) };
        Series { band: few.then_some(band), ..line }
    };
    ways.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each way is a line, in the order of its passes; what takes one pass and no more is as long as the others.
    #[test]
    fn points_become_lines() {
        let point =
            |way: &str, passes, score| Point { way: way.into(), passes, score, interval: [score - 1.0, score + 1.0] };
        let drawn = lines(vec![point("a", Some(8), 3.0), point("twin", None, 5.0), point("a", Some(2), 4.0)]);
        let of = |i: usize| (drawn[i].name.as_str(), &drawn[i].x[..], &drawn[i].y[..]);
        assert_eq!(of(0), ("a", &[2.0, 8.0][..], &[4.0, 3.0][..]));
        assert_eq!(of(1), ("twin", &[2.0, 8.0][..], &[5.0, 5.0][..]));
        assert_eq!(drawn[0].band.as_ref().unwrap().low, [3.0, 2.0]);
        assert!(lines(vec![point("twin", None, 5.0)])[0].x.iter().all(|x| *x == 1.0));
    }
}
