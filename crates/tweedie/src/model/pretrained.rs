//! Encoder weights of others: safetensors files with the names of timm's ViTs, which DeiT and MAE share.

use std::collections::BTreeMap;
use std::path::Path;

use super::Model;
use super::vit::{Gelu, VitConfig};
use crate::error::{Error, Result};
use crate::tensors::{self, NamedTensor};

/// What programs put in front of the encoder's names; they also stack (`module.model.`).
const PREFIXES: [&str; 4] = ["model.", "module.", "encoder.", "vit."];

/// The one tensor that every ViT has and nothing else: where its name starts, the encoder's names start.
const LANDMARK: &str = "patch_embed.proj.weight";

/// Parts of a ViT that change what the encoder computes; without them the other weights are worth nothing.
const ESSENTIAL: [&str; 5] = ["blocks.", "norm_pre.", "reg_token", "register_tokens", "patch_embed."];

/// Replace the encoder's weights by those of the file at `path`; gives notes on what was changed or left out.
///
/// Positions are resized to the model's grid, three colour channels are summed for a grey model, class tokens that the file
/// lacks keep their initial values. Whatever else does not fit is an error, and then the model is as before.
pub fn load_encoder(model: &mut Model, path: &Path) -> Result<Vec<String>> {
    let config = model.config();
    if !model.is_conditional() {
        return Err(Error::Input("model.pretrained: the model has no encoder (model.condition = \"none\")".into()));
    }
    let mut notes = Vec::new();
    let mut file = File::open(path, &mut notes)?;
    file.check(&config.encoder)?;
    let class = [1, config.encoder.class_tokens, config.encoder.width];
    file.all_class_tokens = file.tensors.get("cls_token").is_some_and(|t| t.shape == class);
    if config.gelu == Gelu::Tanh {
        notes.push("model.gelu = \"tanh\", but weights of timm, DeiT and MAE expect \"erf\"".into());
    }
    let mut ready = Vec::new();
    for (name, shape, id) in model.params.iter() {
        let Some(name) = name.strip_prefix("encoder.") else { continue };
        let data = match name {
            LANDMARK => file.patches(&config.encoder, shape, &mut notes)?,
            "cls_token" => file.class_tokens(shape, model.params.value(id).to_vec()?, &mut notes)?,
            "pos_embed" => {
                file.positions(shape, config.encoder.class_tokens, model.params.value(id).to_vec()?, &mut notes)?
            }
            _ => file.take(name, shape)?,
        };
        ready.push((id, data));
    }
    file.leave_out(&mut notes)?;
    for (id, data) in &ready {
        model.params.set(*id, data)?;
    }
    notes.insert(0, format!("encoder weights: {} tensors from {}", ready.len(), path.display()));
    Ok(notes)
}

/// The tensors of a file under the encoder's own names; those that were used are taken out.
struct File<'a> {
    path: &'a Path,
    tensors: BTreeMap<String, NamedTensor<'static>>,
    /// Names outside of the encoder.
    others: Vec<String>,
    /// Whether the file has as many class tokens as the model, not one of them.
    all_class_tokens: bool,
}

