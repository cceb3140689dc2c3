//! The binary as a user meets it: output, exit codes, and machines without a working CUDA. On a machine with a usable
//! GPU the checks that need its absence hide it through a broken driver.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{run, tweedie};
use serde_json::Value;

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tweedie-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `c` with the libraries of `folder` in the place of the machine's.
fn with_libraries(mut c: Command, folder: &Path) -> Command {
    c.env("LD_LIBRARY_PATH", folder).env("TWEEDIE_CUDA_PATH", folder);
    c
}

fn has_gpu() -> bool {
    let (_, out, _) = run(tweedie(&["devices", "--json"]));
    serde_json::from_str::<Value>(&out).unwrap()["auto"]["device"] != "cpu"
}

#[test]
fn devices_says_what_there_is() {
    let (code, out, err) = run(tweedie(&["devices"]));
    assert_eq!((code, err.as_str()), (0, ""));
    for line in ["cpu ", "driver ", "nvrtc ", "cublaslt ", "nccl ", "mpi ", "ranks ", "cache ", "auto "] {
        assert!(out.lines().any(|l| l.starts_with(line)), "no line '{line}' in\n{out}");
    }
    let (code, out, _) = run(tweedie(&["--threads", "3", "devices", "--json"]));
    let v: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, v["cpu"]["threads"].as_u64()), (0, Some(3)));
    for library in ["driver", "nvrtc", "cublaslt", "nccl", "mpi"] {
        assert!(v[library]["version"].is_string() || v[library]["missing"].is_string(), "{library}: {v}");
    }
    assert!(v["gpus"].is_array() && !v["auto"]["reason"].as_str().unwrap().is_empty());
}

#[test]
fn what_the_user_got_wrong_is_exit_1_with_a_hint() {
    for (args, words, hint) in [
        (&["selftest", "--device", "gpu"][..], "'gpu' is not a device", "tweedie devices"),
        (&["selftest", "--device", "cuda:4096"], "CUDA is not usable", "tweedie devices"),
        (&["selftest", "--device", "cpu", "--op", "nope"], "no op 'nope'", "tweedie selftest"),
        (&["bench", "ops", "--device", "cpu", "--only", "nope"], "no op 'nope'", "tweedie bench ops"),
        (&["bench", "ops", "--device", "cpu", "--only", "add,d"], "no op 'd'", "tweedie bench ops"), // the end of add
        (&["selftest", "--devise", "cpu"], "--devise", "tweedie selftest --help"),
        (&["bench"], "needs a command", "tweedie bench --help"),
        (&["--threads", "0", "devices"], "--threads", "tweedie"),
    ] {
        let (code, out, err) = run(tweedie(args));
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}: {err}");
        let error = err.lines().find(|l| l.starts_with("error: ")).unwrap_or_else(|| panic!("{args:?}: {err}"));
        assert!(error.contains(words), "{args:?}: {err}");
        let (before, after) = err.split_once("\n\nhint: ").unwrap_or_else(|| panic!("{args:?}: {err}"));
        assert!(!before.is_empty() && after.starts_with(hint), "{args:?}: {err}");
    }
}

#[test]
fn help_and_version_are_data() {
    let (code, out, err) = run(tweedie(&["--help"]));
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("devices") && out.contains("selftest") && out.contains("bench"));
    assert_eq!(run(tweedie(&["--version"])).1, format!("tweedie {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn selftest_passes_on_the_cpu() {
    let (code, out, err) = run(tweedie(&["selftest", "--device", "cpu", "--op", "layer_norm"]));
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("d/dgain") && out.contains("PASS: ") && !out.contains("FAIL"), "{out}");
    assert!(err.starts_with("device: cpu ("), "{err}");
    let (code, out, _) = run(tweedie(&["selftest", "--device", "cpu", "--op", "add", "--json"]));
    let v: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &v["pass"], &v["device"]), (0, &Value::Bool(true), &Value::from("cpu")));
    assert!(v["cases"].as_u64().unwrap() > 5);
}

