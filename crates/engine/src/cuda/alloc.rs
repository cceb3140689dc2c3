//! The caching allocator. `cuMemAlloc` stalls the device, so memory is taken in large segments and cut up here: best
//! fit, split on use, merged with free neighbours on release. A steady training step asks the driver for nothing.
//!
//! Everything runs on one stream, so a block may be reused as soon as its owner is dropped: the next kernel that writes
//! it is queued behind the last one that read it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use super::Cuda;

const ALIGN: usize = 512;
const MIN_SEGMENT: usize = 32 << 20;
const SEGMENT_ALIGN: usize = 2 << 20;

struct Block {
    size: usize,
    free: bool,
    /// First block of its segment: never merged with the block before it, which belongs to another segment.
    head: bool,
}

#[derive(Default)]
pub(super) struct State {
    blocks: BTreeMap<u64, Block>,
    free: BTreeSet<(usize, u64)>,
    segments: BTreeMap<u64, usize>,
    used: usize,
    peak: usize,
}

/// What an allocator holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in live tensors.
    pub used: usize,
    /// The largest that `used` was.
    pub peak: usize,
    /// Bytes taken from the driver.
    pub reserved: usize,
    /// Times the driver was asked for memory.
    pub segments: usize,
}

/// One allocator; a captured graph has one of its own so that nothing else writes what it replays on.
#[derive(Default)]
pub(super) struct Pool(pub(super) Mutex<State>, Option<Cuda>);

impl Pool {
    /// The pool of a graph: its memory goes back to the driver with its last tensor.
    pub fn of_graph(device: &Cuda) -> Pool {
        Pool(Mutex::default(), Some(device.clone()))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let (Some(device), Ok(mut state)) = (&self.1, self.0.lock()) else { return };
        device.free(state.take_idle_segments());
    }
}

impl State {
    /// Take `bytes` from what is cached.
    pub fn take(&mut self, bytes: usize) -> Option<(u64, usize)> {
        let want = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        let &(size, addr) = self.free.range((want, 0)..).next()?;
        self.free.remove(&(size, addr));
        let block = self.blocks.get_mut(&addr)?;
        block.free = false;
        block.size = want;
        if size > want {
            let rest = addr + want as u64;
            self.blocks.insert(rest, Block { size: size - want, free: true, head: false });
            self.free.insert((size - want, rest));
        }
        self.used += want;
        self.peak = self.peak.max(self.used);
        Some((addr, want))
    }

    /// Size of the segment to ask the driver for when `bytes` do not fit.
    pub fn segment_size(bytes: usize) -> Option<usize> {
        bytes.max(MIN_SEGMENT).checked_next_multiple_of(SEGMENT_ALIGN)
    }

    /// The largest block that is cached and free.
    pub fn largest(&self) -> usize {
        self.free.last().map_or(0, |f| f.0)
    }

    pub fn add_segment(&mut self, addr: u64, size: usize) {
        self.segments.insert(addr, size);
        self.blocks.insert(addr, Block { size, free: true, head: true });
        self.free.insert((size, addr));
    }

    pub fn give(&mut self, addr: u64) {
        let Some(block) = self.blocks.get(&addr) else { return };
        let (mut start, mut size, mut head) = (addr, block.size, block.head);
        self.used -= size;
        let next = addr + size as u64;
        if let Some(b) = self.blocks.get(&next)
            && b.free
            && !b.head
        {
            size += b.size;
            self.free.remove(&(b.size, next));
            self.blocks.remove(&next);
        }
        if !head
            && let Some((&prev, b)) = self.blocks.range(..addr).next_back()
            && b.free
        {
            size += b.size;
            head = b.head;
            self.free.remove(&(b.size, prev));
            self.blocks.remove(&addr);
            start = prev;
        }
        self.blocks.insert(start, Block { size, free: true, head });
        self.free.insert((size, start));
    }

    /// Segments without a live block, removed from the books; the caller frees them.
    pub fn take_idle_segments(&mut self) -> Vec<u64> {
        let idle: Vec<(u64, usize)> =
            self.segments.iter().filter(|&(a, s)| self.free.contains(&(*s, *a))).map(|(&a, &s)| (a, s)).collect();
        for &(a, s) in &idle {
            self.free.remove(&(s, a));
            self.blocks.remove(&a);
            self.segments.remove(&a);
        }
        idle.into_iter().map(|(a, _)| a).collect()
    }

