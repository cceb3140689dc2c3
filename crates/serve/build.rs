//! Lists the files of `page` for the program to hold: their names, bytes, and a number that changes with them.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("page");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut code = String::from("&[\n");
    for path in files {
        println!("cargo::rerun-if-changed={}", path.display());
        let name = path.strip_prefix(&root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        let tag = fnv(&fs::read(&path)?);
        let _ = writeln!(
            code,
            "    Asset {{ name: {name:?}, tag: \"\\\"{tag:016x}\\\"\", bytes: include_bytes!({path:?}) }},",
        );
    }
    code.push(']');
    fs::write(PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("page.rs"), code)
}

/// Files in and below a folder, but for hidden ones.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()? {
            _ if entry.file_name().to_string_lossy().starts_with('.') => {}
            t if t.is_dir() => collect(&entry.path(), files)?,
            _ => files.push(entry.path()),
        }
    }
    Ok(())
}

/// FNV-1a.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}
