//! Lines: training curves, accuracy over sampling steps.

use super::axes::{Axis, Frame, Height, PAD, Plan, Reserve};
use super::legend::{Key, Legend, Obstacles};
use super::palette;
use super::scene::{Drawing, Paint, Point, Rect, clip_polygon, clip_polyline};
use super::{Result, data_error};

/// Named series over a common axis.
#[derive(Clone, Debug, Default)]
pub struct LinesSpec {
    /// Above the figure, and what a screen reader says.
    pub title: String,
    /// The axis below.
    pub x: Axis,
    /// The axis on the left.
    pub y: Axis,
    /// The lines, in the order of the legend.
    pub series: Vec<Series>,
    /// Width and height in points; otherwise 360 × 240.
    pub size: Option<(f64, f64)>,
}

/// One line. A value that is not a number (or not positive on a logarithmic axis) is a gap.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// In the legend, unless empty.
    pub name: String,
    /// Where the points lie on the axis below.
    pub x: Vec<f64>,
    /// Where they lie on the axis on the left; as many.
    pub y: Vec<f64>,
    /// What lies around the line: a standard deviation, a confidence interval.
    pub band: Option<Band>,
}

/// The lower and upper edge of a band, point by point.
#[derive(Clone, Debug, Default)]
pub struct Band {
    /// The lower edge.
    pub low: Vec<f64>,
    /// The upper edge.
    pub high: Vec<f64>,
}

impl Series {
    /// A line without a band.
    pub fn new(name: impl Into<String>, x: Vec<f64>, y: Vec<f64>) -> Series {
        Series { name: name.into(), x, y, band: None }
    }

    /// A noisy curve as the means of `n` stretches of equal length, with a band of one standard deviation.
    pub fn averaged(&self, n: usize) -> Series {
        let stretch = self.x.len().div_ceil(n.max(1)).max(1);
        let means = |values: &[f64]| -> Vec<f64> { values.chunks(stretch).map(mean).collect() };
        let y = means(&self.y);
        let squares =
            self.y.chunks(stretch).zip(&y).map(|(c, m)| mean(&c.iter().map(|v| (v - m).powi(2)).collect::<Vec<_>>()));
        let spread: Vec<f64> = squares.map(f64::sqrt).collect();
        Series::new(self.name.clone(), means(&self.x), y).spread(&spread)
    }

