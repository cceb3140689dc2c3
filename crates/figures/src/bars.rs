//! Bars with error bars: one method against another, over data sets or settings.

use super::axes::{Axis, Frame, Height, PAD, Plan, Reserve, SMALL, Scale};
use super::categories::Below;
use super::font::{self, CAP};
use super::legend::{Key, Legend};
use super::palette::{self, INK};
use super::scene::{Anchor, Drawing, Rect, Stroke};
use super::ticks::number;
use super::{Result, data_error};

/// Groups of bars.
#[derive(Clone, Debug, Default)]
pub struct BarsSpec {
    /// Above the figure, and what a screen reader says.
    pub title: String,
    /// What the categories are.
    pub x_label: String,
    /// Linear. Bars begin at zero; where its range leaves zero out, dots stand in for bars, whose length would mislead.
    pub y: Axis,
    /// The names of the groups, from left to right.
    pub categories: Vec<String>,
    /// Bars side by side in every group.
    pub series: Vec<BarSeries>,
    /// Write the values above the bars with so many decimals, where they fit.
    pub decimals: Option<usize>,
    /// Width and height in points; otherwise 360 × 240.
    pub size: Option<(f64, f64)>,
}

/// One bar in every group. A value that is not a number is written as n/a.
#[derive(Clone, Debug, Default)]
pub struct BarSeries {
    /// In the legend, unless empty.
    pub name: String,
    /// A value per category.
    pub values: Vec<f64>,
    /// Half the length of the error bars; none where it is not a number.
    pub errors: Option<Vec<f64>>,
}

impl BarSeries {
    fn error(&self, i: usize) -> f64 {
        let error = self.errors.as_ref().map_or(0.0, |e| e[i].abs());
        if error.is_finite() { error } else { 0.0 }
    }
}

pub fn draw(spec: &BarsSpec) -> Result<Drawing> {
    check(spec)?;
    let figure = spec.title.as_str();
    let ends = spec.series.iter().flat_map(|s| {
        (0..s.values.len()).flat_map(|i| {
            let (v, e) = (s.values[i], s.error(i));
            [v, v - e, v + e]
        })
    });
    let some = ends.clone().any(|v| spec.y.shows(v));
    let mut span = spec.y.span(figure, ends.chain(some.then_some(0.0)))?;
    if spec.y.range.is_none() {
        // Bars stand on the axis, and the numbers above them need room.
        let (lo, hi) = (span.lo, span.hi);
        let written = if spec.decimals.is_some() { 0.08 * (hi - lo) } else { 0.0 };
        let all = || spec.series.iter().flat_map(|s| (0..s.values.len()).map(move |i| (s.values[i], s.error(i))));
        span.lo = if all().any(|(v, e)| v - e < 0.0) { lo - written } else { 0.0 };
        span.hi = if all().any(|(v, e)| v + e > 0.0) { hi + written } else { 0.0 };
        if span.lo >= span.hi {
            span.hi = span.lo + 1.0; // nothing but zeros
        }
    }

    let (width, height) = spec.size.unwrap_or((360.0, 240.0));
    let named = spec.series.iter().enumerate().filter(|(_, s)| !s.name.is_empty());
    let dots = is_cut((span.lo, span.hi));
    let key = |i| if dots { Key::Dot(i) } else { Key::Bar(i) };
    let entries: Vec<(Key, String)> = named.map(|(i, s)| (key(i), s.name.clone())).collect();
    let legend = Legend::rows(&entries, width - 2.0 * PAD);
    let n = spec.categories.len();
    let mut plan = Plan {
        figure,
        width,
        height: Height::Page(height),
        x: (&spec.x_label, None),
        y: (&spec.y.label, Some(span)),
        reserve: Reserve { top: legend.reserve(), bottom: Some(SMALL), ..Reserve::default() },
    };
    let first = Frame::new(&plan)?.plot;
    let names = Below::fit(&spec.categories, 0.97 * first.w / n as f64, first.x);
    plan.reserve.bottom = Some(names.height());
    let frame = Frame::new(&plan)?;

    let mut d = Drawing::new(width, height, figure);
    frame.draw_grid(&mut d, false);
    draw_bars(&mut d, spec, &frame, (span.lo, span.hi));
    frame.draw_axes(&mut d, &plan.reserve, false);
    if span.lo < 0.0 && span.hi > 0.0 {
        d.line((frame.plot.x, frame.y_at(0.0)), (frame.plot.right(), frame.y_at(0.0)), Stroke::solid(INK, 0.6));
    }
    names.draw(&mut d, frame.plot, n);
    if !entries.is_empty() {
        let x = frame.plot.x.min(width - PAD - legend.size().0).max(PAD);
        legend.draw(&mut d, (x, frame.plot.y - legend.reserve()));
    }
    Ok(d)
}

