use super::*;

fn snapshot(step: u64) -> Snapshot<'static> {
    let t = |name: &str, n: usize| {
        let data: Vec<f32> = (0..n).map(|i| (step as f32 + i as f32).sin()).collect();
        NamedTensor::new(name, &[1, n], data)
    };
    let mut extra = Map::new();
    extra.insert("ema_updates".into(), 12.into());
    extra.insert("loss".into(), (1.0 / 3.0).into());
    Snapshot {
        state: State {
            step,
            epoch: 2,
            batch: 17,
            seed: u64::MAX,
            best: Some(0.1 + 0.2),
            classes: vec!["cat".into(), "größer \"dog\"".into()],
            skipped: 3,
            extra,
        },
        model: vec![t("b.weight", 33), t("a.bias", 5)],
        ema: Some(vec![t("b.weight", 33), t("a.bias", 5)]),
        optimizer: vec![t("m.b.weight", 33), t("v.b.weight", 33)],
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    let mut n = names(dir).unwrap();
    n.sort();
    n
}

#[test]
fn a_snapshot_comes_back_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), &snapshot(1234)).unwrap();
    assert_eq!(path, dir.path().join("step-00001234"));
    assert_eq!(load(&path).unwrap(), snapshot(1234));
    assert_eq!(load_state(&path).unwrap(), snapshot(1234).state);
    assert_eq!(load_component(&path, Component::Optimizer).unwrap(), Some(snapshot(1234).optimizer));
    assert_eq!(names_in(dir.path()), ["step-00001234"]);
    assert_eq!(names_in(&path), ["ema.safetensors", "model.safetensors", "optimizer.safetensors", "state.json"]);
}

#[test]
fn averaged_weights_may_be_absent() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), &Snapshot { ema: None, ..snapshot(1) }).unwrap();
    assert_eq!(load(&path).unwrap().ema, None);
    assert_eq!(load_component(&path, Component::Ema).unwrap(), None);
}

#[test]
fn latest_is_the_highest_step_also_beyond_eight_digits() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(latest(&dir.path().join("missing")).unwrap(), Latest::default());
    assert_eq!(latest(dir.path()).unwrap(), Latest::default());
    for step in [99_999_999, 7, 100_000_000] {
        save(dir.path(), &snapshot(step)).unwrap();
    }
    for other in ["step-x", "step-", "notes"] {
        fs::create_dir(dir.path().join(other)).unwrap();
    }
    fs::write(dir.path().join("step-999999999"), "a file").unwrap();
    let found = latest(dir.path()).unwrap();
    assert_eq!((found.path, found.notes), (Some(dir.path().join("step-100000000")), vec![]));
}

/// Every way in which a checkpoint can be damaged: never chosen, refused by name, the one before it chosen.
fn damaged(harm: impl Fn(&Path), says: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let good = save(dir.path(), &snapshot(1)).unwrap();
    let bad = save(dir.path(), &snapshot(2)).unwrap();
    harm(&bad);
    let found = latest(dir.path()).unwrap();
    assert_eq!(found.path, Some(good));
    assert_eq!(found.notes.len(), 1);
    let e = load(&bad).unwrap_err().to_string();
    assert!(e.contains("step-00000002 is damaged"), "{e}");
    for s in says {
        assert!(e.contains(s), "{e} lacks {s}");
    }
}

const FILES: [&str; 4] = ["ema.safetensors", "model.safetensors", "optimizer.safetensors", "state.json"];

#[test]
fn truncated_files_are_found_out() {
    for file in FILES {
        for share in [0.0, 0.01, 0.3, 0.7, 0.999] {
            damaged(
                |c| {
                    let f = File::options().write(true).open(c.join(file)).unwrap();
                    f.set_len((f.metadata().unwrap().len() as f64 * share) as u64).unwrap();
                },
                &[file],
            );
        }
    }
    damaged(
        |c| fs::write(c.join("model.safetensors"), [0; 10]).unwrap(),
        &["model.safetensors should have 296 bytes and has 10"],
    );
}