impl<'a> File<'a> {
    fn open(path: &'a Path, notes: &mut Vec<String>) -> Result<File<'a>> {
        let all = tensors::read(path)?;
        let prefix = all
            .iter()
            .filter_map(|t| t.name.strip_suffix(LANDMARK))
            .filter(|p| bare(p).is_empty())
            .min_by_key(|p| p.len())
            .map(str::to_string);
        let Some(prefix) = prefix else {
            let some: Vec<&str> = all.iter().take(3).map(|t| t.name.as_str()).collect();
            return Err(Error::Input(format!(
                "{}: there is no tensor {LANDMARK}; model.pretrained takes ViTs with timm's names, this file has {}",
                path.display(),
                if some.is_empty() { "none".into() } else { format!("{}, …", some.join(", ")) }
            )));
        };
        let mut file = File { path, tensors: BTreeMap::new(), others: Vec::new(), all_class_tokens: false };
        for t in all {
            match t.name.strip_prefix(&prefix) {
                Some(name) => _ = file.tensors.insert(name.to_string(), t),
                None => file.others.push(t.name),
            }
        }
        file.find_norm(notes);
        Ok(file)
    }

    /// Models that were fine-tuned on the mean of the patches have their last norm behind it.
    fn find_norm(&mut self, notes: &mut Vec<String>) {
        let pair = |name: &str| [format!("{name}.weight"), format!("{name}.bias")];
        let has = |name: &str| pair(name).iter().any(|n| self.tensors.contains_key(n));
        if has("norm") || !has("fc_norm") {
            return;
        }
        for (from, to) in pair("fc_norm").iter().zip(pair("norm")) {
            if let Some(t) = self.tensors.remove(from) {
                self.tensors.insert(to, t);
            }
        }
        notes.push(
            "there is no norm.*: fc_norm.* takes its place (it was trained on the mean of the patches: model.pool = \"mean\")"
                .into(),
        );
    }

    fn wrong(&self, what: impl std::fmt::Display) -> Error {
        Error::Input(format!("{}: {what}", self.path.display()))
    }

    /// Compare the sizes that the settings name, so that errors can say what to set.
    fn check(&self, c: &VitConfig) -> Result<()> {
        let t = self.get(LANDMARK)?;
        let want = [c.width, c.channels, c.patch, c.patch];
        let &[width, channels, patch, across] = &t.shape[..] else {
            return Err(self.misfit(LANDMARK, &t.shape, &want, "it must have four dimensions"));
        };
        let mut sets = Vec::new();
        for (key, has, wants) in
            [("width", width, c.width), ("channels", channels, c.channels), ("patch", patch, c.patch)]
        {
            if has != wants && !(key == "channels" && (has, wants) == (3, 1)) {
                sets.push(format!("model.encoder.{key} = {has}"));
            }
        }
        if patch != across {
            return Err(self.misfit(LANDMARK, &t.shape, &want, "patches must be square"));
        }
        if !sets.is_empty() {
            return Err(self.misfit(LANDMARK, &t.shape, &want, &format!("set {}", sets.join(", "))));
        }
        let block = |n: &String| n.strip_prefix("blocks.")?.split('.').next()?.parse::<usize>().ok();
        let depth = self.tensors.keys().filter_map(block).max().map_or(0, |last| last.saturating_add(1));
        if depth != c.depth {
            return Err(
                self.wrong(format!("it has {depth} blocks, the model {}; set model.encoder.depth = {depth}", c.depth))
            );
        }
        Ok(())
    }

    fn misfit(&self, name: &str, has: &[usize], wants: &[usize], hint: &str) -> Error {
        self.wrong(format!("{name} is {has:?}, the model has {wants:?}; {hint}"))
    }

    fn missing(&self, name: &str) -> Error {
        self.wrong(format!("there is no tensor {name}; model.pretrained takes plain ViTs with timm's names"))
    }

    fn get(&self, name: &str) -> Result<&NamedTensor<'static>> {
        self.tensors.get(name).ok_or_else(|| self.missing(name))
    }

    fn remove(&mut self, name: &str) -> Result<NamedTensor<'static>> {
        self.tensors.remove(name).ok_or_else(|| self.missing(name))
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let t = self.remove(name)?;
        if t.shape != shape {
            let hint = "the file's model is not a plain ViT of this model.encoder.width with an MLP four times as wide";
            return Err(self.misfit(name, &t.shape, shape, hint));
        }
        Ok(t.data.into_owned())
    }

    /// Patch weights \[width, channels, patch, patch\]. A grey image stands for three equal channels: their weights are summed.
    fn patches(&mut self, c: &VitConfig, shape: &[usize], notes: &mut Vec<String>) -> Result<Vec<f32>> {
        let area = c.patch * c.patch;
        if self.get(LANDMARK)?.shape != [c.width, 3, c.patch, c.patch] || c.channels != 1 {
            return self.take(LANDMARK, shape);
        }
        notes.push("the weights are for 3 channels, the model has 1: patch weights are summed over channels".into());
        let data = self.remove(LANDMARK)?.data;
        let sums = data.chunks_exact(3 * area).flat_map(|w| (0..area).map(|i| w[i] + w[area + i] + w[2 * area + i]));
        Ok(sums.collect())
    }

    /// Class tokens \[1, n, width\]: the one of the file, the others as they are in `own`; or all n of a file that has as many.
    fn class_tokens(&mut self, shape: &[usize], mut own: Vec<f32>, notes: &mut Vec<String>) -> Result<Vec<f32>> {
        let (n, width) = (shape[1], shape[2]);
        match self.get("cls_token")?.shape[..] {
            [1, 1, w] if w == width && n > 1 => {}
            [1, m, w] if w == width && m != n => {
                let hint = format!("set model.encoder.class_tokens = {m}");
                return Err(self.misfit("cls_token", &[1, m, w], shape, &hint));
            }
            _ => return self.take("cls_token", shape),
        }
        own[..width].copy_from_slice(&self.remove("cls_token")?.data);
        let new = n - 1;
        let what =
            format!("the file has one class token, the model {n}: the other {new} start from new initial values");
        notes.push(format!("{what} (model.encoder.class_tokens)"));
        Ok(own)
    }

    /// Positions \[1, n + grid², width\]: those of the class tokens as they are, the patches' resized. Of class tokens that the file
    /// lacks they are as in `own`.
    fn positions(
        &mut self,
        shape: &[usize],
        class_tokens: usize,
        own: Vec<f32>,
        notes: &mut Vec<String>,
    ) -> Result<Vec<f32>> {
        let t = self.remove("pos_embed")?;
        let distilled = self.tensors.contains_key("dist_token");
        let (tokens, width) = (shape[1], shape[2]);
        // Where all class tokens are the file's, so are their positions; else those of one are.
        let stored = if self.all_class_tokens { class_tokens } else { 1 };
        let before = stored + distilled as usize;
        let (&[1, has, w], Some(to)) = (&t.shape[..], root(tokens - class_tokens)) else {
            return Err(self.misfit("pos_embed", &t.shape, shape, "it must be [1, tokens, width]"));
        };
        if w != width {
            return Err(self.misfit("pos_embed", &t.shape, shape, &format!("set model.encoder.width = {w}")));
        }
        let Some(from) = has.checked_sub(before).and_then(root).filter(|g| *g > 0) else {
            let hint = format!(
                "its patches ({has} tokens less {before}) must form a square; set model.encoder.image to its size"
            );
            return Err(self.misfit("pos_embed", &t.shape, shape, &hint));
        };
        if distilled {
            notes.push("the position of the distillation token is left out".into());
        }
        let mut out = own;
        out.truncate(class_tokens * width);
        out[..stored * width].copy_from_slice(&t.data[..stored * width]);
        let grid = &t.data[before * width..];
        if from == to {
            out.extend_from_slice(grid);
        } else {
            notes.push(format!("positions are resized from {from} × {from} to {to} × {to} patches (bicubic)"));
            out.extend(resize(grid, from, to, width));
        }
        Ok(out)
    }

    /// Say what the encoder does not take; refuse what it would need.
    fn leave_out(&self, notes: &mut Vec<String>) -> Result<()> {
        if let Some(name) = self.tensors.keys().find(|n| ESSENTIAL.iter().any(|e| n.starts_with(e))) {
            return Err(self.wrong(format!(
                "{name} is not part of this encoder; model.pretrained takes plain ViTs (timm, DeiT, MAE)"
            )));
        }
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for name in self.tensors.keys().map(String::as_str).chain(self.others.iter().map(|n| bare(n))) {
            let part = name.split('.').next().unwrap_or(name);
            let part = if part.starts_with("decoder") { "decoder" } else { part };
            *counts.entry(part.to_string()).or_default() += 1;
        }
        let plural = |n: usize| if n == 1 { "1 tensor".to_string() } else { format!("{n} tensors") };
        notes.extend(counts.iter().map(|(part, n)| format!("{part} ({}) is left out", plural(*n))));
        Ok(())
    }
}

