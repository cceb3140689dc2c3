//! How the kernels are launched: threads, rows of a block and shared memory, as the heads of the kernel files state them.

/// Warps of most blocks.
pub(super) const WARPS: usize = 4;
/// Keys in a stage of the forward pass.
const STAGE_KEYS: usize = 64;
/// Up to here one block computes the gradients of a head of an example.
const SHORT: usize = 256;
/// Most warps of such a block.
const SHORT_WARPS: usize = 8;
/// Queries of a round of `attention_bwd_group`.
pub(super) const GROUP_ROUND: usize = 64;
/// Tiles of 16 keys that `attention_fwd_group` is written out for.
const GROUP_TILES: [usize; 5] = [7, 10, 13, 15, 16];

/// `attention_fwd`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Forward {
    /// Queries of a warp.
    pub warp_rows: usize,
    pub shared: usize,
    /// Blocks of a head of an example.
    pub blocks: usize,
    pub warps: usize,
}

impl Forward {
    pub fn new(size: usize, lq: usize) -> Forward {
        // Two tiles of 16 rows share what a warp reads of the keys; few queries are better spread over more warps.
        let warp_rows = if size <= 64 && lq > 64 { 32 } else { 16 };
        let pieces = lq.div_ceil(warp_rows);
        let blocks = pieces.div_ceil(WARPS);
        Forward { warp_rows, shared: 8 * size * STAGE_KEYS, blocks, warps: pieces.div_ceil(blocks) }
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

/// `attention_fwd_group` and `attention_bwd_group`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Group {
    pub warps: usize,
    /// Heads of examples that are in shared memory: with 2 one is computed while the next one comes.
    pub stages: usize,
    /// Rows of a tile of keys.
    pub key_rows: usize,
    pub shared: usize,
}

impl Group {
    /// Warpgroups compute 64 queries or keys at a time. Shorter sequences leave too many of those empty, a few queries too.
    /// `least`: keys.
    fn suits(size: usize, lq: usize, lk: usize, least: usize) -> bool {
        size == 64 && (17..=SHORT).contains(&lq) && (least..=SHORT).contains(&lk)
    }

    pub fn forward(size: usize, lq: usize, lk: usize, limit: usize) -> Option<Group> {
        let groups = lq.div_ceil(64);
        let key_rows = 16 * GROUP_TILES.into_iter().find(|t| 16 * t >= lk)?;
        let stage = 2 * size * (2 * key_rows + 64 * groups) + 16;
        // A block of one or two warpgroups shares its multiprocessor with others, which compute while it loads; two stages of
        // few keys leave room for them.
        let stages = if groups > 2 || lk <= 128 { 2 } else { 1 };
        let group = Group { warps: 4 * groups, stages, key_rows, shared: stages * stage };
        Some(group).filter(|g| Group::suits(size, lq, lk, 65) && g.shared <= limit)
    }

    pub fn backward(size: usize, lq: usize, lk: usize, limit: usize) -> Option<Group> {
        let key_rows = lk.next_multiple_of(16);
        let shared = 2 * size * (6 * key_rows + 5 * GROUP_ROUND + 16) + 16 * GROUP_ROUND + 32;
        let group = Group { warps: 4 * lk.div_ceil(64), stages: 2, key_rows, shared };
        Some(group).filter(|g| Group::suits(size, lq, lk, 16 * SHORT_WARPS + 1) && g.shared <= limit)
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
        for (size, lq) in [(64, 197), (64, 256), (64, 20), (32, 1), (96, 65), (128, 5000)] {
            let f = Forward::new(size, lq);
            assert!(f.blocks * f.warps * f.warp_rows >= lq && (f.blocks - 1) * f.warps * f.warp_rows < lq, "{f:?}");
            assert!((1..=WARPS).contains(&f.warps) && f.shared <= ADA, "{f:?}");
        }
        // ViT-B/16: seven warps of 32 rows in two blocks.
        let vit = Forward { warp_rows: 32, shared: 32_768, blocks: 2, warps: 4 };
        assert_eq!(Forward::new(64, 197), vit);
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

    #[test]
    fn warpgroups_take_what_fills_them_and_fits() {
        let vit = Group { warps: 16, stages: 2, key_rows: 208, shared: 172_064 };
        assert_eq!(Group::forward(64, 197, 197, H200), Some(vit));
        assert_eq!(Group::backward(64, 197, 197, H200), Some(Group { shared: 203_808, ..vit }));
        // 32 tokens over 197 keys and their own: three blocks to a multiprocessor.
        assert_eq!(
            Group::forward(64, 32, 229, H200),
            Some(Group { warps: 4, stages: 1, key_rows: 240, shared: 69_648 })
        );
        assert_eq!(Group::forward(64, 256, 256, H200).map(|g| g.warps), Some(16));
        assert_eq!(Group::backward(64, 256, 256, H200), None);
        for lk in 65..=256 {
            let rows = Group::forward(64, 17, lk, H200).map_or(0, |g| g.key_rows);
            assert!(rows >= lk && rows < lk + 48, "the last step of 48 keys has one: {rows} for {lk}");
        }
        assert_eq!(Group::backward(64, 65, 65, H200), None);
        // Two blocks to a multiprocessor.
        assert_eq!(
            Group::forward(64, 65, 65, H200),
            Some(Group { warps: 8, stages: 2, key_rows: 112, shared: 90_144 })
        );
        for (size, lq, lk) in [(32, 197, 197), (64, 64, 64), (64, 1, 197), (64, 257, 257), (128, 197, 197)] {
            assert_eq!((Group::forward(size, lq, lk, H200), Group::backward(size, lq, lk, H200)), (None, None));
        }
    }
}
