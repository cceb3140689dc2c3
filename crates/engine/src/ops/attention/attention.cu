// Attention, forward. Follows tiles.cu.
//
// A block owns some rows of one (b, h), warp_rows (16 or, with FWD_TILES = 2, also 32) to each of its warps, and streams
// keys and values through shared memory, STAGE_KEYS at a time.
//   grid       (ceil(Lq / (warps * warp_rows)), H, B): blocks of one (b, h) run side by side and share it through L2
//   threads    32 * warps, at most FWD_WARPS
//   shared     two stages of 4 * D * STAGE_KEYS bytes
//
// The first C keys may come from elsewhere: row of[b] of common [R, C, keys and values, H, D]; k and v then hold the other
// Lk - C of each example.

// 16-row tiles per warp: two share each fragment read from shared memory, which is what bounds small head sizes.
#ifndef FWD_TILES
#define FWD_TILES (HEAD_DIM <= 64 ? 2 : 1)
#endif
// 16-wide tiles of keys handled at once: 1 or 2.
#ifndef FWD_WIDTH
#define FWD_WIDTH 2
#endif
// Most warps of a block; blocks per multiprocessor asked of the register allocator.
constexpr int FWD_WARPS = 4;
#ifndef FWD_BLOCKS
#define FWD_BLOCKS (HEAD_DIM == 32 ? 4 : HEAD_DIM == 96 ? 4 : 3)
#endif
// Keys of a stage.
constexpr int STAGE_KEYS = 64;
constexpr u32 STAGE_BYTES = 2 * STAGE_KEYS * ROW_BYTES;
static_assert(FWD_WIDTH <= 2, "mask bits and the narrow last piece rely on it");

// A warp's running maximum may lag behind by this much (in powers of two) before its sums are rescaled: the weights
// then reach 2^8 at most, which costs no precision, and the rescaling hardly ever happens after the first keys.
constexpr float MAX_LAG = 8.f;

// Keys key0 .. key0 + 16W, at row `tile_row` of the shared tiles. o [16M, D] and sum are relative to 2^top.
template <int M, int W, bool CHECKED>
__device__ __forceinline__ void fwd_step(float (&o)[M][D_TILES][4], float (&top)[M][2], float (&sum)[M][2], const u32 (&q)[M][K_STEPS][4],
                                         u32 k_tile, u32 v_tile, int tile_row, int row0, int key0, const u32* mask, int Lk, int prefix, float scale2) {
    int g = threadIdx.x % 32 / 4;
    u32 bits = CHECKED ? mask_bits(mask, key0, Lk) : ALL_LANES;
    if (CHECKED) keep_in_loop(row0);
    float s[M][2 * W][4];  // scores, then weights [16M, 16W]
    clear(s);
    mma_by_rows<M, W>(s, q, k_tile, tile_row);

    float peak[M][2];
    bool grew = false;
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int half = 0; half < 2; half++) {
            u32 allowed = CHECKED ? row_bits(bits, key_limit(row0 + m * 16 + half * 8 + g, prefix, Lk) - key0) : 0;
            float p = NEG_INF;
            UNROLL for (int n = 0; n < 2 * W; n++)
                UNROLL for (int e = 0; e < 2; e++) {
                    float& x = s[m][n][half * 2 + e];
                    if (CHECKED && !(allowed >> (n * 8 + e) & 1)) x = NEG_INF;
                    p = fmaxf(p, x);
                }
            peak[m][half] = p * scale2;
            grew |= peak[m][half] > top[m][half] + MAX_LAG;
        }
    if (__any_sync(ALL_LANES, grew)) {
        UNROLL for (int m = 0; m < M; m++)
            UNROLL for (int half = 0; half < 2; half++) {
                float p = fmaxf(top[m][half], peak[m][half]);
                p = fmaxf(p, __shfl_xor_sync(ALL_LANES, p, 1));
                p = fmaxf(p, __shfl_xor_sync(ALL_LANES, p, 2));
                float shrink = p == NEG_INF ? 1.f : exp2_fast(top[m][half] - p);
                top[m][half] = p;
                sum[m][half] *= shrink;
                UNROLL for (int d = 0; d < D_TILES; d++) {
                    o[m][d][half * 2] *= shrink;
                    o[m][d][half * 2 + 1] *= shrink;
                }
            }
    }
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int half = 0; half < 2; half++) {
            float base = CHECKED && top[m][half] == NEG_INF ? 0.f : top[m][half];
            UNROLL for (int n = 0; n < 2 * W; n++)
                UNROLL for (int e = 0; e < 2; e++) {
                    float& x = s[m][n][half * 2 + e];
                    x = exp2_fast(x * scale2 - base);
                    sum[m][half] += x;
                }
        }
    u32 p[M][W][4];
    to_fragments<M, W>(p, s);
    mma_over_rows<M, W>(o, p, v_tile, tile_row);
}

__device__ __forceinline__ void load_keys(u32 stage, const KeyRows& k, const KeyRows& v, int key0, int end) {
    int rows = min(STAGE_KEYS, round_up(end - key0, 16));
    load_key_rows(stage, k, key0, rows, end);
    load_key_rows(stage + STAGE_KEYS * ROW_BYTES, v, key0, rows, end);
    copies_commit();
}

