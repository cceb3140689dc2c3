//! RandAugment in timm's form, `rand-m9-mstd0.5-inc1`: a few ops drawn from fifteen whose strength grows with the
//! magnitude.

use super::color;
use super::geometry::{Interpolation, affine, rotate};
use crate::image::Image;
use crate::random::Draw;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// One of timm's fifteen "increasing" ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are timm's; `docs/data.md` defines them
pub enum Op {
    AutoContrast,
    Equalize,
    Invert,
    Rotate,
    PosterizeIncreasing,
    SolarizeIncreasing,
    SolarizeAdd,
    ColorIncreasing,
    ContrastIncreasing,
    BrightnessIncreasing,
    SharpnessIncreasing,
    ShearX,
    ShearY,
    TranslateXRel,
    TranslateYRel,
}

impl Op {
    /// All ops, in timm's order.
    pub const ALL: [Op; 15] = [
        Op::AutoContrast,
        Op::Equalize,
        Op::Invert,
        Op::Rotate,
        Op::PosterizeIncreasing,
        Op::SolarizeIncreasing,
        Op::SolarizeAdd,
        Op::ColorIncreasing,
        Op::ContrastIncreasing,
        Op::BrightnessIncreasing,
        Op::SharpnessIncreasing,
        Op::ShearX,
        Op::ShearY,
        Op::TranslateXRel,
        Op::TranslateYRel,
    ];

    /// timm's map from a magnitude in [0, 10] to the op's argument. `negate` turns the signed ones around.
    pub fn argument(self, magnitude: f64, negate: bool) -> f64 {
        let level = magnitude / 10.0;
        let signed = |v: f64| if negate { -v } else { v };
        match self {
            Op::AutoContrast | Op::Equalize | Op::Invert => 0.0,
            Op::Rotate => signed(level * 30.0),
            Op::PosterizeIncreasing => 4.0 - (level * 4.0).trunc(),
            Op::SolarizeIncreasing => 256.0 - (level * 256.0).trunc().min(256.0),
            Op::SolarizeAdd => (level * 110.0).trunc().min(128.0),
            Op::ColorIncreasing | Op::ContrastIncreasing | Op::BrightnessIncreasing | Op::SharpnessIncreasing => {
                (1.0 + signed(level * 0.9)).max(0.1)
            }
            Op::ShearX | Op::ShearY => signed(level * 0.3),
            Op::TranslateXRel | Op::TranslateYRel => signed(level * 0.45),
        }
    }

    /// Apply the op with an argument from [`Op::argument`]. `fill` colours what comes in from outside.
    pub fn apply(self, image: &mut Image, argument: f64, filter: Interpolation, fill: &[u8]) {
        let map = |image: &mut Image, m: [f64; 6]| *image = affine(image, m, filter, fill);
        match self {
            Op::AutoContrast => color::auto_contrast(image),
            Op::Equalize => color::equalize(image),
            Op::Invert => color::invert(image),
            Op::Rotate => *image = rotate(image, argument, filter, fill),
            Op::PosterizeIncreasing => color::posterize(image, argument as u32),
            Op::SolarizeIncreasing => color::solarize(image, argument as u32),
            Op::SolarizeAdd => color::solarize_add(image, argument as u32),
            Op::ColorIncreasing => color::color(image, argument as f32),
            Op::ContrastIncreasing => color::contrast(image, argument as f32),
            Op::BrightnessIncreasing => color::brightness(image, argument as f32),
            Op::SharpnessIncreasing => color::sharpness(image, argument as f32),
            Op::ShearX => map(image, [1.0, argument, 0.0, 0.0, 1.0, 0.0]),
            Op::ShearY => map(image, [1.0, 0.0, 0.0, argument, 1.0, 0.0]),
            Op::TranslateXRel => map(image, [1.0, 0.0, argument * image.width as f64, 0.0, 1.0, 0.0]),
            Op::TranslateYRel => map(image, [1.0, 0.0, 0.0, 0.0, 1.0, argument * image.height as f64]),
        }
    }
}

/// A RandAugment policy; written in recipes as timm's string, or `"none"`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RandAugment {
    /// Ops per image (`n`), drawn with replacement; 0 switches the policy off.
    pub ops: usize,
    /// Mean magnitude, 0 to 10 (`m`).
    pub magnitude: f64,
    /// Standard deviation of the magnitude (`mstd`); the draw is clipped to [0, 10].
    pub magnitude_std: f64,
    /// Probability that a drawn op is applied (`p`).
    pub prob: f64,
}

