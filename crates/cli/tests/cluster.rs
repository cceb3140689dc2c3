//! Ranks as real processes, started by Debian's Open MPI and MPICH: the same run by one, two and three of them, and by others after one
//! was killed. `scripts/cluster_test` does the same at length.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Every task as a run of ten steps of some milliseconds.
const SMALL: &[&str] = &[
    "model.encoder.depth=1",
    "model.encoder.width=32",
    "model.encoder.heads=2",
    "model.denoiser.depth=1",
    "model.denoiser.width=32",
    "model.denoiser.heads=2",
    "sample.steps=2",
    "train.log_every=1",
    "train.eval_every=0",
    "train.eval_images=32",
    "train.checkpoint_every=1",
    "train.noisy_copies=2",
    "train.batch=48",
    "train.epochs=2",
    "data.workers=1",
    "data.train_limit=240",
];
const CLASSES: &[&str] = &["digits", "augment.mix.mixup_alpha=0.8", "augment.mix.cutmix_alpha=1.0"];
const CAPTIONS: &[&str] = &["shapes"];
const TEXT: &[&str] =
    &["shakespeare", "data.path=lines.txt", "data.layout=lines", "data.tokens=16", "loss.pad_weight=0.25"];
/// Of a loss, after some steps.
const TOLERANCE: f64 = 1e-4;
/// No command of these takes longer, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What starts ranks.
#[derive(Clone, Copy, Debug)]
enum Mpi {
    Open,
    Mpich,
}

impl Mpi {
    fn words(self) -> &'static [&'static str] {
        match self {
            Mpi::Open => &["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root"],
            Mpi::Mpich => &["mpirun.mpich"],
        }
    }

    /// Those that are here. None is an error where `TWEEDIE_REQUIRE_MPI` is set, and a note otherwise.
    fn all() -> Vec<Mpi> {
        let is_there = |mpi: &Mpi| Command::new(mpi.words()[0]).arg("--version").output().is_ok();
        let (here, missing): (Vec<Mpi>, Vec<Mpi>) = [Mpi::Open, Mpi::Mpich].into_iter().partition(is_there);
        if !missing.is_empty() {
            assert!(std::env::var_os("TWEEDIE_REQUIRE_MPI").is_none(), "there is no {missing:?} to start ranks with");
            eprintln!("skipped: there is no {missing:?} to start ranks with");
        }
        here
    }
}

/// `tweedie train` as so many ranks, or as a process of its own.
fn train(dir: &Path, ranks: Option<(Mpi, usize)>, words: &[&str]) -> Command {
    let program = env!("CARGO_BIN_EXE_tweedie");
    let mut c = match ranks {
        None => Command::new(program),
        Some((mpi, n)) => {
            let mut c = Command::new(mpi.words()[0]);
            c.args(&mpi.words()[1..]).args(["-np", &n.to_string(), program]);
            c
        }
    };
    c.current_dir(dir).args(["--threads", "1", "train", "--device", "cpu"]).args(words).stdin(Stdio::null());
    c
}

/// A new run of a task.
fn begin(dir: &Path, ranks: Option<(Mpi, usize)>, task: &[&str], more: &[&str], out: &str) -> Command {
    let sets = SMALL.iter().chain(&task[1..]).chain(more).flat_map(|s| ["--set", s]);
    let words: Vec<&str> = [task[0], "--out", out].into_iter().chain(sets).collect();
    train(dir, ranks, &words)
}

/// Exit code and what was said on stderr.
fn done(mut c: Command) -> (i32, String) {
    let child = c.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(began.elapsed() < PATIENCE, "{c:?} took {:?}", began.elapsed());
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!err.contains("panicked"), "{err}");
    (output.status.code().unwrap_or(-1), err)
}

fn succeeds(c: Command) {
    let shown = format!("{c:?}");
    let (code, err) = done(c);
    assert_eq!(code, 0, "{shown}\n{err}");
}

/// Loss by step.
fn losses(run: &Path) -> BTreeMap<u64, f64> {
    let lines = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = lines.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    lines.filter(|l| l["event"] == "step").map(|l| (l["step"].as_u64().unwrap(), l["loss"].as_f64().unwrap())).collect()
}

