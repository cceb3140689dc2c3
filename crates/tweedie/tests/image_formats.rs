//! Every kind of image file against what Pillow sees in it, and files that claim more than they hold.

use std::fs;
use std::path::{Path, PathBuf};

use tweedie::Image;
use tweedie::data::{Dataset, Fingerprint, images_below};
use tweedie::image::FileFormat;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images")
}

/// Files with what Pillow sees in each.
fn cases() -> Vec<(String, Vec<u8>, Image)> {
    let all = fs::read_dir(folder()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let want = |name: &str| folder().join(format!("{name}.png"));
    let named = all.filter(|n| want(n).is_file());
    let mut cases: Vec<_> =
        named.map(|n| (n.clone(), fs::read(folder().join(&n)).unwrap(), Image::open(want(&n)).unwrap())).collect();
    cases.sort_by(|a, b| a.0.cmp(&b.0));
    cases
}

/// JPEG decoders differ in rounding by a few levels; everything else is the same to the last bit, and stands as Pillow's
/// `exif_transpose` puts it.
#[test]
fn files_are_seen_as_by_pillow() {
    let cases = cases();
    assert_eq!(cases.len(), 30);
    for (name, bytes, want) in cases {
        let got = Image::decode(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((got.width, got.height), (want.width, want.height), "{name}");
        let most = got.data.iter().zip(&want.data).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(most <= if name.ends_with("jpg") { 4 } else { 0 }, "{name} differs by {most}");
    }
}

/// A reader who needs the upper rows alone gets those that are on top when the picture stands upright.
#[test]
fn the_top_of_a_turned_picture_is_its_top() {
    for (name, bytes, _) in cases() {
        let (all, top) = (Image::decode(&bytes).unwrap(), Image::decode_top(&bytes, &|_, _| 3).unwrap());
        assert_eq!((top.width, top.height), (all.width, all.height), "{name}");
        assert_eq!(top.data[..3 * 3 * all.width], all.data[..3 * 3 * all.width], "{name}");
    }
}

#[test]
fn spoilt_files_are_errors_and_never_panics() {
    for (name, bytes, _) in cases() {
        for keep in [bytes.len() / 2, 20, 3, 0] {
            let _ = Image::decode(&bytes[..keep]).map(|i| i.check().unwrap());
        }
        assert!(Image::decode(&bytes[..20]).is_err(), "{name}");
        let mut state = 1_u32;
        for _ in 0..300 {
            let mut spoilt = bytes.clone();
            for _ in 0..3 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (state >> 8) as usize % spoilt.len();
                spoilt[at] = state as u8;
            }
            let _ = Image::decode(&spoilt).map(|i| i.check().unwrap());
        }
    }
}

#[test]
fn headers_that_claim_too_much_are_refused_before_memory_is_taken() {
    let read = |name: &str| fs::read(folder().join(name)).unwrap();
    let e = |bytes: &[u8]| Image::decode(bytes).unwrap_err();
    let mut gif = read("palette.gif");
    gif[6..10].copy_from_slice(&[0, 0x60, 0, 0x20]); // 24,576 x 8,192
    assert!(e(&gif).contains("TWEEDIE_MAX_PIXELS"), "{}", e(&gif));
    gif[6..10].copy_from_slice(&[0, 0x20, 0, 0x20]);
    assert!(e(&gif).contains("cut off"), "{}", e(&gif));
    let mut bmp = read("rgb.bmp");
    bmp[18..26].copy_from_slice(&[0, 0x20, 0, 0, 0, 0x20, 0, 0]);
    assert!(e(&bmp).contains("cut off"), "{}", e(&bmp));
    bmp[18..26].copy_from_slice(&[0, 0x60, 0, 0, 0, 0x60, 0, 0]);
    assert!(e(&bmp).contains("TWEEDIE_MAX_PIXELS"), "{}", e(&bmp));
}

#[test]
fn what_is_no_image_is_said_so() {
    assert_eq!(FileFormat::of(b"BMW is a car"), None);
    assert!(Image::decode(b"no image").unwrap_err().contains("it begins with 6e 6f 20 69"));
    assert!(Image::decode(b"\0\0\0\x18ftypheic").unwrap_err().contains("HEIC"));
}

/// A data set takes them all, and a picture that a camera turned is upright there too.
#[test]
fn a_folder_of_all_kinds_is_a_data_set() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["palette.gif", "rgb.bmp", "lzw.tiff", "held-6.jpg"];
    for class in ["a", "b"] {
        fs::create_dir(dir.path().join(class)).unwrap();
        for name in names {
            fs::copy(folder().join(name), dir.path().join(class).join(name)).unwrap();
        }
    }
    fs::rename(dir.path().join("a/lzw.tiff"), dir.path().join("a/LZW.TIF")).unwrap();
    assert_eq!(images_below(dir.path()).unwrap().len(), 8);
    let set = Dataset::open(dir.path()).unwrap();
    let train = set.train().unwrap();
    let held: usize = set.val.as_ref().map_or(0, |val| val.len());
    assert_eq!(train.len() + held, 8);
    let all = [Some(train), set.val.as_ref()].into_iter().flatten();
    let images = all.flat_map(|s| (0..s.len()).map(|i| s.get(i).unwrap().image));
    assert_eq!(images.filter(|i| (i.width, i.height) == (16, 24)).count(), 2, "those held sideways");
    assert!(Fingerprint::of_classes(&set).changes(&Fingerprint::of_classes(&set)).is_empty());
}
