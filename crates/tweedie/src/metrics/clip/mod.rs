//! CLIPScore by any CLIP that `transformers` can save: a folder with `config.json`, `model.safetensors` (or its shards),
//! `preprocessor_config.json` and `tokenizer.json` (or `vocab.json` and `merges.txt`).

mod config;
mod image;
mod tokenizer;
mod tower;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::Serialize;
use tweedie_engine::ops::{elementwise, linear, patchify, tokens};
use tweedie_engine::{DType, Device, Tape, Tensor};

use crate::error::{Error, Result};
use crate::image::Image;
use crate::progress::{self, Work};
use crate::random::{Draw, Stream};
use crate::tensors;
use config::{Config, read_json};
use tokenizer::Tokenizer;
use tower::{Norm, Tower, Weights};

/// Images or texts that go through the network together.
const BATCH: usize = 32;

/// A CLIP model.
pub struct Clip {
    folder: PathBuf,
    device: Device,
    config: Config,
    tokenizer: Tokenizer,
    vision: Tower,
    patches: Tensor,
    class: Tensor,
    vision_positions: Tensor,
    before: Norm,
    after: Norm,
    vision_projection: Tensor,
    text: Tower,
    /// On the host: rows are looked up.
    embedding: Vec<f32>,
    text_positions: Vec<f32>,
    last: Norm,
    text_projection: Tensor,
}

/// A mean over pairs of image and text, in the three scales that are in use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClipScore {
    /// Pairs.
    pub pairs: usize,
    /// Mean cosine.
    pub cosine: f64,
    /// 2.5 · max(cosine, 0), as Hessel et al. (2021) define CLIPScore.
    pub hessel: f64,
    /// max(100 · mean cosine, 0), as torchmetrics reports it.
    pub torchmetrics: f64,
    /// Standard error of the mean cosine.
    pub standard_error: f64,
}

impl ClipScore {
    /// Of cosines.
    pub fn of(cosines: &[f32]) -> ClipScore {
        let n = cosines.len().max(1) as f64;
        let mean = |f: &dyn Fn(f64) -> f64| cosines.iter().map(|c| f(*c as f64)).sum::<f64>() / n;
        let cosine = mean(&|c| c);
        ClipScore {
            pairs: cosines.len(),
            cosine,
            hessel: mean(&|c| 2.5 * c.max(0.0)),
            torchmetrics: (100.0 * cosine).max(0.0),
            standard_error: (mean(&|c| (c - cosine).powi(2)) / (n - 1.0).max(1.0)).sqrt(),
        }
    }
}

impl Clip {
    /// Read a folder.
    pub fn load(folder: &Path, device: &Device) -> Result<Clip> {
        let config = Config::load(folder)?;
        let tokenizer = Tokenizer::load(folder)?;
        let tensors = read_weights(folder)?;
        let mut w = Weights { folder, device, tensors };
        let (v, t) = (config.vision.width, config.text.width);
        let grid = config.image / config.patch;
        let inner = 3 * config.patch * config.patch;
        let projection = w.shape("visual_projection.weight").and_then(|s| s.first().copied()).unwrap_or(512);
        let words =
            w.shape("text_model.embeddings.token_embedding.weight").and_then(|s| s.first().copied()).unwrap_or(0);
        if words <= tokenizer.largest() as usize {
            let most = tokenizer.largest();
            return Err(Error::Input(format!(
                "{}: the tokenizer has token {most}, the weights have embeddings for {words}",
                folder.display()
            )));
        }
        let conv = [v, 3, config.patch, config.patch];
        Ok(Clip {
            patches: w.take_as("vision_model.embeddings.patch_embedding.weight", &conv, &[v, inner])?,
            class: w.take_as("vision_model.embeddings.class_embedding", &[v], &[1, 1, v])?,
            vision_positions: w.take("vision_model.embeddings.position_embedding.weight", &[grid * grid + 1, v])?,
            before: w.norm("vision_model.pre_layrnorm", v)?, // so spelt in the files
            after: w.norm("vision_model.post_layernorm", v)?,
            vision_projection: w.take("visual_projection.weight", &[projection, v])?,
            vision: Tower::load(&mut w, "vision_model", &config.vision, false)?,
            embedding: w.take("text_model.embeddings.token_embedding.weight", &[words, t])?.to_vec()?,
            text_positions: w
                .take("text_model.embeddings.position_embedding.weight", &[config.positions, t])?
                .to_vec()?,
            last: w.norm("text_model.final_layer_norm", t)?,
            text_projection: w.take("text_projection.weight", &[projection, t])?,
            text: Tower::load(&mut w, "text_model", &config.text, true)?,
            folder: folder.to_path_buf(),
            device: device.clone(),
            config,
            tokenizer,
        })
    }

