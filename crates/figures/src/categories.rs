//! Names under or beside the cells of an axis without numbers: level, on two lines, slanted or thinned until none touch.

use super::axes::{PAD, SMALL};
use super::font::{self, CAP, LEADING};
use super::palette::INK;
use super::scene::{Anchor, Drawing, Rect};

const BELOW: f64 = 5.0;
const SLANT: f64 = -45.0;
/// The longest slanted or sideways name, in points.
const LONGEST: f64 = 90.0;

/// Names along the lower edge.
pub struct Below {
    every: usize,
    first: usize,
    slanted: bool,
    /// The lines of the names that are shown.
    names: Vec<Vec<String>>,
}

/// Every name, every second, fifth, tenth …
fn strides() -> impl Iterator<Item = usize> {
    (0..).flat_map(|e| [1, 2, 5].map(|m| m * 10_usize.pow(e))).take(24)
}

/// Where to begin with every `every`th name: numbers at a multiple, others at the first.
fn first(names: &[String], every: usize) -> usize {
    let round = |n: &String| n.parse::<i64>().is_ok_and(|v| v % every as i64 == 0);
    names.iter().take(every).position(round).unwrap_or(0)
}

impl Below {
    /// For cells `pitch` wide that begin at `left` on the page.
    pub fn fit(names: &[String], pitch: f64, left: f64) -> Below {
        let names: Vec<String> = names.iter().map(|n| font::clean(n)).collect();
        let short = names.iter().all(|n| n.chars().count() <= 4);
        for every in strides() {
            let first = first(&names, every);
            let shown: Vec<&String> = names.iter().skip(first).step_by(every).collect();
            let room = pitch * every as f64 - 4.0;
            let lines: Vec<Vec<String>> = shown.iter().map(|n| font::wrap(n, SMALL, room, 2)).collect();
            let whole = |n: &str, l: &[String]| l.join(" ") == n.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
            let level = shown.iter().zip(&lines).all(|(n, l)| whole(n, l));
            if level || shown.len() <= 1 {
                return Below { every, first, slanted: false, names: lines };
            }
            // Neighbours at 45° are apart by the pitch over √2.
            if !short && pitch * every as f64 >= 1.45 * SMALL * LEADING {
                // A name ends at its cell and may reach back to the edge of the page.
                let end = |i: usize| left + pitch * ((first + i * every) as f64 + 0.5);
                let room = |i: usize| ((end(i) - PAD) * 2f64.sqrt() - 8.0).min(LONGEST);
                let names = shown.iter().enumerate().map(|(i, n)| vec![font::shorten(n, SMALL, room(i))]).collect();
                return Below { every, first, slanted: true, names };
            }
        }
        Below { every: 1, first: 0, slanted: false, names: Vec::new() }
    }

    pub fn height(&self) -> f64 {
        let lines = self.names.iter().map(Vec::len).max().unwrap_or(0);
        if lines == 0 {
            return 0.0;
        }
        let wide = font::widest(self.names.iter().flatten(), SMALL);
        BELOW + if self.slanted { (wide + SMALL) * 0.5f64.sqrt() } else { SMALL * (CAP + LEADING * (lines - 1) as f64) }
    }

    pub fn draw(&self, d: &mut Drawing, plot: Rect, cells: usize) {
        let pitch = plot.w / cells.max(1) as f64;
        for (i, lines) in self.names.iter().enumerate() {
            let x = plot.x + pitch * ((self.first + i * self.every) as f64 + 0.5);
            let y = plot.bottom() + BELOW;
            for (l, line) in lines.iter().enumerate() {
                if self.slanted {
                    d.text(line, (x + 2.5, y + SMALL * CAP * 0.7), SMALL, Anchor::End, SLANT, INK);
                } else {
                    let y = y + SMALL * (CAP + LEADING * l as f64);
                    // Where names are thinned, the outer ones hang over the ends.
                    let half = font::width(line, SMALL) / 2.0;
                    let x = x.min(d.width - PAD - half).max(PAD + half);
                    d.text(line, (x, y), SMALL, Anchor::Middle, 0.0, INK);
                }
            }
        }
    }
}

/// Names along the left edge.
pub struct Beside {
    names: Vec<String>,
}

impl Beside {
    pub fn fit(names: &[String], room: f64) -> Beside {
        Beside { names: names.iter().map(|n| font::shorten(n, SMALL, room.min(LONGEST))).collect() }
    }

    pub fn width(&self) -> f64 {
        font::widest(&self.names, SMALL) + BELOW
    }

    pub fn draw(&self, d: &mut Drawing, plot: Rect) {
        let pitch = plot.h / self.names.len().max(1) as f64;
        let every = strides().find(|k| *k as f64 * pitch >= SMALL * if *k == 1 { 1.2 } else { 1.6 }).unwrap_or(1);
        let first = first(&self.names, every);
        for (i, name) in self.names.iter().enumerate().skip(first).step_by(every) {
            let y = plot.y + pitch * (i as f64 + 0.5) + SMALL * CAP / 2.0;
            d.text(name, (plot.x - BELOW, y), SMALL, Anchor::End, 0.0, INK);
        }
    }
}
