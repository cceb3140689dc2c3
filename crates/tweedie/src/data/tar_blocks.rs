//! Tar shards in blocks: runs of members that are read ahead in one go. A member whose block was not read is read by itself.

use super::row_groups::{GroupCache, RowGroups};
use super::tar::read_piece;
use super::{DataError, Extent, Locality, Result};
use crate::files;
use std::ops::Range;
use std::path::Path;

/// Blocks for which there is room in memory: half of them are in use, half are read ahead.
const BLOCKS: u64 = 128;
/// Most bytes of a block: larger ones are read no faster.
const LARGEST: u64 = 32 << 20;

/// Blocks that are being found.
pub(crate) struct Finding {
    groups: RowGroups,
    spans: Vec<Range<u64>>,
    limit: u64,
}

impl Finding {
    /// With room for `limit` bytes of blocks.
    pub fn new(limit: usize) -> Finding {
        Finding { groups: RowGroups::default(), spans: Vec::new(), limit: limit as u64 }
    }

    /// Append a shard whose examples lie at these bytes.
    pub fn add(&mut self, path: &Path, examples: impl Iterator<Item = Range<u64>>) {
        let largest = (self.limit / BLOCKS).min(LARGEST);
        let (mut rows, mut spans) = (Vec::<u64>::new(), Vec::<Range<u64>>::new());
        for example in examples {
            let joined = spans.last().map(|s| s.start.min(example.start)..s.end.max(example.end));
            match (joined, spans.last_mut(), rows.last_mut()) {
                (Some(joined), Some(span), Some(rows)) if joined.end - joined.start <= largest => {
                    (*span, *rows) = (joined, *rows + 1);
                }
                _ => {
                    spans.push(example);
                    rows.push(1);
                }
            }
        }
        self.groups.add(path, &rows);
        self.spans.extend(spans);
    }

    pub fn finish(self) -> TarBlocks {
        let cache = GroupCache::new(self.spans.iter().map(|s| s.end - s.start).collect(), self.limit);
        TarBlocks { groups: self.groups, spans: self.spans, cache }
    }
}

/// The blocks of the shards of one split, and those that were read.
pub(crate) struct TarBlocks {
    groups: RowGroups,
    spans: Vec<Range<u64>>,
    cache: GroupCache<Vec<u8>>,
}

impl TarBlocks {
    /// The file of example `i`.
    pub fn file(&self, i: usize) -> Result<&Path> {
        Ok(self.groups.file(self.groups.find(i)?.0).0)
    }

    /// Bytes of example `i`, from memory or where they lie.
    pub fn read(&self, i: usize, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let (g, _) = self.groups.find(i)?;
        if let Some(block) = self.cache.held(g) {
            let from = offset.checked_sub(self.spans[g].start).map(|from| from as usize);
            let piece = from.and_then(|from| block.get(from..from.checked_add(bytes as usize)?));
            if let Some(piece) = piece {
                return Ok(piece.to_vec());
            }
        }
        let (path, _) = self.groups.file(g);
        files::open(path).and_then(|mut file| read_piece(&mut file, offset, bytes)).map_err(DataError::io(path))
    }

    pub fn locality(&self) -> Locality {
        self.cache.locality(&self.groups)
    }

    pub fn extent(&self, i: usize) -> Option<Extent> {
        self.cache.extent(&self.groups, i, true)
    }

