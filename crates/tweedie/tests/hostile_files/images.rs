//! Images.

use super::*;

fn jpegs() -> Vec<Vec<u8>> {
    let files = fs::read_dir(fixture("jpeg")).unwrap().map(|e| e.unwrap().path());
    files.filter(|p| p.extension().is_some_and(|e| e == "jpg" || e == "jpeg")).map(|p| fs::read(p).unwrap()).collect()
}

fn webp() -> Vec<u8> {
    let mut out = Vec::new();
    let pixels: Vec<u8> = (0..24 * 16 * 3).map(|i| (i * 7 % 251) as u8).collect();
    image_webp::WebPEncoder::new(&mut out).encode(&pixels, 24, 16, image_webp::ColorType::Rgb8).unwrap();
    out
}

/// The place of a JPEG's height, which its width follows.
fn jpeg_size(bytes: &[u8]) -> usize {
    let mut at = 2;
    while !matches!(bytes[at + 1], 0xc0..=0xc2) {
        at += 2 + u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]) as usize;
    }
    at + 5
}

#[test]
fn images_that_claim_more_than_they_hold() {
    for mut jpeg in jpegs() {
        let at = jpeg_size(&jpeg);
        for (height, width, why) in [(32_000_u16, 32_000_u16, "TWEEDIE_MAX_PIXELS"), (9_000, 9_000, "cut off")] {
            jpeg[at..at + 2].copy_from_slice(&height.to_be_bytes());
            jpeg[at + 2..at + 4].copy_from_slice(&width.to_be_bytes());
            let e = soon("a JPEG", || Image::decode(&jpeg)).unwrap_err();
            assert!(e.contains(why), "{e}");
        }
    }
    // A PNG whose header tells of another size. The checksum of the header is made anew.
    let sized = |width: u32, height: u32| {
        let mut png = png(1);
        png[16..20].copy_from_slice(&width.to_be_bytes());
        png[20..24].copy_from_slice(&height.to_be_bytes());
        let mut crc = flate2::Crc::new();
        crc.update(&png[12..29]);
        png[29..33].copy_from_slice(&crc.sum().to_be_bytes());
        png
    };
    let e = Image::decode(&sized(30_000, 30_000)).unwrap_err();
    assert!(e.contains("900000000 pixels in an image") && e.contains("TWEEDIE_MAX_PIXELS"), "{e}");
    let e = Image::decode(&sized(9_000, 9_000)).unwrap_err();
    assert!(e.contains("cut off"), "{e}");
    // 16,383 pixels a side, in the header of a lossless WebP.
    let mut large = webp();
    large[21..25].copy_from_slice(&(0x0fff_ffff_u32 & !(1 | 1 << 14)).to_le_bytes());
    let e = Image::decode(&large).unwrap_err();
    assert!(e.contains("TWEEDIE_MAX_PIXELS"), "{e}");
    let size = 9_000_u32;
    large[21..25].copy_from_slice(&((size - 1) | (size - 1) << 14).to_le_bytes());
    let e = Image::decode(&large).unwrap_err();
    assert!(e.contains("claims 9000x9000 pixels"), "{e}");
}

#[test]
fn mutated_images_never_panic() {
    let mut random = Random(1);
    let mut all = jpegs();
    all.extend([png(7), webp()]);
    for image in &all {
        Image::decode(image).unwrap();
        for _ in 0..400 {
            let bytes = random.mutate(image);
            if let Ok(image) = soon("an image", || Image::decode(&bytes)) {
                image.check().unwrap();
            }
        }
    }
}

#[test]
fn an_image_file_may_be_no_device() {
    let e = Image::open("/dev/zero").unwrap_err().to_string();
    assert!(e.contains("not a regular file"), "{e}");
}
