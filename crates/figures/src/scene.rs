//! The drawing: shapes on a white page, in points, y downwards.

use super::font;
use super::palette::Colour;

pub type Point = (f64, f64);

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rect {
    pub x: f64,
    pub y: f64,
    pub w: f64,
    pub h: f64,
}

impl Rect {
    pub fn right(&self) -> f64 {
        self.x + self.w
    }

    pub fn bottom(&self) -> f64 {
        self.y + self.h
    }

    pub fn centre(&self) -> Point {
        (self.x + self.w / 2.0, self.y + self.h / 2.0)
    }

    /// The rectangle with `by` more on every side.
    pub fn grow(&self, by: f64) -> Rect {
        Rect { x: self.x - by, y: self.y - by, w: self.w + 2.0 * by, h: self.h + 2.0 * by }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Segment {
    Move(Point),
    Line(Point),
    Quad(Point, Point),
    Cubic(Point, Point, Point),
    Close,
}

#[derive(Clone, Copy, Debug)]
pub struct Stroke {
    pub colour: Colour,
    pub width: f64,
    /// Lengths of dashes and gaps; empty is solid.
    pub dash: &'static [f64],
}

impl Stroke {
    pub fn solid(colour: Colour, width: f64) -> Stroke {
        Stroke { colour, width, dash: &[] }
    }
}

/// How a shape is painted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paint {
    pub fill: Option<Colour>,
    pub stroke: Option<Stroke>,
    /// Edges snap to pixels: no seams between neighbours.
    pub crisp: bool,
}

impl Paint {
    pub fn fill(colour: Colour) -> Paint {
        Paint { fill: Some(colour), ..Paint::default() }
    }

    pub fn stroke(stroke: Stroke) -> Paint {
        Paint { stroke: Some(stroke), ..Paint::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Clone, Debug)]
pub struct Text {
    pub text: String,
    /// Where the anchor lies on the baseline.
    pub at: Point,
    pub size: f64,
    pub anchor: Anchor,
    /// Degrees clockwise.
    pub angle: f64,
    pub colour: Colour,
}

impl Text {
    /// How far left of the anchor the text begins, before it is turned.
    pub fn shift(&self) -> f64 {
        let w = font::width(&self.text, self.size);
        match self.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => w / 2.0,
            Anchor::End => w,
        }
    }
}

/// An image of 8-bit gray (`channels` 1) or RGB (3) pixels, row by row.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// Pixels in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Values of a pixel: 1 or 3.
    pub channels: usize,
    /// `width * height * channels` values.
    pub pixels: Vec<u8>,
}

impl Picture {
    /// What is wrong with it, if anything.
    pub fn fault(&self) -> Option<String> {
        let (w, h, c) = (self.width, self.height, self.channels);
        if w == 0 || h == 0 || !(c == 1 || c == 3) {
            return Some(format!("an image of {w} × {h} pixels with {c} channels (1 and 3 can be drawn)"));
        }
        let need = w.checked_mul(h).and_then(|n| n.checked_mul(c));
        (need != Some(self.pixels.len()))
            .then(|| format!("an image of {w} × {h} × {c} has {} values", self.pixels.len()))
    }
}

#[derive(Clone, Debug)]
pub enum Shape {
    Path(Vec<Segment>, Paint),
    Text(Text),
    Image(Picture, Rect),
}

impl Shape {
    /// The shape, so many points further down.
    fn lowered(self, by: f64) -> Shape {
        let low = |(x, y): Point| (x, y + by);
        let segment = |s: Segment| match s {
            Segment::Move(p) => Segment::Move(low(p)),
            Segment::Line(p) => Segment::Line(low(p)),
            Segment::Quad(a, p) => Segment::Quad(low(a), low(p)),
            Segment::Cubic(a, b, p) => Segment::Cubic(low(a), low(b), low(p)),
            Segment::Close => Segment::Close,
        };
        match self {
            Shape::Path(path, paint) => Shape::Path(path.into_iter().map(segment).collect(), paint),
            Shape::Text(text) => Shape::Text(Text { at: low(text.at), ..text }),
            Shape::Image(picture, place) => Shape::Image(picture, Rect { y: place.y + by, ..place }),
        }
    }
}

