//! TMA descriptors: where the copy engine of Hopper (TMA, the tensor memory accelerator) finds tiles of a tensor.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::{Cuda, cu};
use crate::error::{Result, ensure};

/// Columns of a tile of bf16: one row fills the 128 bytes that are swizzled.
const COLUMNS: usize = 64;
/// Most rows of a tile.
const MAX_ROWS: usize = 256;

/// Matrices of bf16 that lie at equal distances, and how many of their rows make a tile. Distances are in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    pub ptr: u64,
    pub columns: usize,
    pub rows: usize,
    pub count: usize,
    pub row: usize,
    pub matrix: usize,
    pub tile_rows: usize,
}

/// A `TileMap` of bulk.cu, that is a TMA descriptor (tensor map): the driver's encoding of [`Tiles`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileMap(pub(super) sys::CUtensorMap);

impl Cuda {
    /// Tiles of 64 columns in the 128-byte swizzle; rows beyond a matrix are zero.
    pub(crate) fn tile_map(&self, t: &Tiles) -> Result<TileMap> {
        let bytes = [2 * t.row as u64, 2 * t.matrix as u64];
        ensure!(
            t.ptr.is_multiple_of(16)
                && bytes.iter().all(|b| b.is_multiple_of(16))
                && (1..=MAX_ROWS).contains(&t.tile_rows),
            "tile_map",
            "{t:?}: places must be multiples of 16 bytes, rows of a tile at most {MAX_ROWS}"
        );
        self.bind()?;
        let sizes = [t.columns, t.rows, t.count].map(|x| x as u64);
        let (tile, steps) = ([COLUMNS as u32, t.tile_rows as u32, 1], [1_u32; 3]);
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        cu!(cuTensorMapEncodeTiled(
            &mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            3,
            t.ptr as *mut c_void,
            sizes.as_ptr(),
            bytes.as_ptr(),
            tile.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ))?;
        Ok(TileMap(map))
    }
}
