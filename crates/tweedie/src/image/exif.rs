//! How a camera was held: the Exif orientation of a file, and pictures turned by it.

use std::io::Cursor;

use ::exif::{In, Reader, Tag};

use super::Image;
use crate::guard::guarded;

/// The orientation of a picture that is stored as it is to be seen.
pub(super) const UPRIGHT: u32 = 1;

/// What the Exif data of a JPEG, PNG or WebP say, 1 to 8; 1 where they say nothing or cannot be read, as viewers do.
pub(super) fn orientation(bytes: &[u8]) -> u32 {
    let read = || {
        let found = Reader::new().continue_on_error(true).read_from_container(&mut Cursor::new(bytes));
        let data = found.or_else(|e| e.distill_partial_result(|_| ())).ok()?;
        data.get_field(Tag::Orientation, In::PRIMARY)?.value.get_uint(0)
    };
    guarded("the Exif reader", read).ok().flatten().filter(|o| (1..=8).contains(o)).unwrap_or(UPRIGHT)
}

/// A picture as it is to be seen, of one that is stored with this orientation; as it is where that is none of 2 to 8.
pub(super) fn turned(image: Image, orientation: u32) -> Image {
    let Image { width: w, height: h, channels, .. } = image;
    // Column and row in the file of what is to be seen at column x of row y.
    let from: fn(usize, usize, usize, usize) -> (usize, usize) = match orientation {
        2 => |x, y, w, _| (w - 1 - x, y),
        3 => |x, y, w, h| (w - 1 - x, h - 1 - y),
        4 => |x, y, _, h| (x, h - 1 - y),
        5 => |x, y, _, _| (y, x),
        6 => |x, y, _, h| (y, h - 1 - x),
        7 => |x, y, w, h| (w - 1 - y, h - 1 - x),
        8 => |x, y, w, _| (w - 1 - y, x),
        _ => return image,
    };
    let (width, height) = if orientation < 5 { (w, h) } else { (h, w) };
    let mut data = Vec::with_capacity(image.data.len());
    for y in 0..height {
        for x in 0..width {
            let (column, row) = from(x, y, w, h);
            data.extend_from_slice(&image.data[(row * w + column) * channels..][..channels]);
        }
    }
    Image { width, height, channels, data }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A letter F, which no turn or mirror leaves as it is: 3 columns, 4 rows.
    const UPRIGHT_F: [&str; 4] = ["###", "#..", "##.", "#.."];

    fn picture(rows: &[&str]) -> Image {
        let data = rows.iter().flat_map(|r| r.bytes()).flat_map(|b| [b, b, 7]).collect();
        Image::new(rows[0].len(), rows.len(), 3, data).unwrap()
    }

    /// What a camera stores of an upright F that carries each of the eight orientations, from the standard's table of which side of
    /// the scene is in row 0 and in column 0.
    #[test]
    fn all_eight_orientations_end_upright() {
        let stored: [&[&str]; 8] = [
            &["###", "#..", "##.", "#.."], // top, left
            &["###", "..#", ".##", "..#"], // top, right
            &["..#", ".##", "..#", "###"], // bottom, right
            &["#..", "##.", "#..", "###"], // bottom, left
            &["####", "#.#.", "#..."],     // left, top
            &["#...", "#.#.", "####"],     // right, top
            &["...#", ".#.#", "####"],     // right, bottom
            &["####", ".#.#", "...#"],     // left, bottom
        ];
        for (i, rows) in stored.iter().enumerate() {
            assert_eq!(turned(picture(rows), i as u32 + 1), picture(&UPRIGHT_F), "orientation {}", i + 1);
        }
        assert_eq!(turned(picture(&UPRIGHT_F), 9), picture(&UPRIGHT_F));
    }
}
