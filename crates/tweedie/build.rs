//! Tells the program how it was built. Whatever cannot be found out is left empty: this never fails.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let mut features: Vec<String> =
        std::env::vars().filter_map(|(k, _)| Some(k.strip_prefix("CARGO_FEATURE_")?.to_lowercase())).collect();
    features.sort();
    let tell = |name: &str, value: &str| println!("cargo::rustc-env=BUILD_OF_TWEEDIE_{name}={}", value.trim());
    tell("TARGET", &var("TARGET"));
    tell("PROFILE", &var("PROFILE"));
    tell("FEATURES", &features.join(","));
    tell("RUSTC", &rustc(&var("RUSTC")));
    tell("COMMIT", &commit(Path::new(&var("CARGO_MANIFEST_DIR"))).unwrap_or_default());
}

fn rustc(program: &str) -> String {
    let said = Command::new(program).arg("--version").output().map(|o| o.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said).lines().next().unwrap_or_default().into()
}

/// The commit that is checked out in the repository around `folder` (the root of the
/// workspace, not what that may lie in), read from its files; git itself is not needed.
fn commit(folder: &Path) -> Option<String> {
    let dot = folder.ancestors().take(3).map(|p| p.join(".git")).find(|p| p.exists())?;
    // In a second working tree `.git` is a file that names the folder.
    let git = if dot.is_dir() { dot } else { named(&dot, "gitdir: ")? };
    let common = named(&git.join("commondir"), "").unwrap_or_else(|| git.clone());
    let head = read(&git.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref: ") else { return Some(head).filter(|h| is_commit(h)) };
    let packed = || {
        let all = read(&common.join("packed-refs"))?;
        all.lines().find_map(|l| l.strip_suffix(name)).map(|l| l.trim().to_string())
    };
    read(&common.join(name)).or_else(packed).filter(|h| is_commit(h))
}

/// A file's text; it is looked at again when it changes.
fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text.trim().into())
}

/// The path that a file names after `before`.
fn named(file: &Path, before: &str) -> Option<PathBuf> {
    let text = std::fs::read_to_string(file).ok()?;
    Some(file.parent()?.join(text.trim().strip_prefix(before)?))
}

fn is_commit(text: &str) -> bool {
    text.len() >= 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}
