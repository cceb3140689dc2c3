//! Pictures with labelled lines of text beside them: captions, and how they come about.

use super::axes::{PAD, SMALL, draw_title, title_height, title_lines};
use super::font::{self, ASCENT, DESCENT, LEADING};
use super::palette::{BLUE, Colour, GREEN, GREY, GRID, INK, VERMILION};
use super::scene::{Anchor, Drawing, Paint, Picture, Rect, Stroke};
use super::{Result, data_error};

/// Panels in columns.
#[derive(Clone, Debug, Default)]
pub struct PanelsSpec {
    /// Above the figure, and what a screen reader says.
    pub title: String,
    /// Panels side by side; 0 is one.
    pub columns: usize,
    /// Row by row.
    pub panels: Vec<Panel>,
    /// In points; otherwise 520.
    pub width: Option<f64>,
    /// Side of a picture in points; otherwise 72.
    pub side: Option<f64>,
}

/// A picture and its lines.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// On the left.
    pub picture: Picture,
    /// Beside it, from top to bottom.
    pub lines: Vec<PanelLine>,
}

/// A label and words behind it.
#[derive(Clone, Debug, Default)]
pub struct PanelLine {
    /// Who or what speaks.
    pub label: String,
    /// What is said, word by word.
    pub words: Vec<(String, Tone)>,
}

/// How a word looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing to say about it.
    #[default]
    Plain,
    /// Not yet what it will be.
    Faint,
    /// What is being talked about.
    Marked,
    /// As it should be.
    Right,
    /// Not as it should be.
    Wrong,
}

impl PanelLine {
    /// A text of one tone.
    pub fn new(label: impl Into<String>, text: &str, tone: Tone) -> PanelLine {
        let words = text.split_whitespace().map(|w| (w.to_string(), tone)).collect();
        PanelLine { label: label.into(), words }
    }
}

impl Tone {
    fn colour(self) -> Colour {
        match self {
            Tone::Plain => INK,
            // Light enough to differ from ink in print, dark enough to be read: 4.7 to 1 on white.
            Tone::Faint => Colour { rgb: [116, 116, 116], alpha: 1.0 },
            Tone::Marked => BLUE,
            // Darker than the palette's, which is for areas and thick lines.
            Tone::Right => darker(GREEN),
            Tone::Wrong => darker(VERMILION),
        }
    }
}

fn darker(c: Colour) -> Colour {
    Colour { rgb: c.rgb.map(|v| (f64::from(v) * 0.75) as u8), ..c }
}

const BETWEEN: f64 = 12.0;
const GAP: f64 = 7.0;
const LINE: f64 = SMALL * LEADING;
/// Extra room between two labelled lines.
const APART: f64 = 1.5;

/// A word, its place on its line, and how it looks.
type Placed = (String, f64, Tone);