    /// The series with a band of `spread` on both sides.
    pub fn spread(mut self, spread: &[f64]) -> Series {
        let low = self.y.iter().zip(spread).map(|(y, s)| y - s).collect();
        let high = self.y.iter().zip(spread).map(|(y, s)| y + s).collect();
        self.band = Some(Band { low, high });
        self
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Series with more points get some markers only.
const ALL_MARKERS: usize = 24;

pub fn draw(spec: &LinesSpec) -> Result<Drawing> {
    check(spec)?;
    let figure = spec.title.as_str();
    let x_span = spec.x.span(figure, shown(spec).map(|(s, i)| s.x[i]))?;
    let edges = shown(spec).flat_map(|(s, i)| {
        let band = s.band.as_ref();
        [Some(s.y[i]), band.map(|b| b.low[i]), band.map(|b| b.high[i])].into_iter().flatten()
    });
    let y_span = spec.y.span(figure, edges)?;
    let (width, height) = spec.size.unwrap_or((360.0, 240.0));
    let plan = |top: f64| Plan {
        figure,
        width,
        height: Height::Page(height),
        x: (&spec.x.label, Some(x_span)),
        y: (&spec.y.label, Some(y_span)),
        reserve: Reserve { top, ..Reserve::default() },
    };
    let named = spec.series.iter().enumerate().filter(|(_, s)| !s.name.is_empty());
    let entries: Vec<(Key, String)> = named.map(|(i, s)| (Key::Line(i), s.name.clone())).collect();

    // A legend among the data if a corner is free, above them otherwise.
    let mut frame = Frame::new(&plan(0.0))?;
    let mut traces = trace(spec, &frame);
    let column = Legend::column(&entries, 0.5 * frame.plot.w);
    let corner = if entries.is_empty() { None } else { column.free_corner(frame.plot, &obstacles(&traces)) };
    let above = Legend::rows(&entries, width - 2.0 * PAD);
    if corner.is_none() && !entries.is_empty() {
        frame = Frame::new(&plan(above.reserve()))?;
        traces = trace(spec, &frame);
    }

    let mut d = Drawing::new(width, height, figure);
    frame.draw_grid(&mut d, true);
    for (i, t) in traces.iter().enumerate() {
        for area in &t.bands {
            d.polygon(area, Paint::fill(palette::colour(i).alpha(0.2)));
        }
    }
    for (i, t) in traces.iter().enumerate() {
        t.lines.iter().for_each(|l| d.polyline(l, palette::series_stroke(i)));
        t.markers.iter().for_each(|m| palette::marker(&mut d, i, *m));
    }
    frame.draw_axes(&mut d, &plan(0.0).reserve, false);
    match corner {
        Some(place) => column.draw_in(&mut d, place),
        None if entries.is_empty() => {}
        None => {
            let x = frame.plot.x.min(width - PAD - above.size().0).max(PAD);
            above.draw(&mut d, (x, frame.plot.y - above.reserve()));
        }
    }
    Ok(d)
}

fn check(spec: &LinesSpec) -> Result<()> {
    let fail = |why: String| Err(data_error(&spec.title, why));
    if spec.series.is_empty() {
        return fail("it has no series".into());
    }
    for s in &spec.series {
        let n = s.x.len();
        if n == 0 {
            return fail(format!("the series '{}' has no points", s.name));
        }
        if s.y.len() != n {
            return fail(format!("the series '{}' has {n} x and {} y", s.name, s.y.len()));
        }
        if let Some(b) = &s.band
            && (b.low.len() != n || b.high.len() != n)
        {
            let (low, high) = (b.low.len(), b.high.len());
            return fail(format!("the series '{}' has {n} points and a band of {low} and {high}", s.name));
        }
        if !(0..n).any(|i| is_shown(spec, s, i)) {
            return fail(format!("the series '{}' has no point that its axes can show", s.name));
        }
    }
    Ok(())
}

fn is_shown(spec: &LinesSpec, s: &Series, i: usize) -> bool {
    spec.x.shows(s.x[i]) && spec.y.shows(s.y[i])
}

fn shown(spec: &LinesSpec) -> impl Iterator<Item = (&Series, usize)> {
    let all = spec.series.iter().flat_map(|s| (0..s.x.len()).map(move |i| (s, i)));
    all.filter(|(s, i)| is_shown(spec, s, *i))
}

/// A series on the page.
struct Trace {
    lines: Vec<Vec<Point>>,
    bands: Vec<Vec<Point>>,
    markers: Vec<Point>,
}

fn obstacles(traces: &[Trace]) -> Obstacles {
    let dots = traces.iter().flat_map(|t| t.markers.iter().map(|m| vec![*m]));
    Obstacles {
        lines: traces.iter().flat_map(|t| t.lines.clone()).chain(dots).collect(),
        areas: traces.iter().flat_map(|t| t.bands.clone()).collect(),
    }
}

fn trace(spec: &LinesSpec, frame: &Frame) -> Vec<Trace> {
    let plot = frame.plot;
    let inside = |p: &Point| {
        let r = plot.grow(0.5);
        p.0 >= r.x && p.0 <= r.right() && p.1 >= r.y && p.1 <= r.bottom()
    };
    let one = |(number, s): (usize, &Series)| {
        let mut t = Trace { lines: Vec::new(), bands: Vec::new(), markers: Vec::new() };
        let mut all = Vec::new();
        for run in runs(s.x.len(), |i| is_shown(spec, s, i)) {
            let points: Vec<Point> = run.clone().map(|i| frame.at(s.x[i], s.y[i])).collect();
            t.lines.extend(clip_polyline(&thin(&points, plot), plot));
            if points.len() == 1 {
                t.markers.extend(points.iter().filter(|p| inside(p))); // a lone point has no line to be seen by
            }
            all.extend(points);
        }
        if all.len() <= ALL_MARKERS {
            t.markers = all.into_iter().filter(inside).collect();
        } else {
            // Eight markers tell lines apart; each series begins elsewhere so that they do not cover each other.
            let step = all.len() as f64 / 8.0;
            let start = step * (0.2 + 0.37 * number as f64).fract();
            let some = (0..8).filter_map(|k| all.get((start + k as f64 * step) as usize));
            t.markers.extend(some.filter(|p| inside(p)));
        }
        if let Some(b) = &s.band {
            let whole = |i: usize| is_shown(spec, s, i) && b.low[i].is_finite() && spec.y.shows(b.high[i]);
            for run in runs(s.x.len(), whole) {
                // On a logarithmic axis a band that reaches zero ends at the lower edge.
                let low = |i: usize| {
                    let p = frame.at(s.x[i], b.low[i]);
                    (p.0, if p.1.is_finite() { p.1 } else { plot.bottom() + 1.0 })
                };
                let upper: Vec<Point> = run.clone().map(|i| frame.at(s.x[i], b.high[i])).collect();
                let lower: Vec<Point> = run.map(low).collect();
                let mut area = thin(&upper, plot);
                area.extend(thin(&lower, plot).into_iter().rev());
                t.bands.push(clip_polygon(&area, plot));
            }
        }
        t
    };
    spec.series.iter().enumerate().map(one).collect()
}

/// The stretches of indices below `n` for which `shown` holds.
fn runs(n: usize, shown: impl Fn(usize) -> bool) -> Vec<std::ops::Range<usize>> {
    let mut out: Vec<std::ops::Range<usize>> = Vec::new();
    for i in (0..n).filter(|&i| shown(i)) {
        match out.last_mut() {
            Some(run) if run.end == i => run.end = i + 1,
            _ => out.push(i..i + 1),
        }
    }
    out
}

/// Of many points in a quarter of a point's width, the first, the lowest, the highest and the last: the same picture.
fn thin(points: &[Point], plot: Rect) -> Vec<Point> {
    let forward = points.windows(2).all(|p| p[0].0 <= p[1].0);
    if points.len() < 4 * plot.w as usize || !forward {
        return points.to_vec();
    }
    let mut out = Vec::new();
    for column in points.chunk_by(|a, b| (a.0 * 4.0).floor() == (b.0 * 4.0).floor()) {
        let by = |better: fn(f64, f64) -> bool| {
            (0..column.len()).fold(0, |best, i| if better(column[i].1, column[best].1) { i } else { best })
        };
        let mut keep = [0, by(|a, b| a < b), by(|a, b| a > b), column.len() - 1];
        keep.sort_unstable();
        out.extend(keep.iter().enumerate().filter(|(k, i)| *k == 0 || keep[k - 1] != **i).map(|(_, i)| column[*i]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_stretches_between_gaps() {
        let shown = [true, true, false, true, false, false, true];
        assert_eq!(runs(7, |i| shown[i]), [0..2, 3..4, 6..7]);
        assert!(runs(3, |_| false).is_empty());
    }

    #[test]
    fn averages_are_means_with_deviations() {
        let s = Series::new("s", vec![0.0, 1.0, 2.0, 3.0, 4.0], vec![1.0, 3.0, 5.0, 5.0, 9.0]).averaged(3);
        let band = s.band.unwrap();
        assert_eq!((s.x, s.y), (vec![0.5, 2.5, 4.0], vec![2.0, 5.0, 9.0]));
        assert_eq!((band.low, band.high), (vec![1.0, 5.0, 9.0], vec![3.0, 5.0, 9.0]));
    }

    #[test]
    fn thinning_keeps_ends_and_extremes() {
        let plot = Rect { x: 0.0, y: 0.0, w: 100.0, h: 100.0 };
        let mut points: Vec<Point> =
            (0..100_000).map(|i| (f64::from(i) / 1000.0, 50.0 + (f64::from(i) * 0.7).sin())).collect();
        points[54_321].1 = 7.0;
        let few = thin(&points, plot);
        assert!(few.len() <= 4 * 401, "{}", few.len());
        assert_eq!((few.first(), few.last()), (points.first(), points.last()));
        assert!(few.contains(&points[54_321]));
        assert_eq!(thin(&points[..50], plot), points[..50]);
    }
}
