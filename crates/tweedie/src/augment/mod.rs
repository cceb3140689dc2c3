//! From a decoded image to a normalised tensor: the paper's ImageNet recipe and a light one for small images, as timm and
//! PIL define them ([`Transform`]). Every random choice is a pure function of (seed, epoch, example).

pub mod color;
mod erase;
pub mod geometry;
mod mix;
mod rand_augment;

pub use erase::Erase;
pub use geometry::{Interpolation, Padding, Rect};
pub use mix::{Mix, MixConfig};
pub use rand_augment::{Op, RandAugment};

use crate::error::DataError;
use crate::image::Image;
use crate::limits::within;
pub use crate::random::{Address, Draw, Stream};
use serde::{Deserialize, Serialize};

/// Mean of ImageNet's red, green and blue values in [0, 1].
pub const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
/// Their standard deviation.
pub const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

/// Largest side, and border.
const MOST: usize = 1 << 16;

/// What becomes of an image's size in training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case", tag = "kind")]
pub enum Crop {
    /// A crop of random area and aspect ratio, resized: for photographs.
    Resized {
        /// Range of the crop's share of the image.
        #[serde(default = "imagenet_scale")]
        scale: [f64; 2],
        /// Range of width over height, log-uniform.
        #[serde(default = "imagenet_ratio")]
        ratio: [f64; 2],
    },
    /// A window of the padded image: for small images such as CIFAR's.
    Padded {
        /// Width of the border.
        #[serde(default = "cifar_pad")]
        pad: usize,
        /// What the border holds.
        #[serde(default = "zero_padding")]
        padding: Padding,
    },
    /// The same as in evaluation.
    Center,
}

fn imagenet_scale() -> [f64; 2] {
    [0.08, 1.0]
}
fn imagenet_ratio() -> [f64; 2] {
    [3.0 / 4.0, 4.0 / 3.0]
}
fn cifar_pad() -> usize {
    4
}
fn zero_padding() -> Padding {
    Padding::Zero
}

/// Settings of the whole path from image to tensor. The default is the paper's ImageNet recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AugmentConfig {
    /// Training crop.
    pub crop: Crop,
    /// Probability of a mirror image; 0 for digits and text.
    pub flip: f64,
    /// Colour and shape ops; `"none"` switches them off.
    pub rand_augment: RandAugment,
    /// Filter of every resize; timm's recipes for ViT use bicubic.
    pub interpolation: Interpolation,
    /// Filter inside RandAugment: timm draws one per op.
    pub op_interpolation: Interpolation,
    /// Random erasing.
    pub erase: Erase,
    /// Mixup and cutmix.
    pub mix: MixConfig,
    /// Evaluation resizes the shorter side to size / `crop_pct` and cuts out the centre. 0.875 shows what a network
    /// trained at 224 saw; 1.0 for small images, which fill their frame.
    pub crop_pct: f64,
    /// Subtracted from values in [0, 1]; empty: ImageNet's for colour, 0.5 for grey.
    pub mean: Vec<f32>,
    /// Divides what is left; empty: ImageNet's for colour, 0.5 for grey.
    pub std: Vec<f32>,
}

impl Default for AugmentConfig {
    fn default() -> AugmentConfig {
        AugmentConfig::imagenet()
    }
}

impl AugmentConfig {
    /// The paper's recipe: random-resized crop, flip, `rand-m9-mstd0.5-inc1`, erasing 0.25.
    pub fn imagenet() -> AugmentConfig {
        AugmentConfig {
            crop: Crop::Resized { scale: imagenet_scale(), ratio: imagenet_ratio() },
            flip: 0.5,
            rand_augment: RandAugment::PAPER,
            interpolation: Interpolation::Bicubic,
            op_interpolation: Interpolation::Random,
            erase: Erase::default(),
            mix: MixConfig::default(),
            crop_pct: 0.875,
            mean: vec![],
            std: vec![],
        }
    }

    /// For small images: a window of the image padded by 4 and a flip.
    pub fn light() -> AugmentConfig {
        AugmentConfig {
            crop: Crop::Padded { pad: 4, padding: Padding::Zero },
            rand_augment: RandAugment::NONE,
            erase: Erase { prob: 0.0, ..Erase::default() },
            crop_pct: 1.0,
            ..AugmentConfig::imagenet()
        }
    }

    /// Nothing random: training sees what evaluation sees.
    pub fn none() -> AugmentConfig {
        AugmentConfig { crop: Crop::Center, flip: 0.0, ..AugmentConfig::light() }
    }

