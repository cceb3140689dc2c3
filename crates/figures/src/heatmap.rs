//! Heatmaps: an output distribution step by step.

use super::axes::{Axis, Frame, Height, LABEL, PAD, Plan, Reserve, SMALL, Span, with_power};
use super::categories::{Below, Beside};
use super::font::{self, CAP, LEADING};
use super::palette::{INK, Ramp};
use super::scene::{Anchor, Drawing, Paint, Picture, Rect, Stroke};
use super::ticks::Ticks;
use super::{Result, data_error};

/// A matrix as colours.
#[derive(Clone, Debug, Default)]
pub struct HeatmapSpec {
    /// Above the figure, and what a screen reader says.
    pub title: String,
    /// What the rows are.
    pub y_label: String,
    /// Their names, from top to bottom.
    pub rows: Vec<String>,
    /// What the columns are.
    pub x_label: String,
    /// Their names, from left to right.
    pub columns: Vec<String>,
    /// Row by row. A value that is not a number is grey.
    pub values: Vec<f64>,
    /// What the colours mean; its range and scale.
    pub colour: Axis,
    /// Width and height in points; otherwise 360 × 250.
    pub size: Option<(f64, f64)>,
}

pub fn draw(spec: &HeatmapSpec) -> Result<Drawing> {
    let figure = spec.title.as_str();
    let (rows, columns) = (spec.rows.len(), spec.columns.len());
    if rows == 0 || columns == 0 {
        return Err(data_error(figure, "it has no cells"));
    }
    if rows.checked_mul(columns) != Some(spec.values.len()) {
        return Err(data_error(figure, format!("{rows} rows of {columns} columns have {} values", spec.values.len())));
    }
    let mut span = spec.colour.span(figure, spec.values.iter().copied())?;
    if spec.colour.range.is_none() {
        span = tight(span, &spec.colour, &spec.values);
    }
    let (width, height) = spec.size.unwrap_or((360.0, 250.0));
    let bar_for = |height: f64| ColourBar::new(span, Ramp::Viridis, &spec.colour.label, height);
    let bar = bar_for(height - 80.0);
    let beside = Beside::fit(&spec.rows, 0.25 * width);
    let mut plan = Plan {
        figure,
        width,
        height: Height::Page(height),
        x: (&spec.x_label, None),
        y: (&spec.y_label, None),
        reserve: Reserve { bottom: Some(SMALL), left: Some(beside.width()), right: bar.width(), top: 0.0 },
    };
    let first = Frame::new(&plan)?.plot;
    let below = Below::fit(&spec.columns, 0.97 * first.w / columns as f64, first.x);
    plan.reserve.bottom = Some(below.height());
    let bar = bar_for(Frame::new(&plan)?.plot.h); // long names leave less for its ticks
    plan.reserve.right = bar.width();
    let frame = Frame::new(&plan)?;

    let mut d = Drawing::new(width, height, figure);
    let colours = spec.values.iter().map(|v| Ramp::Viridis.at(span.at(*v)).rgb);
    cells(&mut d, frame.plot, rows, columns, &colours.collect::<Vec<_>>());
    frame.draw_axes(&mut d, &plan.reserve, true);
    beside.draw(&mut d, frame.plot);
    below.draw(&mut d, frame.plot, columns);
    bar.draw(&mut d, frame.plot);
    Ok(d)
}

/// Colours need no margin: the lowest value is the first colour.
fn tight(span: Span, axis: &Axis, values: &[f64]) -> Span {
    let shown = || values.iter().copied().filter(|v| axis.shows(*v));
    let (lo, hi) = (shown().fold(f64::INFINITY, f64::min), shown().fold(f64::NEG_INFINITY, f64::max));
    if hi - lo > 1e-9 * lo.abs().max(hi.abs()) { Span { lo, hi, ..span } } else { span }
}

/// The most cells that are drawn one by one; more become an image.
const MOST_CELLS: usize = 5000;

/// Fill `plot` with a matrix of colours.
pub fn cells(d: &mut Drawing, plot: Rect, rows: usize, columns: usize, colours: &[[u8; 3]]) {
    if colours.len() > MOST_CELLS {
        let pixels = colours.iter().flatten().copied().collect();
        return d.image(Picture { width: columns, height: rows, channels: 3, pixels }, plot);
    }
    let (w, h) = (plot.w / columns as f64, plot.h / rows as f64);
    for (r, row) in colours.chunks(columns).enumerate() {
        let mut c = 0;
        // Neighbours of one colour are one rectangle.
        for run in row.chunk_by(|a, b| a == b) {
            let place = Rect { x: plot.x + c as f64 * w, y: plot.y + r as f64 * h, w: run.len() as f64 * w, h };
            let colour = super::palette::Colour { rgb: run[0], alpha: 1.0 };
            d.rect(place, Paint { crisp: true, ..Paint::fill(colour) });
            c += run.len();
        }
    }
}

/// The key to the colours, right of the data.
pub struct ColourBar {
    span: Span,
    ramp: Ramp,
    ticks: Ticks,
    label: Vec<String>,
}

const GAP: f64 = 9.0;
const BAR: f64 = 10.0;

impl ColourBar {
    /// For a plot about `height` high.
    pub fn new(span: Span, ramp: Ramp, label: &str, height: f64) -> ColourBar {
        let ticks = span.ticks(height, false);
        let label = font::wrap(&with_power(label, ticks.power), LABEL, height, 2);
        ColourBar { span, ramp, ticks, label }
    }

    /// What it needs right of the plot.
    pub fn width(&self) -> f64 {
        let label = if self.label.is_empty() { 0.0 } else { 3.0 + LABEL * LEADING * self.label.len() as f64 };
        GAP + BAR + 5.0 + font::widest(self.ticks.major.iter().map(|t| &t.1), SMALL) + label
    }

    pub fn draw(&self, d: &mut Drawing, plot: Rect) {
        let bar = Rect { x: plot.right() + GAP, y: plot.y, w: BAR, h: plot.h };
        let steps = 128;
        for i in 0..steps {
            let t = 1.0 - (i as f64 + 0.5) / steps as f64;
            let h = plot.h / steps as f64;
            let slice = Rect { y: plot.y + i as f64 * h, h, ..bar };
            d.rect(slice, Paint { crisp: true, ..Paint::fill(self.ramp.at(t)) });
        }
        let pen = Stroke::solid(INK, 0.6);
        d.rect(bar, Paint::stroke(pen));
        for (v, label) in &self.ticks.major {
            let y = bar.bottom() - self.span.at(*v) * bar.h;
            d.line((bar.right(), y), (bar.right() + 2.5, y), pen);
            d.text(label, (bar.right() + 5.0, y + SMALL * CAP / 2.0), SMALL, Anchor::Start, 0.0, INK);
        }
        for (i, line) in self.label.iter().enumerate() {
            let from_edge = LABEL * (font::DESCENT + LEADING * (self.label.len() - 1 - i) as f64);
            d.text(line, (d.width - PAD - from_edge, plot.centre().1), LABEL, Anchor::Middle, -90.0, INK);
        }
    }
}
