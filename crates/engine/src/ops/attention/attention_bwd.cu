// Attention, backward, for sequences of any length. Follows tiles.cu.
//
// A block has 128 threads (4 warps, each with TILES x 16 rows of the output), attention_delta 256.
//   kernel                   grid                              dynamic shared memory (bytes)
//   attention_bwd_dq_delta   (ceil(Lq / R), H, B)              512 * D            R = 128 for D <= 64, else 64
//   attention_bwd_dkdv       (ceil(Lk / R), H, B)              512 * D + 1024     R = 64
//   attention_delta          (ceil(Lq * H / 64), B, 1)         0
// dkdv comes after dq_delta, which writes delta; attention_delta is for callers that do not want dq.
// x is the fastest grid axis: the blocks of one (b, h) run side by side and share its tensors through L2.

constexpr int STAGE_ROWS = 64;        // rows of a tile streamed through shared memory
constexpr int TILE_BYTES = STAGE_ROWS * ROW_BYTES;
constexpr int THREADS = 128;

// 16-row tiles per warp, 16-wide tiles of the streamed axis handled at once, blocks per multiprocessor asked of the
// register allocator.
constexpr int DQ_TILES = D <= 64 ? 2 : 1, DQ_WIDTH = DQ_TILES == 2 ? 1 : 2, DQ_BLOCKS = D == 32 ? 3 : 2;
constexpr int DKDV_WIDTH = D <= 64 ? 2 : 1, DKDV_BLOCKS = D == 32 ? 4 : D == 64 ? 3 : 2;
static_assert(DQ_WIDTH <= 2 && DKDV_WIDTH <= 2, "mask bits and the narrow last piece rely on it");

// With S = scale q k^T, P = exp(S - lse), dP = d_o v^T, dS = P (dP - delta):
//   dv = P^T d_o,  dk = scale dS^T q,  dq = scale dS k.
// Two kernels recompute S and dP, one per owner of the output rows, so that nothing is added across blocks.

// delta[b, h, i] = sum_d o[b, i, h, d] d_o[b, i, h, d]. Four lanes per row.
extern "C" __global__ void __launch_bounds__(256) attention_delta(const bf16* o, const bf16* d_o, float* delta, int H, int Lq) {
    int row = blockIdx.x * 64 + threadIdx.x / 4, t = threadIdx.x % 4, b = blockIdx.y;  // row = i * H + h
    float sum = 0.f;
    if (row < Lq * H) {
        i64 at = ((i64)b * Lq * H + row) * D + t * 8;
        UNROLL for (int d = 0; d < D; d += 32) {
            float x[8], y[8];
            load8(o + at + d, x);
            load8(d_o + at + d, y);
            UNROLL for (int e = 0; e < 8; e++) sum += x[e] * y[e];
        }
    }
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    if (t == 0 && row < Lq * H) delta[((i64)b * H + row % H) * Lq + row / H] = sum;
}

constexpr int DKDV_STAGE = 2 * TILE_BYTES + 2 * STAGE_ROWS * 4;  // q [64, D], d_o [64, D], lse [64], delta [64]

__device__ __forceinline__ void load_queries(u32 stage, const bf16* q, const bf16* d_o, const float* lse, const float* delta, int i0, int Lq, i64 q_row, i64 o_row) {
    int rows = min(STAGE_ROWS, round_up(Lq - i0, 16));
    load_rows(stage, q, q_row, i0, rows, Lq);
    load_rows(stage + TILE_BYTES, d_o, o_row, i0, rows, Lq);
    int n = threadIdx.x % STAGE_ROWS;
    bool valid = i0 + n < Lq;
    const float* from = threadIdx.x < STAGE_ROWS ? lse : delta;
    copy4_async(stage + 2 * TILE_BYTES + threadIdx.x * 4, from + (valid ? i0 + n : 0), valid);
    copies_commit();
}

