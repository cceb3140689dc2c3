//! Text as outlines of the embedded font: measuring, breaking, and the shapes of glyphs.

use std::sync::LazyLock;

use ttf_parser::{Face, GlyphId, OutlineBuilder};

use super::scene::Segment;

static FACE: LazyLock<Face<'static>> = LazyLock::new(|| {
    // Only a broken build can fail here; every test that draws text would show it.
    Face::parse(include_bytes!("../assets/figures-sans.ttf"), 0).expect("the embedded font")
});

/// Height of capitals and digits, in ems.
pub const CAP: f64 = 0.729;
/// Depth below the baseline, in ems.
pub const DESCENT: f64 = 0.236;
/// Height of accented capitals, parentheses and ascenders above the baseline, in ems.
pub const ASCENT: f64 = 0.83;
/// From baseline to baseline, in ems.
pub const LEADING: f64 = 1.25;

/// The glyphs of `text` with their places, in font units.
fn glyphs(text: &str) -> (Vec<(GlyphId, f64)>, f64) {
    let mut x = 0.0;
    let mut before: Option<GlyphId> = None;
    let mut out = Vec::new();
    for c in text.chars() {
        let glyph = FACE.glyph_index(c).unwrap_or(GlyphId(0));
        x += before.map_or(0.0, |b| kerning(b, glyph));
        out.push((glyph, x));
        x += f64::from(FACE.glyph_hor_advance(glyph).unwrap_or(0));
        before = Some(glyph);
    }
    (out, x)
}

fn kerning(left: GlyphId, right: GlyphId) -> f64 {
    let tables = FACE.tables().kern.into_iter().flat_map(|k| k.subtables);
    let horizontal = tables.filter(|t| t.horizontal && !t.variable && !t.has_state_machine);
    horizontal.filter_map(|t| t.glyphs_kerning(left, right)).map(f64::from).sum()
}

/// Units per em.
pub fn em() -> f64 {
    f64::from(FACE.units_per_em())
}

/// How wide `text` is at `size` points.
pub fn width(text: &str, size: f64) -> f64 {
    glyphs(text).1 / em() * size
}

/// The widest of `texts`.
pub fn widest<S: AsRef<str>>(texts: impl IntoIterator<Item = S>, size: f64) -> f64 {
    texts.into_iter().map(|t| width(t.as_ref(), size)).fold(0.0, f64::max)
}

/// The outline of `text` in font units, y upwards, starting at the origin.
pub fn outline(text: &str) -> Vec<Segment> {
    struct Pen(Vec<Segment>, f64);
    impl Pen {
        fn at(&self, x: f32, y: f32) -> (f64, f64) {
            (f64::from(x) + self.1, f64::from(y))
        }
    }
    impl OutlineBuilder for Pen {
        fn move_to(&mut self, x: f32, y: f32) {
            self.0.push(Segment::Move(self.at(x, y)));
        }
        fn line_to(&mut self, x: f32, y: f32) {
            self.0.push(Segment::Line(self.at(x, y)));
        }
        fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
            self.0.push(Segment::Quad(self.at(x1, y1), self.at(x, y)));
        }
        fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
            self.0.push(Segment::Cubic(self.at(x1, y1), self.at(x2, y2), self.at(x, y)));
        }
        fn close(&mut self) {
            self.0.push(Segment::Close);
        }
    }
    let mut pen = Pen(Vec::new(), 0.0);
    for (glyph, x) in glyphs(text).0 {
        pen.1 = x;
        FACE.outline_glyph(glyph, &mut pen);
    }
    pen.0
}

/// `text` in one line: what does not print becomes a space.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// `text`, or as much of it as fits in `room` points, with an ellipsis.
pub fn shorten(text: &str, size: f64, room: f64) -> String {
    let text = clean(text);
    if width(&text, size) <= room {
        return text;
    }
    let chars: Vec<char> = text.chars().collect();
    // Width grows with length up to kerning, so a binary search is exact enough; the last check is not.
    let fits = |n: usize| width(&shortened(&chars[..n]), size) <= room;
    let (mut lo, mut hi) = (0, chars.len());
    while lo + 1 < hi {
        let mid = (lo + hi) / 2;
        if fits(mid) { lo = mid } else { hi = mid }
    }
    if fits(lo) { shortened(&chars[..lo]) } else { String::new() }
}

fn shortened(chars: &[char]) -> String {
    let kept: String = chars.iter().collect();
    format!("{}…", kept.trim_end())
}

/// `text` broken between words into at most `lines` lines of `room` points, about equally long; what does not fit ends in
/// an ellipsis. No-break spaces hold words together.
pub fn wrap(text: &str, size: f64, room: f64, lines: usize) -> Vec<String> {
    let text = clean(text);
    let least = fill(&text, size, room);
    if least.len() > lines || least.iter().any(|l| width(l, size) > room) {
        let mut out = least;
        if out.len() > lines {
            let rest = out.split_off(lines.saturating_sub(1)).join(" ");
            out.push(rest);
        }
        return out.into_iter().map(|l| shorten(&l, size, room)).collect();
    }
    // The narrowest column that needs no more lines.
    let (mut lo, mut hi) = (0.0, room);
    while hi - lo > 0.5 {
        let mid = (lo + hi) / 2.0;
        let lines = fill(&text, size, mid);
        if lines.len() <= least.len() && lines.iter().all(|l| width(l, size) <= mid) { hi = mid } else { lo = mid }
    }
    fill(&text, size, hi)
}

/// As many words on each line as fit.
fn fill(text: &str, size: f64, room: f64) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for word in text.split_ascii_whitespace() {
        match out.last_mut() {
            Some(last) if width(&format!("{last} {word}"), size) <= room => {
                last.push(' ');
                last.push_str(word);
            }
            _ => out.push(word.to_string()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sign_the_project_writes_has_a_glyph() {
        for c in "AZaz09 ᾱαβεθμπστφ−×·≤≥≈±∞√∑∏→⁰¹²³⁴⁵⁶⁷⁸⁹⁻₀₁₂…–—’“”✓✗°%éöüßčž".chars()
        {
            assert!(FACE.glyph_index(c).is_some(), "{c}");
        }
    }

    #[test]
    fn digits_have_one_width_and_pairs_are_kerned() {
        assert!((width("111", 10.0) - width("808", 10.0)).abs() < 1e-9);
        assert!(width("AV", 10.0) < width("A", 10.0) + width("V", 10.0));
        // The font's own number: a digit advances 1303 of 2048 units.
        assert_eq!(width("0", 2048.0), 1303.0);
    }

    #[test]
    fn long_text_is_broken_then_shortened() {
        let text = "the quick brown fox jumps over the lazy dog";
        let two = wrap(text, 8.0, 80.0, 2);
        assert_eq!(two.len(), 2);
        assert!(two[1].ends_with('…') && two.iter().all(|l| width(l, 8.0) <= 80.0), "{two:?}");
        assert_eq!(wrap(text, 8.0, 1e4, 2), [text]);
        assert_eq!(wrap("ImageNet, 64\u{a0}×\u{a0}64 is", 8.0, 70.0, 2), ["ImageNet,", "64\u{a0}×\u{a0}64 is"]);
        assert_eq!(wrap("unbreakable".repeat(9).as_str(), 8.0, 60.0, 3).len(), 1);
        assert_eq!(shorten("abc", 8.0, 1.0), "");
        assert!(wrap(" \n", 8.0, 60.0, 3).is_empty());
    }
}