/// A finished figure. [`svg`](Drawing::svg) and [`png`](Drawing::png) give the same picture.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// Points.
    pub width: f64,
    /// Points.
    pub height: f64,
    /// What a screen reader says.
    pub title: String,
    pub(super) shapes: Vec<Shape>,
}

impl Drawing {
    pub(super) fn new(width: f64, height: f64, title: &str) -> Drawing {
        Drawing { width, height, title: title.to_string(), shapes: Vec::new() }
    }

    /// Figures one below the other, as one picture.
    pub fn stacked(title: &str, figures: Vec<Drawing>) -> Drawing {
        let width = figures.iter().map(|f| f.width).fold(0.0, f64::max);
        let height = figures.iter().map(|f| f.height).sum();
        let mut all = Drawing::new(width, height, title);
        let mut top = 0.0;
        for figure in figures {
            all.shapes.extend(figure.shapes.into_iter().map(|s| s.lowered(top)));
            top += figure.height;
        }
        all
    }

    pub(super) fn path(&mut self, segments: Vec<Segment>, paint: Paint) {
        self.shapes.push(Shape::Path(segments, paint));
    }

    pub(super) fn polyline(&mut self, points: &[Point], stroke: Stroke) {
        if points.len() > 1 {
            self.path(segments(points, false), Paint::stroke(stroke));
        }
    }

    pub(super) fn polygon(&mut self, points: &[Point], paint: Paint) {
        if points.len() > 2 {
            self.path(segments(points, true), paint);
        }
    }

    pub(super) fn line(&mut self, a: Point, b: Point, stroke: Stroke) {
        self.polyline(&[a, b], stroke);
    }

    pub(super) fn rect(&mut self, r: Rect, paint: Paint) {
        self.polygon(&[(r.x, r.y), (r.right(), r.y), (r.right(), r.bottom()), (r.x, r.bottom())], paint);
    }

    pub(super) fn circle(&mut self, (x, y): Point, r: f64, paint: Paint) {
        let k = 0.552_284_75 * r; // a quarter circle as a cubic
        let quarters = [
            ((x + k, y - r), (x + r, y - k), (x + r, y)),
            ((x + r, y + k), (x + k, y + r), (x, y + r)),
            ((x - k, y + r), (x - r, y + k), (x - r, y)),
            ((x - r, y - k), (x - k, y - r), (x, y - r)),
        ];
        let mut path = vec![Segment::Move((x, y - r))];
        path.extend(quarters.map(|(a, b, c)| Segment::Cubic(a, b, c)));
        path.push(Segment::Close);
        self.path(path, paint);
    }

    pub(super) fn text(&mut self, text: &str, at: Point, size: f64, anchor: Anchor, angle: f64, colour: Colour) {
        if !text.is_empty() {
            self.shapes.push(Shape::Text(Text { text: font::clean(text), at, size, anchor, angle, colour }));
        }
    }

    pub(super) fn image(&mut self, picture: Picture, place: Rect) {
        self.shapes.push(Shape::Image(picture, place));
    }
}

fn segments(points: &[Point], closed: bool) -> Vec<Segment> {
    let first = points.first().map(|&p| Segment::Move(p));
    let rest = points.iter().skip(1).map(|&p| Segment::Line(p));
    first.into_iter().chain(rest).chain(closed.then_some(Segment::Close)).collect()
}

