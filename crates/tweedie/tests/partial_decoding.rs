//! JPEGs decoded as far down as a crop looks: the same pixels as of the whole, and the same training images.

use std::fs;
use std::path::{Path, PathBuf};

use tweedie::augment::{Address, AugmentConfig, Crop, Transform};
use tweedie::data::Image;

fn fixtures() -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/jpeg");
    let paths = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<PathBuf> = paths.filter(|p| p.extension().is_some_and(|e| e == "jpg")).collect();
    all.sort();
    assert_eq!(all.len(), 7);
    all.into_iter().map(|p| (p.clone(), fs::read(p).unwrap())).collect()
}

#[test]
fn rows_that_are_needed_are_those_of_the_whole() {
    for (path, bytes) in fixtures() {
        let whole = Image::decode(&bytes).unwrap();
        let (w, h) = (whole.width, whole.height);
        assert_eq!((w, h), (61, 131));
        let mut black = 0;
        for rows in 0..=h {
            let part = Image::decode_top(&bytes, &|width, height| {
                assert_eq!((width, height), (w, h));
                rows
            })
            .unwrap();
            assert_eq!((part.width, part.height, part.data.len()), (w, h, w * h * 3));
            let n = rows * w * 3;
            assert!(part.data[..n] == whole.data[..n], "{}: {rows} rows", path.display());
            black += part.data[n..].iter().filter(|v| **v == 0).count();
        }
        // It does stop early, except where every pass goes over the whole image.
        let progressive = path.ends_with("progressive.jpg");
        assert!(progressive || black > 100 * w * h, "{}: {black}", path.display());
    }
}

#[test]
fn training_images_are_the_same() {
    let config = AugmentConfig {
        crop: Crop::Resized { scale: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0] },
        ..AugmentConfig::default()
    };
    let transform = Transform::train(&config, 32, 3).unwrap();
    for (path, bytes) in fixtures() {
        let mut shorter = 0;
        for example in 0..200 {
            let at = Address { seed: 5, epoch: 1, example };
            let (mut want, mut got) = (vec![0.0; transform.values()], vec![0.0; transform.values()]);
            transform.apply(Image::decode(&bytes).unwrap(), at, &mut want);
            let needed = |w, h| transform.rows_needed(w, h, at);
            shorter += usize::from(needed(61, 131) < 131);
            transform.apply(Image::decode_top(&bytes, &needed).unwrap(), at, &mut got);
            assert!(want == got, "{} {example}", path.display());
        }
        assert!(shorter > 50, "{shorter}");
    }
}