    /// The folder it was read from.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Tokens of a text, from start to end.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        self.tokenizer.encode(text, self.config.positions)
    }

    /// Images as the network takes them, \[3, H, W\] each.
    pub fn prepare(&self, image: Image) -> Result<Vec<f32>> {
        image::prepare(image, &self.config.preprocess, self.config.image)
            .map_err(|e| Error::Input(format!("{}: {e}", self.folder.display())))
    }

    /// Features of images, each of length 1.
    pub fn image_features(&self, images: Vec<Image>) -> Result<Vec<Vec<f32>>> {
        let ready: Vec<Vec<f32>> = images.into_par_iter().map(|i| self.prepare(i)).collect::<Result<_>>()?;
        let mut out = Vec::with_capacity(ready.len());
        for batch in ready.chunks(BATCH) {
            progress::tell(Work::Clip, out.len(), ready.len());
            out.extend(self.image_batch(batch)?);
        }
        Ok(out)
    }

    fn image_batch(&self, batch: &[Vec<f32>]) -> Result<Vec<Vec<f32>>> {
        let (t, side) = (&Tape::inference(), self.config.image);
        let c = |v: &Tensor| t.constant(v.clone());
        let images = t.constant(Tensor::from_f32(&self.device, &[batch.len(), 3, side, side], batch.concat())?);
        let x = patchify::patchify(t, &images, self.config.patch, DType::F32)?;
        let x = linear::linear(t, &x, &c(&self.patches), None, None, None)?;
        let x = tokens::concat(t, &[&c(&self.class), &x])?;
        let x = elementwise::add_broadcast(t, &x, &c(&self.vision_positions))?;
        let eps = self.config.vision.eps;
        let x = self.vision.forward(t, self.before.forward(t, &x, eps)?)?;
        let x = self.after.forward(t, &tokens::slice(t, &x, 0..1)?, eps)?;
        unit_rows(linear::linear(t, &x, &c(&self.vision_projection), None, None, None)?.value())
    }

    /// Features of texts, each of length 1.
    pub fn text_features(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        let ids = texts.par_iter().map(|t| self.tokens(t)).collect::<Result<Vec<Vec<u32>>>>()?;
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_by_key(|&i| ids[i].len());
        let mut out = vec![Vec::new(); texts.len()];
        for (k, batch) in order.chunks(BATCH).enumerate() {
            progress::tell(Work::Clip, k * BATCH, order.len());
            let rows: Vec<&[u32]> = batch.iter().map(|&i| ids[i].as_slice()).collect();
            for (&i, f) in batch.iter().zip(self.text_batch(&rows)?) {
                out[i] = f;
            }
        }
        Ok(out)
    }

    fn text_batch(&self, batch: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
        let d = self.config.text.width;
        // No token sees a later one, so what follows the last end token need not be computed.
        let len = batch.iter().map(|b| b.len()).max().unwrap_or(0);
        let mut x = vec![0.0; batch.len() * len * d];
        for (row, ids) in x.chunks_mut(len * d).zip(batch) {
            for (at, (to, place)) in row.chunks_mut(d).zip(self.text_positions.chunks(d)).enumerate() {
                let id = ids.get(at).copied().unwrap_or(self.tokenizer.end) as usize;
                for (o, (e, p)) in to.iter_mut().zip(self.embedding[id * d..][..d].iter().zip(place)) {
                    *o = e + p;
                }
            }
        }
        let t = &Tape::inference();
        let x = t.constant(Tensor::from_f32(&self.device, &[batch.len(), len, d], x)?);
        let x = self.last.forward(t, &self.text.forward(t, x)?, self.config.text.eps)?.value().to_vec()?;
        let pooled: Vec<f32> =
            batch.iter().enumerate().flat_map(|(b, ids)| x[(b * len + self.pooled(ids)) * d..][..d].to_vec()).collect();
        let pooled = t.constant(Tensor::from_f32(&self.device, &[batch.len(), d], pooled)?);
        let w = t.constant(self.text_projection.clone());
        unit_rows(linear::linear(t, &pooled, &w, None, None, None)?.value())
    }

    /// Where a text's features are. A text without the end token gives its first, as `argmax` over nothing found does.
    fn pooled(&self, ids: &[u32]) -> usize {
        let wanted = self.config.end.or(ids.iter().copied().max());
        ids.iter().position(|i| Some(*i) == wanted).unwrap_or(0)
    }
}