/// The part of a segment inside `r` (Liang and Barsky).
pub fn clip_segment(a: Point, b: Point, r: Rect) -> Option<(Point, Point)> {
    let (dx, dy) = (b.0 - a.0, b.1 - a.1);
    let (mut t0, mut t1) = (0.0_f64, 1.0_f64);
    for (p, q) in [(-dx, a.0 - r.x), (dx, r.right() - a.0), (-dy, a.1 - r.y), (dy, r.bottom() - a.1)] {
        if p == 0.0 {
            if q < 0.0 {
                return None;
            }
        } else if p < 0.0 {
            t0 = t0.max(q / p);
        } else {
            t1 = t1.min(q / p);
        }
    }
    let at = |t: f64| (a.0 + t * dx, a.1 + t * dy);
    if t0 <= t1 { Some((at(t0), at(t1))) } else { None }
}

/// The parts of a polyline inside `r`.
pub fn clip_polyline(points: &[Point], r: Rect) -> Vec<Vec<Point>> {
    let mut parts: Vec<Vec<Point>> = Vec::new();
    for pair in points.windows(2) {
        let Some((a, b)) = clip_segment(pair[0], pair[1], r) else { continue };
        match parts.last_mut() {
            Some(part) if part.last() == Some(&a) => part.push(b),
            _ => parts.push(vec![a, b]),
        }
    }
    parts
}

/// The part of a polygon inside `r` (Sutherland and Hodgman).
pub fn clip_polygon(points: &[Point], r: Rect) -> Vec<Point> {
    let mut out = points.to_vec();
    // Signed distances to the four edges, positive inside.
    let edges: [&dyn Fn(Point) -> f64; 4] =
        [&|p| p.0 - r.x, &|p| r.right() - p.0, &|p| p.1 - r.y, &|p| r.bottom() - p.1];
    for inside in edges {
        let from = std::mem::take(&mut out);
        for (i, &b) in from.iter().enumerate() {
            let a = from[(i + from.len() - 1) % from.len()];
            let (da, db) = (inside(a), inside(b));
            if (da >= 0.0) != (db >= 0.0) {
                let t = da / (da - db);
                out.push((a.0 + t * (b.0 - a.0), a.1 + t * (b.1 - a.1)));
            }
            if db >= 0.0 {
                out.push(b);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: Rect = Rect { x: 0.0, y: 0.0, w: 1.0, h: 1.0 };

    #[test]
    fn lines_end_at_the_edge() {
        assert_eq!(clip_segment((-1.0, 0.5), (2.0, 0.5), UNIT), Some(((0.0, 0.5), (1.0, 0.5))));
        assert_eq!(clip_segment((-1.0, 2.0), (2.0, 2.0), UNIT), None);
        // Out through the top and back in: two parts.
        let parts = clip_polyline(&[(0.0, 0.5), (0.5, 1.5), (1.0, 0.5)], UNIT);
        assert_eq!(parts, [vec![(0.0, 0.5), (0.25, 1.0)], vec![(0.75, 1.0), (1.0, 0.5)]]);
    }

    #[test]
    fn polygons_end_at_the_edge() {
        let area = |p: &[Point]| {
            let n = p.len();
            (0..n).map(|i| p[i].0 * p[(i + 1) % n].1 - p[(i + 1) % n].0 * p[i].1).sum::<f64>().abs() / 2.0
        };
        let big = [(-1.0, -1.0), (2.0, -1.0), (2.0, 2.0), (-1.0, 2.0)];
        assert_eq!(area(&clip_polygon(&big, UNIT)), 1.0);
        // A triangle with its right angle at the origin and legs of 2: the unit square is cut in no corner.
        assert_eq!(area(&clip_polygon(&[(0.0, 0.0), (2.0, 0.0), (0.0, 2.0)], UNIT)), 1.0);
        assert_eq!(area(&clip_polygon(&[(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)], UNIT)), 0.5);
        assert!(clip_polygon(&[(2.0, 2.0), (3.0, 2.0), (2.0, 3.0)], UNIT).is_empty());
    }
}
