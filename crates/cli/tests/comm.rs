//! Ranks as users start them: mpirun of Debian's Open MPI and MPICH, torchrun's variables; collectives, set-ups that cannot work, ranks
//! that die or hang.

#![cfg(unix)]

mod common;

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use common::{run, tweedie};

const TWEEDIE: &str = env!("CARGO_BIN_EXE_tweedie");
/// The promise is a minute; here ranks are given up sooner.
const MINUTE: Duration = Duration::from_secs(60);

/// The mpiruns of this machine: name, what their library calls itself, and how they are asked for `n` ranks.
fn mpiruns() -> Vec<(&'static str, &'static str, &'static [&'static str])> {
    let known = [
        ("mpirun.openmpi", "Open MPI", &["--oversubscribe", "--allow-run-as-root"][..]),
        ("mpirun.mpich", "MPICH", &[][..]),
    ];
    let there = |name: &str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    let found: Vec<_> = known.into_iter().filter(|k| there(k.0)).collect();
    if found.len() < known.len() {
        let missing = "mpirun.openmpi and mpirun.mpich are not both there (Debian's openmpi-bin and mpich)";
        assert!(std::env::var_os("TWEEDIE_REQUIRE_MPI").is_none(), "{missing}");
        eprintln!("skipped in part: {missing}");
    }
    found
}

fn mpirun(by: &(&str, &str, &[&str]), n: usize, args: &[&str]) -> Command {
    let mut c = Command::new(by.0);
    c.args(by.2).args(["-np", &n.to_string(), TWEEDIE]).args(args).stdin(Stdio::null());
    c
}

const SELFTEST: [&str; 5] = ["selftest", "--op", "comm", "--device", "cpu"];

#[test]
fn collectives_are_right_over_both_libraries() {
    for by in mpiruns() {
        for n in [1, 2, 3] {
            let (code, out, err) = run(mpirun(&by, n, &[&SELFTEST[..], &["--json"]].concat()));
            assert_eq!(code, 0, "{err}");
            let v: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
            assert_eq!((v["pass"].as_bool(), v["ranks"].as_u64()), (Some(true), Some(n as u64)), "{v}");
            assert!(v["by"].as_str().unwrap().starts_with(by.1), "{v}");
            let rows = v["rows"].as_array().unwrap();
            for op in ["exchange", "several", "all-reduce", "reduce-scatter", "all-gather", "broadcast"] {
                assert!(rows.iter().any(|r| r["op"] == op && r["wrong"] == 0), "{op}: {v}");
            }
            let words = format!("by {}", by.1);
            assert_eq!(err.matches(&words).count(), 1, "only the first rank talks: {err}");
        }
    }
}

/// Ranks that sum and sum.
struct Job {
    child: Child,
    folder: TempDir,
}

