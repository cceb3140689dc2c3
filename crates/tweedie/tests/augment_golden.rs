//! Every augmentation against Pillow, torchvision and timm. `reference/golden.py augment` makes the expected values.

use serde_json::Value;
use std::io::Read;
use tweedie::augment::geometry::{random_crop_rect, resized_crop};
use tweedie::augment::{Address, AugmentConfig, Draw, Erase, Interpolation, Op, Rect, Stream, Transform};
use tweedie::data::Image;

struct Golden {
    index: Value,
    blob: Vec<u8>,
}

impl Golden {
    fn load() -> Golden {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
        let index = serde_json::from_str(&std::fs::read_to_string(format!("{folder}/golden.json")).unwrap()).unwrap();
        let mut blob = Vec::new();
        let file = std::fs::File::open(format!("{folder}/golden.bin.gz")).unwrap();
        flate2::read::GzDecoder::new(file).read_to_end(&mut blob).unwrap();
        Golden { index, blob }
    }

    fn bytes(&self, at: &Value, width: usize) -> &[u8] {
        let n: u64 = at["shape"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).product();
        &self.blob[at["at"].as_u64().unwrap() as usize..][..n as usize * width]
    }

    fn image(&self, at: &Value) -> Image {
        let dim = |i: usize| at["shape"][i].as_u64().unwrap() as usize;
        Image { height: dim(0), width: dim(1), channels: dim(2), data: self.bytes(at, 1).to_vec() }
    }