/// A name without what programs put in front of it.
fn bare(mut name: &str) -> &str {
    while let Some(rest) = PREFIXES.iter().find_map(|p| name.strip_prefix(p)) {
        name = rest;
    }
    name
}

fn root(n: usize) -> Option<usize> {
    let r = n.isqrt();
    (r * r == n).then_some(r)
}

/// Fit a tensor \[1, `before` + from² + others, width\] with a row for each patch to another grid; the rows before and behind stay.
pub(crate) fn resize_patches(t: &mut NamedTensor, before: usize, from: usize, to: usize) {
    let (&[1, rows, width], patches) = (&t.shape[..], from * from) else { return };
    if rows < before + patches {
        return;
    }
    let (head, rest) = t.data.split_at(before * width);
    let (grid, tail) = rest.split_at(patches * width);
    let resized = [head, &resize(grid, from, to, width), tail].concat();
    (t.shape, t.data) = (vec![1, rows - patches + to * to, width], resized.into());
}

/// Resize a grid \[from, from, width\] to \[to, to, width\] as PyTorch's `interpolate(mode="bicubic", align_corners=False)`
/// does, without its antialiasing.
fn resize(grid: &[f32], from: usize, to: usize, width: usize) -> Vec<f32> {
    let taps: Vec<[(usize, f64); 4]> = (0..to).map(|i| taps(i, from, to)).collect();
    let mut out = Vec::with_capacity(to * to * width);
    for rows in &taps {
        for columns in &taps {
            for d in 0..width {
                let at = |y: usize, x: usize| grid[(y * from + x) * width + d] as f64;
                let row = |y: usize| columns.iter().map(|(x, w)| w * at(y, *x)).sum::<f64>();
                out.push(rows.iter().map(|(y, w)| w * row(*y)).sum::<f64>() as f32);
            }
        }
    }
    out
}

/// The four places that output `i` is read from, with their weights (Keys' cubic, A = −0.75); the border is repeated.
fn taps(i: usize, from: usize, to: usize) -> [(usize, f64); 4] {
    const A: f64 = -0.75;
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let at = (i as f64 + 0.5) * from as f64 / to as f64 - 0.5;
    let (first, t) = (at.floor(), at - at.floor());
    let weights = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
    std::array::from_fn(|k| ((first + k as f64 - 1.0).clamp(0.0, (from - 1) as f64) as usize, weights[k]))
}

#[cfg(test)]
mod tests;