#[test]
fn a_flipped_bit_is_found_out_wherever_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), &snapshot(2)).unwrap();
    for file in FILES {
        let bytes = fs::read(path.join(file)).unwrap();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            fs::write(path.join(file), &flipped).unwrap();
            // A flip in the blanks of state.json may leave it JSON of the same meaning.
            match load(&path) {
                Ok(s) => assert!(file == STATE && s == snapshot(2), "{file} {at}"),
                Err(e) => assert!(matches!(e, Error::Input(_)), "{file} {at}: {e}"),
            }
        }
        fs::write(path.join(file), bytes).unwrap();
    }
    damaged(
        |c| {
            let mut b = fs::read(c.join("ema.safetensors")).unwrap();
            let last = b.len() - 1;
            b[last] ^= 0x80;
            fs::write(c.join("ema.safetensors"), b).unwrap();
        },
        &["ema.safetensors", "checksum"],
    );
}

#[test]
fn missing_files_are_found_out() {
    for file in FILES {
        damaged(|c| fs::remove_file(c.join(file)).unwrap(), &[file, "missing"]);
    }
}

#[test]
fn leftovers_are_not_chosen_and_go_at_the_next_save() {
    let dir = tempfile::tempdir().unwrap();
    let aside = dir.path().join(".tmp-step-00000009");
    fs::create_dir(&aside).unwrap();
    fs::write(aside.join("model.safetensors"), "half").unwrap();
    fs::write(dir.path().join(".tmp-best"), "x").unwrap();
    assert_eq!(latest(dir.path()).unwrap().path, None);
    save(dir.path(), &snapshot(9)).unwrap();
    assert_eq!(names_in(dir.path()), ["step-00000009"]);
}

#[test]
fn another_format_is_an_error_and_not_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), &snapshot(1)).unwrap();
    let path = save(dir.path(), &snapshot(2)).unwrap();
    let mut v: Value = serde_json::from_slice(&fs::read(path.join(STATE)).unwrap()).unwrap();
    v["format"] = 2.into();
    v["crc32c"] = own_crc(&v).into();
    fs::write(path.join(STATE), v.to_string()).unwrap();
    for e in [load(&path).unwrap_err(), latest(dir.path()).unwrap_err()] {
        assert!(e.to_string().contains("has format 2, this program reads 1"), "{e}");
    }
    assert_eq!(prune(dir.path(), 1, &[]).unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn a_path_that_is_no_checkpoint_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let e = load(&dir.path().join("nowhere")).unwrap_err();
    assert!(matches!(&e, Error::File { path, .. } if path.contains("nowhere")), "{e}");
}

#[test]
fn the_same_step_again_is_kept_or_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), &snapshot(3)).unwrap();
    let made = fs::metadata(path.join(STATE)).unwrap().modified().unwrap();
    save(dir.path(), &snapshot(3)).unwrap();
    assert_eq!(fs::metadata(path.join(STATE)).unwrap().modified().unwrap(), made);
    let mut other = snapshot(3);
    other.state.skipped = 99;
    save(dir.path(), &other).unwrap();
    assert_eq!(load(&path).unwrap(), other);
    fs::remove_file(path.join("model.safetensors")).unwrap();
    save(dir.path(), &other).unwrap();
    assert_eq!(load(&path).unwrap(), other);
    assert_eq!(names_in(dir.path()), ["step-00000003"]);
}