pub fn draw(spec: &PanelsSpec) -> Result<Drawing> {
    let figure = spec.title.as_str();
    if spec.panels.is_empty() {
        return Err(data_error(figure, "it has no pictures"));
    }
    if let Some(fault) = spec.panels.iter().find_map(|p| p.picture.fault()) {
        return Err(data_error(figure, fault));
    }
    let (width, side) = (spec.width.unwrap_or(520.0), spec.side.unwrap_or(72.0));
    let columns = spec.columns.clamp(1, spec.panels.len());
    let panel = (width - 2.0 * PAD - BETWEEN * (columns - 1) as f64) / columns as f64;
    let labels = font::widest(spec.panels.iter().flat_map(|p| p.lines.iter().map(|l| font::clean(&l.label))), SMALL);
    let room = panel - side - 2.0 * GAP - labels;
    if !(room >= 60.0 && width < 5000.0 && side > 0.0) {
        return Err(data_error(figure, format!("{columns} panels do not fit in {width} points")));
    }
    let broken: Vec<Vec<Vec<Vec<Placed>>>> =
        spec.panels.iter().map(|p| p.lines.iter().map(|l| break_words(&l.words, room)).collect()).collect();
    let text_height = |lines: &Vec<Vec<Vec<Placed>>>| {
        let rows: usize = lines.iter().map(|l| l.len().max(1)).sum();
        SMALL * (ASCENT + DESCENT) + LINE * rows.saturating_sub(1) as f64 + APART * lines.len().saturating_sub(1) as f64
    };
    let title = title_lines(figure, width);
    let mut y = title_height(&title) + 2.0;
    let tops: Vec<f64> = broken
        .chunks(columns)
        .map(|row| {
            let top = y;
            y += row.iter().map(text_height).fold(side, f64::max) + BETWEEN;
            top
        })
        .collect();

    let mut d = Drawing::new(width, (y - BETWEEN + PAD).ceil(), figure);
    draw_title(&mut d, &title, PAD);
    for (i, p) in spec.panels.iter().enumerate() {
        let (x, top) = (PAD + (i % columns) as f64 * (panel + BETWEEN), tops[i / columns]);
        if i >= columns && i % columns == 0 {
            let above = top - BETWEEN / 2.0;
            d.line((PAD, above), (width - PAD, above), Stroke::solid(GRID, 0.6));
        }
        draw_picture(&mut d, &p.picture, Rect { x, y: top, w: side, h: side });
        let label_end = x + side + GAP + labels;
        let mut baseline = top + SMALL * ASCENT;
        for (line, rows) in p.lines.iter().zip(&broken[i]) {
            d.text(&font::clean(&line.label), (label_end, baseline), SMALL, Anchor::End, 0.0, Tone::Faint.colour());
            for (k, row) in rows.iter().enumerate() {
                for (word, at, tone) in row {
                    let place = (label_end + GAP + at, baseline + LINE * k as f64);
                    d.text(word, place, SMALL, Anchor::Start, 0.0, tone.colour());
                }
            }
            baseline += LINE * rows.len().max(1) as f64 + APART;
        }
    }
    Ok(d)
}

/// Rows of words, each of them with its place.
fn break_words(words: &[(String, Tone)], room: f64) -> Vec<Vec<Placed>> {
    let space = font::width(" ", SMALL);
    let (mut rows, mut x): (Vec<Vec<Placed>>, f64) = (Vec::new(), f64::INFINITY);
    for (word, tone) in words {
        let word = font::shorten(word, SMALL, room);
        let w = font::width(&word, SMALL);
        if x + w > room {
            rows.push(Vec::new());
            x = 0.0;
        }
        if let Some(row) = rows.last_mut() {
            row.push((word, x, *tone));
        }
        x += w + space;
    }
    rows
}

fn draw_picture(d: &mut Drawing, picture: &Picture, cell: Rect) {
    let (w, h) = (picture.width as f64, picture.height as f64);
    let scale = (cell.w / w).min(cell.h / h);
    let place = Rect { w: w * scale, h: h * scale, ..cell };
    d.image(picture.clone(), place);
    d.rect(place, Paint::stroke(Stroke::solid(GREY, 0.5)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(text: &str) -> Panel {
        let picture = Picture { width: 2, height: 1, channels: 1, pixels: vec![0, 255] };
        Panel { picture, lines: vec![PanelLine::new("people", text, Tone::Plain)] }
    }

    #[test]
    fn words_stay_in_their_column() {
        let text = "a rather long caption of many words ".repeat(5);
        let line = PanelLine::new("", &text, Tone::Plain);
        let rows = break_words(&line.words, 100.0);
        assert!(rows.len() > 5);
        for row in &rows {
            let (word, x, _) = row.last().unwrap();
            assert!(x + font::width(word, SMALL) <= 100.0);
        }
        assert_eq!(rows.iter().map(Vec::len).sum::<usize>(), 35);
        // A word that is too long by itself is shortened.
        let rows = break_words(&[("w".repeat(99), Tone::Plain)], 60.0);
        assert!(rows.len() == 1 && rows[0][0].0.ends_with('…'));
    }

    #[test]
    fn the_page_grows_with_its_text() {
        let of = |texts: &[&str], columns| {
            let panels = texts.iter().map(|t| panel(t)).collect();
            draw(&PanelsSpec { title: "t".into(), columns, panels, ..PanelsSpec::default() }).unwrap()
        };
        let long = "word ".repeat(400);
        assert!(of(&[&long], 1).height > of(&["word"], 1).height);
        assert_eq!(of(&["a", "b"], 2).height, of(&["a"], 1).height);
        assert!(draw(&PanelsSpec::default()).is_err());
        assert!(draw(&PanelsSpec { columns: 9, panels: vec![panel("a"); 9], ..PanelsSpec::default() }).is_err());
    }
}