// Rows row0 .. row0 + 16M of one (b, h), for one warp; or, if not `all`, only the first 16 of them. Pointers are those of the
// (b, h). The block's warps share the K/V tiles, keys [0, block_keys): they all meet at one and the same barrier, so how many rows
// a warp has is asked within.
template <int M>
__device__ __forceinline__ void fwd_rows(const bf16* q, const KeyRows& k, const KeyRows& v, bf16* o, float* lse, const u32* mask, int row0, bool all,
                                         int block_keys, int Lq, int Lk, i64 q_row, i64 o_row, int prefix, float scale) {
    all |= M == 1;
    int rows_end = all ? Lq : min(row0 + 16, Lq);
    u32 stage = smem_address(smem), other = stage + STAGE_BYTES;
    load_keys(stage, k, v, 0, block_keys);

    u32 qf[M][K_STEPS][4];  // [16M, D]
    load_fragments<M>(qf, q, q_row, row0, rows_end);
    float acc[M][D_TILES][4], top[M][2], sum[M][2];
    clear(acc);
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int half = 0; half < 2; half++) { top[m][half] = NEG_INF; sum[m][half] = 0.f; }

    // keys below `safe` need no check, keys from `end` on are for none of the rows
    int end = row0 < Lq ? key_limit(min(row0 + 16 * M, rows_end) - 1, prefix, Lk) : 0;
    int safe = mask ? 0 : min(key_limit(row0, prefix, Lk), end);
    float scale2 = scale * LOG2E;
    u32 v_at = STAGE_KEYS * ROW_BYTES;
#define STEP(WIDTH, CHECKED)                                                                                                                    \
    if (all) fwd_step<M, WIDTH, CHECKED>(acc, top, sum, qf, stage, stage + v_at, key - key0, row0, key, mask, Lk, prefix, scale2);               \
    else fwd_step<1, WIDTH, CHECKED>(first(acc), first(top), first(sum), first(qf), stage, stage + v_at, key - key0, row0, key, mask, Lk, prefix, scale2)
#pragma unroll 1
    for (int key0 = 0; key0 < block_keys; key0 += STAGE_KEYS) {
        copies_wait_all();
        __syncthreads();  // this stage is complete, and every warp is done with the one before
        int next = key0 + STAGE_KEYS;
        if (next < block_keys) load_keys(other, k, v, next, block_keys);
#pragma unroll 1
        for (int key = key0; key < min(next, end); key += 16 * FWD_WIDTH) {
            if (key + 16 * FWD_WIDTH <= safe) { STEP(FWD_WIDTH, false); }
            else if (FWD_WIDTH > 1 && key + 16 < end) { STEP(FWD_WIDTH, true); }
            else { STEP(1, true); }
        }
        u32 swap = stage;
        stage = other;
        other = swap;
    }
#undef STEP

    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    UNROLL for (int m = 0; m < M; m++) {
        float factor[2];
        UNROLL for (int half = 0; half < 2; half++) {
            float total = sum[m][half];
            total += __shfl_xor_sync(ALL_LANES, total, 1);
            total += __shfl_xor_sync(ALL_LANES, total, 2);
            factor[half] = total > 0.f ? 1.f / total : 0.f;
            int row = row0 + m * 16 + half * 8 + g;
            if (lse && t == 0 && row < rows_end) lse[row] = total > 0.f ? (top[m][half] + __log2f(total)) * LN2 : NEG_INF;
        }
        store_rows(o, o_row, row0 + m * 16, rows_end, acc[m], factor);
    }
}

extern "C" __global__ void __launch_bounds__(32 * FWD_WARPS, FWD_BLOCKS)
attention_fwd(const bf16* q, const bf16* k, const bf16* v, bf16* o, float* lse, const u32* mask, int H, int Lq, int Lk,
              i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, int prefix, float scale, int warp_rows,
              const bf16* common, const u32* of, int C) {
    int h = blockIdx.y, b = blockIdx.z;
    int block_rows = blockDim.x / 32 * warp_rows, block_row = blockIdx.x * block_rows, row0 = block_row + warp_index() * warp_rows;
    int block_keys = key_limit(min(block_row + block_rows, Lq) - 1, prefix, Lk);
    q += b * q_batch + h * D;
    i64 kv_at = b * kv_batch + h * D, common_row = 2 * (i64)H * D;
    if (C) common += (i64)of[b] * C * common_row + h * D;
    KeyRows keys = {k + kv_at, common, kv_row, common_row, C}, values = {v + kv_at, common + H * D, kv_row, common_row, C};
    o += ((i64)b * Lq * H + h) * D;
    if (lse) lse += ((i64)b * H + h) * Lq;
    if (mask) mask += (i64)b * Lk;
    bool all = warp_rows > 16 && row0 + 16 < Lq;  // else one tile of rows, or none: such a warp only helps to load
    fwd_rows<FWD_TILES>(q, keys, values, o, lse, mask, row0, all, block_keys, Lq, Lk, q_row, (i64)H * D, prefix, scale);
}