    /// Mean and standard deviation that pixels in [0, 1] are normalised by, channel by channel.
    pub fn statistics(&self, channels: usize) -> Result<(Vec<f32>, Vec<f32>), DataError> {
        let pick = |name: &str, given: &[f32], color: [f32; 3]| match given.len() {
            0 if channels == 3 => Ok(color.to_vec()),
            0 => Ok(vec![0.5; channels]),
            1 => Ok(vec![given[0]; channels]),
            n if n == channels => Ok(given.to_vec()),
            n => Err(DataError::Setting(format!(
                "augmentation: `{name}` has {n} values and the images have {channels} channels; give 1 or {channels}"
            ))),
        };
        Ok((pick("mean", &self.mean, IMAGENET_MEAN)?, pick("std", &self.std, IMAGENET_STD)?))
    }

    /// Refuse values that make no sense, naming the field.
    pub(crate) fn check(&self) -> Result<(), DataError> {
        self.check_ranges().map_err(DataError::Setting)
    }

    fn check_ranges(&self) -> Result<(), String> {
        let range = |key: &str, [low, high]: [f64; 2], most: f64| {
            let wrong = || format!("{key} = [{low}, {high}] must be a range within (0, {most}], the lower end first");
            if low > 0.0 && low <= high && high <= most { Ok(()) } else { Err(wrong()) }
        };
        within("augment.flip", self.flip, 0.0..=1.0)?;
        within("augment.rand_augment: n", self.rand_augment.ops, 0..=100)?;
        within("augment.rand_augment: mstd", self.rand_augment.magnitude_std, 0.0..=1e3)?;
        within("augment.erase.prob", self.erase.prob, 0.0..=1.0)?;
        range("augment.erase.area", self.erase.area, 1.0)?;
        range("augment.erase.ratio", self.erase.ratio, 1e6)?;
        within("augment.crop_pct", self.crop_pct, 0.1..=1.0)?;
        within("augment.mix.prob", self.mix.prob, 0.0..=1.0)?;
        within("augment.mix.switch_prob", self.mix.switch_prob, 0.0..=1.0)?;
        within("augment.mix.mixup_alpha", self.mix.mixup_alpha, 0.0..=1e6)?;
        within("augment.mix.cutmix_alpha", self.mix.cutmix_alpha, 0.0..=1e6)?;
        self.mean.iter().try_for_each(|m| within("augment.mean", *m, -1e6..=1e6))?;
        self.std.iter().try_for_each(|s| within("augment.std", *s, 1e-6..=1e6))?;
        match self.crop {
            Crop::Resized { scale, ratio } => {
                range("augment.crop.scale", scale, 1.0)?;
                range("augment.crop.ratio", ratio, 1e6)
            }
            Crop::Padded { pad, .. } => within("augment.crop.pad", pad, 0..=4096),
            Crop::Center => Ok(()),
        }
    }
}

/// A ready path from image to tensor of a fixed size.
///
/// ```
/// use tweedie::augment::{Address, AugmentConfig, Transform};
/// use tweedie::image::Image;
///
/// let path = Transform::train(&AugmentConfig::light(), 32, 3)?;
/// let mut values = vec![0.0; path.values()];
/// let at = Address { seed: 0, epoch: 3, example: 7 }; // what is random depends on this alone
/// path.apply(Image::filled(40, 32, &[200, 100, 0]), at, &mut values);
/// # Ok::<(), tweedie::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Transform {
    config: AugmentConfig,
    train: bool,
    size: usize,
    channels: usize,
    fill: Vec<u8>,
    tables: Vec<[f32; 256]>,
}

impl Transform {
    /// The training path to `channels`×`size`×`size`.
    pub fn train(config: &AugmentConfig, size: usize, channels: usize) -> Result<Transform, DataError> {
        Transform::new(config, size, channels, true)
    }

    /// The evaluation path: resize, centre crop, normalise.
    pub fn eval(config: &AugmentConfig, size: usize, channels: usize) -> Result<Transform, DataError> {
        Transform::new(config, size, channels, false)
    }