// Queries i0 .. i0 + 16W, at row `tile_row` of the stage; keys key0 .. key0 + 16M are the rows of everything here.
// Queries past the end are all zeros in the stage and add nothing. Masked keys are dealt with when storing.
template <int M, int W, bool CHECKED>
__device__ __forceinline__ void dkdv_step(float (&dk)[M][D_TILES][4], float (&dv)[M][D_TILES][4], const u32 (&k)[M][K_STEPS][4], const u32 (&v)[M][K_STEPS][4],
                                          u32 stage, const float* rows, int tile_row, int key0, int i0, int prefix, float scale2) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float s[M][2 * W][4], dp[M][2 * W][4];  // S^T then P^T, dP^T then dS^T: [16M keys, 16W queries]
    clear(s);
    mma_by_rows<M, W>(s, k, stage, tile_row);
    clear(dp);
    mma_by_rows<M, W>(dp, v, stage + TILE_BYTES, tile_row);
    UNROLL for (int n = 0; n < 2 * W; n++)
        UNROLL for (int e = 0; e < 2; e++) {
            int column = n * 8 + t * 2 + e;
            float lse2 = rows[tile_row + column] * LOG2E, delta = rows[STAGE_ROWS + tile_row + column];
            UNROLL for (int m = 0; m < M; m++)
                UNROLL for (int half = 0; half < 2; half++) {
                    float p = exp2_fast(s[m][n][half * 2 + e] * scale2 - lse2);
                    if (CHECKED && i0 + column < first_query(key0 + m * 16 + half * 8 + g, prefix)) p = 0.f;
                    s[m][n][half * 2 + e] = p;
                    dp[m][n][half * 2 + e] = p * (dp[m][n][half * 2 + e] - delta);
                }
        }
    u32 a[M][W][4];
    to_fragments<M, W>(a, s);
    mma_over_rows<M, W>(dv, a, stage + TILE_BYTES, tile_row);
    to_fragments<M, W>(a, dp);
    mma_over_rows<M, W>(dk, a, stage, tile_row);
}

