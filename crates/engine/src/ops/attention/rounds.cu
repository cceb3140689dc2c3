// Queries that go by in rounds while a block holds the keys of one (b, h): where things lie and how they come, for
// attention_short.cu. Follows tiles.cu.

struct Short {
    const bf16 *q, *k, *v, *o, *d_o;
    const float* lse;
    const u32* mask;
    bf16 *dq, *dk, *dv;
    int items, H, Lq, Lk;
    i64 q_batch, q_row, kv_batch, kv_row;
    int prefix;
    float scale;
    int block_rows;
    const bf16* common;
    const u32* of;
    bf16* d_common;
    int C;
    // where things lie in shared memory, in bytes; the other V is v_bytes further, or there is none
    int key_rows, v_at, stage_at, o_at, ds_at, rows_at, stage_bytes, ds_row, ds_bytes, v_bytes;
};

// Queries of one round, rounded up to whole tiles.
__device__ __forceinline__ int short_rows(const Short& p, int i0) { return min(p.block_rows, round_up(p.Lq - i0, 16)); }
__device__ __forceinline__ float* short_lse(const Short& p, int stage) { return (float*)(smem + p.rows_at) + stage * 2 * p.block_rows; }

// Begin to fetch a round of queries, and with the first one of a (b, h) its keys and values.
__device__ __forceinline__ void short_fetch(const Short& p, int item, int i0, int stage, int keys) {
    int b = item / p.H, h = item % p.H;
    u32 base = smem_address(smem);
    if (i0 == 0) {
        i64 at = b * p.kv_batch + h * D, row = 2 * (i64)p.H * D;
        const bf16* common = p.C ? p.common + (i64)p.of[b] * p.C * row + h * D : nullptr;
        load_key_rows(base + keys * (p.key_rows * ROW_BYTES), {p.k + at, common, p.kv_row, row, p.C}, 0, p.key_rows, p.Lk);
        load_key_rows(base + p.v_at + keys * p.v_bytes, {p.v + at, common + p.H * D, p.kv_row, row, p.C}, 0, p.key_rows, p.Lk);
    }
    int rows = short_rows(p, i0);
    i64 o_at = ((i64)b * p.Lq * p.H + h) * D, o_row = (i64)p.H * D;
    u32 to = base + p.stage_at + stage * p.stage_bytes;
    load_rows(to, p.q + b * p.q_batch + h * D, p.q_row, i0, rows, p.Lq);
    load_rows(to + p.stage_bytes / 2, p.d_o + o_at, o_row, i0, rows, p.Lq);
    load_rows(base + p.o_at, p.o + o_at, o_row, i0, rows, p.Lq);
    const float* lse = p.lse + (i64)item * p.Lq;
    for (int r = threadIdx.x; r < rows; r += blockDim.x) {
        bool valid = i0 + r < p.Lq;
        copy4_async(smem_address(short_lse(p, stage) + r), lse + (valid ? i0 + r : 0), valid);
    }
    copies_commit();
}

// Wait for a round and compute its delta. A thread reads what it has copied itself, so no barrier is needed before.
__device__ __forceinline__ void short_arrive(const Short& p, int rows, int stage) {
    copies_wait_all();
    int step = blockDim.x / ROW_LANES, chunk = threadIdx.x % ROW_LANES;
    const u8 *d_o = smem + p.stage_at + stage * p.stage_bytes + p.stage_bytes / 2, *o = smem + p.o_at;
    float* delta = short_lse(p, stage) + p.block_rows;
#pragma unroll 1
    for (int row = threadIdx.x / ROW_LANES; row < rows; row += step) {  // the lanes of a warp agree on the end
        int at = row * ROW_BYTES + ((chunk ^ swizzle(row)) << 4);
        float sum = 0.f;
        UNROLL for (int c = 0; c < CHUNKS; c += ROW_LANES) {
            float x[8], y[8];
            load8((const bf16*)(d_o + at + c * 16), x);
            load8((const bf16*)(o + at + c * 16), y);
            UNROLL for (int e = 0; e < 8; e++) sum += x[e] * y[e];
        }
        UNROLL for (int lanes = 1; lanes < ROW_LANES; lanes *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, lanes);
        if (chunk == 0) delta[row] = sum;
    }
}
