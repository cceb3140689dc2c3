//! `config.json` and `preprocessor_config.json` of a CLIP folder, with the defaults of `transformers`.

use std::path::Path;

use serde_json::Value;
use tweedie_engine::Act;

use crate::augment::Interpolation;
use crate::error::{Error, Result};
use crate::files::read_to_string;
use crate::limits::SMALL_BYTES;

/// Largest size of a network.
const MOST: u64 = 1 << 16;
/// Largest side that an image is resized to.
const SIDE: u64 = 1 << 13;

pub fn read_json(path: &Path) -> Result<Value> {
    let text = read_to_string(path, &SMALL_BYTES).map_err(|e| Error::file(path, e))?;
    serde_json::from_str(&text).map_err(|e| Error::Input(format!("{}: not JSON: {e}", path.display())))
}

/// x·σ(kx) is SiLU of kx over k: OpenAI's activation by an op that is there.
const QUICK_GELU: f32 = 1.702;

/// One of the two transformers.
#[derive(Clone, Debug, PartialEq)]
pub struct TowerConfig {
    pub width: usize,
    pub depth: usize,
    pub heads: usize,
    pub eps: f32,
    pub act: Act,
    /// The activation's argument is multiplied by this and its value divided.
    pub act_scale: f32,
}

/// What an image goes through before the network.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocess {
    pub resize: Option<Resize>,
    /// Height and width of the centre crop.
    pub crop: Option<(usize, usize)>,
    pub filter: Interpolation,
    pub scale: f32,
    pub mean: [f32; 3],
    pub std: [f32; 3],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resize {
    Short(usize),
    Exact { height: usize, width: usize },
}

/// All of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub vision: TowerConfig,
    pub text: TowerConfig,
    pub image: usize,
    pub patch: usize,
    /// Positions of a text.
    pub positions: usize,
    /// Where a text's features are: at the first of these tokens, or at the largest number for `None`.
    pub end: Option<u32>,
    pub preprocess: Preprocess,
}

/// The settings of a tower (or of the preprocessor) in a JSON file, with their name for messages.
struct Section<'a> {
    path: &'a Path,
    name: &'static str,
    /// Later ones win.
    layers: Vec<&'a Value>,
}

impl Section<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.layers.iter().rev().find_map(|l| l.get(key)).filter(|v| !v.is_null())
    }

    fn wrong(&self, key: &str, want: &str) -> Error {
        let dot = if self.name.is_empty() { "" } else { "." };
        let got = self.get(key).map_or("missing".into(), |v| v.to_string());
        Error::Input(format!("{}: {}{dot}{key} must be {want}, it is {got}", self.path.display(), self.name))
    }

    fn size(&self, key: &str, default: usize) -> Result<usize> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => match v.as_u64() {
                Some(n @ 1..=MOST) => Ok(n as usize),
                _ => Err(self.wrong(key, &format!("a positive integer up to {MOST}"))),
            },
        }
    }

    fn number(&self, key: &str, default: f64) -> Result<f64> {
        // A file of f64 says nothing beyond f32.
        let number = |v: &Value| v.as_f64().filter(|v| (*v as f32).is_finite());
        self.get(key).map_or(Ok(default), |v| number(v).ok_or_else(|| self.wrong(key, "a number")))
    }

    fn flag(&self, key: &str) -> Result<bool> {
        self.get(key).map_or(Ok(true), |v| v.as_bool().ok_or_else(|| self.wrong(key, "true or false")))
    }

    fn three(&self, key: &str, default: [f32; 3]) -> Result<[f32; 3]> {
        let Some(v) = self.get(key) else { return Ok(default) };
        let three = || -> Option<[f32; 3]> {
            let v: Option<Vec<f32>> = v.as_array()?.iter().map(|x| x.as_f64().map(|x| x as f32)).collect();
            v?.try_into().ok()
        };
        three().ok_or_else(|| self.wrong(key, "three numbers"))
    }

    fn tower(&self, width: usize, heads: usize) -> Result<TowerConfig> {
        let name = self.get("hidden_act").map_or(Some("quick_gelu"), Value::as_str);
        let (act, act_scale) = match name {
            Some("quick_gelu") => (Act::Silu, QUICK_GELU),
            Some("gelu") => (Act::GeluErf, 1.0),
            Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => (Act::GeluTanh, 1.0),
            Some("silu" | "swish") => (Act::Silu, 1.0),
            _ => return Err(self.wrong("hidden_act", "quick_gelu, gelu, gelu_new or silu")),
        };
        let tower = TowerConfig {
            width: self.size("hidden_size", width)?,
            depth: self.size("num_hidden_layers", 12)?,
            heads: self.size("num_attention_heads", heads)?,
            eps: self.number("layer_norm_eps", 1e-5)? as f32,
            act,
            act_scale,
        };
        match tower.width % tower.heads {
            0 => Ok(tower),
            _ => Err(self.wrong("hidden_size", &format!("a multiple of num_attention_heads = {}", tower.heads))),
        }
    }
}