    fn new(config: &AugmentConfig, size: usize, channels: usize, train: bool) -> Result<Transform, DataError> {
        config.check()?;
        if size == 0 || size > MOST || !(channels == 1 || channels == 3) {
            return Err(DataError::Setting(format!(
                "images of {size}x{size} with {channels} channels are not possible; a side has 1 to {MOST} pixels, and channels must be 1 or 3"
            )));
        }
        let (mean, std) = config.statistics(channels)?;
        let fill = mean.iter().map(|m| (255.0 * *m as f64).round_ties_even().clamp(0.0, 255.0) as u8).collect();
        let tables = mean.iter().zip(&std).map(|(m, s)| std::array::from_fn(|i| (i as f32 / 255.0 - m) / s)).collect();
        Ok(Transform { config: config.clone(), train, size, channels, fill, tables })
    }

    /// Side of the output.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Channels of the output.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Values of one output image.
    pub fn values(&self) -> usize {
        self.channels * self.size * self.size
    }

    /// The settings.
    pub fn config(&self) -> &AugmentConfig {
        &self.config
    }

    /// True for the training path.
    pub fn is_train(&self) -> bool {
        self.train
    }

    /// Rows at the top of an image of this size that [`Transform::apply`] looks at.
    pub fn rows_needed(&self, width: usize, height: usize, at: Address) -> usize {
        match self.config.crop {
            Crop::Resized { scale, ratio } if self.train => {
                let (width, height) = (width.max(1), height.max(1));
                let mut draw = Draw::new(at.seed, Stream::Augment, at.epoch, at.example);
                let rect = geometry::random_crop_rect(&mut draw, width, height, scale, ratio);
                rect.y + rect.height
            }
            _ => height,
        }
    }

    /// Write the image as (C, H, W) into `out`, which holds [`Transform::values`] numbers: of a shorter one what fits is
    /// written, of a longer one the rest is left alone. Something that is no image ([`Image::check`]) counts as black.
    pub fn apply(&self, image: Image, at: Address, out: &mut [f32]) {
        let values = self.values().min(out.len());
        let out = &mut out[..values];
        let (image, mut draw) = self.pixels(image, at);
        self.normalize(&image, out);
        if !self.train {
            return;
        }
        if let Some(rect) = self.config.erase.rect(&mut draw, self.size, self.size) {
            let noise = &mut Draw::new(at.seed, Stream::Erase, at.epoch, at.example);
            Erase::fill(out, self.size, self.size, rect, noise);
        }
    }

    /// The 8-bit image before normalisation, for a look at what the network sees (no erasing, no mixing).
    pub fn preview(&self, image: Image, at: Address) -> Image {
        self.pixels(image, at).0
    }

    fn pixels(&self, image: Image, at: Address) -> (Image, Draw) {
        let image = image.or_black().into_channels(self.channels);
        let mut draw = Draw::new(at.seed, Stream::Augment, at.epoch, at.example);
        if !self.train {
            return (self.eval_crop(image), draw);
        }
        let mut image = self.train_crop(image, &mut draw);
        if draw.chance(self.config.flip) {
            geometry::flip(&mut image);
        }
        self.config.rand_augment.apply(&mut image, &mut draw, self.config.op_interpolation, &self.fill);
        (image, draw)
    }

    fn train_crop(&self, image: Image, draw: &mut Draw) -> Image {
        match self.config.crop {
            Crop::Center => self.eval_crop(image),
            Crop::Resized { scale, ratio } => {
                let rect = geometry::random_crop_rect(draw, image.width, image.height, scale, ratio);
                let filter = self.config.interpolation.resolve(draw);
                let crop = geometry::resized_crop(&image, rect, self.size, self.size, filter);
                image.recycle();
                crop
            }
            Crop::Padded { pad, padding } => {
                let (y, x) = (draw.below(2 * pad + 1), draw.below(2 * pad + 1));
                let image =
                    if (image.width, image.height) == (self.size, self.size) { image } else { self.eval_crop(image) };
                geometry::padded_crop(&image, pad, x, y, self.size, padding)
            }
        }
    }

    fn eval_crop(&self, image: Image) -> Image {
        let short = ((self.size as f64 / self.config.crop_pct).floor() as usize).max(1);
        let part = geometry::central_part(image.width, image.height);
        let (width, height) = geometry::short_side_size(part.width, part.height, short);
        let filter = match self.config.interpolation {
            Interpolation::Bilinear => Interpolation::Bilinear,
            _ => Interpolation::Bicubic,
        };
        let image = if (width, height) == (image.width, image.height) {
            image
        } else {
            let resized = geometry::resized_crop(&image, part, width, height, filter);
            image.recycle();
            resized
        };
        if (width, height) == (self.size, self.size) { image } else { geometry::center_crop(&image, self.size) }
    }

