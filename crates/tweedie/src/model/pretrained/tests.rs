use std::path::PathBuf;

use tweedie_engine::{DType, Device};

use super::*;
use crate::config::{Config, ModelConfig};
use crate::data::OpenOptions;
use crate::model::Sizes;
use crate::train::Trainer;

/// Two blocks of width 4 on a 2 × 2 grid.
fn config() -> ModelConfig {
    let mut c = ModelConfig::preset("digits").unwrap();
    c.encoder =
        VitConfig { image: 8, patch: 4, channels: 1, width: 4, depth: 2, heads: 2, drop_path: 0.0, class_tokens: 1 };
    c
}

fn model(c: &ModelConfig) -> Model {
    Model::new(c, Sizes { vocab: 10, tokens: 1 }, &Device::Cpu, DType::F32, 7).unwrap()
}

fn values(n: usize, from: usize) -> Vec<f32> {
    (0..n).map(|i| (((i + from) * 37 + 11) % 29) as f32 / 8.0 - 1.5).collect()
}

fn tensor(name: &str, shape: &[usize]) -> NamedTensor<'static> {
    // The name decides the values, so that a tensor in the wrong place shows.
    NamedTensor::new(name, shape, values(shape.iter().product(), name.bytes().map(usize::from).sum()))
}

/// The file that fits `c`, under timm's names.
fn timm(c: &ModelConfig) -> Vec<NamedTensor<'static>> {
    let m = model(c);
    m.params.iter().filter_map(|(n, s, _)| Some(tensor(n.strip_prefix("encoder.")?, s))).collect()
}

fn replace(all: &mut Vec<NamedTensor<'static>>, t: NamedTensor<'static>) {
    all.retain(|o| o.name != t.name);
    all.push(t);
}

fn weights(m: &Model) -> Vec<(String, Vec<f32>)> {
    m.params.iter().map(|(n, _, id)| (n.to_string(), m.params.value(id).to_vec().unwrap())).collect()
}

fn weight(m: &Model, name: &str) -> Vec<f32> {
    m.params.value(m.params.find(name).unwrap()).to_vec().unwrap()
}

fn saved(all: &[NamedTensor]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.safetensors");
    tensors::write(&path, all).unwrap();
    (dir, path)
}

fn load(c: &ModelConfig, all: &[NamedTensor]) -> Result<(Model, Vec<String>)> {
    let (_dir, path) = saved(all);
    let mut m = model(c);
    let before = weights(&m);
    match load_encoder(&mut m, &path) {
        Ok(mut notes) => {
            assert!(notes[0].contains("w.safetensors"), "{notes:?}");
            notes.remove(0);
            Ok((m, notes))
        }
        Err(e) => {
            assert_eq!(weights(&m), before, "a file that is refused changes nothing");
            assert!(e.to_string().contains("w.safetensors: "), "{e}");
            Err(e)
        }
    }
}

fn refused(c: &ModelConfig, all: &[NamedTensor], parts: &[&str]) {
    let e = load(c, all).map(|(_, notes)| notes).unwrap_err().to_string();
    assert!(parts.iter().all(|p| e.contains(p)), "{e}");
}

#[test]
fn every_encoder_tensor_is_loaded_whatever_stands_before_its_name() {
    let c = config();
    let fresh = weights(&model(&c));
    for prefix in ["", "model.", "module.", "encoder.", "vit.", "module.model.encoder."] {
        let mut all = timm(&c);
        all.iter_mut().for_each(|t| t.name = format!("{prefix}{}", t.name));
        let (m, notes) = load(&c, &all).unwrap();
        assert_eq!(notes, [""; 0], "{prefix}");
        for ((name, now), (_, before)) in weights(&m).iter().zip(&fresh) {
            match name.strip_prefix("encoder.") {
                Some(name) => {
                    let t = all.iter().find(|t| t.name == format!("{prefix}{name}")).unwrap();
                    assert_eq!(now[..], t.data[..], "{prefix}{name}");
                }
                None => assert_eq!(now, before, "{name} is not the encoder's"),
            }
        }
    }
}

