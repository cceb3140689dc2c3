//! A drawing as SVG: no ids, no scripts, no fonts; fit for a file and for the middle of an HTML page.

use std::fmt::Write;

use super::font;
use super::palette::Colour;
use super::png;
use super::scene::{Drawing, Paint, Picture, Segment, Shape, Text};

impl Drawing {
    /// The drawing as an `<svg>` element, which shrinks to the width of a page.
    pub fn svg(&self) -> String {
        let mut s = String::new();
        let (w, h) = (Number(self.width), Number(self.height));
        let title = escape(&self.title);
        // Writing to a String cannot fail, here and below.
        let _ = write!(
            s,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}pt\" height=\"{h}pt\" viewBox=\"0 0 {w} {h}\" \
             style=\"max-width:100%;height:auto\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n\
             <rect width=\"{w}\" height=\"{h}\" fill=\"#fff\"/>\n"
        );
        for shape in &self.shapes {
            match shape {
                Shape::Path(segments, paint) => {
                    s += "<path d=\"";
                    path(&mut s, segments);
                    s += "\"";
                    style(&mut s, paint);
                    s += "/>\n";
                }
                Shape::Text(t) => text(&mut s, t),
                Shape::Image(picture, r) => {
                    let _ = writeln!(
                        s,
                        "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" \
                         style=\"image-rendering:pixelated\" href=\"{}\"/>",
                        Number(r.x),
                        Number(r.y),
                        Number(r.w),
                        Number(r.h),
                        picture_uri(picture)
                    );
                }
            }
        }
        s + "</svg>\n"
    }
}

fn text(s: &mut String, t: &Text) {
    let scale = t.size / font::em();
    let _ = write!(
        s,
        "<path aria-label=\"{}\" transform=\"translate({} {})",
        escape(&t.text),
        Number(t.at.0),
        Number(t.at.1)
    );
    if t.angle != 0.0 {
        let _ = write!(s, " rotate({})", Number(t.angle));
    }
    if t.shift() != 0.0 {
        let _ = write!(s, " translate({} 0)", Number(-t.shift()));
    }
    let _ = write!(s, " scale({scale:.6} {:.6})\" d=\"", -scale);
    path(s, &font::outline(&t.text));
    s.push('"');
    style(s, &Paint::fill(t.colour));
    *s += "/>\n";
}

fn path(s: &mut String, segments: &[Segment]) {
    let mut point = |c: char, points: &[(f64, f64)]| {
        s.push(c);
        for (i, p) in points.iter().enumerate() {
            let _ = write!(s, "{}{} {}", if i > 0 { " " } else { "" }, Number(p.0), Number(p.1));
        }
    };
    for segment in segments {
        match *segment {
            Segment::Move(a) => point('M', &[a]),
            Segment::Line(a) => point('L', &[a]),
            Segment::Quad(a, b) => point('Q', &[a, b]),
            Segment::Cubic(a, b, c) => point('C', &[a, b, c]),
            Segment::Close => point('Z', &[]),
        }
    }
}

fn style(s: &mut String, paint: &Paint) {
    match paint.fill {
        Some(c) => colour(s, "fill", c),
        None => *s += " fill=\"none\"",
    }
    if let Some(stroke) = &paint.stroke {
        colour(s, "stroke", stroke.colour);
        let _ = write!(s, " stroke-width=\"{}\" stroke-linejoin=\"round\"", Number(stroke.width));
        if !stroke.dash.is_empty() {
            let dash: Vec<String> = stroke.dash.iter().map(|d| Number(*d).to_string()).collect();
            let _ = write!(s, " stroke-dasharray=\"{}\"", dash.join(" "));
        }
    }
    if paint.crisp {
        *s += " shape-rendering=\"crispEdges\"";
    }
}

fn colour(s: &mut String, what: &str, c: Colour) {
    let [r, g, b] = c.rgb;
    let _ = write!(s, " {what}=\"#{r:02x}{g:02x}{b:02x}\"");
    if c.alpha < 1.0 {
        let _ = write!(s, " {what}-opacity=\"{}\"", Number(c.alpha));
    }
}

/// Two decimals: a hundredth of a point is below any printer's dot.
struct Number(f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let text = format!("{:.2}", self.0);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        f.write_str(if text == "-0" { "0" } else { text })
    }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in font::clean(text).chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'), // not allowed in XML
            c => out.push(c),
        }
    }
    out
}

/// `picture` as a `data:` address, for pages without anything outside them.
pub fn picture_uri(picture: &Picture) -> String {
    format!("data:image/png;base64,{}", base64(&png::encode_picture(picture)))
}

fn base64(bytes: &[u8]) -> String {
    const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let sign = SIGNS[(group >> (18 - 6 * i) & 63) as usize];
            out.push(if i > chunk.len() { '=' } else { char::from(sign) });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_rfc_4648() {
        let cases =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")];
        for (from, to) in cases {
            assert_eq!(base64(from.as_bytes()), to);
        }
    }

    #[test]
    fn numbers_are_short() {
        let cases = [(0.0, "0"), (-0.001, "0"), (1.0, "1"), (100.0, "100"), (0.125, "0.12"), (-1.5, "-1.5")];
        for (from, to) in cases {
            assert_eq!(Number(from).to_string(), to);
        }
    }
}
