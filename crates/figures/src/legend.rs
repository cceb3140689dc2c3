//! Legends: in a corner that holds no data, or else above the data.

use super::axes::{PAD, SMALL};
use super::font::{self, CAP, LEADING};
use super::palette::{self, GRID, INK, WHITE};
use super::scene::{Anchor, Drawing, Paint, Point, Rect, Stroke, clip_segment};

/// What stands beside a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Key {
    /// The line and marker of a series.
    Line(usize),
    /// The marker of a series.
    Dot(usize),
    /// The filled area of a series.
    Bar(usize),
    /// The line that is not data.
    Reference,
    /// A hatched area.
    Gap,
}

const KEY: f64 = 22.0;
const AFTER_KEY: f64 = 5.0;
const BETWEEN: f64 = 14.0;
const ROW: f64 = SMALL * LEADING + 1.5;

pub struct Legend {
    /// Key and name; rows of them.
    rows: Vec<Vec<(Key, String)>>,
    columns: Vec<f64>,
}

impl Legend {
    /// All in one column of at most `room` points.
    pub fn column(entries: &[(Key, String)], room: f64) -> Legend {
        Legend::with_columns(entries, 1, room)
    }

    /// In as many columns as `room` points hold.
    pub fn rows(entries: &[(Key, String)], room: f64) -> Legend {
        let fitting = (1..=entries.len()).rev().map(|n| Legend::with_columns(entries, n, room));
        let mut fitting = fitting.filter(|l| l.columns.len() == 1 || l.size().0 <= room);
        fitting.next().unwrap_or(Legend { rows: Vec::new(), columns: Vec::new() })
    }

    fn with_columns(entries: &[(Key, String)], columns: usize, room: f64) -> Legend {
        let name_room = room - KEY - AFTER_KEY;
        let entries: Vec<(Key, String)> =
            entries.iter().map(|(k, n)| (*k, font::shorten(n, SMALL, name_room))).collect();
        let rows: Vec<Vec<_>> = entries.chunks(columns).map(<[_]>::to_vec).collect();
        let width = |c: usize| font::widest(rows.iter().filter_map(|r| r.get(c)).map(|e| &e.1), SMALL);
        let columns = (0..columns).map(|c| KEY + AFTER_KEY + width(c)).collect();
        Legend { rows, columns }
    }

    pub fn size(&self) -> (f64, f64) {
        let between = BETWEEN * self.columns.len().saturating_sub(1) as f64;
        (self.columns.iter().sum::<f64>() + between, ROW * self.rows.len() as f64)
    }

    /// The corner of `plot` where the legend keeps clear of `data`, if there is one.
    pub fn free_corner(&self, plot: Rect, data: &Obstacles) -> Option<Rect> {
        let (w, h) = self.size();
        let inset = 5.0;
        let (left, right) = (plot.x + inset + 2.0, plot.right() - w - inset);
        let (top, bottom) = (plot.y + inset, plot.bottom() - h - inset);
        if w + 2.0 * inset > 0.6 * plot.w || h + 2.0 * inset > 0.6 * plot.h {
            return None;
        }
        let places = [(right, top), (right, bottom), (left, top), (left, bottom)];
        places.map(|(x, y)| Rect { x, y, w, h }).into_iter().find(|r| !data.touch(r.grow(4.0)))
    }

    /// Draw at `place`, found among the data: a white box keeps the grid away.
    pub fn draw_in(&self, d: &mut Drawing, place: Rect) {
        d.rect(place.grow(3.0), Paint { stroke: Some(Stroke::solid(GRID, 0.5)), ..Paint::fill(WHITE) });
        self.draw(d, (place.x, place.y));
    }

    /// Draw with the upper left corner at `at`.
    pub fn draw(&self, d: &mut Drawing, at: Point) {
        for (i, row) in self.rows.iter().enumerate() {
            let y = at.1 + ROW * (i as f64 + 0.5);
            let mut x = at.0;
            for ((key, name), width) in row.iter().zip(&self.columns) {
                draw_key(d, *key, (x, y));
                d.text(name, (x + KEY + AFTER_KEY, y + SMALL * CAP / 2.0), SMALL, Anchor::Start, 0.0, INK);
                x += width + BETWEEN;
            }
        }
    }

    /// The room above the data.
    pub fn reserve(&self) -> f64 {
        if self.rows.is_empty() { 0.0 } else { self.size().1 + PAD }
    }
}

fn draw_key(d: &mut Drawing, key: Key, (x, y): Point) {
    let swatch = Rect { x, y: y - 3.5, w: KEY, h: 7.0 };
    match key {
        Key::Line(i) => {
            d.line((x, y), (x + KEY, y), palette::series_stroke(i));
            palette::marker(d, i, (x + KEY / 2.0, y));
        }
        Key::Dot(i) => palette::marker(d, i, (x + KEY / 2.0, y)),
        Key::Bar(i) => palette::hatched(d, i, swatch),
        Key::Reference => d.line((x, y), (x + KEY, y), palette::reference()),
        Key::Gap => palette::gap(d, swatch),
    }
}

/// What a legend must not cover.
#[derive(Default)]
pub struct Obstacles {
    pub lines: Vec<Vec<Point>>,
    pub areas: Vec<Vec<Point>>,
}

impl Obstacles {
    pub fn touch(&self, r: Rect) -> bool {
        let crosses = |points: &[Point]| points.windows(2).any(|p| clip_segment(p[0], p[1], r).is_some());
        let dot = |points: &[Point]| points.len() == 1 && clip_segment(points[0], points[0], r).is_some();
        self.lines.iter().any(|l| crosses(l) || dot(l))
            || self.areas.iter().any(|a| crosses(a) || contains(a, r.centre()))
    }
}

/// Whether `p` lies inside the polygon (even-odd).
fn contains(polygon: &[Point], p: Point) -> bool {
    let mut inside = false;
    for (i, a) in polygon.iter().enumerate() {
        let b = polygon[(i + 1) % polygon.len()];
        if (a.1 > p.1) != (b.1 > p.1) && p.0 < (b.0 - a.0) * (p.1 - a.1) / (b.1 - a.1) + a.0 {
            inside = !inside;
        }
    }
    inside
}