/// Whether an axis leaves zero out, so that the length of a bar would say nothing.
fn is_cut((lo, hi): (f64, f64)) -> bool {
    lo > 0.0 || hi < 0.0
}

fn check(spec: &BarsSpec) -> Result<()> {
    let fail = |why: String| Err(data_error(&spec.title, why));
    if spec.y.scale == Scale::Log {
        return fail("bars have no beginning on a logarithmic axis".into());
    }
    if spec.categories.is_empty() || spec.series.is_empty() {
        return fail("it has no bars".into());
    }
    let n = spec.categories.len();
    for s in &spec.series {
        if s.values.len() != n || s.errors.as_ref().is_some_and(|e| e.len() != n) {
            let errors = s.errors.as_ref().map_or(String::new(), |e| format!(" and {} errors", e.len()));
            return fail(format!("the series '{}' has {} values{errors} for {n} categories", s.name, s.values.len()));
        }
    }
    Ok(())
}

fn draw_bars(d: &mut Drawing, spec: &BarsSpec, frame: &Frame, (lo, hi): (f64, f64)) {
    let plot = frame.plot;
    let pitch = plot.w / spec.categories.len() as f64;
    let k = spec.series.len() as f64;
    let bar = (0.76 * pitch / k).min(46.0);
    let base = frame.y_at(0f64.clamp(lo, hi));
    let text = |v: f64| spec.decimals.map_or(String::new(), |n| number(v, n));
    let widest = font::widest(spec.series.iter().flat_map(|s| s.values.iter().map(|v| text(*v))), SMALL);
    let write = widest > 0.0 && widest <= bar + 1.0;
    for c in 0..spec.categories.len() {
        let left = plot.x + pitch * (c as f64 + 0.5) - bar * k / 2.0;
        for (i, s) in spec.series.iter().enumerate() {
            let (v, e) = (s.values[c], s.error(c));
            let x = left + bar * i as f64;
            let middle = x + bar / 2.0;
            if !v.is_finite() {
                if font::width("n/a", SMALL) <= bar {
                    d.text("n/a", (middle, base - 3.0), SMALL, Anchor::Middle, 0.0, palette::GREY);
                }
                continue;
            }
            let y = frame.y_at(v.clamp(lo, hi));
            if !is_cut((lo, hi)) {
                palette::hatched(d, i, Rect { x: x + 0.5, y: y.min(base), w: bar - 1.0, h: (y - base).abs() });
            }
            let (top, bottom) = (frame.y_at((v + e).clamp(lo, hi)), frame.y_at((v - e).clamp(lo, hi)));
            if e > 0.0 {
                let pen = Stroke::solid(INK, 0.9);
                let cap = (bar * 0.2).min(4.0);
                d.line((middle, top), (middle, bottom), pen);
                d.line((middle - cap, top), (middle + cap, top), pen);
                d.line((middle - cap, bottom), (middle + cap, bottom), pen);
            }
            if is_cut((lo, hi)) {
                palette::marker(d, i, (middle, y));
            }
            if write {
                let off = if is_cut((lo, hi)) { 5.0 } else { 3.0 };
                let y = if v < 0.0 { bottom + off + SMALL * CAP } else { top - off };
                let y = y.clamp(plot.y + SMALL * CAP, plot.bottom() - 1.0);
                d.text(&text(v), (middle, y), SMALL, Anchor::Middle, 0.0, INK);
            }
        }
    }
}
