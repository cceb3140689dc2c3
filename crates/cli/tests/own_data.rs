//! Own data in one command: recipes that are made for them, trainings by these, and what a recipe that does not fit says.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::run;
use tempfile::TempDir;
use tweedie::{Config, Image};

fn tweedie(dir: &Path, args: &[&str]) -> Command {
    let mut c = common::tweedie(args);
    c.current_dir(dir).args(["--threads", "1"]);
    c
}

fn succeeds(c: Command) -> (String, String) {
    let (code, out, err) = run(c);
    assert_eq!(code, 0, "{err}");
    (out, err)
}

/// Exit code 1 and a message that has all of `words`.
fn refused(c: Command, words: &[&str]) {
    let (code, _, err) = run(c);
    assert_eq!(code, 1, "{err}");
    words.iter().for_each(|w| assert!(err.contains(w), "{w}: {err}"));
}

/// Photos of two classes, `side` wide and a little higher.
fn photos(dir: &Path, side: usize, colour: bool) {
    for (class, base) in [("day", 160), ("night", 20)] {
        let folder = dir.join("photos").join(class);
        fs::create_dir_all(&folder).unwrap();
        for i in 0..24_u8 {
            let color = if colour { vec![base + i, base, 70 + i] } else { vec![base + i; 3] };
            let image = Image::filled(side, side + 4, &color);
            fs::write(folder.join(format!("{i}.png")), image.to_png().unwrap()).unwrap();
        }
    }
}

/// MNIST's files with 80 images: zeros are dark, ones have a bar.
fn idx(dir: &Path) {
    let folder = dir.join("digits-files");
    fs::create_dir_all(&folder).unwrap();
    for (split, n) in [("train", 80_u32), ("t10k", 20)] {
        let mut images = [2051, n, 28, 28].map(u32::to_be_bytes).concat();
        let mut labels = [2049, n].map(u32::to_be_bytes).concat();
        for i in 0..n {
            labels.push((i % 2) as u8);
            let bar = |p: usize| if i % 2 == 1 && (12..16).contains(&(p % 28)) { 250 } else { 0 };
            images.extend((0..784).map(bar));
        }
        fs::write(folder.join(format!("{split}-images-idx3-ubyte")), images).unwrap();
        fs::write(folder.join(format!("{split}-labels-idx1-ubyte")), labels).unwrap();
    }
}

/// What `init` writes for `data`, read back, and its text.
fn made(dir: &Path, data: &str) -> (Config, String) {
    let (out, err) = succeeds(tweedie(dir, &["init", data, "--budget", "2s", "--device", "cpu", "--out", "mine.toml"]));
    assert_eq!(out, "mine.toml\n");
    assert!(
        err.contains("found:") && err.contains("epochs,") && err.contains("next: tweedie train mine.toml"),
        "{err}"
    );
    succeeds(tweedie(dir, &["config", "show", "mine.toml"]));
    let text = fs::read_to_string(dir.join("mine.toml")).unwrap();
    assert!(text.starts_with("# Made by tweedie") && text.matches("  # ").count() > 10, "{text}");
    (Config::preset(dir.join("mine.toml").to_str().unwrap()).unwrap(), text)
}

#[test]
fn a_recipe_for_photos() {
    let dir = TempDir::new().unwrap();
    photos(dir.path(), 40, true);
    let (c, text) = made(dir.path(), "photos");
    assert_eq!((c.model.encoder.channels, c.augment.flip, c.data.path.as_str()), (3, 0.5, "photos"));
    assert!(c.model.encoder.image <= 40 && (c.augment.mean[0] - 0.4).abs() < 0.1, "{text}");
    // It stays as it is.
    refused(
        tweedie(dir.path(), &["init", "photos", "--out", "mine.toml"]),
        &["mine.toml is there already", "--out mine.2.toml"],
    );
    assert_eq!(fs::read_to_string(dir.path().join("mine.toml")).unwrap(), text);
}