#[test]
fn a_checkpoint_of_ours_gives_its_encoder() {
    let c = config();
    let all: Vec<_> = model(&c).params.iter().map(|(n, s, _)| tensor(n, s)).collect();
    let (m, notes) = load(&c, &all).unwrap();
    assert_eq!(weight(&m, "encoder.norm.bias"), all.iter().find(|t| t.name == "encoder.norm.bias").unwrap().data[..]);
    assert!(notes.len() == 1 && notes[0].starts_with("denoiser ("), "{notes:?}");
}

#[test]
fn a_distilled_deit_loses_its_second_token_and_heads() {
    let c = config();
    let mut all = timm(&c);
    let pos = tensor("pos_embed", &[1, 6, 4]);
    replace(&mut all, pos.clone());
    all.extend(
        [("dist_token", 4), ("head.weight", 8), ("head.bias", 2), ("head_dist.weight", 8)]
            .map(|(n, l)| tensor(n, &[l])),
    );
    let (m, notes) = load(&c, &all).unwrap();
    assert_eq!(weight(&m, "encoder.pos_embed"), [&pos.data[..4], &pos.data[8..]].concat());
    let want = [
        "the position of the distillation token is left out",
        "dist_token (1 tensor) is left out",
        "head (2 tensors) is left out",
        "head_dist (1 tensor) is left out",
    ];
    assert_eq!(notes, want);
}

#[test]
fn the_decoder_of_a_mae_is_left_out() {
    let c = config();
    let mut all = timm(&c);
    let names =
        ["mask_token", "decoder_pos_embed", "decoder_embed.weight", "decoder_blocks.0.norm1.weight", "decoder.x"];
    all.extend(names.map(|n| tensor(n, &[3])));
    let (_, notes) = load(&c, &all).unwrap();
    assert_eq!(notes, ["decoder (4 tensors) is left out", "mask_token (1 tensor) is left out"]);
}

#[test]
fn fc_norm_takes_the_place_of_an_absent_norm_only() {
    let c = config();
    let (weight_of, bias_of) = (tensor("fc_norm.weight", &[4]), tensor("fc_norm.bias", &[4]));
    let mut all = timm(&c);
    all.extend([weight_of.clone(), bias_of.clone()]);
    let (m, notes) = load(&c, &all).unwrap();
    assert_ne!(weight(&m, "encoder.norm.weight"), weight_of.data[..]);
    assert_eq!(notes, ["fc_norm (2 tensors) is left out"]);
    all.retain(|t| !t.name.starts_with("norm."));
    let (m, notes) = load(&c, &all).unwrap();
    assert_eq!(weight(&m, "encoder.norm.weight"), weight_of.data[..]);
    assert_eq!(weight(&m, "encoder.norm.bias"), bias_of.data[..]);
    assert!(notes.len() == 1 && notes[0].contains("fc_norm.* takes its place"), "{notes:?}");
}

/// Numbers of `torch.nn.functional.interpolate(mode="bicubic", align_corners=False)` on `values(n·n·2, 0)` as \[n, n, 2\].
#[test]
fn positions_are_resized_as_pytorch_does() {
    #[rustfmt::skip]
    let up = [
        -0.178833, 1.100036, 1.422546, -0.489451, 1.598877, -0.313121, 0.223083, 1.501952,
        -1.357626, -0.263865, 0.570835, 0.548014, 0.747166, 0.911609, -0.95571, 0.564891,
        -0.706288, 0.265126, -0.177737, 1.264271, -0.001407, 0.826371, -0.304371, -0.732992,
        1.305785, 2.305785, -0.283702, 1.143138, -0.107371, -0.507406, 1.707702, -1.45636,
    ];
    let down = [0.255859, 0.317749, -0.240234, 1.13147, 0.083984, 0.209595, 0.494141, 0.216187];
    for (from, to, want) in [(3, 4, &up[..]), (4, 2, &down[..])] {
        let got = resize(&values(from * from * 2, 0), from, to, 2);
        assert_eq!(got.len(), want.len());
        // PyTorch computes in f32, and six decimals are written here.
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 2e-6), "{from} to {to}: {got:?}");
    }
}