/// The tensors of the last checkpoint, as bytes.
fn last(run: &Path) -> (PathBuf, Vec<Vec<u8>>) {
    let entries = fs::read_dir(run.join("checkpoints")).unwrap().map(|e| e.unwrap().path());
    let newest =
        entries.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("step-"))).max().unwrap();
    let files = ["model.safetensors", "ema.safetensors", "optimizer.safetensors"];
    (newest.file_name().unwrap().into(), files.map(|f| fs::read(newest.join(f)).unwrap()).into())
}

#[test]
fn ranks_train_the_run_of_one_process() {
    let tmp = TempDir::new().unwrap();
    let dir = tmp.path();
    let line = |i: usize| format!("{}\n", &"a man, a plan, a canal: panama"[i % 7..7 + i * i % 13]);
    fs::write(dir.join("lines.txt"), (0..400).map(line).collect::<String>()).unwrap();
    let mpis = Mpi::all();
    let cases = [(CLASSES, "muon", true), (CAPTIONS, "adamw", true), (TEXT, "muon", false)];
    for (task, optimizer, spread) in cases {
        if mpis.is_empty() {
            return;
        }
        let name = task[0];
        let own = [format!("train.optimizer={optimizer}"), format!("train.shard_optimizer={spread}")];
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let exact: Vec<&str> = own.iter().copied().chain(["train.shards=6"]).collect();
        let at = |what: &str| format!("{name}-{what}");
        succeeds(begin(dir, None, task, &own, &at("one")));
        succeeds(begin(dir, None, task, &exact, &at("exact")));
        for mpi in &mpis {
            for n in [2, 3] {
                let out = at(&format!("{mpi:?}-{n}"));
                succeeds(begin(dir, Some((*mpi, n)), task, &exact, &out));
                assert_eq!(
                    last(&dir.join(&out)),
                    last(&dir.join(at("exact"))),
                    "{name} {mpi:?} {n} ranks: not bit for bit"
                );
            }
            let out = at(&format!("{mpi:?}-quick"));
            succeeds(begin(dir, Some((*mpi, 3)), task, &own, &out));
            let (one, three) = (losses(&dir.join(at("one"))), losses(&dir.join(&out)));
            assert!(one.len() == 10 && one.keys().eq(three.keys()), "{one:?} {three:?}");
            for (step, loss) in one {
                let difference = (three[&step] - loss).abs() / loss;
                assert!(difference < TOLERANCE, "{name} {mpi:?} step {step}: {difference}");
            }
        }
    }
}

/// The process of the program with this rank below process `job`.
fn process_of(job: u32, rank: usize) -> Option<i32> {
    let parent = |pid: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|l| l.strip_prefix("PPid:"))?.trim().parse().ok()
    };
    let is_below = |pid: u32| std::iter::successors(Some(pid), |p| parent(*p).filter(|p| *p > 1)).any(|p| p == job);
    let entries = fs::read_dir("/proc").ok()?;
    let pids = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let has_rank = |pid: u32| {
        let (env, program) = (fs::read(format!("/proc/{pid}/environ")), fs::read_link(format!("/proc/{pid}/exe")));
        let names = [format!("OMPI_COMM_WORLD_RANK={rank}"), format!("PMI_RANK={rank}")];
        let named = env.is_ok_and(|env| env.split(|b| *b == 0).any(|v| names.iter().any(|n| n.as_bytes() == v)));
        named && program.is_ok_and(|p| p.ends_with("tweedie"))
    };
    pids.filter(|pid| is_below(*pid)).find(|pid| has_rank(*pid)).map(|pid| pid as i32)
}

fn signal(pid: i32, name: &str) -> bool {
    Command::new("kill").args(["-s", name, &pid.to_string()]).stderr(Stdio::null()).status().unwrap().success()
}

/// Checkpoints of a run.
fn checkpoints(run: &Path) -> usize {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().filter_map(|e| e.ok());
    entries.filter(|e| e.file_name().to_string_lossy().starts_with("step-")).count()
}

