//! Axes: from data to ranges, from ranges to places on the page, and the frame around the data.

use super::font::{self, CAP, LEADING};
use super::palette::{GRID, INK};
use super::scene::{Anchor, Drawing, Rect, Stroke};
use super::ticks::{self, Ticks};
use super::{Result, data_error};

pub const TITLE: f64 = 10.0;
pub const LABEL: f64 = 9.0;
pub const SMALL: f64 = 8.0;
/// White space at the edge of the page.
pub const PAD: f64 = 6.0;
const TICK: f64 = 3.0;
const GAP: f64 = 3.0;
/// The least room for data, in points: below it a figure says nothing.
const LEAST: f64 = 40.0;

/// How values are spread along an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps for equal differences.
    #[default]
    Linear,
    /// Equal steps for equal factors; shows positive values only.
    Log,
}

/// What an axis shows.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// With its unit: `Loss (nats)`.
    pub label: String,
    /// Linear or logarithmic.
    pub scale: Scale,
    /// First and last value; otherwise the data's, with a margin.
    pub range: Option<(f64, f64)>,
}

impl Axis {
    /// A linear axis over the data.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), ..Axis::default() }
    }

    /// A logarithmic axis over the data.
    pub fn log(label: impl Into<String>) -> Axis {
        Axis { scale: Scale::Log, ..Axis::linear(label) }
    }

    /// The axis with fixed ends; what lies outside is cut.
    pub fn range(self, first: f64, last: f64) -> Axis {
        Axis { range: Some((first, last)), ..self }
    }

    /// Whether a value has a place on this axis.
    pub fn shows(&self, v: f64) -> bool {
        v.abs() < 1e300 && (self.scale == Scale::Linear || v > 1e-300)
    }

    /// The range for `data`, with a margin of 4 % (logarithms: of their range).
    pub(crate) fn span(&self, figure: &str, data: impl Iterator<Item = f64>) -> Result<Span> {
        let log = self.scale == Scale::Log;
        if let Some((lo, hi)) = self.range {
            if !(self.shows(lo) && self.shows(hi) && lo < hi) {
                return Err(data_error(figure, format!("the axis '{}' cannot go from {lo} to {hi}", self.label)));
            }
            return Ok(Span { log, lo, hi });
        }
        let (mut lo, mut hi) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in data.filter(|v| self.shows(*v)) {
            (lo, hi) = (lo.min(v), hi.max(v));
        }
        if lo > hi {
            let kind = if log { "positive finite" } else { "finite" };
            return Err(data_error(figure, format!("the axis '{}' has no {kind} value", self.label)));
        }
        if log {
            // A factor of two on both sides of a lone value.
            let (a, b) = (lo.log10(), hi.log10());
            let margin = if b - a < 1e-6 { 2f64.log10() } else { 0.04 * (b - a) };
            return Ok(Span { log, lo: 10f64.powf(a - margin), hi: 10f64.powf(b + margin) });
        }
        let largest = lo.abs().max(hi.abs());
        let margin = match hi - lo {
            // Constant up to rounding.
            d if d <= 1e-9 * largest => {
                if largest > 0.0 {
                    0.1 * largest
                } else {
                    1.0
                }
            }
            d => 0.04 * d,
        };
        Ok(Span { log, lo: lo - margin, hi: hi + margin })
    }
}

/// A range with its scale.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub log: bool,
    pub lo: f64,
    pub hi: f64,
}

impl Span {
    pub fn linear(lo: f64, hi: f64) -> Span {
        Span { log: false, lo, hi }
    }

    /// 0 at the beginning, 1 at the end.
    pub fn at(&self, v: f64) -> f64 {
        if self.log {
            (v.ln() - self.lo.ln()) / (self.hi.ln() - self.lo.ln())
        } else {
            (v - self.lo) / (self.hi - self.lo)
        }
    }

    /// As many ticks as `length` points hold without labels that touch.
    pub fn ticks(&self, length: f64, horizontal: bool) -> Ticks {
        let most = ((length / if horizontal { 32.0 } else { 20.0 }) as usize).clamp(4, 8);
        let some =
            |most| if self.log { ticks::log(self.lo, self.hi, most) } else { ticks::linear(self.lo, self.hi, most) };
        let fits = |t: &Ticks| {
            t.major.windows(2).all(|pair| {
                let apart = (self.at(pair[1].0) - self.at(pair[0].0)) * length;
                let need = if horizontal {
                    (font::width(&pair[0].1, SMALL) + font::width(&pair[1].1, SMALL)) / 2.0 + SMALL
                } else {
                    SMALL * LEADING
                };
                apart >= need
            })
        };
        (1..=most).rev().map(some).find(fits).unwrap_or_default()
    }
}

