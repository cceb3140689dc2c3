//! Confusion matrices.

use super::axes::{Frame, Height, Plan, Reserve, SMALL, Span};
use super::categories::{Below, Beside};
use super::font::{self, CAP};
use super::heatmap::{ColourBar, cells};
use super::palette::{Colour, GREY, Ramp};
use super::scene::{Anchor, Drawing, Rect};
use super::{Result, data_error};

/// True classes (rows) against predicted ones (columns).
#[derive(Clone, Debug, Default)]
pub struct ConfusionSpec {
    /// Above the figure, and what a screen reader says.
    pub title: String,
    /// The names of the classes, in the order of rows and of columns.
    pub classes: Vec<String>,
    /// Row by row.
    pub counts: Vec<u64>,
    /// In points; otherwise 330.
    pub width: Option<f64>,
}

/// The smallest number that is written, in points.
const LEAST: f64 = 4.5;

pub fn draw(spec: &ConfusionSpec) -> Result<Drawing> {
    let figure = spec.title.as_str();
    let n = spec.classes.len();
    if n == 0 {
        return Err(data_error(figure, "it has no classes"));
    }
    if n.checked_mul(n) != Some(spec.counts.len()) {
        return Err(data_error(figure, format!("{n} classes have {} counts, not {n} × {n}", spec.counts.len())));
    }
    let width = spec.width.unwrap_or(330.0);
    let bar_for = |height| ColourBar::new(Span::linear(0.0, 1.0), Ramp::Blues, "Fraction of true class", height);
    let bar = bar_for(width - 110.0);
    let beside = Beside::fit(&spec.classes, 0.25 * width);
    let mut plan = Plan {
        figure,
        width,
        height: Height::Ratio(1.0),
        x: ("Predicted class", None),
        y: ("True class", None),
        reserve: Reserve { bottom: Some(SMALL), left: Some(beside.width()), right: bar.width(), top: 0.0 },
    };
    let first = Frame::new(&plan)?.plot;
    let below = Below::fit(&spec.classes, 0.97 * first.w / n as f64, first.x);
    let bar = bar_for(first.h);
    plan.reserve.right = bar.width();
    plan.reserve.bottom = Some(below.height());
    let frame = Frame::new(&plan)?;
    let plot = frame.plot;

    let mut d = Drawing::new(width, frame.page_height(&plan.reserve), figure);
    let fraction = |i: usize| {
        let row = &spec.counts[i / n * n..][..n];
        let total: f64 = row.iter().map(|c| *c as f64).sum();
        // A class without examples has no fractions: grey.
        if total > 0.0 { spec.counts[i] as f64 / total } else { f64::NAN }
    };
    let colours: Vec<_> = (0..n * n).map(|i| Ramp::Blues.at(fraction(i))).collect();
    cells(&mut d, plot, n, n, &colours.iter().map(|c| c.rgb).collect::<Vec<_>>());
    let pitch = plot.w / n as f64;
    if 0.7 * pitch >= LEAST {
        draw_counts(&mut d, spec, plot, &colours);
    }
    frame.draw_axes(&mut d, &plan.reserve, true);
    beside.draw(&mut d, plot);
    below.draw(&mut d, plot, n);
    bar.draw(&mut d, plot);
    Ok(d)
}

fn draw_counts(d: &mut Drawing, spec: &ConfusionSpec, plot: Rect, colours: &[Colour]) {
    let n = spec.classes.len();
    let pitch = plot.w / n as f64;
    let texts: Vec<String> = spec.counts.iter().map(u64::to_string).collect();
    let size = (SMALL * 0.86 * pitch / font::widest(&texts, SMALL)).min(SMALL).min(0.7 * pitch);
    if size < LEAST {
        return;
    }
    for (i, text) in texts.iter().enumerate() {
        let (x, y) = (plot.x + ((i % n) as f64 + 0.5) * pitch, plot.y + ((i / n) as f64 + 0.5) * pitch);
        let ink = if spec.counts[i] == 0 { GREY } else { colours[i].ink() };
        d.text(text, (x, y + size * CAP / 2.0), size, Anchor::Middle, 0.0, ink);
    }
}
