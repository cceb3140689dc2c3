//! Compiled kernel files: from disk, or by NVRTC, several at a time. The first one that is missing starts the others too: on a
//! new machine they are all missing, and one after the other they take a quarter of a minute.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use super::kernels::{
    KernelFile, Source, cache_dir, checksum, compile_source, fingerprint, kernel_files, wait_at_exit, write_cache,
};
use super::libraries;
use crate::error::{Error, Result};

/// The head size that most networks have.
const USUAL_HEAD: u32 = 64;

type Compiling = JoinHandle<Result<Vec<u8>>>;

/// Compiles for one kind of GPU.
pub(super) struct Compiler {
    arch: String,
    folder: Option<PathBuf>,
    /// Files under way; none before the first is missing.
    started: Option<HashMap<(&'static str, u32), Compiling>>,
    /// What there is to say about files on disk.
    pub notes: Vec<String>,
}

impl Compiler {
    pub fn new(arch: String) -> Compiler {
        Compiler { arch, folder: cache_dir(), started: None, notes: Vec::new() }
    }

    /// Where a compiled file lies on disk: its name tells content, GPU and compiler.
    fn path(&self, source: &Source, variant: u32) -> Option<PathBuf> {
        let libs = libraries();
        let version =
            |f: &std::result::Result<super::Found, String>| f.as_ref().map(|f| f.version.clone()).unwrap_or_default();
        let key = fingerprint(&[
            SEAL,
            super::kernels::PRELUDE,
            source.code,
            &variant.to_string(),
            &self.arch,
            &version(&libs.nvrtc),
            &version(&libs.driver),
        ]);
        let name = format!("{}-{variant}-{}-{key}.cubin", source.file, self.arch);
        self.folder.as_ref().map(|d| d.join(name))
    }

    /// What lies on disk, if it is whole.
    pub fn kept(&mut self, source: &Source, variant: u32) -> Option<Vec<u8>> {
        let path = self.path(source, variant)?;
        let whole = unsealed(std::fs::read(&path).ok()?);
        if whole.is_none() {
            self.notes.push(format!("{} is damaged; the kernels in it are compiled again", path.display()));
        }
        whole
    }

    /// Compile, whatever lies on disk.
    pub fn make(&mut self, source: &'static Source, variant: u32) -> Result<Vec<u8>> {
        if self.started.is_none() {
            self.start(source.file, variant);
        }
        let under_way = self.started.as_mut().and_then(|all| all.remove(&(source.file, variant)));
        match under_way.map(JoinHandle::join) {
            Some(Ok(made)) => made,
            Some(Err(_)) => Err(Error::op("compile", format!("the thread that compiled {} failed", source.file))),
            None => compile_and_keep(source, variant, &self.arch, self.path(source, variant).as_deref()),
        }
    }