impl Config {
    pub fn load(folder: &Path) -> Result<Config> {
        let path = folder.join("config.json");
        let file = read_json(&path)?;
        if !file.is_object() || file.get("model_type").is_some_and(|t| t != "clip") {
            let is = file.get("model_type").and_then(Value::as_str).unwrap_or("something else");
            return Err(Error::Input(format!("{}: model_type must be clip, it is {is}", path.display())));
        }
        // Old files repeat a section as `…_dict`, which then wins, as in `transformers`.
        let section = |name: &'static str, again: &str| Section {
            path: &path,
            name,
            layers: [file.get(name), file.get(again)].into_iter().flatten().filter(|v| v.is_object()).collect(),
        };
        let (vision, text) =
            (section("vision_config", "vision_config_dict"), section("text_config", "text_config_dict"));
        let image = vision.size("image_size", 224)?;
        let patch = vision.size("patch_size", 32)?;
        if image % patch != 0 {
            return Err(vision.wrong("image_size", &format!("a multiple of patch_size = {patch}")));
        }
        if vision.size("num_channels", 3)? != 3 {
            return Err(vision.wrong("num_channels", "3"));
        }
        let end = match text.get("eos_token_id") {
            None => 49407,
            Some(v) => {
                v.as_u64().filter(|n| *n <= u32::MAX as u64).ok_or_else(|| text.wrong("eos_token_id", "an integer"))?
            }
        };
        Ok(Config {
            vision: vision.tower(768, 12)?,
            text: text.tower(512, 8)?,
            image,
            patch,
            positions: text.size("max_position_embeddings", 77)?,
            // 2 is a mistake in the first files: there the end token is the one with the largest number.
            end: (end != 2).then_some(end as u32),
            preprocess: Preprocess::load(folder, image)?,
        })
    }
}

impl Preprocess {
    fn load(folder: &Path, image: usize) -> Result<Preprocess> {
        let mut path = folder.join("preprocessor_config.json");
        let mut file = Value::Null;
        if path.is_file() {
            file = read_json(&path)?;
        } else if folder.join("processor_config.json").is_file() {
            path = folder.join("processor_config.json");
            file = read_json(&path)?["image_processor"].take();
        }
        let part = Section { path: &path, name: "", layers: vec![&file] };
        let plain = |v: &Value| v.as_u64().filter(|n| (1..=SIDE).contains(n)).map(|n| n as usize);
        let side = |v: &Value, key: &str| v.get(key).and_then(plain);
        let resize = match part.get("size") {
            None => Resize::Short(image),
            Some(v) => match (plain(v).or(side(v, "shortest_edge")), side(v, "height"), side(v, "width")) {
                (Some(n), _, _) => Resize::Short(n),
                (None, Some(height), Some(width)) => Resize::Exact { height, width },
                _ => {
                    return Err(
                        part.wrong("size", &format!("a number, {{shortest_edge}} or {{height, width}}, up to {SIDE}"))
                    );
                }
            },
        };
        let crop = match part.get("crop_size") {
            None => (image, image),
            Some(v) => match (plain(v), side(v, "height"), side(v, "width")) {
                (Some(n), _, _) => (n, n),
                (None, Some(h), Some(w)) => (h, w),
                _ => return Err(part.wrong("crop_size", &format!("a number or {{height, width}}, up to {SIDE}"))),
            },
        };
        let filter = match part.get("resample").map_or(Some(3), Value::as_u64) {
            Some(3) => Interpolation::Bicubic,
            Some(2) => Interpolation::Bilinear,
            _ => return Err(part.wrong("resample", "3 (bicubic) or 2 (bilinear)")),
        };
        let normalize = part.flag("do_normalize")?;
        Ok(Preprocess {
            resize: part.flag("do_resize")?.then_some(resize),
            crop: part.flag("do_center_crop")?.then_some(crop),
            filter,
            scale: if part.flag("do_rescale")? { part.number("rescale_factor", 1.0 / 255.0)? as f32 } else { 1.0 },
            mean: if normalize { part.three("image_mean", [0.48145466, 0.4578275, 0.40821073])? } else { [0.0; 3] },
            std: if normalize { part.three("image_std", [0.26862954, 0.261_302_6, 0.275_777_1])? } else { [1.0; 3] },
        })
    }
}
