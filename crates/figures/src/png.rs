//! A drawing as PNG.

use tiny_skia::{
    Color, FillRule, FilterQuality, Paint as Ink, PathBuilder, Pattern, Pixmap, PremultipliedColorU8, SpreadMode,
    Stroke as Pen, StrokeDash, Transform,
};

use super::font;
use super::palette::Colour;
use super::scene::{Drawing, Paint, Picture, Rect, Segment, Shape, Text};
use super::{Error, Result};

/// The longest side that is drawn, in pixels: more is a mistake in the scale.
const LONGEST: f64 = 20_000.0;

impl Drawing {
    /// The drawing as a PNG of `scale` pixels per point (1 is 72 dots per inch).
    pub fn png(&self, scale: f64) -> Result<Vec<u8>> {
        let (w, h) = ((self.width * scale).round(), (self.height * scale).round());
        if !(w >= 1.0 && h >= 1.0 && w <= LONGEST && h <= LONGEST) {
            return Err(Error::Png(format!("it would have {w} × {h} pixels")));
        }
        let mut page =
            Pixmap::new(w as u32, h as u32).ok_or_else(|| Error::Png(format!("no memory for {w} × {h} pixels")))?;
        page.fill(Color::WHITE);
        let base = Transform::from_scale((w / self.width) as f32, (h / self.height) as f32);
        for shape in &self.shapes {
            match shape {
                Shape::Path(segments, paint) => path(&mut page, segments, paint, base),
                Shape::Text(t) => text(&mut page, t, base),
                Shape::Image(picture, place) => image(&mut page, picture, *place, base),
            }
        }
        // The page is opaque, so its colours are as they were painted.
        let rgb: Vec<u8> = page.pixels().iter().flat_map(|p| [p.red(), p.green(), p.blue()]).collect();
        let per_metre = (scale * 72.0 / 0.0254).round() as u32;
        encode(w as u32, h as u32, 3, &rgb, Some(per_metre)).map_err(|e| Error::Png(e.to_string()))
    }
}

/// `picture` as a PNG of its own; empty if its sizes do not agree (they are checked where pictures come in).
pub fn encode_picture(picture: &Picture) -> Vec<u8> {
    encode(picture.width as u32, picture.height as u32, picture.channels, &picture.pixels, None).unwrap_or_default()
}

fn encode(
    w: u32,
    h: u32,
    channels: usize,
    data: &[u8],
    per_metre: Option<u32>,
) -> std::result::Result<Vec<u8>, png::EncodingError> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, w, h);
    encoder.set_color(if channels == 1 { png::ColorType::Grayscale } else { png::ColorType::Rgb });
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_pixel_dims(per_metre.map(|n| png::PixelDimensions { xppu: n, yppu: n, unit: png::Unit::Meter }));
    let mut writer = encoder.write_header()?;
    writer.write_image_data(data)?;
    writer.finish()?;
    Ok(out)
}

fn path(page: &mut Pixmap, segments: &[Segment], paint: &Paint, transform: Transform) {
    let mut builder = PathBuilder::new();
    for segment in segments {
        let f = |p: (f64, f64)| (p.0 as f32, p.1 as f32);
        match *segment {
            Segment::Move(a) => builder.move_to(f(a).0, f(a).1),
            Segment::Line(a) => builder.line_to(f(a).0, f(a).1),
            Segment::Quad(a, b) => builder.quad_to(f(a).0, f(a).1, f(b).0, f(b).1),
            Segment::Cubic(a, b, c) => builder.cubic_to(f(a).0, f(a).1, f(b).0, f(b).1, f(c).0, f(c).1),
            Segment::Close => builder.close(),
        }
    }
    let Some(path) = builder.finish() else { return }; // nothing but moves: an empty text
    if let Some(colour) = paint.fill {
        page.fill_path(&path, &ink(colour, !paint.crisp), FillRule::Winding, transform, None);
    }
    if let Some(stroke) = &paint.stroke {
        let dash = stroke.dash.iter().map(|d| *d as f32).collect();
        let pen = Pen {
            width: stroke.width as f32,
            line_join: tiny_skia::LineJoin::Round,
            dash: if stroke.dash.is_empty() { None } else { StrokeDash::new(dash, 0.0) },
            ..Pen::default()
        };
        page.stroke_path(&path, &ink(stroke.colour, !paint.crisp), &pen, transform, None);
    }
}

fn ink(c: Colour, anti_alias: bool) -> Ink<'static> {
    let mut ink = Ink { anti_alias, ..Ink::default() };
    ink.set_color_rgba8(c.rgb[0], c.rgb[1], c.rgb[2], (c.alpha.clamp(0.0, 1.0) * 255.0).round() as u8);
    ink
}

fn text(page: &mut Pixmap, t: &Text, base: Transform) {
    let scale = (t.size / font::em()) as f32;
    let place = base
        .pre_translate(t.at.0 as f32, t.at.1 as f32)
        .pre_rotate(t.angle as f32)
        .pre_translate(-t.shift() as f32, 0.0)
        .pre_scale(scale, -scale);
    path(page, &font::outline(&t.text), &Paint::fill(t.colour), place);
}

fn image(page: &mut Pixmap, picture: &Picture, place: Rect, base: Transform) {
    let Some(mut pixels) = Pixmap::new(picture.width as u32, picture.height as u32) else { return };
    for (to, from) in pixels.pixels_mut().iter_mut().zip(picture.pixels.chunks(picture.channels)) {
        let [r, g, b] = if let [r, g, b] = *from { [r, g, b] } else { [from[0]; 3] };
        *to = PremultipliedColorU8::from_rgba(r, g, b, 255).unwrap_or(*to); // opaque colours always exist
    }
    let scale = (place.w / picture.width as f64, place.h / picture.height as f64);
    let fit = Transform::from_row(scale.0 as f32, 0.0, 0.0, scale.1 as f32, place.x as f32, place.y as f32);
    let shader = Pattern::new(pixels.as_ref(), SpreadMode::Pad, FilterQuality::Nearest, 1.0, fit);
    let ink = Ink { shader, anti_alias: false, ..Ink::default() };
    let area = tiny_skia::Rect::from_xywh(place.x as f32, place.y as f32, place.w as f32, place.h as f32);
    if let Some(area) = area {
        page.fill_rect(area, &ink, base, None);
    }
}
