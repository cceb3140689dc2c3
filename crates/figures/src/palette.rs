//! Colours that colour-blind readers can tell apart, and the dashes, markers and hatching that repeat them in grey.

use super::scene::{Drawing, Paint, Point, Rect, Stroke, clip_segment};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Colour {
    pub rgb: [u8; 3],
    pub alpha: f64,
}

const fn rgb(r: u8, g: u8, b: u8) -> Colour {
    Colour { rgb: [r, g, b], alpha: 1.0 }
}

impl Colour {
    pub fn alpha(self, alpha: f64) -> Colour {
        Colour { alpha, ..self }
    }

    /// Black or white, whichever reads better on top.
    pub fn ink(self) -> Colour {
        let linear = self.rgb.map(|c| (f64::from(c) / 255.0).powf(2.2));
        let luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
        // Where the WCAG contrast with black and with white is the same.
        if luminance > 0.18 { BLACK } else { WHITE }
    }
}

pub const BLACK: Colour = rgb(0, 0, 0);
pub const WHITE: Colour = rgb(255, 255, 255);
pub const INK: Colour = rgb(34, 34, 34);
pub const GREY: Colour = rgb(130, 130, 130);
pub const GRID: Colour = rgb(228, 228, 228);
/// A cell without a value; neither colour scale holds a grey.
pub const MISSING: Colour = rgb(205, 205, 205);
pub const BLUE: Colour = rgb(0, 114, 178);
pub const GREEN: Colour = rgb(0, 158, 115);
pub const VERMILION: Colour = rgb(213, 94, 0);

/// Okabe and Ito's colours without yellow, which is lost on white.
const SERIES: [Colour; 7] = [BLUE, VERMILION, GREEN, rgb(230, 159, 0), rgb(204, 121, 167), rgb(86, 180, 233), BLACK];
const DASHES: [&[f64]; 4] = [&[], &[5.0, 2.0], &[1.3, 1.5], &[6.0, 1.8, 1.3, 1.8]];
const MARKERS: [Marker; 5] = [Marker::Circle, Marker::Square, Marker::Up, Marker::Diamond, Marker::Down];

#[derive(Clone, Copy, Debug)]
pub enum Marker {
    Circle,
    Square,
    Up,
    Diamond,
    Down,
}

/// The numbers of colours, dashes and markers have no common factor: the first 140 series differ.
pub fn colour(series: usize) -> Colour {
    SERIES[series % SERIES.len()]
}

fn dash(series: usize) -> &'static [f64] {
    DASHES[series % DASHES.len()]
}

/// The line of a series.
pub fn series_stroke(series: usize) -> Stroke {
    Stroke { colour: colour(series), width: 1.3, dash: dash(series) }
}

/// A line that is not data.
pub fn reference() -> Stroke {
    Stroke { colour: INK, width: 1.0, dash: &[3.0, 2.0] }
}

/// What is missing or too much.
pub fn gap(d: &mut Drawing, r: Rect) {
    d.rect(r, Paint { stroke: Some(Stroke::solid(VERMILION, 0.7)), ..Paint::fill(VERMILION.alpha(0.15)) });
    hatch(d, r, (1.0, -1.0), Stroke::solid(VERMILION, 0.7));
}

pub fn marker(d: &mut Drawing, series: usize, at: Point) {
    let (x, y) = at;
    let paint = Paint { stroke: Some(Stroke::solid(WHITE, 0.5)), ..Paint::fill(colour(series)) };
    let mut polygon = |p: &[Point]| d.polygon(&p.iter().map(|q| (x + q.0, y + q.1)).collect::<Vec<_>>(), paint);
    match MARKERS[series % MARKERS.len()] {
        Marker::Circle => d.circle(at, 2.3, paint),
        Marker::Square => polygon(&[(-2.1, -2.1), (2.1, -2.1), (2.1, 2.1), (-2.1, 2.1)]),
        Marker::Up => polygon(&[(0.0, -2.9), (2.7, 2.0), (-2.7, 2.0)]),
        Marker::Diamond => polygon(&[(0.0, -3.0), (3.0, 0.0), (0.0, 3.0), (-3.0, 0.0)]),
        Marker::Down => polygon(&[(0.0, 2.9), (2.7, -2.0), (-2.7, -2.0)]),
    }
}

/// A bar's area: the colour of the series, and from the second series on white hatching of its own direction.
pub fn hatched(d: &mut Drawing, series: usize, r: Rect) {
    d.rect(r, Paint::fill(colour(series)));
    let directions: &[(f64, f64)] = match series % 4 {
        0 => &[],
        1 => &[(1.0, -1.0)],
        2 => &[(1.0, 1.0)],
        _ => &[(1.0, -1.0), (1.0, 1.0)],
    };
    for &direction in directions {
        hatch(d, r, direction, Stroke::solid(WHITE, 0.8));
    }
}

/// Parallel lines over `r`, on one grid for the whole page so that neighbours match.
pub fn hatch(d: &mut Drawing, r: Rect, (dx, dy): Point, stroke: Stroke) {
    let pitch = 5.0;
    // Lines are level sets of the coordinate across their direction.
    let across = |p: Point| p.0 * -dy + p.1 * dx;
    let corners = [(r.x, r.y), (r.right(), r.y), (r.x, r.bottom()), (r.right(), r.bottom())].map(across);
    let lo = corners.iter().fold(f64::INFINITY, |a, &b| a.min(b));
    let hi = corners.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
    let reach = r.w + r.h;
    let (cx, cy) = r.centre();
    for k in (lo / pitch).ceil() as i64..=(hi / pitch).floor() as i64 {
        let off = (k as f64 * pitch - across((cx, cy))) / (dx * dx + dy * dy);
        let (px, py) = (cx - dy * off, cy + dx * off);
        let ends = ((px - reach * dx, py - reach * dy), (px + reach * dx, py + reach * dy));
        if let Some((a, b)) = clip_segment(ends.0, ends.1, r) {
            d.line(a, b, stroke);
        }
    }
}

/// A colour scale from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ramp {
    /// Dark to bright, even steps for the eye (matplotlib's, CC0).
    Viridis,
    /// White to dark blue: zero is the paper.
    Blues,
}

const VIRIDIS: [[u8; 3]; 17] = [
    [68, 1, 84],
    [72, 24, 106],
    [71, 45, 123],
    [66, 64, 134],
    [59, 82, 139],
    [51, 99, 141],
    [44, 114, 142],
    [38, 130, 142],
    [33, 145, 140],
    [31, 160, 136],
    [40, 174, 128],
    [63, 188, 115],
    [94, 201, 98],
    [132, 212, 75],
    [173, 220, 48],
    [216, 226, 25],
    [253, 231, 37],
];
const BLUES: [[u8; 3]; 5] = [[255, 255, 255], [190, 218, 236], [86, 164, 209], [0, 114, 178], [0, 58, 98]];

impl Ramp {
    pub fn at(self, t: f64) -> Colour {
        if t.is_nan() {
            return MISSING;
        }
        let stops: &[[u8; 3]] = match self {
            Ramp::Viridis => &VIRIDIS,
            Ramp::Blues => &BLUES,
        };
        let place = t.clamp(0.0, 1.0) * (stops.len() - 1) as f64;
        let i = (place as usize).min(stops.len() - 2);
        let f = place - i as f64;
        let mix = |c: usize| (f64::from(stops[i][c]) * (1.0 - f) + f64::from(stops[i + 1][c]) * f).round() as u8;
        rgb(mix(0), mix(1), mix(2))
    }
}