/// The label with the power of ten its ticks leave out.
pub fn with_power(label: &str, power: i32) -> String {
    let ten = format!("×10{}", ticks::superscript(power));
    match (power, label.rsplit_once('(')) {
        (0, _) => label.to_string(),
        _ if label.is_empty() => ten,
        (_, Some((name, unit))) => format!("{name}({ten} {unit}"),
        (_, None) => format!("{label} ({ten})"),
    }
}

/// Space around the data that a figure keeps for other things than axes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reserve {
    /// Between title and data.
    pub top: f64,
    /// Below the data, in the place of numeric ticks.
    pub bottom: Option<f64>,
    /// Left of the data, in the place of numeric ticks.
    pub left: Option<f64>,
    pub right: f64,
}

/// The page around the data: where title, labels and data go.
pub struct Frame {
    pub plot: Rect,
    title: Vec<String>,
    x_label: Vec<String>,
    y_label: Vec<String>,
    x: Option<(Span, Ticks)>,
    y: Option<(Span, Ticks)>,
}

/// What a frame is made of. An axis without a span has categories: `Reserve` holds room for their names.
pub struct Plan<'a> {
    pub figure: &'a str,
    pub width: f64,
    pub height: Height,
    pub x: (&'a str, Option<Span>),
    pub y: (&'a str, Option<Span>),
    pub reserve: Reserve,
}

#[derive(Clone, Copy)]
pub enum Height {
    Page(f64),
    /// As high as makes the data's rectangle `height = ratio × width`.
    Ratio(f64),
}

fn lines_height(lines: &[String], size: f64) -> f64 {
    lines.len() as f64 * size * LEADING
}

/// How far data begin below the upper edge of a page whose title is `title`.
pub fn title_height(title: &[String]) -> f64 {
    PAD + if title.is_empty() { 0.0 } else { lines_height(title, TITLE) + 4.0 }
}

pub fn title_lines(title: &str, width: f64) -> Vec<String> {
    font::wrap(title, TITLE, width - 2.0 * PAD, 3)
}

/// Draw the title with its left edge at `x`, or further left if it needs the room.
pub fn draw_title(d: &mut Drawing, title: &[String], x: f64) {
    let x = x.min(d.width - PAD - font::widest(title, TITLE)).max(PAD);
    for (i, line) in title.iter().enumerate() {
        let y = PAD + TITLE * (0.85 + i as f64 * LEADING);
        d.text(line, (x, y), TITLE, Anchor::Start, 0.0, INK);
    }
}

impl Frame {
    pub fn new(plan: &Plan) -> Result<Frame> {
        let Plan { figure, width, height, reserve, .. } = *plan;
        if !(100.0..5000.0).contains(&width) {
            return Err(data_error(figure, format!("a width of {width} points (100 to 5000 can be drawn)")));
        }
        let title = title_lines(figure, width);
        let top = title_height(&title) + reserve.top;
        // The widths and heights of tick labels and axis labels depend on each other in a circle, cut here by a guess of
        // the plot's size that errs on the small side.
        let x_words = font::wrap(plan.x.0, LABEL, width * 0.7, 2);
        let tick_h = reserve.bottom.unwrap_or(TICK + GAP + SMALL * CAP);
        let x_label_h = if x_words.is_empty() { 0.0 } else { lines_height(&x_words, LABEL) + 4.0 };
        let bottom = PAD + tick_h + x_label_h;
        let guess = match height {
            Height::Page(h) => h - top - bottom,
            Height::Ratio(r) => r * (width - 60.0 - reserve.right),
        };
        let y_ticks = plan.y.1.map(|s| s.ticks(guess, false));
        let y_name = with_power(plan.y.0, y_ticks.as_ref().map_or(0, |t| t.power));
        let y_label = font::wrap(&y_name, LABEL, guess.max(0.0), 2);
        let label_w = y_ticks.as_ref().map_or(0.0, |t| font::widest(t.major.iter().map(|m| &m.1), SMALL));
        let left_names = reserve.left.unwrap_or(TICK + GAP + label_w);
        let left = PAD + left_names + if y_label.is_empty() { 0.0 } else { lines_height(&y_label, LABEL) + 3.0 };
        // The last number on the x axis may stand out by half.
        let mut right = PAD + reserve.right;
        let mut x_ticks = None;
        if let Some(span) = plan.x.1 {
            let first = span.ticks(width - left - right, true);
            right = right.max(PAD + font::widest(first.major.iter().map(|m| &m.1), SMALL) / 2.0);
            x_ticks = Some(span.ticks(width - left - right, true));
        }
        let w = width - left - right;
        let h = match height {
            Height::Page(h) => h - top - bottom,
            Height::Ratio(r) => r * w,
        };
        if !(w >= LEAST && h >= LEAST) {
            return Err(data_error(figure, format!("its labels leave {w:.0} × {h:.0} points for the data")));
        }
        let x_name = with_power(plan.x.0, x_ticks.as_ref().map_or(0, |t| t.power));
        let x_label = font::wrap(&x_name, LABEL, width - 2.0 * PAD, x_words.len().max(1));
        Ok(Frame {
            plot: Rect { x: left, y: top, w, h },
            title,
            x_label,
            y_label,
            x: plan.x.1.zip(x_ticks),
            y: plan.y.1.zip(y_ticks),
        })
    }

    /// The height of a page whose plot has a ratio of its own.
    pub fn page_height(&self, reserve: &Reserve) -> f64 {
        let tick_h = reserve.bottom.unwrap_or(TICK + GAP + SMALL * CAP);
        let label = if self.x_label.is_empty() { 0.0 } else { lines_height(&self.x_label, LABEL) + 4.0 };
        (self.plot.bottom() + tick_h + label + PAD).ceil()
    }

    /// For the upper of two plots with one x axis.
    pub fn without_x_numbers(mut self) -> Frame {
        self.x.iter_mut().flat_map(|a| &mut a.1.major).for_each(|m| m.1.clear());
        self
    }

    pub fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.x_at(x), self.y_at(y))
    }

    pub fn x_at(&self, v: f64) -> f64 {
        self.plot.x + self.x.as_ref().map_or(0.0, |a| a.0.at(v)) * self.plot.w
    }

    pub fn y_at(&self, v: f64) -> f64 {
        self.plot.bottom() - self.y.as_ref().map_or(0.0, |a| a.0.at(v)) * self.plot.h
    }

    /// Grid lines, below the data.
    pub fn draw_grid(&self, d: &mut Drawing, vertical: bool) {
        let p = self.plot;
        for (v, _) in self.y.iter().flat_map(|a| &a.1.major) {
            d.line((p.x, self.y_at(*v)), (p.right(), self.y_at(*v)), Stroke::solid(GRID, 0.5));
        }
        for (v, _) in self.x.iter().filter(|_| vertical).flat_map(|a| &a.1.major) {
            d.line((self.x_at(*v), p.y), (self.x_at(*v), p.bottom()), Stroke::solid(GRID, 0.5));
        }
    }

    /// Title, axes, ticks and labels, above the data. `box_all` closes the frame.
    pub fn draw_axes(&self, d: &mut Drawing, reserve: &Reserve, box_all: bool) {
        let p = self.plot;
        let pen = Stroke::solid(INK, 0.6);
        draw_title(d, &self.title, p.x);
        if box_all {
            d.rect(p, super::scene::Paint::stroke(pen));
        } else {
            d.polyline(&[(p.x, p.y), (p.x, p.bottom()), (p.right(), p.bottom())], pen);
        }
        if let Some((_, ticks)) = &self.x {
            for (v, label) in &ticks.major {
                let x = self.x_at(*v);
                d.line((x, p.bottom()), (x, p.bottom() + TICK), pen);
                d.text(label, (x, p.bottom() + TICK + GAP + SMALL * CAP), SMALL, Anchor::Middle, 0.0, INK);
            }
            for v in &ticks.minor {
                let x = self.x_at(*v);
                d.line((x, p.bottom()), (x, p.bottom() + TICK * 0.6), Stroke::solid(INK, 0.4));
            }
        }
        if let Some((_, ticks)) = &self.y {
            for (v, label) in &ticks.major {
                let y = self.y_at(*v);
                d.line((p.x - TICK, y), (p.x, y), pen);
                d.text(label, (p.x - TICK - GAP, y + SMALL * CAP / 2.0), SMALL, Anchor::End, 0.0, INK);
            }
            for v in &ticks.minor {
                let y = self.y_at(*v);
                d.line((p.x - TICK * 0.6, y), (p.x, y), Stroke::solid(INK, 0.4));
            }
        }
        let below = p.bottom() + reserve.bottom.unwrap_or(TICK + GAP + SMALL * CAP) + 4.0;
        for (i, line) in self.x_label.iter().enumerate() {
            let half = font::width(line, LABEL) / 2.0;
            let x = p.centre().0.min(d.width - PAD - half).max(PAD + half);
            d.text(line, (x, below + LABEL * (0.9 + i as f64 * LEADING)), LABEL, Anchor::Middle, 0.0, INK);
        }
        for (i, line) in self.y_label.iter().enumerate() {
            let half = font::width(line, LABEL) / 2.0;
            let y = p.centre().1.min(d.height - PAD - half).max(PAD + half);
            d.text(line, (PAD + LABEL * (0.85 + i as f64 * LEADING), y), LABEL, Anchor::Middle, -90.0, INK);
        }
    }
}