    fn floats(&self, at: &Value) -> Vec<f32> {
        self.bytes(at, 4).chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    fn list(&self, key: &str) -> &Vec<Value> {
        self.index[key].as_array().unwrap()
    }
}

fn op(name: &Value) -> Op {
    Op::ALL.into_iter().find(|o| format!("{o:?}") == name.as_str().unwrap()).unwrap()
}

fn filter(name: &Value) -> Interpolation {
    if name == "bilinear" { Interpolation::Bilinear } else { Interpolation::Bicubic }
}

/// Largest and mean difference in levels.
fn difference(a: &Image, b: &Image) -> (u8, f64) {
    assert_eq!((a.width, a.height, a.channels), (b.width, b.height, b.channels));
    let each = a.data.iter().zip(&b.data).map(|(a, b)| a.abs_diff(*b));
    (each.clone().max().unwrap(), each.map(f64::from).sum::<f64>() / a.data.len() as f64)
}

#[test]
fn magnitudes_become_timms_arguments() {
    let golden = Golden::load();
    for case in golden.list("levels") {
        let got = op(&case[0]).argument(case[1].as_f64().unwrap(), case[2].as_bool().unwrap());
        assert!((got - case[3].as_f64().unwrap()).abs() < 1e-12, "{case}: {got}");
    }
    assert_eq!(golden.list("levels").len(), 15 * 7 * 2);
}

/// Equal to the bit, all fifteen ops.
#[test]
fn ops_equal_pillow() {
    let golden = Golden::load();
    let small = golden.image(&golden.index["small"]);
    let mut tested = Vec::new();
    for case in golden.list("ops") {
        let mut got = small.clone();
        op(&case[0]).apply(&mut got, case[1].as_f64().unwrap(), filter(&case[2]), &[124, 116, 104]);
        assert_eq!(difference(&got, &golden.image(&case[3])), (0, 0.0), "{case}");
        tested.push(op(&case[0]));
    }
    assert!(Op::ALL.iter().all(|o| tested.contains(o)));
}

#[test]
fn ops_equal_pillow_on_grey_images() {
    let golden = Golden::load();
    let grey = golden.image(&golden.index["grey"]);
    assert_eq!(golden.image(&golden.index["small"]).into_channels(1), grey);
    for case in golden.list("grey_ops") {
        let mut got = grey.clone();
        op(&case[0]).apply(&mut got, case[1].as_f64().unwrap(), Interpolation::Bicubic, &[100]);
        assert_eq!(difference(&got, &golden.image(&case[2])), (0, 0.0), "{case}");
    }
}

/// Filter weights have fewer bits here than in Pillow: one level apart at most, and rarely.
#[test]
fn resized_crops_agree_with_pillow() {
    let golden = Golden::load();
    let large = golden.image(&golden.index["large"]);
    for case in golden.list("crops") {
        let n = |i: usize, j: usize| case[i][j].as_u64().unwrap() as usize;
        let rect = Rect { x: n(0, 0), y: n(0, 1), width: n(0, 2), height: n(0, 3) };
        let got = resized_crop(&large, rect, n(1, 0), n(1, 1), filter(&case[2]));
        let (most, mean) = difference(&got, &golden.image(&case[3]));
        assert!(most <= 1 && mean < 0.05, "{case}: {most} {mean}");
    }
}

/// Resize, centre crop and normalisation together; one level is 1/255 over the smallest deviation, 0.224.
#[test]
fn evaluation_agrees_with_timm() {
    let golden = Golden::load();
    for case in golden.list("evals") {
        let image = golden.image(&golden.index[case[0].as_str().unwrap()]);
        let config = AugmentConfig { crop_pct: case[2].as_f64().unwrap(), ..AugmentConfig::imagenet() };
        let transform = Transform::eval(&config, case[1].as_u64().unwrap() as usize, 3).unwrap();
        let mut got = vec![0.0; transform.values()];
        transform.apply(image, Address { seed: 0, epoch: 0, example: 0 }, &mut got);
        let want = golden.floats(&case[3]);
        let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let equal = got.iter().zip(&want).filter(|(a, b)| (*a - *b).abs() < 1e-6).count();
        assert!(worst < 1.01 / 255.0 / 0.224, "{case}: {worst}");
        assert!(equal as f64 > 0.99 * got.len() as f64, "{case}: {equal} of {}", got.len());
    }
}

/// A line of pixels, far longer than wide, is evaluated on its middle in reasonable memory.
#[test]
fn slivers_are_evaluated_in_the_middle() {
    let data = (0..30_000).flat_map(|x| [if (14_900..15_100).contains(&x) { 200 } else { 0 }; 3]).collect();
    let image = Image { width: 30_000, height: 1, channels: 3, data };
    let transform = Transform::eval(&AugmentConfig::imagenet(), 224, 3).unwrap();
    let seen = transform.preview(image, Address { seed: 0, epoch: 0, example: 0 });
    assert!(seen.data.len() == 224 * 224 * 3 && seen.data.iter().all(|&v| v == 200));
}

/// The distribution of a draw against timm's quantiles: the share below each must match it. Both sides are samples, of
/// 200,000 and 40,000; five standard errors are 0.014 at most, and ties (whole pixels) are counted half.
fn check_quantiles(name: &str, mut values: Vec<f64>, quantiles: &Value) {
    values.sort_by(f64::total_cmp);
    for (i, q) in quantiles[name].as_array().unwrap().iter().enumerate() {
        let (q, want) = (q.as_f64().unwrap(), 0.05 * (i + 1) as f64);
        let below = values.partition_point(|v| *v < q) as f64 / values.len() as f64;
        let upto = values.partition_point(|v| *v <= q) as f64 / values.len() as f64;
        assert!(below - 0.014 <= want && want <= upto + 0.014, "{name}: {want} against {below} to {upto}");
    }
}

#[test]
fn random_crops_are_distributed_as_timms() {
    let golden = Golden::load();
    let rects: Vec<Rect> = (0..40_000)
        .map(|i| {
            let draw = &mut Draw::new(3, Stream::Augment, 0, i);
            random_crop_rect(draw, 500, 375, [0.08, 1.0], [3.0 / 4.0, 4.0 / 3.0])
        })
        .collect();
    let all = |f: fn(&Rect) -> usize| rects.iter().map(|r| f(r) as f64).collect::<Vec<_>>();
    let quantiles = &golden.index["crop_quantiles"];
    check_quantiles("x", all(|r| r.x), quantiles);
    check_quantiles("y", all(|r| r.y), quantiles);
    check_quantiles("width", all(|r| r.width), quantiles);
    check_quantiles("height", all(|r| r.height), quantiles);
    assert!(rects.iter().all(|r| r.x + r.width <= 500 && r.y + r.height <= 375));
}

/// A sliver that no crop of allowed ratio fits into falls back to the centre.
#[test]
fn slivers_are_cropped_in_the_middle() {
    let draw = &mut Draw::new(3, Stream::Augment, 0, 0);
    let ratio = [3.0 / 4.0, 4.0 / 3.0];
    let high = random_crop_rect(draw, 20, 4000, [0.5, 1.0], ratio);
    assert_eq!(high, Rect { x: 0, y: (4000 - 27) / 2, width: 20, height: 27 });
    let wide = random_crop_rect(draw, 4000, 20, [0.5, 1.0], ratio);
    assert_eq!(wide, Rect { x: (4000 - 27) / 2, y: 0, width: 27, height: 20 });
}

#[test]
fn erased_rectangles_are_distributed_as_timms() {
    let golden = Golden::load();
    assert_eq!(golden.index["erase_missed"], 0.0);
    let erase = Erase { prob: 1.0, ..Erase::default() };
    let rects: Vec<Rect> =
        (0..40_000).map(|i| erase.rect(&mut Draw::new(4, Stream::Augment, 0, i), 224, 224).unwrap()).collect();
    let all = |f: fn(&Rect) -> usize| rects.iter().map(|r| f(r) as f64).collect::<Vec<_>>();
    let quantiles = &golden.index["erase_quantiles"];
    check_quantiles("x", all(|r| r.x), quantiles);
    check_quantiles("y", all(|r| r.y), quantiles);
    check_quantiles("width", all(|r| r.width), quantiles);
    check_quantiles("height", all(|r| r.height), quantiles);
}

/// Lossless files decode to the same bits as in Pillow. JPEG and lossy WebP decoders differ in rounding and in how they
/// widen the colour planes: the bounds are a few levels.
#[test]
fn files_decode_as_in_pillow() {
    let golden = Golden::load();
    for case in golden.list("files") {
        let name = case[0].as_str().unwrap();
        let got = Image::decode(golden.bytes(&case[1], 1)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (most, mean) = difference(&got, &golden.image(&case[2]));
        let (bound, mean_bound) = match name {
            "base.jpeg" | "progressive.jpeg" => (8, 0.6),
            "full.jpeg" | "grey.jpeg" => (3, 0.4),
            "cmyk.jpeg" => (8, 0.6),
            "lossy.webp" => (8, 0.6),
            _ => (0, 0.0),
        };
        assert!(most <= bound && mean <= mean_bound, "{name}: {most} {mean}");
    }
}

#[test]
fn a_cut_off_file_is_an_error() {
    let golden = Golden::load();
    for case in golden.list("files") {
        let bytes = golden.bytes(&case[1], 1);
        for keep in [bytes.len() * 2 / 3, 20, 3, 0] {
            assert!(Image::decode(&bytes[..keep]).is_err(), "{} cut at {keep}", case[0]);
        }
    }
}