impl RandAugment {
    /// The paper's `rand-m9-mstd0.5-inc1`.
    pub const PAPER: RandAugment = RandAugment { ops: 2, magnitude: 9.0, magnitude_std: 0.5, prob: 0.5 };
    /// No op at all.
    pub const NONE: RandAugment = RandAugment { ops: 0, ..RandAugment::PAPER };

    /// Apply the policy with numbers from `draw`.
    pub fn apply(&self, image: &mut Image, draw: &mut Draw, interpolation: Interpolation, fill: &[u8]) {
        let chosen: Vec<Op> = (0..self.ops).map(|_| Op::ALL[draw.below(15)]).collect();
        for op in chosen {
            if !draw.chance(self.prob) {
                continue;
            }
            let magnitude = (self.magnitude + self.magnitude_std * draw.normal()).clamp(0.0, 10.0);
            let argument = op.argument(magnitude, draw.chance(0.5));
            op.apply(image, argument, interpolation.resolve(draw), fill);
        }
    }
}

impl FromStr for RandAugment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text == "none" {
            return Ok(RandAugment::NONE);
        }
        let wrong = |why: String| format!("augmentation policy \"{text}\": {why}; example: \"rand-m9-mstd0.5-inc1\"");
        let mut parts = text.split('-');
        if parts.next() != Some("rand") {
            return Err(wrong("it must begin with \"rand\" or be \"none\"".into()));
        }
        let mut policy = RandAugment { magnitude: 10.0, magnitude_std: 0.0, ..RandAugment::PAPER };
        let mut increasing = false;
        for part in parts {
            let (key, value) = part.split_at(part.find(|c: char| c.is_ascii_digit()).unwrap_or(part.len()));
            let number: f64 = value.parse().map_err(|_| wrong(format!("\"{part}\" has no number")))?;
            match key {
                "m" => policy.magnitude = number,
                "n" => policy.ops = number as usize,
                "p" => policy.prob = number,
                "mstd" => policy.magnitude_std = number,
                "inc" => increasing = number == 1.0,
                _ => return Err(wrong(format!("unknown part \"{part}\" (known: m, n, p, mstd, inc)"))),
            }
        }
        if !increasing {
            return Err(wrong("only the increasing op set is implemented; add \"-inc1\"".into()));
        }
        if !(0.0..=10.0).contains(&policy.magnitude) || !(0.0..=1.0).contains(&policy.prob) {
            return Err(wrong("m must lie in 0 to 10 and p in 0 to 1".into()));
        }
        Ok(policy)
    }
}

impl TryFrom<String> for RandAugment {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<RandAugment> for String {
    fn from(p: RandAugment) -> String {
        if p.ops == 0 {
            return "none".into();
        }
        let mut text = format!("rand-m{}", p.magnitude);
        if p.ops != 2 {
            text += &format!("-n{}", p.ops);
        }
        if p.prob != 0.5 {
            text += &format!("-p{}", p.prob);
        }
        if p.magnitude_std != 0.0 {
            text += &format!("-mstd{}", p.magnitude_std);
        }
        text + "-inc1"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_go_both_ways() {
        let parse = |s: &str| s.parse::<RandAugment>();
        assert_eq!(parse("rand-m9-mstd0.5-inc1"), Ok(RandAugment::PAPER));
        for text in ["none", "rand-m9-mstd0.5-inc1", "rand-m7-n3-p0.25-mstd1-inc1", "rand-m5-inc1"] {
            assert_eq!(String::from(parse(text).unwrap()), text);
        }
        assert!(parse("rand-m9").unwrap_err().contains("inc1"));
        assert!(parse("rand-q3-inc1").unwrap_err().contains("q3"));
        assert!(parse("augmix-m3").is_err());
    }

    /// Half of all drawn ops are applied, and all fifteen occur equally often: 0.5 · 2 ops per image.
    #[test]
    fn ops_are_applied_at_their_rate() {
        let n = 4000;
        let image = Image { width: 4, height: 4, channels: 3, data: (0..48).map(|i| (i * 37 % 251) as u8).collect() };
        let changed = (0..n)
            .filter(|&i| {
                let mut out = image.clone();
                let mut draw = Draw::new(5, crate::augment::Stream::Augment, 0, i);
                RandAugment { ops: 1, ..RandAugment::PAPER }.apply(
                    &mut out,
                    &mut draw,
                    Interpolation::Random,
                    &[124; 3],
                );
                out != image
            })
            .count() as f64;
        // Equalize leaves an image of 16 pixels alone (its step is 0), and so does nothing else.
        let want = 0.5 * 14.0 / 15.0;
        let error = (want * (1.0 - want) / n as f64).sqrt();
        assert!((changed / n as f64 - want).abs() < 5.0 * error, "{}", changed / n as f64);
    }
}