    /// Begin with all other files that most programs use.
    fn start(&mut self, file: &str, variant: u32) {
        let attention = ["attention.cu", "attention_short.cu", "attention_group.cu", "attention_group_bwd.cu"];
        let hopper = self.arch.ends_with('a');
        let usual = |f: &KernelFile| {
            let needed = hopper || !f.name().starts_with("attention_group");
            f.variant == 0 || (attention.contains(&f.name()) && f.variant == USUAL_HEAD && needed)
        };
        let mut all = HashMap::new();
        for f in kernel_files().into_iter().filter(usual) {
            let path = self.path(f.source, f.variant);
            if (f.name() == file && f.variant == variant) || path.as_ref().is_some_and(|p| p.exists()) {
                continue;
            }
            let (arch, key) = (self.arch.clone(), (f.name(), f.variant));
            let work = move || compile_and_keep(f.source, f.variant, &arch, path.as_deref());
            wait_at_exit();
            // Where no thread is to be had, the file is compiled when it is needed.
            if let Ok(handle) = std::thread::Builder::new().name("compile".into()).spawn(work) {
                all.insert(key, handle);
            }
        }
        self.started = Some(all);
    }
}

impl Drop for Compiler {
    /// The compiler must not be torn down under a thread that is in it.
    fn drop(&mut self) {
        for (_, handle) in self.started.take().into_iter().flatten() {
            let _ = handle.join();
        }
    }
}

fn compile_and_keep(source: &Source, variant: u32, arch: &str, path: Option<&Path>) -> Result<Vec<u8>> {
    let cubin = compile_source(source, variant, arch)?;
    if let Some(path) = path {
        write_cache(path, &sealed(&cubin));
    }
    Ok(cubin)
}

/// First words of a file of compiled kernels; its checksum and a line's end follow.
const SEAL: &str = "tweedie kernels 1 ";
/// Digits of a checksum.
const DIGITS: usize = 32;

/// Compiled kernels as they lie on disk: with a checksum before them.
fn sealed(cubin: &[u8]) -> Vec<u8> {
    [SEAL.as_bytes(), checksum(&[cubin]).as_bytes(), b"\n", cubin].concat()
}

/// What was [`sealed`]; `None` if a bit of it is another one.
fn unsealed(file: Vec<u8>) -> Option<Vec<u8>> {
    let (sum, rest) = file.strip_prefix(SEAL.as_bytes())?.split_at_checked(DIGITS)?;
    let cubin = rest.strip_prefix(b"\n")?;
    (checksum(&[cubin]).as_bytes() == sum).then(|| cubin.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_on_disk_are_whole_or_not_used() {
        let cubin: Vec<u8> = (0..=255).collect();
        let file = sealed(&cubin);
        assert_eq!(unsealed(file.clone()), Some(cubin));
        for i in 0..file.len() {
            let mut other = file.clone();
            other[i] ^= 4;
            assert_eq!((unsealed(other), unsealed(file[..i].to_vec())), (None, None), "{i}");
        }
        let folder = tempfile::tempdir().unwrap();
        let folder_path = Some(folder.path().to_path_buf());
        let mut c = Compiler { arch: "sm_90".into(), folder: folder_path, started: None, notes: Vec::new() };
        let all = kernel_files();
        let source = all[0].source;
        assert_eq!((c.kept(source, 0), c.notes.len()), (None, 0));
        std::fs::write(c.path(source, 0).unwrap(), b"\x7fELF").unwrap();
        assert_eq!(c.kept(source, 0), None);
        assert!(c.notes.len() == 1 && c.notes[0].contains("is damaged"), "{:?}", c.notes);
    }

    #[test]
    fn the_first_file_starts_the_others_and_all_are_kept() {
        if libraries().nvrtc.is_err() {
            return; // tests/kernels.rs says whether that is an error
        }
        let folder = std::env::temp_dir().join(format!("tweedie-compiler-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let new = || Compiler { arch: "sm_90".into(), folder: Some(folder.clone()), started: None, notes: Vec::new() };
        let files = kernel_files();
        let of = |name: &str| files.iter().find(|f| f.name() == name).unwrap();
        let (first, second) = (of("blend.cu"), of("pad.cu"));
        let mut compiler = new();
        assert_eq!(compiler.kept(first.source, 0), None);
        let made = compiler.make(first.source, 0).unwrap();
        assert!(made.starts_with(b"\x7fELF"));
        let others: Vec<_> = compiler.started.as_ref().unwrap().keys().copied().collect();
        assert!(others.contains(&("pad.cu", 0)) && others.contains(&("attention.cu", 64)), "{others:?}");
        assert!(!others.contains(&("blend.cu", 0)) && !others.contains(&("attention.cu", 32)), "{others:?}");
        let waited = compiler.make(second.source, 0).unwrap();
        drop(compiler);
        let mut compiler = new();
        assert_eq!(compiler.kept(first.source, 0), Some(made));
        assert_eq!(compiler.kept(second.source, 0), Some(waited));
        assert!(others.iter().all(|(name, variant)| compiler.kept(of(name).source, *variant).is_some()));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