#[test]
fn another_grid_keeps_the_class_token_and_resizes_the_rest() {
    let c = config();
    let mut all = timm(&c);
    let pos = tensor("pos_embed", &[1, 10, 4]);
    replace(&mut all, pos.clone());
    let (m, notes) = load(&c, &all).unwrap();
    let got = weight(&m, "encoder.pos_embed");
    assert_eq!(got[..4], pos.data[..4]);
    assert_eq!(got[4..], resize(&pos.data[4..], 3, 2, 4));
    assert_eq!(notes, ["positions are resized from 3 × 3 to 2 × 2 patches (bicubic)"]);
}

#[test]
fn colour_weights_are_summed_for_a_grey_model() {
    let c = config();
    let mut all = timm(&c);
    let w = tensor(LANDMARK, &[4, 3, 4, 4]);
    replace(&mut all, w.clone());
    let (m, notes) = load(&c, &all).unwrap();
    let got = weight(&m, "encoder.patch_embed.proj.weight");
    for (o, i) in [(0, 0), (1, 5), (3, 15)] {
        let sum: f32 = (0..3).map(|ch| w.data[(o * 3 + ch) * 16 + i]).sum();
        assert_eq!(got[o * 16 + i], sum); // eighths: exact
    }
    assert!(notes.len() == 1 && notes[0].contains("summed over channels"), "{notes:?}");
}

#[test]
fn the_tanh_gelu_is_remarked_on() {
    let c = ModelConfig { gelu: Gelu::Tanh, ..config() };
    let (_, notes) = load(&c, &timm(&c)).unwrap();
    assert!(notes.len() == 1 && notes[0].contains("model.gelu"), "{notes:?}");
}

#[test]
fn what_does_not_fit_is_refused_with_both_shapes_and_the_setting() {
    let c = config();
    let with = |t: NamedTensor<'static>| {
        let mut all = timm(&c);
        replace(&mut all, t);
        all
    };
    let without = |name: &str| timm(&c).into_iter().filter(|t| t.name != name).collect::<Vec<_>>();
    let patch = |shape: &[usize]| with(tensor(LANDMARK, shape));
    refused(&c, &patch(&[8, 1, 4, 4]), &[LANDMARK, "[8, 1, 4, 4]", "[4, 1, 4, 4]", "set model.encoder.width = 8"]);
    refused(&c, &patch(&[4, 1, 2, 2]), &["set model.encoder.patch = 2"]);
    refused(&c, &patch(&[8, 2, 2, 2]), &["width = 8, model.encoder.channels = 2, model.encoder.patch = 2"]);
    refused(&c, &patch(&[4, 1, 4, 2]), &["[4, 1, 4, 2]", "square"]);
    refused(&c, &patch(&[4, 16]), &["[4, 16]", "four dimensions"]);
    let mut deep = config();
    deep.encoder.depth = 3;
    refused(&c, &timm(&deep), &["3 blocks, the model 2", "set model.encoder.depth = 3"]);
    refused(&deep, &timm(&c), &["2 blocks, the model 3", "set model.encoder.depth = 2"]);
    let pos = |shape: &[usize]| with(tensor("pos_embed", shape));
    refused(&c, &pos(&[1, 8, 4]), &["pos_embed", "[1, 8, 4]", "[1, 5, 4]", "square", "model.encoder.image"]);
    refused(&c, &pos(&[1, 1, 4]), &["pos_embed", "[1, 1, 4]"]);
    refused(&c, &pos(&[1, 0, 4]), &["pos_embed", "[1, 0, 4]"]);
    refused(&c, &pos(&[5, 4]), &["pos_embed", "[5, 4]"]);
    refused(&c, &pos(&[1, 5, 6]), &["set model.encoder.width = 6"]);
    refused(
        &c,
        &with(tensor("blocks.1.mlp.fc1.bias", &[12])),
        &["blocks.1.mlp.fc1.bias", "[12]", "[16]", "four times"],
    );
    refused(&c, &without("blocks.1.attn.qkv.bias"), &["no tensor blocks.1.attn.qkv.bias"]);
    refused(&c, &without("norm.bias"), &["no tensor norm.bias"]);
    refused(&c, &without(LANDMARK), &["no tensor patch_embed.proj.weight", "timm's names", "cls_token"]);
    refused(&c, &[], &["this file has none"]);
    // A layer that this encoder does not have would be skipped silently.
    refused(&c, &with(tensor("blocks.0.ls1.gamma", &[4])), &["blocks.0.ls1.gamma is not part of this encoder"]);
}

