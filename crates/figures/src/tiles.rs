//! Image grids: samples with what was predicted for them.

use super::axes::{PAD, SMALL, draw_title, title_height, title_lines};
use super::font::{self, ASCENT, DESCENT, LEADING};
use super::palette::{GREEN, GREY, INK, VERMILION};
use super::scene::{Anchor, Drawing, Paint, Picture, Rect, Stroke};
use super::{Result, data_error};

/// Small images in rows.
#[derive(Clone, Debug, Default)]
pub struct TilesSpec {
    /// Above the figure, and what a screen reader says.
    pub title: String,
    /// Images in a row; 0 chooses.
    pub columns: usize,
    /// Lines of a caption; 0 for two.
    pub lines: usize,
    /// Row by row.
    pub tiles: Vec<Tile>,
    /// In points; otherwise 360.
    pub width: Option<f64>,
}

/// An image and what is said of it.
#[derive(Clone, Debug, Default)]
pub struct Tile {
    /// The image.
    pub picture: Picture,
    /// Below it.
    pub caption: String,
    /// Right: a solid green border and ✓. Wrong: a dashed red border and ✗.
    pub right: Option<bool>,
}

const BETWEEN: f64 = 8.0;
const BORDER: f64 = 1.8;

pub fn draw(spec: &TilesSpec) -> Result<Drawing> {
    let figure = spec.title.as_str();
    if spec.tiles.is_empty() {
        return Err(data_error(figure, "it has no images"));
    }
    if let Some(fault) = spec.tiles.iter().find_map(|t| t.picture.fault()) {
        return Err(data_error(figure, fault));
    }
    let width = spec.width.unwrap_or(360.0);
    let columns = match spec.columns {
        0 => spec.tiles.len().min(6),
        n => n.min(spec.tiles.len()),
    };
    let side = (width - 2.0 * PAD - BETWEEN * (columns - 1) as f64) / columns as f64;
    if !(side >= 20.0 && width < 5000.0) {
        return Err(data_error(figure, format!("{columns} images do not fit in {width} points")));
    }
    let side = side.min(120.0);
    let captions: Vec<Vec<String>> = spec.tiles.iter().map(|t| caption(t, side, spec.lines)).collect();
    let title = title_lines(figure, width);
    let mut y = title_height(&title) + 2.0;
    let rows: Vec<(f64, f64)> = captions
        .chunks(columns)
        .map(|row| {
            let lines = row.iter().map(Vec::len).max().unwrap_or(0);
            let text = if lines == 0 { 0.0 } else { 4.0 + SMALL * (ASCENT + DESCENT + LEADING * (lines - 1) as f64) };
            let top = y;
            y += side + text + BETWEEN;
            (top, text)
        })
        .collect();

    let mut d = Drawing::new(width, (y - BETWEEN + PAD).ceil(), figure);
    draw_title(&mut d, &title, PAD);
    for (i, tile) in spec.tiles.iter().enumerate() {
        let (top, _) = rows[i / columns];
        let cell = Rect { x: PAD + (i % columns) as f64 * (side + BETWEEN), y: top, w: side, h: side };
        draw_tile(&mut d, tile, cell);
        for (l, line) in captions[i].iter().enumerate() {
            let y = cell.bottom() + 4.0 + SMALL * (ASCENT + LEADING * l as f64);
            d.text(line, (cell.centre().0, y), SMALL, Anchor::Middle, 0.0, INK);
        }
    }
    Ok(d)
}

fn caption(tile: &Tile, side: f64, lines: usize) -> Vec<String> {
    let mark = match tile.right {
        Some(true) => "✓ ",
        Some(false) => "✗ ",
        None => "",
    };
    font::wrap(&format!("{mark}{}", tile.caption), SMALL, side + BETWEEN - 3.0, if lines == 0 { 2 } else { lines })
}

fn draw_tile(d: &mut Drawing, tile: &Tile, cell: Rect) {
    let stroke = match tile.right {
        Some(true) => Stroke::solid(GREEN, BORDER),
        Some(false) => Stroke { colour: VERMILION, width: BORDER, dash: &[4.0, 2.0] },
        None => Stroke::solid(GREY, 0.5),
    };
    // The image keeps its shape. It reaches under a solid border, and leaves a dashed one on white.
    let room = cell.grow(if stroke.dash.is_empty() { -BORDER / 2.0 } else { -BORDER });
    let (w, h) = (tile.picture.width as f64, tile.picture.height as f64);
    let scale = (room.w / w).min(room.h / h);
    let (cx, cy) = cell.centre();
    let place = Rect { x: cx - w * scale / 2.0, y: cy - h * scale / 2.0, w: w * scale, h: h * scale };
    d.image(tile.picture.clone(), place);
    d.rect(cell.grow(-BORDER / 2.0), Paint::stroke(stroke));
}