#[test]
fn bench_measures_ceilings_and_ops() {
    let (code, out, err) = run(tweedie(&["bench", "ops", "--device", "cpu", "--quick", "--json"]));
    assert_eq!(code, 0, "{err}");
    let v: Value = serde_json::from_str(&out).unwrap();
    assert!(v["ceilings"]["memory"].as_f64().unwrap() > 0.0);
    let ops = v["ops"].as_array().unwrap();
    assert!(ops.iter().any(|o| o["op"] == "layer_norm" && o["both"]["ms"].as_f64().unwrap() > 0.0), "{out}");
    // Exactly those that are named: attention without joint_attention.
    for names in ["attention", "attention,joint_attention"] {
        let only = ["bench", "ops", "--device", "cpu", "--quick", "--only", names, "--json"];
        let v: Value = serde_json::from_str(&run(tweedie(&only)).1).unwrap();
        let ops: Vec<&str> = v["ops"].as_array().unwrap().iter().map(|o| o["op"].as_str().unwrap()).collect();
        assert_eq!(ops.join(","), names);
    }
    let (_, _, err) = run(tweedie(&["bench", "ops", "--device", "cpu", "--only", "nope"]));
    assert!(err.contains("the ops are linear, mlp, attention, joint_attention, "), "{err}");
    let (_, out, _) = run(tweedie(&["bench", "ops", "--device", "cpu", "--quick", "--only", "add"]));
    assert_eq!(out.lines().filter(|l| l.starts_with("| ")).count(), 3, "{out}"); // head, rule, one op
}

/// Without a GPU an explicit `cuda` is a clear error and `auto` says why it took the CPU.
#[test]
fn without_a_gpu_cuda_is_refused_and_auto_falls_back() {
    if has_gpu() {
        return; // the next test hides it
    }
    let (code, out, err) = run(tweedie(&["selftest", "--device", "cuda"]));
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.starts_with("error: CUDA is not usable on this machine\ncause: "), "{err}");
    assert!(err.ends_with("\n\nhint: tweedie devices\n"), "{err}");
    let (code, _, err) = run(tweedie(&["selftest", "--op", "add"]));
    assert_eq!(code, 0);
    assert!(err.starts_with("device: cpu (CUDA is not usable: "), "{err}");
}

/// A broken installation: the names are there, but not the libraries. A usable GPU elsewhere on the machine may still be
/// found, so what must hold is: no panic, an answer, and the reason wherever something is missing.
fn broken(folder: &Folder) {
    let (code, out, _) = run(with_libraries(tweedie(&["devices", "--json"]), &folder.0));
    assert_eq!(code, 0);
    let v: Value = serde_json::from_str(&out).unwrap();
    let (code, _, err) = run(with_libraries(tweedie(&["selftest", "--op", "add"]), &folder.0));
    assert_eq!(code, 0, "{err}");
    if v["auto"]["device"] != "cpu" {
        return;
    }
    for (library, file) in [("driver", "libcuda.so.1"), ("nvrtc", "libnvrtc.so.13")] {
        if let Some(why) = v[library]["missing"].as_str() {
            let place = folder.0.join(file).display().to_string();
            assert!(why.contains("does not load") && why.contains(&place), "{library}: {why}");
        }
    }
    assert!(err.starts_with("device: cpu (CUDA is not usable: "), "{err}");
    let (code, out, err) = run(with_libraries(tweedie(&["selftest", "--device", "cuda"]), &folder.0));
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.starts_with("error: CUDA is not usable") && err.contains("\n\nhint: "), "{err}");
}

#[test]
fn garbage_in_the_place_of_the_libraries_is_survived() {
    let folder = Folder::new("garbage");
    for name in ["libcuda.so.1", "libcuda.so", "libnvrtc.so.13", "libcublasLt.so.13"] {
        std::fs::write(folder.0.join(name), b"this is not a shared library").unwrap();
    }
    broken(&folder);
}

/// Libraries that load but hold none of CUDA's functions.
#[cfg(target_os = "linux")]
#[test]
fn empty_libraries_in_the_place_of_the_real_ones_are_survived() {
    let folder = Folder::new("empty");
    let source = folder.0.join("empty.c");
    std::fs::write(&source, "int tweedie_test_nothing;\n").unwrap();
    for name in ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13"] {
        let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(folder.0.join(name)).arg(&source).status();
        assert!(made.expect("the C compiler that Rust links with").success());
    }
    broken(&folder);
}

/// `tweedie … | head` ends quietly.
#[cfg(target_os = "linux")]
#[test]
fn a_closed_pipe_is_not_an_error() {
    use std::process::Stdio;
    let mut child = tweedie(&["devices"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    assert_eq!((done.status.code(), String::from_utf8_lossy(&done.stderr).as_ref()), (Some(0), ""));
}