// Keys key0 .. key0 + 16M of one (b, h), for one warp; the block's warps share the query tiles from `block_begin` on.
template <int M>
__device__ __forceinline__ void dkdv_rows(const bf16* q, const bf16* k, const bf16* v, const bf16* d_o, const float* lse, const float* delta, const u32* mask,
                                          bf16* dk, bf16* dv, int key0, int block_begin, int Lq, int Lk, i64 q_row, i64 kv_row, i64 o_row, int prefix, float scale) {
    u32 stages = smem_address(smem);  // two
    load_queries(stages + (block_begin / STAGE_ROWS % 2) * DKDV_STAGE, q, d_o, lse, delta, block_begin, Lq, q_row, o_row);

    u32 kf[M][K_STEPS][4], vf[M][K_STEPS][4];  // [16M, D]
    load_fragments<M>(kf, k, kv_row, key0, Lk);
    load_fragments<M>(vf, v, kv_row, key0, Lk);
    float dk_acc[M][D_TILES][4], dv_acc[M][D_TILES][4];
    clear(dk_acc);
    clear(dv_acc);

    // queries before `begin` see none of the keys, from `safe` on they see all of them
    int begin = key0 < Lk ? first_query(key0, prefix) : Lq + 16 * DKDV_WIDTH, safe = first_query(key0 + 16 * M - 1, prefix);
    float scale2 = scale * LOG2E;
#define STEP(WIDTH, CHECKED) dkdv_step<M, WIDTH, CHECKED>(dk_acc, dv_acc, kf, vf, stages + stage, rows, i % STAGE_ROWS, key0, i, prefix, scale2)
#pragma unroll 1
    for (int i = block_begin; i < Lq; i += 16 * DKDV_WIDTH) {
        int stage = (i / STAGE_ROWS % 2) * DKDV_STAGE;
        if (i % STAGE_ROWS == 0) {
            copies_wait_all();
            __syncthreads();  // this stage is complete, and every warp is done with the one before
            int next = i + STAGE_ROWS;
            if (next < Lq) load_queries(stages + (next / STAGE_ROWS % 2) * DKDV_STAGE, q, d_o, lse, delta, next, Lq, q_row, o_row);
        }
        const float* rows = (const float*)(smem + stage + 2 * TILE_BYTES);
        if (i + 16 * DKDV_WIDTH <= begin) continue;
        if (DKDV_WIDTH > 1 && i + 16 >= Lq) STEP(1, true);
        else if (i >= safe) STEP(DKDV_WIDTH, false);
        else STEP(DKDV_WIDTH, true);
    }
#undef STEP

    int g = threadIdx.x % 32 / 4;
    UNROLL for (int m = 0; m < M; m++) {
        float one[2], scales[2];
        UNROLL for (int half = 0; half < 2; half++) {
            int key = key0 + m * 16 + half * 8 + g;
            bool allowed = !mask || (key < Lk && mask[key] != 0);
            one[half] = allowed ? 1.f : 0.f;
            scales[half] = allowed ? scale : 0.f;
        }
        store_rows(dv, kv_row, key0 + m * 16, Lk, dv_acc[m], one);
        store_rows(dk, kv_row, key0 + m * 16, Lk, dk_acc[m], scales);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, DKDV_BLOCKS)
attention_bwd_dkdv(const bf16* q, const bf16* k, const bf16* v, const bf16* d_o, const float* lse, const float* delta, const u32* mask, bf16* dk, bf16* dv,
                   int H, int Lq, int Lk, i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, int prefix, float scale) {
    int h = blockIdx.y, b = blockIdx.z;
    int block_key = blockIdx.x * 64, key0 = block_key + warp_index() * 16;
    int block_begin = first_query(block_key, prefix) / STAGE_ROWS * STAGE_ROWS;
    i64 kv_at = b * kv_batch + h * D, row_at = ((i64)b * H + h) * Lq;
    q += b * q_batch + h * D;
    d_o += ((i64)b * Lq * H + h) * D;
    if (mask) mask += (i64)b * Lk;
    dkdv_rows<1>(q, k + kv_at, v + kv_at, d_o, lse + row_at, delta + row_at, mask, dk + kv_at, dv + kv_at,
                 key0, block_begin, Lq, Lk, q_row, kv_row, (i64)H * D, prefix, scale);
}

// Keys key0 .. key0 + 16W, at row `tile_row` of the shared tiles; the rows are queries.
template <int M, int W, bool CHECKED>
__device__ __forceinline__ void dq_step(float (&dq)[M][D_TILES][4], const u32 (&q)[M][K_STEPS][4], const u32 (&d_o)[M][K_STEPS][4], const float (&lse2)[M][2], const float (&delta)[M][2],
                                        u32 k_tile, u32 v_tile, int tile_row, int row0, int key0, const u32* mask, int Lk, int prefix, float scale2) {
    int g = threadIdx.x % 32 / 4;
    u32 bits = CHECKED ? mask_bits(mask, key0, Lk) : ALL_LANES;
    if (CHECKED) keep_in_loop(row0);
    float s[M][2 * W][4], dp[M][2 * W][4];  // S, dP then dS: [16M queries, 16W keys]
    clear(s);
    mma_by_rows<M, W>(s, q, k_tile, tile_row);
    clear(dp);
    mma_by_rows<M, W>(dp, d_o, v_tile, tile_row);
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int half = 0; half < 2; half++) {
            u32 allowed = CHECKED ? row_bits(bits, key_limit(row0 + m * 16 + half * 8 + g, prefix, Lk) - key0) : 0;
            UNROLL for (int n = 0; n < 2 * W; n++)
                UNROLL for (int e = 0; e < 2; e++) {
                    float p = exp2_fast(s[m][n][half * 2 + e] * scale2 - lse2[m][half]);
                    if (CHECKED && !(allowed >> (n * 8 + e) & 1)) p = 0.f;
                    float& x = dp[m][n][half * 2 + e];
                    x = p * (x - delta[m][half]);
                }
        }
    u32 a[M][W][4];
    to_fragments<M, W>(a, dp);
    mma_over_rows<M, W>(dq, a, k_tile, tile_row);
}

// A stage of K [64, D] and V [64, D].
__device__ __forceinline__ void load_keys(u32 stage, const bf16* k, const bf16* v, i64 kv_row, int key0, int end) {
    int rows = min(STAGE_ROWS, round_up(end - key0, 16));
    load_rows(stage, k, kv_row, key0, rows, end);
    load_rows(stage + TILE_BYTES, v, kv_row, key0, rows, end);
    copies_commit();
}