#[test]
fn pruning_keeps_the_last_and_the_best_and_drops_the_torn() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (1..=5).map(|s| save(dir.path(), &snapshot(s)).unwrap()).collect();
    fs::remove_file(paths[3].join("model.safetensors")).unwrap();
    link_best(dir.path(), &paths[0]).unwrap();
    let best = best(dir.path()).unwrap();
    assert_eq!(best.as_deref(), Some(&*paths[0]));
    let removed = prune(dir.path(), 2, &[best.as_deref().unwrap()]).unwrap();
    assert_eq!(removed, [paths[3].clone(), paths[1].clone()]);
    assert_eq!(names_in(dir.path()), ["best", "step-00000001", "step-00000003", "step-00000005"]);
    prune(dir.path(), 0, &[]).unwrap();
    assert_eq!(names_in(dir.path()), ["best", "step-00000005"]);
    assert_eq!(super::best(dir.path()).unwrap(), None); // it names what is gone
}

#[test]
fn the_best_file_names_nothing_outside() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(BEST), "..").unwrap();
    assert_eq!(best(dir.path()).unwrap(), None);
}

/// A disk that is full at any of the files: `/dev/full` gives the real error.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_says_what_was_needed_and_leaves_everything_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let before = save(dir.path(), &snapshot(1)).unwrap();
    let mut big = snapshot(2);
    big.model = vec![NamedTensor::new("w", &[1 << 19], vec![1.0; 1 << 19])];
    for (file, needs) in [("model.safetensors", "2.0 MiB"), ("optimizer.safetensors", "0.0 MiB"), (STATE, "0.0 MiB")] {
        let e = save_with(dir.path(), &big, &|path| {
            let full = path.ends_with(file);
            if full { File::options().write(true).open("/dev/full") } else { File::create(path) }
        })
        .unwrap_err()
        .to_string();
        assert!(e.contains(&format!("step-00000002/{file}: the disk is full: this file needs {needs}")), "{e}");
        assert!(e.contains("the whole checkpoint 2.0 MiB"), "{e}");
        assert_eq!(names_in(dir.path()), ["step-00000001"]);
    }
    assert_eq!(load(&before).unwrap(), snapshot(1));
}

#[test]
fn duplicate_names_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut s = snapshot(1);
    s.model.push(s.model[0].clone());
    assert!(save(dir.path(), &s).unwrap_err().to_string().contains("two tensors are called 'b.weight'"));
    assert_eq!(names_in(dir.path()), Vec::<String>::new());
}

/// A manifest may name files of its own alone: no devices, no other folders, nothing that is not a regular file.
#[test]
fn a_manifest_that_lies_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let (older, path) = (save(dir.path(), &snapshot(1)).unwrap(), save(dir.path(), &snapshot(2)).unwrap());
    let whole = fs::read(path.join(STATE)).unwrap();
    let lie = |change: &dyn Fn(&mut Value)| {
        let mut v: Value = serde_json::from_slice(&whole).unwrap();
        change(&mut v);
        v["crc32c"] = own_crc(&v).into();
        fs::write(path.join(STATE), v.to_string()).unwrap();
        load(&path).unwrap_err().to_string()
    };
    for name in ["/dev/zero", "../step-00000001/model.safetensors", "", "x"] {
        let e = lie(&|v| v["files"][name] = serde_json::json!({"bytes": 0, "crc32c": 0}));
        assert!(e.contains("no file of a checkpoint"), "{e}");
    }
    let e = lie(&|v| v["files"]["model.safetensors"]["bytes"] = u64::MAX.into());
    assert!(e.contains("should have 18446744073709551615 bytes"), "{e}");
    assert_eq!(latest(dir.path()).unwrap().path, Some(older.clone()));
    fs::write(path.join(STATE), &whole).unwrap();
    assert_eq!(load(&path).unwrap(), snapshot(2));
    if cfg!(unix) {
        for file in [Component::Model.file(), STATE] {
            fs::remove_file(path.join(file)).unwrap();
            fs::create_dir(path.join(file)).unwrap();
            assert!(load(&path).unwrap_err().to_string().contains("regular file"));
            assert_eq!(latest(dir.path()).unwrap().path, Some(older.clone()));
            fs::remove_dir(path.join(file)).unwrap();
            fs::write(path.join(file), "").unwrap();
        }
    }
}
