//! `data inspect --plan`: who reads what.

mod common;

use common::{run, tweedie};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A member of a tar file: header, content, padding.
fn member(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", bytes.len()).as_bytes());
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    [&header[..], bytes, &vec![0; bytes.len().next_multiple_of(512) - bytes.len()]].concat()
}

/// Eight shards of twelve images.
fn shards(root: &Path) {
    let png = tweedie::data::Image::filled(8, 8, &[1, 2, 3]).to_png().unwrap();
    for shard in 0..8 {
        let images = (0..12).flat_map(|i| [member(&format!("{i}.png"), &png), member(&format!("{i}.cls"), b"1")]);
        let all: Vec<u8> = images.flatten().chain([0; 1024]).collect();
        fs::write(root.join(format!("train-{shard}.tar")), all).unwrap();
    }
}

fn plan(root: &Path, more: &[&str]) -> (i32, String, String) {
    let args = ["data", "inspect", root.to_str().unwrap(), "--set", "train.batch=16", "--set", "data.val_fraction=0"];
    run(tweedie(&[&args[..], more].concat()))
}

#[test]
fn files_of_each_rank_are_shown() {
    let dir = TempDir::new().unwrap();
    shards(dir.path());
    let (code, out, err) = plan(dir.path(), &["--plan", "2", "--set", "data.lanes=8", "--json"]);
    assert_eq!(code, 0, "{err}");
    let v: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((v["batches"].as_u64(), v["lanes"].as_u64(), v["streamed"].as_bool()), (Some(6), Some(8), Some(true)));
    let files = |rank: usize| -> BTreeSet<String> {
        let all = v["ranks"][rank]["files"].as_array().unwrap();
        all.iter().map(|f| f["file"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!((files(0).len(), files(1).len(), files(0).union(&files(1)).count()), (4, 4, 8));
    assert_eq!(v["shared"].as_array().unwrap().len(), 0);

    let (code, out, _) = plan(dir.path(), &["--plan", "2", "--set", "data.lanes=8"]);
    assert!(code == 0 && out.contains("6 batches of 16 over 2 ranks") && out.contains("in 8 lanes"), "{out}");
    assert!(out.contains("rank 0: train-") && out.contains("read twice: nothing"), "{out}");
    let (_, out, _) = plan(dir.path(), &["--plan", "3", "--set", "data.lanes=8"]);
    assert!(out.contains("3 ranks do not divide 8 lanes"), "{out}");
    let (_, out, _) = plan(dir.path(), &["--plan", "2"]);
    assert!(out.contains("fit into data.memory = 2048 MiB") && out.contains("data.lanes=24"), "{out}");
    let (_, out, _) = plan(dir.path(), &["--plan", "2", "--set", "augment.mix.mixup_alpha=0.5"]);
    assert!(out.contains("read by two ranks, to be mixed: 96 examples"), "{out}");
}

#[test]
fn plans_that_cannot_be_are_refused() {
    let dir = TempDir::new().unwrap();
    shards(dir.path());
    for (more, why) in [
        (&["--plan", "17"][..], "a batch of 16 has no example for each of 17 ranks"),
        (&["--plan", "2", "--set", "data.lanes=32"], "data.lanes = 32: a batch of 16"),
        (&["--plan", "0"], "--plan"),
        (&[], "--plan"),
    ] {
        let (code, _, err) = plan(dir.path(), more);
        assert!(code != 0 && err.contains(why), "{more:?}: {err}");
    }
}

#[test]
fn captions_and_text_have_plans() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("train.txt"), "some words in a line\n".repeat(100)).unwrap();
    let (code, out, err) = plan(dir.path(), &["--plan", "2", "--layout", "packed", "--tokens", "8"]);
    assert!(code == 0 && out.contains("every example is read by itself"), "{out}{err}");
}
