//! Reliability diagrams: is a model right as often as it says?

use super::axes::{Axis, Frame, Height, PAD, Plan, Reserve};
use super::legend::{Key, Legend};
use super::palette::{self, BLUE};
use super::scene::{Drawing, Paint, Rect};
use super::ticks::number;
use super::{Result, data_error};

/// Accuracy against confidence.
#[derive(Clone, Debug, Default)]
pub struct ReliabilitySpec {
    /// Above the figure, and what a screen reader says.
    pub title: String,
    /// In the order of confidence.
    pub bins: Vec<Bin>,
    /// In points; otherwise 260.
    pub width: Option<f64>,
}

/// The examples whose confidence lies between `low` and `high`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bin {
    /// The least confidence.
    pub low: f64,
    /// The greatest.
    pub high: f64,
    /// Their mean confidence.
    pub confidence: f64,
    /// The fraction that is right.
    pub accuracy: f64,
    /// How many they are.
    pub count: u64,
}

impl ReliabilitySpec {
    /// Expected calibration error: the mean of |accuracy − confidence| over all examples.
    pub fn ece(&self) -> f64 {
        let filled = || self.bins.iter().filter(|b| b.count > 0);
        let total: f64 = filled().map(|b| b.count as f64).sum();
        filled().map(|b| b.count as f64 / total * (b.accuracy - b.confidence).abs()).sum()
    }
}

pub fn draw(spec: &ReliabilitySpec) -> Result<Drawing> {
    let figure = spec.title.as_str();
    let total: u64 = spec.bins.iter().map(|b| b.count).sum();
    if total == 0 {
        return Err(data_error(figure, "its bins hold no examples"));
    }
    let part = 0.0..=1.0;
    let whole = |b: &&Bin| {
        let means = b.count == 0 || (part.contains(&b.accuracy) && part.contains(&b.confidence));
        b.low < b.high && part.contains(&b.low) && part.contains(&b.high) && means
    };
    if let Some(b) = spec.bins.iter().find(|b| !whole(b)) {
        return Err(data_error(figure, format!("a bin is not made of fractions: {b:?}")));
    }
    let width = spec.width.unwrap_or(260.0);
    let ece = format!("Gap (ECE = {} %)", number(100.0 * spec.ece(), 2));
    let entries = [(Key::Bar(0), "Accuracy".to_string()), (Key::Gap, ece), (Key::Reference, "Calibrated".to_string())];
    let legend = Legend::rows(&entries, width - 2.0 * PAD);
    let unit = Axis::linear("").range(0.0, 1.0).span(figure, std::iter::empty())?;
    let upper = Plan {
        figure,
        width,
        height: Height::Ratio(0.8),
        x: ("", Some(unit)),
        y: ("Accuracy", Some(unit)),
        reserve: Reserve { top: legend.reserve(), bottom: Some(8.0), ..Reserve::default() },
    };
    let top = Frame::new(&upper)?;
    let share = |b: &Bin| 100.0 * b.count as f64 / total as f64;
    let most = spec.bins.iter().map(share).fold(0.0, f64::max);
    let lower = Plan {
        figure: "",
        height: Height::Ratio(0.34),
        x: ("Confidence", Some(unit)),
        y: ("Examples (%)", Some(Axis::linear("").range(0.0, most * 1.05).span(figure, std::iter::empty())?)),
        reserve: Reserve { top: top.plot.bottom() + 8.0, ..Reserve::default() },
        ..upper
    };
    let mut bottom = Frame::new(&lower)?;
    // One left and right edge for both.
    let mut top = top;
    let (left, right) = (top.plot.x.max(bottom.plot.x), top.plot.right().min(bottom.plot.right()));
    for frame in [&mut top, &mut bottom] {
        (frame.plot.x, frame.plot.w) = (left, right - left);
    }

    let mut d = Drawing::new(width, bottom.page_height(&lower.reserve), figure);
    top.draw_grid(&mut d, false);
    bottom.draw_grid(&mut d, false);
    for b in spec.bins.iter().filter(|b| b.count > 0) {
        let (x, w) = (top.x_at(b.low) + 0.4, top.x_at(b.high) - top.x_at(b.low) - 0.8);
        let (says, is) = (top.y_at(b.confidence), top.y_at(b.accuracy));
        d.rect(Rect { x, y: is, w, h: top.plot.bottom() - is }, Paint::fill(BLUE));
        if (says - is).abs() > 0.3 {
            palette::gap(&mut d, Rect { x, y: says.min(is), w, h: (says - is).abs() });
        }
        let y = bottom.y_at(share(b));
        d.rect(Rect { x, y, w, h: bottom.plot.bottom() - y }, Paint::fill(palette::GREY));
    }
    d.line(top.at(0.0, 0.0), top.at(1.0, 1.0), palette::reference());
    let x = left.min(width - PAD - legend.size().0).max(PAD);
    legend.draw(&mut d, (x, top.plot.y - legend.reserve()));
    top.without_x_numbers().draw_axes(&mut d, &upper.reserve, false);
    bottom.draw_axes(&mut d, &lower.reserve, false);
    Ok(d)
}
