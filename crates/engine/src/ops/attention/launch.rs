//! How the kernels are launched: threads, rows of a block and shared memory, as the heads of the kernel files state them.

/// Warps of most blocks.
pub(super) const WARPS: usize = 4;
/// Keys in a stage where they are streamed.
const STAGE_KEYS: usize = 64;
/// Blocks that a multiprocessor has registers for in the forward pass.
const FORWARD_BLOCKS: usize = 3;
/// Up to here one block computes the gradients of a head of an example.
const SHORT: usize = 256;
/// Most warps of such a block.
const SHORT_WARPS: usize = 8;

/// `attention_fwd`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Forward {
    /// Queries of a warp.
    pub warp_rows: usize,
    /// Keys in shared memory at a time.
    pub stage_keys: usize,
    pub shared: usize,
    /// Blocks of a head of an example.
    pub blocks: usize,
    pub warps: usize,
}

impl Forward {
    /// `limit`: shared memory that a block can have. All keys are loaded at once where several such blocks fit, for no
    /// warp then waits for another.
    pub fn new(size: usize, lq: usize, lk: usize, limit: usize) -> Forward {
        let all = lk.next_multiple_of(32);
        let (stage_keys, stages) = if 4 * size * all <= limit / FORWARD_BLOCKS { (all, 1) } else { (STAGE_KEYS, 2) };
        // Two tiles of 16 rows share what a warp reads of the keys; few queries are better spread over more warps.
        let warp_rows = if size <= 64 && lq > 64 { 32 } else { 16 };
        let pieces = lq.div_ceil(warp_rows);
        let blocks = pieces.div_ceil(WARPS);
        Forward {
            warp_rows,
            stage_keys,
            shared: 4 * size * stage_keys * stages,
            blocks,
            warps: pieces.div_ceil(blocks),
        }
    }
}

/// `attention_bwd_short_1` and `_2`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Short {
    /// Tiles of 16 keys that a warp owns: 1 or 2.
    pub tiles: usize,
    pub warps: usize,
    /// Queries of a round.
    pub block_rows: usize,
    pub shared: usize,
}

impl Short {
    /// `None`: the sequences are too long for these kernels, or for the shared memory that a block can have.
    pub fn new(size: usize, lq: usize, lk: usize, limit: usize) -> Option<Short> {
        // The sums of two tiles of keys fill the registers at heads of 64.
        let tiles = if lk <= 16 * SHORT_WARPS { 1 } else { 2 };
        if lq > SHORT || lk > SHORT || tiles * size > 128 {
            return None;
        }
        // Warps without keys still help with the queries' gradients.
        let warps = if tiles == 1 { lk.div_ceil(16).max(WARPS) } else { SHORT_WARPS };
        let rows = lq.next_multiple_of(16);
        let rounds = [if rows <= 80 { rows } else { 64 }, 32];
        rounds
            .into_iter()
            .map(|block_rows| Short::with(size, lq, lk, tiles, warps, block_rows))
            .find(|s| s.shared <= limit)
    }

    fn with(size: usize, lq: usize, lk: usize, tiles: usize, warps: usize, block_rows: usize) -> Short {
        let key_rows = lk.next_multiple_of(16 * tiles);
        let scores = key_rows * (2 * block_rows + 16) * if lq > block_rows { 2 } else { 1 };
        let shared = 2 * size * (3 * key_rows + 5 * block_rows) + scores + 16 * block_rows;
        Short { tiles, warps, block_rows, shared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: usize = 232_448;
    const A100: usize = 166_912;
    const ADA: usize = 101_376;

    #[test]
    fn forward_blocks_cover_the_queries_and_fit() {
        for (size, lq, lk) in
            [(64, 197, 197), (64, 256, 256), (64, 20, 85), (32, 1, 1), (96, 65, 65), (128, 5000, 3000)]
        {
            for limit in [H200, A100, ADA] {
                let f = Forward::new(size, lq, lk, limit);
                assert!(f.blocks * f.warps * f.warp_rows >= lq && (f.blocks - 1) * f.warps * f.warp_rows < lq, "{f:?}");
                assert!((1..=WARPS).contains(&f.warps) && f.stage_keys.is_multiple_of(32), "{f:?}");
                assert_eq!(f.shared, 4 * size * f.stage_keys * if f.stage_keys >= lk { 1 } else { 2 }, "{f:?}");
                assert!(f.shared <= limit, "{f:?}");
            }
        }
        // ViT-B/16: seven warps of 32 rows in two blocks, all keys at once.
        let vit = Forward { warp_rows: 32, stage_keys: 224, shared: 57_344, blocks: 2, warps: 4 };
        assert_eq!(Forward::new(64, 197, 197, H200), vit);
        assert_eq!(Forward::new(64, 197, 197, ADA), Forward { stage_keys: 64, shared: 32_768, ..vit });
    }

    #[test]
    fn short_blocks_cover_the_keys_and_fit() {
        for size in [32, 64, 96, 128] {
            for l in 1..=300 {
                for limit in [H200, A100, ADA] {
                    let Some(s) = Short::new(size, l, l, limit) else { continue };
                    assert!(
                        s.shared <= limit && s.warps * s.tiles * 16 >= l && (WARPS..=SHORT_WARPS).contains(&s.warps)
                    );
                    assert!(s.block_rows.is_multiple_of(16) && s.tiles * size <= 128 && l <= SHORT);
                }
            }
        }
        let vit = Short { tiles: 2, warps: 8, block_rows: 64, shared: 192_512 };
        assert_eq!(Short::new(64, 197, 197, H200), Some(vit));
        assert_eq!(Short::new(64, 197, 197, A100), Some(Short { block_rows: 32, shared: 142_848, ..vit }));
        assert_eq!(Short::new(64, 197, 197, ADA), None);
        assert_eq!(Short::new(64, 65, 65, H200), Some(Short { tiles: 1, warps: 5, block_rows: 80, shared: 97_280 }));
        assert_eq!(Short::new(64, 257, 20, H200), None);
        assert_eq!(Short::new(128, 129, 129, H200), None);
    }
}