    fn normalize(&self, image: &Image, out: &mut [f32]) {
        let plane = self.size * self.size;
        if let [table] = &self.tables[..] {
            out.iter_mut().zip(&image.data).for_each(|(o, &v)| *o = table[v as usize]);
            return;
        }
        let out_is_short = out.len() < 3 * plane;
        let (red, rest) = out.split_at_mut(plane.min(out.len()));
        let (green, blue) = rest.split_at_mut(plane.min(rest.len()));
        let pixels = image.data.as_chunks::<3>().0;
        if out_is_short {
            for (channel, plane) in [red, green, blue].into_iter().enumerate() {
                plane.iter_mut().zip(pixels).for_each(|(o, p)| *o = self.tables[channel][p[channel] as usize]);
            }
            return;
        }
        for (((p, r), g), b) in pixels.iter().zip(red).zip(green).zip(blue) {
            *r = self.tables[0][p[0] as usize];
            *g = self.tables[1][p[1] as usize];
            *b = self.tables[2][p[2] as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_and_strangers_are_refused() {
        for config in [AugmentConfig::imagenet(), AugmentConfig::light(), AugmentConfig::none()] {
            let text = serde_json::to_string(&config).unwrap();
            assert_eq!(serde_json::from_str::<AugmentConfig>(&text).unwrap(), config);
        }
        let parse = serde_json::from_str::<AugmentConfig>;
        let padded = parse(r#"{"crop": {"kind": "padded", "padding": "reflect"}, "rand_augment": "none"}"#).unwrap();
        assert_eq!(padded.crop, Crop::Padded { pad: 4, padding: Padding::Reflect });
        assert_eq!(padded.erase, Erase::default());
        for wrong in [r#"{"flop": 1}"#, r#"{"erase": {"p": 1}}"#, r#"{"crop": {"kind": "resized", "pad": 4}}"#] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn impossible_settings_are_named() {
        let refuse = |config: AugmentConfig| Transform::train(&config, 32, 3).unwrap_err().to_string();
        let base = AugmentConfig::imagenet;
        assert!(refuse(AugmentConfig { flip: 2.0, ..base() }).contains("augment.flip = 2 must lie in [0, 1]"));
        assert!(refuse(AugmentConfig { crop_pct: 0.0, ..base() }).contains("augment.crop_pct = 0"));
        assert!(refuse(AugmentConfig { mean: vec![0.5, 0.5], ..base() }).contains("`mean` has 2 values"));
        let crop = Crop::Resized { scale: [0.5, 0.1], ratio: [1.0, 1.0] };
        assert!(refuse(AugmentConfig { crop, ..base() }).contains("augment.crop.scale"));
        assert!(Transform::train(&base(), 32, 2).is_err() && Transform::train(&base(), 0, 3).is_err());
    }

    /// Nothing random: the tensor is (v / 255 − mean) / std, planes first.
    #[test]
    fn normalisation_is_by_channel() {
        let image = Image { width: 2, height: 2, channels: 3, data: (0..12).map(|i| i * 20).collect() };
        let transform = Transform::train(&AugmentConfig::none(), 2, 3).unwrap();
        let mut out = vec![0.0; 12];
        transform.apply(image.clone(), Address { seed: 1, epoch: 2, example: 3 }, &mut out);
        for (i, &v) in image.data.iter().enumerate() {
            let (pixel, c) = (i / 3, i % 3);
            let want = (v as f32 / 255.0 - IMAGENET_MEAN[c]) / IMAGENET_STD[c];
            assert!((out[c * 4 + pixel] - want).abs() < 1e-6);
        }
    }

    /// Grey images of any size go through the whole recipe.
    #[test]
    fn any_image_can_be_augmented() {
        for (width, height, channels) in [(1, 1, 1), (1, 1, 3), (2, 300, 3), (300, 2, 1), (33, 17, 3)] {
            for config in [AugmentConfig::imagenet(), AugmentConfig::light()] {
                for (size, to) in [(1, 1), (7, 3), (16, 1)] {
                    let transform = Transform::train(&config, size, to).unwrap();
                    for example in 0..40 {
                        let image = Image::filled(width, height, &vec![77; channels]);
                        let mut out = vec![f32::NAN; transform.values()];
                        transform.apply(image, Address { seed: 1, epoch: 0, example }, &mut out);
                        assert!(out.iter().all(|v| v.is_finite()));
                    }
                }
            }
        }
    }
}