    pub fn usage(&self) -> Usage {
        Usage {
            used: self.used,
            peak: self.peak,
            reserved: self.segments.values().sum(),
            segments: self.segments.len(),
        }
    }

    pub fn reset_peak(&mut self) {
        self.peak = self.used;
    }
}

/// Who asks for memory, in words, by the source file that does.
pub(super) fn asked_by(file: &str) -> String {
    let file = file.replace('\\', "/");
    let within = |folder: &str| file.split_once(folder).map(|(_, rest)| rest.split(['/', '.']).next().unwrap_or(rest));
    match (within("/src/ops/"), within("/src/")) {
        (Some(op), _) => op.into(),
        (_, Some("params")) => "the buffer of parameters or gradients".into(),
        (_, Some("optim")) => "the optimizer".into(),
        (_, Some("tape")) => "a gradient".into(),
        (_, Some(part)) => part.into(),
        _ => file,
    }
}

/// GPU memory that goes back to its pool when dropped.
pub struct Buffer {
    ptr: u64,
    pool: Arc<Pool>,
    device: Cuda,
}

impl Buffer {
    pub(super) fn new(ptr: u64, pool: Arc<Pool>, device: Cuda) -> Buffer {
        Buffer { ptr, pool, device }
    }

    pub(crate) fn ptr(&self) -> u64 {
        self.ptr
    }

    pub(crate) fn device(&self) -> &Cuda {
        &self.device
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Ok(mut s) = self.pool.0.lock() {
            s.give(self.ptr);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_merge_but_segments_do_not() {
        let mut s = State::default();
        s.add_segment(0x10000, 4096);
        s.add_segment(0x11000, 4096); // adjacent in address, yet another segment
        let (a, _) = s.take(2048).unwrap();
        let (b, _) = s.take(2048).unwrap();
        assert_eq!((a, b), (0x10000, 0x10800));
        s.give(a);
        s.give(b);
        assert!(s.take(8192).is_none(), "two segments were merged into one");
        assert_eq!(s.take(4096).unwrap().0, 0x10000);
        assert_eq!(s.take_idle_segments(), vec![0x11000]);
        assert_eq!(s.usage(), Usage { used: 4096, peak: 4096, reserved: 4096, segments: 1 });
    }

    #[test]
    fn who_asks_is_told_by_the_file() {
        for (file, by) in [
            ("crates/engine/src/ops/norm/cuda.rs", "norm"),
            ("crates\\engine\\src\\ops\\tokens\\embed.rs", "tokens"),
            ("crates/engine/src/params.rs", "the buffer of parameters or gradients"),
            ("crates/engine/src/optim/muon/cuda.rs", "the optimizer"),
            ("crates/engine/src/tape/grads.rs", "a gradient"),
            ("crates/engine/src/rng.rs", "rng"),
            ("elsewhere.rs", "elsewhere.rs"),
        ] {
            assert_eq!(asked_by(file), by);
        }
    }

    #[test]
    fn a_request_beyond_all_memory_is_refused_not_wrapped() {
        let mut s = State::default();
        s.add_segment(0x10000, 4096);
        assert_eq!((s.take(usize::MAX), State::segment_size(usize::MAX)), (None, None));
        assert_eq!(s.largest(), 4096);
    }

    proptest! {
        /// Random takes and gives: live blocks never overlap, and all memory comes back.
        #[test]
        fn blocks_never_overlap(script in prop::collection::vec((0usize..20_000, any::<bool>()), 1..200)) {
            let mut s = State::default();
            s.add_segment(1 << 20, 1 << 18);
            let mut live: Vec<(u64, usize)> = Vec::new();
            for (x, take) in script {
                if take {
                    if let Some((p, n)) = s.take(x) {
                        prop_assert!(n >= x);
                        prop_assert!(live.iter().all(|&(q, m)| p + n as u64 <= q || q + m as u64 <= p));
                        live.push((p, n));
                    }
                } else if !live.is_empty() {
                    let (p, _) = live.swap_remove(x % live.len());
                    s.give(p);
                }
            }
            for (p, _) in live {
                s.give(p);
            }
            prop_assert_eq!(s.take(1 << 18).map(|b| b.0), Some(1 << 20));
        }
    }
}