/// Through the trainer: its average starts from the file, and a frozen encoder is the file's after training too.
#[test]
fn a_frozen_pretrained_encoder_stays_as_it_was_while_the_rest_learns() {
    for freeze in [true, false] {
        let mut c = Config { model: config(), ..Config::default() };
        c.model.freeze_encoder = freeze;
        c.train.batch = 16;
        c.train.warmup_epochs = 0.0;
        let all = timm(&c.model);
        let (_dir, path) = saved(&all);
        c.model.pretrained = path.display().to_string();
        let data = crate::data::open("embedded:digits", &OpenOptions::default()).unwrap();
        let mut t = Trainer::new(&c, data, &Device::Cpu).unwrap();
        assert_eq!(t.notes.len(), 1, "{:?}", t.notes);
        let start = weights(&t.trained.model);
        assert_eq!(t.averaged(|t, _| Ok(weights(&t.model))).unwrap(), start);
        let mut loader = t.loader().unwrap();
        for _ in 0..3 {
            t.train_step(&loader.next().unwrap().unwrap()).unwrap();
        }
        let raw = weights(&t.trained.model);
        let ema = t.averaged(|t, _| Ok(weights(&t.model))).unwrap();
        for now in [raw, ema] {
            for ((name, now), (_, before)) in now.iter().zip(&start) {
                let of_file = name.strip_prefix("encoder.").map(|n| &all.iter().find(|t| t.name == n).unwrap().data);
                assert!(of_file.is_none_or(|d| before[..] == d[..]), "{name} starts from the file");
                if name.starts_with("encoder.") && freeze {
                    assert_eq!(now, before, "{name}");
                }
            }
            let changed = |prefix: &str| now.iter().zip(&start).any(|(a, b)| a.0.starts_with(prefix) && a.1 != b.1);
            assert!(changed("denoiser.") && changed("encoder.") != freeze);
        }
    }
}

/// One class token of a file is the first of several; the others and their positions keep their initial values.
#[test]
fn a_class_token_of_a_file_is_the_first_of_several() {
    let one = config();
    let mut c = config();
    c.encoder.class_tokens = 3;
    let (fresh, file) = (model(&c), timm(&one));
    let (m, notes) = load(&c, &file).unwrap();
    assert!(notes.iter().any(|n| n.contains("one class token, the model 3") && n.contains("other 2")), "{notes:?}");
    let stored = |name: &str| file.iter().find(|t| t.name == name).unwrap().data.to_vec();
    let (token, positions) = (weight(&m, "encoder.cls_token"), weight(&m, "encoder.pos_embed"));
    assert_eq!(token[..4], stored("cls_token"));
    assert_eq!(token[4..], weight(&fresh, "encoder.cls_token")[4..]);
    assert_eq!(positions[..4], stored("pos_embed")[..4]);
    assert_eq!(positions[4..12], weight(&fresh, "encoder.pos_embed")[4..12]);
    assert_eq!(positions[12..], stored("pos_embed")[4..]);
    // A file with all of them.
    let file = timm(&c);
    let (m, notes) = load(&c, &file).unwrap();
    assert!(notes.is_empty(), "{notes:?}");
    for t in &file {
        assert_eq!(weight(&m, &format!("encoder.{}", t.name)), t.data.to_vec(), "{}", t.name);
    }
    // Of neither number.
    let mut two = config();
    two.encoder.class_tokens = 2;
    refused(&c, &timm(&two), &["cls_token is [1, 2, 4], the model has [1, 3, 4]", "class_tokens = 2"]);
}