    /// Read the block of these examples, if they are most of it; each will be read `uses` times.
    pub fn read_ahead(&self, examples: &[u32], uses: u32) {
        let Some(Ok((g, _))) = examples.first().map(|&i| self.groups.find(i as usize)) else { return };
        if examples.len() * 4 < self.groups.len(g) * 3 {
            return;
        }
        let span = &self.spans[g];
        let load = |path: &Path, _| {
            let read = files::open(path).and_then(|mut f| read_piece(&mut f, span.start, span.end - span.start));
            read.map_err(|e| e.to_string())
        };
        self.cache.read_ahead(&self.groups, g, examples.len() as u32 * uses, load);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Part;
    use crate::data::order::{Arrangement, Batching};
    use std::fs;

    /// Shards of 50 examples of 64 bytes each; example i is 64 times i.
    fn shards(dir: &Path, shards: u8, limit: usize) -> TarBlocks {
        let mut finding = Finding::new(limit);
        for shard in 0..shards {
            let path = dir.join(format!("{shard}.bin"));
            fs::write(&path, (0..50).flat_map(|i| [shard * 50 + i; 64]).collect::<Vec<_>>()).unwrap();
            finding.add(&path, (0..50).map(|i| i * 64..(i + 1) * 64));
        }
        finding.finish()
    }

    fn arrange(blocks: &TarBlocks, n: usize) -> Arrangement {
        let with = Batching { batch: 10, lanes: 0, full: true, mixes: false };
        Arrangement::new(n, Some(blocks.locality()), with).unwrap()
    }

    /// 200 examples of 12,800 bytes with room for 4,096: every example is in memory when it is asked for, and never more than
    /// that is held. Without reading ahead none is.
    #[test]
    fn what_is_read_ahead_is_there_in_time_and_fits() {
        let dir = tempfile::tempdir().unwrap();
        for (ahead, part) in [(true, Part::WHOLE), (true, Part { rank: 1, ranks: 2 }), (false, Part::WHOLE)] {
            let blocks = shards(dir.path(), 4, 4096);
            let a = arrange(&blocks, 200);
            assert!(a.lanes() >= 8 && blocks.cache.total() > 3 * 4096);
            let (order, mut next, mut missed) = (a.epoch(3, 0), 0, 0);
            let reads: Vec<_> = order.reads.iter().filter(|r| a.meets(r.lane, part, 10)).collect();
            for batch in 0..20_u32 {
                while let Some(read) = reads.get(next).filter(|r| ahead && r.first <= batch + r.ahead) {
                    blocks.read_ahead(&read.examples.clone().collect::<Vec<_>>(), 1);
                    assert!(blocks.cache.bytes() <= 4096);
                    next += 1;
                }
                for &i in &order.examples[batch as usize * 10..][part.of(10)] {
                    let g = blocks.groups.find(i as usize).unwrap().0;
                    missed += usize::from(blocks.cache.held(g).is_none());
                    let at = u64::from(i) % 50 * 64;
                    assert_eq!(blocks.read(i as usize, at, 64).unwrap(), [i as u8; 64]);
                }
            }
            assert_eq!(missed, if ahead { 0 } else { 200 });
        }
    }

    #[test]
    fn blocks_end_with_their_shard_and_at_their_size() {
        let dir = tempfile::tempdir().unwrap();
        let blocks = shards(dir.path(), 2, 128 * 640); // ten examples a block
        let locality = blocks.locality();
        assert_eq!(locality.starts, (0..10).map(|b| b * 10).collect::<Vec<_>>());
        assert_eq!((locality.files.clone(), locality.fits()), (vec![0, 50], true));
        let extent = blocks.extent(73).unwrap();
        assert_eq!((extent.file, extent.number, extent.bytes), (dir.path().join("1.bin"), 2, 640));
        // Less than three quarters of a block are read one by one.
        blocks.read_ahead(&(10..17).collect::<Vec<_>>(), 1);
        assert_eq!(blocks.cache.bytes(), 0);
        blocks.read_ahead(&(10..18).collect::<Vec<_>>(), 1);
        assert_eq!(blocks.cache.bytes(), 640);
        assert!(blocks.read(100, 0, 1).is_err() && blocks.file(100).is_err());
    }

    /// A shard that has shrunk: what is left of it is read, the rest names the file.
    #[test]
    fn a_shard_that_was_cut_off_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let blocks = shards(dir.path(), 1, 128 * 640);
        fs::File::options().write(true).open(dir.path().join("0.bin")).unwrap().set_len(700).unwrap();
        (0..5).for_each(|b| blocks.read_ahead(&(b * 10..(b + 1) * 10).collect::<Vec<_>>(), 1));
        assert_eq!(blocks.read(10, 640, 60).unwrap(), [10; 60]);
        let e = blocks.read(11, 704, 64).unwrap_err();
        assert!(e.to_string().contains("0.bin"), "{e}");
    }
}