impl Job {
    fn start(mut c: Command) -> Job {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| File::create(folder.path().join(name)).unwrap();
        let child = c.stdout(file("out")).stderr(file("err")).spawn().unwrap();
        Job { child, folder }
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.path().join(name)).unwrap()).into_owned()
    }

    /// Wait until `words` are in one of its files.
    fn says(&self, name: &str, words: &str) {
        let start = Instant::now();
        while !self.text(name).contains(words) {
            assert!(start.elapsed() < MINUTE, "no '{words}' in {}{}", self.text("out"), self.text("err"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The process of a rank, as the self-test tells it.
    fn process(&self, rank: usize) -> u32 {
        let line = format!("rank {rank}: process ");
        let text = self.text("err");
        let rest = text.split_once(&line).unwrap_or_else(|| panic!("no {line} in {text}")).1;
        rest.split(' ').next().unwrap().parse().unwrap()
    }

    /// Wait for its end: exit code, or none after a signal.
    fn ends(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < MINUTE, "it does not end: {}", self.text("err"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(name: &str, process: u32) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status().unwrap();
    assert!(sent.success(), "{name} to {process}");
}

/// What became of three ranks, one of which was sent a signal.
fn after(by: &(&str, &str, &[&str]), name: &str, rank: usize) -> (Option<i32>, String) {
    let mut job = Job::start(mpirun(by, 3, &[&SELFTEST[..], &["--seconds", "300", "--comm-timeout", "9"]].concat()));
    job.says("out", "summing");
    let process = job.process(rank);
    signal(name, process);
    let code = job.ends();
    // Its mpirun should have ended it; a test leaves nothing behind in any case.
    let _ = Command::new("sh").args(["-c", &format!("kill -KILL {process} 2>/dev/null")]).status();
    (code, job.text("err"))
}

#[test]
fn a_killed_rank_is_named() {
    for by in mpiruns() {
        for rank in [0, 2] {
            let (code, err) = after(&by, "KILL", rank);
            assert_ne!(code, Some(0), "{err}");
            // mpirun may end the others before they can say so; it then says it itself, or by its exit code.
            let ours = err.contains(&format!("rank {rank} is dead"));
            let theirs = err.contains(&format!("process rank {rank}")) || code == Some(9) || code == Some(137);
            assert!(ours || theirs, "{code:?} {err}");
        }
    }
}

#[test]
fn a_stopped_rank_is_named() {
    for by in mpiruns() {
        for rank in [0, 1] {
            let (code, err) = after(&by, "STOP", rank);
            assert_ne!(code, Some(0), "{err}");
            assert!(err.contains(&format!("rank {rank} has not been heard of for 3 s")), "{err}");
        }
    }
}

/// A process with variables as torchrun sets them.
fn rank(rank: usize, size: usize, port: u16, args: &[&str]) -> Command {
    let mut c = tweedie(&[&SELFTEST[..], args].concat());
    let [rank, size, port] = [rank.to_string(), size.to_string(), port.to_string()];
    c.envs([("RANK", &rank), ("WORLD_SIZE", &size), ("MASTER_PORT", &port)]).env("MASTER_ADDR", "127.0.0.1");
    c
}

fn refused(c: Command, words: &[&str]) {
    let (code, out, err) = run(c);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    words.iter().for_each(|w| assert!(err.contains(w), "{w} is not in: {err}"));
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

#[test]
fn set_ups_that_cannot_work_are_told() {
    let soon = &["--comm-timeout", "1"][..];
    let mut c = rank(0, 2, 1, soon);
    c.env_remove("MASTER_ADDR");
    refused(c, &["MASTER_ADDR is not set", "2 ranks of torchrun"]);
    let mut c = rank(0, 2, 1, soon);
    c.env_remove("WORLD_SIZE");
    refused(c, &["RANK is set but WORLD_SIZE is not"]);
    refused(rank(3, 2, 1, soon), &["RANK is 3 and WORLD_SIZE is 2"]);
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    refused(rank(0, 2, port, soon), &[&format!("127.0.0.1:{port}"), "in use", "MASTER_PORT"]);
    refused(rank(0, 3, free_port(), soon), &["ranks 1 and 2 of 3 did not arrive within 1 s"]);
    refused(rank(1, 3, free_port(), soon), &["rank 1 of 3 cannot reach rank 0", "MASTER_ADDR"]);
    refused(rank(0, 1, 1, &["--comm-timeout", "0"]), &["--comm-timeout"]);
    refused(rank(0, 1, 1, &["--comm", "nccl"]), &["NCCL needs a GPU for each rank"]);
}

#[test]
fn ranks_on_the_cpu_need_mpi() {
    let port = free_port();
    let other = std::thread::spawn(move || refused(rank(1, 2, port, &[]), &["mpirun -np 2", "none for ranks 0 and 1"]));
    refused(rank(0, 2, port, &[]), &["mpirun -np 2", "none for ranks 0 and 1"]);
    other.join().unwrap();
    if !mpiruns().is_empty() {
        // A library that is there, but by which no mpirun has started these.
        refused(
            rank(0, 2, port, &["--comm", "mpi"]),
            &["torchrun says that this process is rank 0 of 2", "sees rank 0 of 1"],
        );
    }
}

/// The libraries are told apart: one that did not start the ranks would take each for a job of its own.
#[test]
fn the_library_of_another_mpirun_is_refused() {
    let both = mpiruns();
    let open_mpi = Path::new("/usr/lib/x86_64-linux-gnu/libmpi.so.40");
    let Some(mpich) = both.iter().find(|b| b.1 == "MPICH").filter(|_| open_mpi.exists()) else { return };
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(open_mpi, folder.path().join("libmpi.so.40")).unwrap();
    let mut c = mpirun(mpich, 2, &SELFTEST);
    c.env("TWEEDIE_MPI_PATH", folder.path());
    let (code, _, err) = run(c);
    assert_ne!(code, 0);
    assert!(err.contains("PMI says that this process is rank") && err.contains("Open MPI"), "{err}");
}

/// Settings of a training that takes a second.
const SHORT: [&str; 9] = [
    "digits",
    "--device",
    "cpu",
    "--set",
    "train.epochs=2",
    "--set",
    "train.batch=96",
    "--set",
    "train.noisy_copies=1",
];

#[test]
fn ranks_train_one_run_and_any_number_goes_on() {
    for by in mpiruns() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let out = path.to_str().unwrap();
        let train = |n: usize, args: &[&str]| run(mpirun(&by, n, &[&["train"][..], args].concat()));
        let (code, text, err) = train(2, &[&SHORT[..], &["--out", out]].concat());
        assert_eq!((code, text.trim()), (0, out), "{err}");
        assert_eq!(err.matches("ranks   2 over").count(), 1, "{err}");
        let (code, text, err) = train(3, &["--resume", out, "--device", "cpu", "--set", "train.epochs=3"]);
        assert_eq!((code, text.trim()), (0, out), "{err}");
    }
}

/// Rank 1 has another learning rate than rank 0.
#[test]
fn ranks_of_different_recipes_are_refused() {
    for by in mpiruns() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let args = [&["train"][..], &SHORT, &["--out", path.to_str().unwrap()]].concat();
        let mut c = mpirun(&by, 1, &args);
        c.args([":", "-np", "1", TWEEDIE]).args(&args).args(["--set", "train.lr=0.5"]);
        let (code, _, err) = run(c);
        assert_ne!(code, 0, "{err}");
        assert!(err.contains("rank 1: it has train.lr = 0.5"), "{err}");
        assert!(!path.exists(), "nothing is written");
    }
}

/// One rank cannot open its data: the other says what that one said, and at once.
#[test]
fn a_rank_that_fails_by_itself_is_heard() {
    for by in mpiruns() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let args = [&["train"][..], &SHORT, &["--out", path.to_str().unwrap()]].concat();
        let mut c = mpirun(&by, 1, &args);
        c.args([":", "-np", "1", TWEEDIE]).args(&args).args(["--data", "/nowhere/at/all"]);
        let start = Instant::now();
        let (code, _, err) = run(c);
        assert_ne!(code, 0, "{err}");
        assert!(err.contains("/nowhere/at/all") && start.elapsed() < MINUTE, "{err}");
    }
}

#[test]
fn gpus_without_a_gpu_says_to_use_mpirun() {
    let (_, out, _) = run(tweedie(&["devices", "--json"]));
    let v: Value = serde_json::from_str(&out).unwrap();
    if !v["gpus"].as_array().unwrap().is_empty() {
        return;
    }
    refused(
        tweedie(&["train", "digits", "--gpus", "2"]),
        &["--gpus needs GPUs", "mpirun -np 2 tweedie train", "tweedie devices"],
    );
    let mut c = tweedie(&["train", "digits", "--gpus", "2"]);
    c.envs([("RANK", "1"), ("WORLD_SIZE", "2")]);
    refused(c, &["this process is rank 1 of 2 already, by torchrun"]);
}

/// A command that does not share its work says so, once.
#[test]
fn other_commands_under_mpirun_say_that_each_does_all() {
    for by in mpiruns() {
        let (code, out, err) = run(mpirun(&by, 2, &["config", "show", "digits"]));
        assert_eq!((code, out.matches("[train]").count()), (0, 2), "{err}");
        assert_eq!(err.matches("each does all of this").count(), 1, "{err}");
    }
}

#[test]
fn devices_shows_ranks_and_libraries() {
    for by in mpiruns() {
        let (code, out, err) = run(mpirun(&by, 2, &["devices"]));
        assert_eq!(code, 0, "{err}");
        assert!(out.contains(&format!("mpi        {}", by.1)), "{out}");
        for rank in 0..2 {
            assert!(out.contains(&format!("rank {rank} of 2, {rank} of 2 on this machine")), "{out}");
        }
    }
}