/// The cosine of features of length 1.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// A permutation of 0..n that leaves nothing in its place (for n = 1 there is none): one cycle through a seeded order.
pub fn derangement(n: usize, seed: u64) -> Vec<usize> {
    let mut draw = Draw::new(seed, Stream::Shuffle, 0, 0);
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, draw.below(i + 1));
    }
    let mut to = vec![0; n];
    for i in 0..n {
        to[order[i]] = order[(i + 1) % n];
    }
    to
}

fn unit_rows(x: &Tensor) -> Result<Vec<Vec<f32>>> {
    let unit = |r: &[f32]| {
        let norm = r.iter().map(|v| v * v).sum::<f32>().sqrt().max(1e-12);
        r.iter().map(|v| v / norm).collect()
    };
    Ok(x.to_vec()?.chunks(x.width()).map(unit).collect())
}

/// All tensors of a folder: one file, or the shards that the index names.
fn read_weights(folder: &Path) -> Result<HashMap<String, tensors::NamedTensor<'static>>> {
    let (single, index) = (folder.join("model.safetensors"), folder.join("model.safetensors.index.json"));
    let files = match (single.is_file(), index.is_file()) {
        (true, _) => vec![single],
        (false, true) => {
            let v = read_json(&index)?;
            let map = v["weight_map"].as_object();
            let map = map.ok_or_else(|| Error::Input(format!("{}: weight_map is not a map", index.display())))?;
            let mut names: Vec<&str> = map.values().filter_map(|v| v.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            if let Some(bad) = names.iter().find(|n| Path::new(n).components().count() != 1 || n.contains("..")) {
                return Err(Error::Input(format!("{}: '{bad}' is not a file of this folder", index.display())));
            }
            names.into_iter().map(|n| folder.join(n)).collect()
        }
        _ => return Err(Error::Input(format!("{}: there is no model.safetensors", folder.display()))),
    };
    let mut all = HashMap::new();
    for f in files {
        all.extend(tensors::read(&f)?.into_iter().map(|t| (t.name.clone(), t)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derangement_moves_everything() {
        for n in [2, 3, 10, 101] {
            let d = derangement(n, 3);
            assert!(d.iter().enumerate().all(|(i, j)| i != *j));
            let mut sorted = d.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..n));
            assert_eq!(d, derangement(n, 3));
        }
        assert_ne!(derangement(101, 3), derangement(101, 4));
        assert_eq!((derangement(0, 1), derangement(1, 1)), (vec![], vec![0]));
    }

    #[test]
    fn the_three_scales() {
        let s = ClipScore::of(&[0.3, -0.1]);
        assert!((s.cosine - 0.1).abs() < 1e-7 && (s.torchmetrics - 10.0).abs() < 1e-5, "{s:?}");
        assert!((s.hessel - 0.375).abs() < 1e-6, "{s:?}"); // the negative one counts as 0
        assert!((s.standard_error - 0.2).abs() < 1e-6, "{s:?}"); // deviation √2·0.2 over √2
    }
}
