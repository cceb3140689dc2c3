//! CLIP against `transformers` on two tiny random models (`reference/golden.py clip` makes them).

use std::path::{Path, PathBuf};

use serde_json::Value;
use tweedie::data::Image;
use tweedie::metrics::clip::{Clip, cosine};
use tweedie::tensors::{NamedTensor, read};
use tweedie_engine::Device;

const FOLDERS: [&str; 2] = ["quick", "gelu"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/clip")
}

fn load(name: &str) -> (Clip, Value, Vec<NamedTensor<'static>>) {
    let folder = fixtures().join(name);
    let clip = Clip::load(&folder, &Device::Cpu).unwrap();
    let golden = serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
    (clip, golden, read(&folder.join("golden.safetensors")).unwrap())
}

fn tensor<'a>(all: &'a [NamedTensor], name: &str) -> &'a NamedTensor<'a> {
    all.iter().find(|t| t.name == name).unwrap()
}

fn images() -> Vec<Image> {
    (0..4).map(|i| Image::decode(&std::fs::read(fixtures().join(format!("image{i}.png"))).unwrap()).unwrap()).collect()
}

fn texts(golden: &Value) -> Vec<String> {
    golden["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap().to_string()).collect()
}

#[track_caller]
fn close(name: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{name}");
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{name}: largest difference {worst:e}");
    assert!(worst < tolerance, "{name}: {worst}");
}

#[test]
fn texts_become_the_same_tokens() {
    for name in FOLDERS {
        let (clip, golden, _) = load(name);
        for (text, want) in texts(&golden).iter().zip(golden["tokens"].as_array().unwrap()) {
            let want: Vec<u32> = want.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
            assert_eq!(clip.tokens(text).unwrap(), want, "{name}: {text}");
        }
    }
}

#[test]
fn images_become_the_same_pixels() {
    for name in FOLDERS {
        let (clip, _, golden) = load(name);
        let got: Vec<f32> = images().into_iter().flat_map(|i| clip.prepare(i).unwrap()).collect();
        // f32 rounding: the resized bytes are equal.
        close(name, &got, &tensor(&golden, "pixels").data, 1e-5);
    }
}

#[test]
fn features_and_cosines_are_the_same() {
    for name in FOLDERS {
        let (clip, golden, tensors) = load(name);
        let texts = clip.text_features(&texts(&golden)).unwrap();
        let want_texts = &tensor(&tensors, "text_features").data;
        close(&format!("{name} texts"), &texts.concat(), want_texts, 1e-5); // f32 rounding
        let images = clip.image_features(images()).unwrap();
        let want_images = &tensor(&tensors, "image_features").data;
        close(&format!("{name} images"), &images.concat(), want_images, 1e-5);
        // The processor that resizes with PIL has bytes that are off by one here and there.
        close(&format!("{name} images, PIL"), &images.concat(), &tensor(&tensors, "image_features_pil").data, 1e-3);
        let d = texts[0].len();
        let pairs = |i: &dyn Fn(usize) -> Vec<f32>, t: &dyn Fn(usize) -> Vec<f32>| -> Vec<f32> {
            (0..images.len())
                .flat_map(|a| (0..texts.len()).map(move |b| (a, b)))
                .map(|(a, b)| cosine(&i(a), &t(b)))
                .collect()
        };
        let got = pairs(&|i| images[i].clone(), &|t| texts[t].clone());
        let want = pairs(&|i| want_images[i * d..][..d].to_vec(), &|t| want_texts[t * d..][..d].to_vec());
        close(&format!("{name} cosines"), &got, &want, 1e-5);
        let spread = want.iter().copied().fold(f32::MIN, f32::max) - want.iter().copied().fold(f32::MAX, f32::min);
        assert!(spread > 0.2, "cosines that hardly differ would hide mistakes: {spread}");
    }
}

/// A batch of texts of different lengths gives what each gives alone.
#[test]
fn batches_do_not_matter() {
    let (clip, golden, _) = load("quick");
    let texts = texts(&golden);
    let together = clip.text_features(&texts).unwrap();
    for (t, want) in texts.iter().zip(&together) {
        close(t, &clip.text_features(std::slice::from_ref(t)).unwrap()[0], want, 1e-6);
    }
}

/// Every file that is missing or wrong is named, with the field.
#[test]
fn broken_folders_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |what: &str| {
        let e = Clip::load(dir.path(), &Device::Cpu).err().expect(what).to_string();
        assert!(e.contains(what), "'{what}' is not in: {e}");
    };
    let copy = |name: &str| std::fs::copy(fixtures().join("quick").join(name), dir.path().join(name)).unwrap();
    let edit = |name: &str, from: &str, to: &str| {
        let text = std::fs::read_to_string(fixtures().join("quick").join(name)).unwrap();
        assert!(text.contains(from));
        std::fs::write(dir.path().join(name), text.replacen(from, to, 1)).unwrap();
    };
    refused("config.json");
    edit("config.json", "\"model_type\": \"clip\"", "\"model_type\": \"bert\"");
    refused("model_type must be clip, it is bert");
    edit("config.json", "\"hidden_act\": \"quick_gelu\"", "\"hidden_act\": \"relu\"");
    refused("text_config.hidden_act");
    edit("config.json", "\"patch_size\": 8", "\"patch_size\": \"8\"");
    refused("vision_config.patch_size must be a positive integer");
    edit("config.json", "\"patch_size\": 8", "\"patch_size\": 18446744073709551615");
    refused("vision_config.patch_size must be a positive integer up to 65536, it is 18446744073709551615");
    edit("config.json", "\"hidden_size\": 16", "\"hidden_size\": 18");
    refused("no tokenizer.json");
    copy("tokenizer.json");
    refused("no model.safetensors");
    copy("model.safetensors");
    refused("text_model.embeddings.token_embedding.weight' is [554, 16], config.json makes it [554, 18]");
    copy("config.json");
    edit("preprocessor_config.json", "\"resample\": 3", "\"resample\": 0");
    refused("preprocessor_config.json: resample must be");
    copy("preprocessor_config.json");
    assert!(Clip::load(dir.path(), &Device::Cpu).is_ok());
}