#[test]
fn a_recipe_for_mnist_files() {
    let dir = TempDir::new().unwrap();
    idx(dir.path());
    let (c, text) = made(dir.path(), "digits-files");
    assert_eq!((c.model.encoder.image, c.model.encoder.channels, c.augment.flip), (28, 1, 0.0));
    assert!(text.contains("image = 28") && text.contains("# the images' own"), "{text}");
    assert_eq!((c.data.val_fraction, f64::from(c.train.warmup_epochs) < c.train.epochs as f64), (0.2, true));
}

#[test]
fn recipes_for_captions_and_text() {
    let dir = TempDir::new().unwrap();
    let (c, _) = made(dir.path(), "embedded:shapes");
    assert!(c.data.tokenizer.starts_with("word:") && (8..=16).contains(&c.data.tokens), "{:?}", c.data);
    fs::remove_file(dir.path().join("mine.toml")).unwrap();
    fs::write(dir.path().join("song.txt"), "la la li, lu la\n".repeat(2000)).unwrap();
    let (c, text) = made(dir.path(), "song.txt");
    assert_eq!((c.data.tokenizer.as_str(), c.model.is_conditional()), ("chars", false));
    assert!(text.contains("7 different characters"), "{text}");
}

#[test]
fn data_in_place_of_a_recipe_are_trained_on() {
    let dir = TempDir::new().unwrap();
    photos(dir.path(), 20, false);
    let c = tweedie(dir.path(), &["train", "photos", "--budget", "3s", "--device", "cpu", "--set", "seed=3"]);
    let (out, err) = succeeds(c);
    assert_eq!(out, "runs/photos-1\n");
    assert!(err.contains("trains:") && err.contains("40 images for training, 8 for validation"), "{err}");
    let run = dir.path().join("runs/photos-1");
    let recipe = fs::read_to_string(run.join("recipe.toml")).unwrap();
    assert!(recipe.contains("  # "), "{recipe}");
    let config = Config::preset(run.join("config.toml").to_str().unwrap()).unwrap();
    assert_eq!((config.seed, config.model.encoder.channels), (3, 1), "grey in three channels is grey");
    // The recipe gives the same training but for what was set beside it.
    let again = Config::preset(run.join("recipe.toml").to_str().unwrap()).unwrap();
    assert_eq!((again.train, again.augment), (config.train, config.augment));
}

#[test]
fn a_name_that_is_a_recipe_and_a_path_is_asked_about() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("digits")).unwrap();
    refused(
        tweedie(dir.path(), &["train", "digits"]),
        &["'digits' is a recipe, and a file or folder here", "tweedie train ./digits", "tweedie train digits --data"],
    );
    refused(tweedie(dir.path(), &["train", "./digits"]), &["the folder is empty"]);
    refused(tweedie(dir.path(), &["train", "cifar10", "--budget", "5m"]), &["go with data in place of a recipe"]);
}

#[test]
fn a_recipe_that_does_not_fit_says_what_to_change() {
    let dir = TempDir::new().unwrap();
    photos(dir.path(), 28, true);
    let train = |more: &[&str]| {
        let base =
            ["train", "digits", "--data", "photos", "--device", "cpu", "--out", "run", "--set", "train.epochs=2"];
        tweedie(dir.path(), &[&base, more].concat())
    };
    refused(train(&[]), &["channels = 1, but the images have 3", "hint: --set model.encoder.channels=3"]);
    let three = ["--set", "model.encoder.channels=3", "--set", "data.val_fraction=0.5"];
    refused(train(&three), &["train.batch = 32 is more than the", "hint: --set train.batch="]);
    let (_, err) = succeeds(train(&[&three[..], &["--set", "train.batch=8"]].concat()));
    assert!(err.contains("are scaled to 8×8; for their own size: --set model.encoder.image=28"), "{err}");
    assert!(err.contains("the warm-up (train.warmup_epochs = 5) is as long as the run"), "{err}");
    assert!(err.contains("--set train.warmup_epochs=0.10"), "{err}");
}
