// Shared tiles filled by the copy engine, and barriers that say when they are there. Follows wgmma.cu.
//
// One thread asks for a whole tile; copies take no instructions of the warps that compute, and none of them waits until
// there is room for one more request. A copy writes the layout of load_rows: the 128-byte swizzle goes by the address in
// shared memory, so a tile may begin at any row of another one. Rows beyond the tensor become zero.

// Made by Cuda::tile_map: where rows of 64 values lie, and how many of them a copy takes.
struct alignas(128) TileMap { u64 opaque[16]; };

// ---- copy engine ----------------------------------------------------------------------------
#ifdef HAS_WGMMA
// A barrier is 8 bytes of shared memory. Its phase ends when `count` threads have arrived and the expected bytes are there.
__device__ __forceinline__ void barrier_init(u32 barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// What was initialised is known to the copy engine, and after a block's barrier to all threads.
__device__ __forceinline__ void barrier_made() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    shared_fence();
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Wait for the end of a phase: of the first, third, .. if parity is 0, of the others if it is 1.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(barrier), "r"(parity)
        : "memory");
}
// A box of the map's size, from this column, row and batch on.
__device__ __forceinline__ void copy_tile(u32 to, const TileMap& map, int column, int row, int batch, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(&map),
                 "r"(column), "r"(row), "r"(batch), "r"(barrier)
                 : "memory");
}
#endif
// ---- end of copy engine ---------------------------------------------------------------------

// Where keys and values come from: the first C of an example from row of[b] of `common`, the others from `k` and `v`.
struct KeyMaps {
    const TileMap &k, &v, &common;
    const u32* of;
    int C, key_rows;  // key_rows: in a tile
};

#ifdef HAS_WGMMA
// Keys and values of (b, h), by one thread.
__device__ __forceinline__ void copy_keys(const KeyMaps& m, int b, int h, int H, u32 k_tile, u32 v_tile, u32 barrier) {
    if (m.C > 0) {
        int row = (int)m.of[b];
        copy_tile(k_tile, m.common, h * D, 0, row, barrier);
        copy_tile(v_tile, m.common, (H + h) * D, 0, row, barrier);
    }
    copy_tile(k_tile + m.C * ROW_BYTES, m.k, h * D, 0, b, barrier);
    copy_tile(v_tile + m.C * ROW_BYTES, m.v, h * D, 0, b, barrier);
}
#endif
