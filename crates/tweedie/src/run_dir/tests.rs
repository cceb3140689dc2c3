//! A run's folder: free or not, found or named, its lines.

use serde_json::json;

use super::*;

fn text(r: Result<RunDir>) -> String {
    r.unwrap_err().to_string()
}

#[test]
fn a_new_run_needs_an_empty_folder() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b");
    let run = RunDir::create(&path).unwrap();
    assert!(run.checkpoints().is_dir() && run.samples().is_dir() && !run.figures().exists());
    assert!(text(RunDir::create(&path)).contains("in use") && run.is_in_use());
    drop(run);
    // Killed before it wrote its settings: as good as empty, unless something is in there.
    fs::write(path.join(CONFIG_ASIDE), "see").unwrap();
    drop(RunDir::create(&path).unwrap());
    fs::write(path.join("checkpoints/mine"), "").unwrap();
    assert!(text(RunDir::create(&path)).contains("not empty"));
    fs::write(path.join(CONFIG), "").unwrap();
    assert!(text(RunDir::create(&path)).contains("--resume"));
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(RunDir::create(&empty).is_ok());
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(text(RunDir::create(&dir.path().join("file"))).contains("file"));
}

#[cfg(unix)]
#[test]
fn a_folder_that_was_replaced_is_not_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let run = RunDir::create(&path).unwrap();
    assert!(run.is_in_place());
    fs::rename(&path, dir.path().join("away")).unwrap();
    assert!(!run.is_in_place());
    fs::create_dir(&path).unwrap();
    assert!(!run.is_in_place());
    assert_eq!(run.beside().unwrap().path(), dir.path().join("r.rescued-1"));
}

#[test]
fn opening_needs_a_run() {
    let dir = tempfile::tempdir().unwrap();
    assert!(text(RunDir::open(&dir.path().join("x"))).contains("no such folder"));
    assert!(text(RunDir::open(dir.path())).contains("no config.toml"));
    let run = RunDir::create(&dir.path().join("digits-1")).unwrap();
    run.write_config("").unwrap();
    let e = text(RunDir::open(&dir.path().join("digit-1")));
    assert!(e.ends_with("digits-1?"), "{e}");
    assert!(!text(RunDir::open(&dir.path().join("elephants"))).contains("did you mean"));
    assert!(run.foreign_entries().unwrap().is_empty());
    fs::write(run.path().join("mine.txt"), "").unwrap();
    assert_eq!(run.foreign_entries().unwrap(), ["mine.txt"]);
}

#[test]
fn a_checkpoint_is_found_with_its_run_and_other_paths_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let [run, lone] = ["run", "lone"].map(|n| dir.path().join(n));
    let step = run.join("checkpoints/step-00000001");
    for folder in [&step, &lone] {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(STATE), "{}").unwrap();
    }
    let best = run.join("checkpoints/best");
    fs::write(&best, "step-00000001\n").unwrap();
    fs::write(run.join(CONFIG), "").unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let found = |p: &Path| RunDir::around(p).map(|(run, is_checkpoint)| (run.path().to_path_buf(), is_checkpoint));
    assert_eq!(found(&run).unwrap(), (run.clone(), false));
    assert_eq!(found(&step).unwrap(), (run.clone(), true));
    let shown = run.display().to_string();
    for (path, words) in [
        (&lone, &["is a checkpoint without its run", "config.toml", WHOLE][..]),
        (&best, &["is a part of the run", &format!("pass {shown}")]),
        (&run.join("checkpoints"), &["is a part of the run", &shown]),
        (&dir.path().join("file"), &["is a file", WHOLE]),
        (&dir.path().join("none"), &["no such folder"]),
    ] {
        let e = found(path).unwrap_err().to_string();
        assert!(e.starts_with(&path.display().to_string()) && words.iter().all(|w| e.contains(w)), "{e}");
    }
}

#[test]
fn only_one_process_writes_and_any_reads() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path()).unwrap();
    run.write_config("seed = 1\n").unwrap();
    assert!(text(RunDir::resume(dir.path())).contains("in use"));
    assert_eq!(RunDir::open(dir.path()).unwrap().read_config().unwrap(), "seed = 1\n");
    drop(run);
    assert!(RunDir::resume(dir.path()).is_ok());
}

#[test]
fn starts_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path()).unwrap();
    let env = Environment::now("cpu", 2);
    assert!(!env.command.is_empty() && env.time.ends_with('Z'));
    let later = Environment { device: "cuda".into(), ..env.clone() };
    for e in [&env, &later, &later] {
        run.write_env(e).unwrap();
    }
    let v: Value = serde_json::from_slice(&fs::read(dir.path().join(ENV)).unwrap()).unwrap();
    assert_eq!(v["device"], "cpu");
    assert_eq!(v["resumed"], json!([later, later]));
}

#[test]
fn surroundings_of_older_programs_are_read() {
    let old = json!({
        "version": "0.1.0", "command": ["tweedie"], "device": "cpu", "threads": 2, "os": "linux x86_64",
        "time": "2026-01-01T00:00:00Z",
    });
    let old: Environment = serde_json::from_value(old).unwrap();
    assert_eq!((old.build, old.cpu.as_str(), old.libraries.len()), (Build::default(), "", 0));
    let now = Environment::now("cpu", 2);
    assert!(now.build.rustc.contains("rustc") && !now.build.target.is_empty() && !now.cpu.is_empty(), "{now:?}");
    assert!(now.gpu.is_empty() && now.libraries.is_empty());
    let commit = &now.build.commit;
    assert!(commit.is_empty() || commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit()), "{commit}");
    assert_eq!(serde_json::from_value::<Environment>(serde_json::to_value(&now).unwrap()).unwrap(), now);
}

#[test]
fn resumed_metrics_forget_later_steps_and_torn_lines() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path()).unwrap();
    let mut m = run.metrics(None).unwrap();
    for step in 1..=4 {
        m.append(&json!({"step": step, "loss": 0.1 * step as f64})).unwrap();
    }
    m.append(&json!({"note": "no step"})).unwrap();
    m.sync().unwrap();
    drop(m);
    let torn = fs::read_to_string(run.metrics_path()).unwrap() + "{\"step\":2,\"lo";
    fs::write(run.metrics_path(), torn).unwrap();
    assert_eq!(run.read_metrics().unwrap().len(), 5);
    run.metrics(Some(2)).unwrap().append(&json!({"step": 3})).unwrap();
    let all = run.read_metrics().unwrap();
    let steps: Vec<_> = all.iter().map(|v| v["step"].as_u64()).collect();
    assert_eq!(steps, [Some(1), Some(2), None, Some(3)]);
    assert_eq!(all[1]["loss"], json!(0.2));
    assert!(run.metrics(Some(9)).unwrap().append(&[1]).is_err());
}

/// A cut at any byte loses the line that was cut and no other.
#[test]
fn a_cut_anywhere_loses_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path()).unwrap();
    let mut m = run.metrics(None).unwrap();
    (0..3).for_each(|s| m.append(&json!({"step": s, "ü": "ü"})).unwrap());
    let whole = fs::read(run.metrics_path()).unwrap();
    for cut in 0..whole.len() {
        fs::write(run.metrics_path(), &whole[..cut]).unwrap();
        // A line that lacks only its newline is whole.
        let n = whole[..cut].iter().filter(|b| **b == b'\n').count() + usize::from(whole[cut] == b'\n');
        drop(run.metrics(Some(10)).unwrap());
        assert_eq!(run.read_metrics().unwrap().len(), n, "{cut}");
    }
}