/// Wait until a run has more checkpoints than `before` by two.
fn wait_for_checkpoints(run: &Path, before: usize, job: &mut Child) {
    let began = Instant::now();
    while checkpoints(run) < before + 2 {
        let ended = job.try_wait().unwrap();
        assert!(ended.is_none() && began.elapsed() < PATIENCE, "no checkpoints of {run:?}: {ended:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Wait for a job, which has to end by itself.
fn ends(mut job: Child) -> Duration {
    let began = Instant::now();
    while job.try_wait().unwrap().is_none() {
        if began.elapsed() > PATIENCE {
            let _ = job.kill();
            panic!("a job whose rank was killed did not end in {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    began.elapsed()
}

/// Killed with 3 ranks once a few checkpoints are there, gone on with by 2; killed again, gone on with by 1: the end is the undisturbed one.
#[test]
fn a_killed_rank_ends_the_job_and_others_go_on() {
    let tmp = TempDir::new().unwrap();
    let dir = tmp.path();
    let settings =
        ["train.optimizer=muon", "train.shard_optimizer=true", "train.shards=6", "train.epochs=30", "train.keep=99"];
    let mpis = Mpi::all();
    if !mpis.is_empty() {
        succeeds(begin(dir, None, CLASSES, &settings, "whole"));
    }
    for (mpi, victims) in mpis.into_iter().zip([[2, 0], [1, 1]]) {
        let out = format!("killed-{mpi:?}");
        let run = dir.join(&out);
        for (i, (ranks, victim)) in [(3, victims[0]), (2, victims[1])].into_iter().enumerate() {
            let before = checkpoints(&run);
            let mut c = match i {
                0 => begin(dir, Some((mpi, ranks)), CLASSES, &settings, &out),
                _ => train(dir, Some((mpi, ranks)), &["--resume", &out]),
            };
            let mut job = c.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            wait_for_checkpoints(&run, before, &mut job);
            if let Some(pid) = process_of(job.id(), victim) {
                signal(pid, "KILL");
            }
            let took = ends(job);
            assert!(took < Duration::from_secs(60), "{mpi:?}: {took:?}");
        }
        succeeds(train(dir, Some((mpi, 1)), &["--resume", &out]));
        assert_eq!(last(&dir.join(&out)), last(&dir.join("whole")), "{mpi:?}");
    }
}

/// The first rank, which writes the run and hears from all, stops answering while several operations of the others are under way.
#[test]
fn a_stopped_rank_is_named_and_the_run_goes_on() {
    let tmp = TempDir::new().unwrap();
    let dir = tmp.path();
    for mpi in Mpi::all() {
        let out = format!("stopped-{mpi:?}");
        let run = dir.join(&out);
        let mut c = begin(dir, Some((mpi, 3)), CLASSES, &["train.shards=6", "train.epochs=400"], &out);
        c.args(["--comm-timeout", "18"]); // silent for a third of that
        let mut job = c.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_checkpoints(&run, 0, &mut job);
        let Some(pid) = process_of(job.id(), 0) else { panic!("rank 0 is gone") };
        assert!(signal(pid, "STOP"));
        let mut words = job.stderr.take().unwrap();
        let took = ends(job);
        signal(pid, "KILL"); // where mpirun did not
        let mut said = String::new();
        words.read_to_string(&mut said).unwrap();
        assert!(said.contains("rank 0 has not been heard of for 6 s"), "{mpi:?}: {said}");
        assert!(took < Duration::from_secs(60), "{mpi:?}: {took:?}");
        // As many steps more as it takes to see that nothing blocks it.
        let done = losses(&run).len() as u64 / 5 + 2;
        succeeds(train(dir, Some((mpi, 2)), &["--resume", &out, "--set", &format!("train.epochs={done}")]));
    }
}

#[test]
fn ranks_of_other_recipes_and_shards_are_refused() {
    let tmp = TempDir::new().unwrap();
    let dir = tmp.path();
    let Some(mpi) = Mpi::all().into_iter().next() else { return };
    // A recipe of its own for one rank, by the environment that it is started with.
    let program = env!("CARGO_BIN_EXE_tweedie");
    let script = format!(
        "if [ \"$OMPI_COMM_WORLD_RANK$PMI_RANK\" = 1 ]; then more='--set train.clip=1.25'; fi; exec {program} --threads 1 train digits \
         --device cpu --out other $more"
    );
    let mut c = Command::new(mpi.words()[0]);
    c.current_dir(dir).args(&mpi.words()[1..]).args(["-np", "2", "sh", "-c", &script]);
    let (code, err) = done(c);
    assert!(code != 0 && err.contains("rank 1") && err.contains("train.clip = 1.25"), "{err}");
    assert!(!dir.join("other/config.toml").exists(), "nothing was written");
    let (code, err) = done(begin(dir, Some((mpi, 2)), CLASSES, &["train.shards=3"], "odd"));
    assert!(code != 0 && err.contains("train.shards = 3 is not a multiple of the 2 ranks"), "{err}");
}