// Queries row0 .. row0 + 16M of one (b, h), for one warp; the block's warps share the keys [0, block_keys), and their barriers: a warp
// whose queries end in the first tile leaves out the others within. Writes delta.
template <int M>
__device__ __forceinline__ void dq_rows(const bf16* q, const bf16* k, const bf16* v, const bf16* o, const bf16* d_o, const float* lse, float* delta, const u32* mask, bf16* dq,
                                        int row0, int block_keys, int Lq, int Lk, i64 q_row, i64 kv_row, i64 o_row, int prefix, float scale) {
    u32 tiles = smem_address(smem);  // two stages of K [64, D], V [64, D]
    load_keys(tiles, k, v, kv_row, 0, block_keys);

    u32 qf[M][K_STEPS][4], dof[M][K_STEPS][4];  // [16M, D]
    load_fragments<M>(dof, d_o, o_row, row0, Lq);
    float acc[M][D_TILES][4], lse2[M][2], deltas[M][2];
    clear(acc);
    load_fragments<M>(qf, o, o_row, row0, Lq);  // o only for now
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int half = 0; half < 2; half++) {
            int row = row0 + m * 16 + half * 8 + g;
            lse2[m][half] = row < Lq ? lse[row] * LOG2E : 0.f;
            float sum = 0.f;
            UNROLL for (int n = 0; n < K_STEPS; n++)
                UNROLL for (int i = half; i < 4; i += 2)
                    sum += lo_f32(qf[m][n][i]) * lo_f32(dof[m][n][i]) + hi_f32(qf[m][n][i]) * hi_f32(dof[m][n][i]);
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            deltas[m][half] = sum;
            if (t == 0 && row < Lq) delta[row] = sum;
        }
    load_fragments<M>(qf, q, q_row, row0, Lq);

    int end = row0 < Lq ? key_limit(min(row0 + 16 * M, Lq) - 1, prefix, Lk) : 0;
    int safe = mask ? 0 : min(key_limit(row0, prefix, Lk), end);
    float scale2 = scale * LOG2E;
    bool all = M == 1 || row0 + 16 < Lq;
#define STEP(WIDTH, CHECKED)                                                                                                                    \
    if (all) dq_step<M, WIDTH, CHECKED>(acc, qf, dof, lse2, deltas, stage, stage + TILE_BYTES, key % STAGE_ROWS, row0, key, mask, Lk, prefix, scale2); \
    else dq_step<1, WIDTH, CHECKED>(first(acc), first(qf), first(dof), first(lse2), first(deltas), stage, stage + TILE_BYTES, key % STAGE_ROWS, row0, key, mask, Lk, prefix, scale2)
#pragma unroll 1
    for (int key = 0; key < block_keys; key += 16 * DQ_WIDTH) {
        u32 stage = tiles + (key / STAGE_ROWS % 2) * 2 * TILE_BYTES;
        if (key % STAGE_ROWS == 0) {
            copies_wait_all();
            __syncthreads();  // this tile is complete, and every warp is done with the one before
            int next = key + STAGE_ROWS;
            if (next < block_keys) load_keys(tiles + (next / STAGE_ROWS % 2) * 2 * TILE_BYTES, k, v, kv_row, next, block_keys);
        }
        if (key + 16 * DQ_WIDTH <= safe) { STEP(DQ_WIDTH, false); }
        else if (DQ_WIDTH > 1 && key + 16 < end) { STEP(DQ_WIDTH, true); }
        else if (key < end) { STEP(1, true); }
    }
#undef STEP
    float scales[2] = {scale, scale};
    UNROLL for (int m = 0; m < M; m++) store_rows(dq, q_row, row0 + m * 16, Lq, acc[m], scales);
}

extern "C" __global__ void __launch_bounds__(THREADS, DQ_BLOCKS)
attention_bwd_dq_delta(const bf16* q, const bf16* k, const bf16* v, const bf16* o, const bf16* d_o, const float* lse, float* delta, const u32* mask, bf16* dq,
                       int H, int Lq, int Lk, i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, int prefix, float scale) {
    int h = blockIdx.y, b = blockIdx.z;
    int block_row = blockIdx.x * (64 * DQ_TILES), row0 = block_row + warp_index() * (16 * DQ_TILES);
    int block_keys = key_limit(min(block_row + 64 * DQ_TILES, Lq) - 1, prefix, Lk);
    i64 q_at = b * q_batch + h * D, kv_at = b * kv_batch + h * D, o_at = ((i64)b * Lq * H + h) * D, row_at = ((i64)b * H + h) * Lq;
    if (mask) mask += (i64)b * Lk;
    dq_rows<DQ_TILES>(q + q_at, k + kv_at, v + kv_at, o + o_at, d_o + o_at, lse + row_at, delta + row_at, mask, dq + q_at,
                      row0, block_keys, Lq, Lk, q_row, kv_row, (i64)H * D, prefix, scale);
}
