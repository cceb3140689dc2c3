//! The last launches of this process. CUDA tells of a failed kernel at some later call; what was queued before that call is what
//! there is to look at.
//!
//! - `TWEEDIE_LAUNCH_LOG=FILE`: when a CUDA call fails, all that is remembered is appended to the file.
//! - `TWEEDIE_CUDA_SYNC=1`: wait after each launch, so that an error is seen at the launch that failed. Slow; kernels inside a
//!   captured graph are still seen together (`TWEEDIE_GRAPHS=0` leaves graphs out).

use std::fmt;
use std::io::Write;
use std::sync::{Mutex, OnceLock};

use super::lock;

/// Launches that are remembered.
const KEPT: usize = 64;
/// Launches that an error message shows.
const SHOWN: usize = 4;

/// A launch, as small as it can be: it is written down for every kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LaunchRecord {
    pub name: &'static str,
    /// Blocks of a kernel; rows, columns and depth of a product; bytes of a copy; nodes of a graph.
    pub size: [usize; 3],
    /// Threads of a block; products of a batch; otherwise 0.
    pub block: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Position of the device.
    pub device: usize,
    /// Recorded into a graph rather than run.
    pub captured: bool,
}

impl LaunchRecord {
    /// What a profile lists it under: kernels by their name, whatever their size.
    pub fn title(&self) -> String {
        match (self.name, self.block) {
            (PRODUCT | GRAPH, _) => self.to_string(),
            (name, 0) => format!("({name})"),
            (name, _) => name.into(),
        }
    }
}

impl fmt::Display for LaunchRecord {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let LaunchRecord { name, size: [x, y, z], block, shared, device, captured } = self;
        match *name {
            PRODUCT if *block > 1 => write!(f, "product {block} × {x}×{y}×{z}")?,
            PRODUCT => write!(f, "product {x}×{y}×{z}")?,
            GRAPH => write!(f, "replay of a graph of {x} nodes")?,
            _ if *block == 0 => write!(f, "{name} of {x} bytes")?,
            _ => write!(f, "{name} grid ({x}, {y}, {z}) × {block}, {shared} bytes shared")?,
        }
        if *device > 0 {
            write!(f, " on cuda:{device}")?;
        }
        if *captured { write!(f, ", into a graph") } else { Ok(()) }
    }
}

/// Name of a product's entry.
pub(super) const PRODUCT: &str = "product";
/// Name of the entry of a graph that is replayed.
pub(super) const GRAPH: &str = "graph";

/// The last [`KEPT`] launches.
struct Ring {
    entries: [Option<LaunchRecord>; KEPT],
    /// Launches so far.
    count: u64,
}

impl Ring {
    const fn new() -> Ring {
        Ring { entries: [None; KEPT], count: 0 }
    }

    fn push(&mut self, e: LaunchRecord) {
        self.entries[(self.count % KEPT as u64) as usize] = Some(e);
        self.count += 1;
    }

    /// The newest first, each with its number.
    fn newest(&self) -> impl Iterator<Item = (u64, LaunchRecord)> {
        let oldest = self.count.saturating_sub(KEPT as u64);
        (oldest..self.count).rev().filter_map(|n| self.entries[(n % KEPT as u64) as usize].map(|e| (n, e)))
    }
}

static RING: Mutex<Ring> = Mutex::new(Ring::new());

/// Write a launch down.
pub(super) fn note(e: LaunchRecord) {
    lock(&RING).push(e);
}

/// Whether each launch is waited for.
pub(super) fn waits() -> bool {
    static WAITS: OnceLock<bool> = OnceLock::new();
    *WAITS.get_or_init(|| std::env::var_os("TWEEDIE_CUDA_SYNC").is_some_and(|v| v != "0" && !v.is_empty()))
}

/// The last launches in words for an error message; empty where there were none.
pub(super) fn recent() -> String {
    words(&lock(&RING), waits())
}

fn words(ring: &Ring, waits: bool) -> String {
    let shown: Vec<String> = ring.newest().take(SHOWN).map(|(_, e)| e.to_string()).collect();
    if shown.is_empty() {
        return String::new();
    }
    let how = match waits {
        true => "the first is the one that failed",
        false => "TWEEDIE_CUDA_SYNC=1 tells which one failed",
    };
    format!("; {} launches so far, the newest first: {} ({how})", ring.count, shown.join("; "))
}

/// Append what is remembered to the file that `TWEEDIE_LAUNCH_LOG` names. A log that cannot be written is no error of its own.
pub(super) fn keep(failed: &str) {
    let Some(path) = std::env::var_os("TWEEDIE_LAUNCH_LOG").filter(|p| !p.is_empty()) else { return };
    if let Ok(mut file) = std::fs::File::options().create(true).append(true).open(path) {
        let _ = file.write_all(page(&lock(&RING), failed).as_bytes());
    }
}

fn page(ring: &Ring, failed: &str) -> String {
    let mut all = format!("process {}: {failed}; the newest launch first\n", std::process::id());
    for (n, e) in ring.newest() {
        all += &format!("{n} {e}\n");
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &'static str, x: usize) -> LaunchRecord {
        LaunchRecord { name, size: [x, 2, 3], block: 128, shared: 512, device: 0, captured: false }
    }

    #[test]
    fn the_newest_launches_are_kept_and_shown_first() {
        let mut ring = Ring::new();
        assert_eq!(words(&ring, false), "");
        (0..100).for_each(|i| ring.push(entry("norm_fwd", i)));
        let all: Vec<(u64, LaunchRecord)> = ring.newest().collect();
        assert_eq!((all.len(), all[0].0, all[63].0), (64, 99, 36));
        assert_eq!((all[0].1.size[0], all[63].1.size[0]), (99, 36));
        let said = words(&ring, false);
        assert!(said.starts_with("; 100 launches so far, the newest first: norm_fwd grid (99, 2, 3) × 128, 512 bytes"));
        assert!(said.contains("(96, 2, 3)") && !said.contains("(95, 2, 3)") && said.contains("TWEEDIE_CUDA_SYNC=1"));
        assert!(words(&ring, true).contains("the first is the one that failed"));
        let page = page(&ring, "cuStreamSynchronize failed");
        assert_eq!(page.lines().count(), 65);
        assert!(page.contains("cuStreamSynchronize failed") && page.contains("\n36 norm_fwd grid (36, 2, 3)"));
    }

    #[test]
    fn an_entry_says_what_it_was() {
        let e = entry(PRODUCT, 7);
        assert_eq!(LaunchRecord { block: 1, ..e }.to_string(), "product 7×2×3");
        assert_eq!(e.to_string(), "product 128 × 7×2×3");
        assert_eq!(entry(GRAPH, 900).to_string(), "replay of a graph of 900 nodes");
        assert_eq!(LaunchRecord { block: 0, ..entry("copy", 64) }.to_string(), "copy of 64 bytes");
        let e = LaunchRecord { device: 1, captured: true, ..entry("norm_fwd", 1) };
        assert!(e.to_string().ends_with("on cuda:1, into a graph"));
    }
}
