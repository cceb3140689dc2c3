// Attention, backward, for short sequences: one block owns a (b, h). Follows rounds.cu.
//
// With S = scale q k^T, P = exp(S - lse), dP = d_o v^T, delta = rowsum(o d_o), dS = P (dP - delta):
//   dv = P^T d_o,  dk = scale dS^T q,  dq = scale dS k.
// A warp owns 16M keys: K and V of them as fragments and the sums dk, dv stay in its registers while the queries go by,
// block_rows at a time. Each warp leaves its dS^T in shared memory, and all of them multiply it with K: dq of those
// queries. So S and dP are made once, every tensor is read once, and nothing is added across blocks.
// Blocks are persistent: while one computes, it fetches the queries that come next, of the next (b, h) if need be.
//
//   kernel                   keys per warp   grid                          threads
//   attention_bwd_short_1    16              any number up to B * H        32 * warps, with keys per warp * warps >= Lk and
//   attention_bwd_short_2    32              (H * B items are shared out)  4 <= warps <= 8
// The first C keys may come from elsewhere: row of[b] of common [R, C, keys and values, H, D]; k and v then hold the other
// Lk - C of each example. Gradients of those C go to d_common [B, C, keys and values, H, D], one row per example.
//   block_rows   a multiple of 16; more than that many queries take several rounds
//   shared       see short_layout, at the end of which there are 16 * block_rows bytes for lse and delta

// 16-wide tiles of queries handled at once by a warp: 1 or 2.
#ifndef SHORT_WIDTH_1
#define SHORT_WIDTH_1 (HEAD_DIM <= 64 ? 2 : 1)
#endif
#ifndef SHORT_WIDTH_2
#define SHORT_WIDTH_2 (HEAD_DIM == 32 ? 2 : 1)
#endif

// K twice, V, two stages of q and d_o, o, dS^T [key_rows, block_rows] twice (once if all queries are one round), then
// lse and delta of two stages. Rows of dS^T are padded by 16 bytes: any 8 of them in a column lie in different banks.
template <int M> __device__ __forceinline__ void short_layout(Short& p) {
    p.key_rows = round_up(p.Lk, 16 * M);
    int keys = p.key_rows * ROW_BYTES, rows = p.block_rows * ROW_BYTES;
    p.v_at = 2 * keys;
    p.v_bytes = 0;
    p.stage_at = p.v_at + keys;
    p.stage_bytes = 2 * rows;
    p.o_at = p.stage_at + 2 * p.stage_bytes;
    p.ds_at = p.o_at + rows;
    p.ds_row = p.block_rows * 2 + 16;
    p.ds_bytes = p.Lq > p.block_rows ? p.key_rows * p.ds_row : 0;
    p.rows_at = p.ds_at + p.key_rows * p.ds_row + p.ds_bytes;
}

// Rows row0 .. row0 + 16M of a shared tile as A fragments.
template <int M>
__device__ __forceinline__ void tile_fragments(u32 (&a)[M][K_STEPS][4], u32 tile, int row0) {
    int lane = threadIdx.x % 32;
    u32 base = tile + (row0 + (lane & 15)) * ROW_BYTES;
    int chunk = (lane >> 4) ^ swizzle(lane & 7);
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int k = 0; k < K_STEPS; k++) ldmatrix(a[m][k], base + m * 16 * ROW_BYTES + ((chunk ^ (2 * k)) << 4));
}

// Queries i0 .. i0 + 16W, at row `row` of the stage. Key rows g, g + 8 of tile m are seen by queries from first[m] on.
// ds: where dS^T of the warp's first key and query `row` is to go.
template <int M, int W, bool CHECKED>
__device__ __forceinline__ void short_step(float (&dk)[M][D_TILES][4], float (&dv)[M][D_TILES][4], const u32 (&k)[M][K_STEPS][4], const u32 (&v)[M][K_STEPS][4],
                                           u32 q_tile, u32 do_tile, const float* lse, const float* delta, int row, int i0, u8* ds, int ds_row, const int (&first)[M][2], float scale2) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float s[M][2 * W][4], dp[M][2 * W][4];  // S^T then P^T, dP^T - delta then dS^T: [16M keys, 16W queries]
    clear(s);
    UNROLL for (int n = 0; n < 2 * W; n++)
        UNROLL for (int e = 0; e < 2; e++) {
            float x = -delta[row + n * 8 + t * 2 + e];
            UNROLL for (int m = 0; m < M; m++) dp[m][n][e] = dp[m][n][2 + e] = x;
        }
    mma_by_rows<M, W>(s, k, q_tile, row);
    mma_by_rows<M, W>(dp, v, do_tile, row);
    UNROLL for (int n = 0; n < 2 * W; n++)
        UNROLL for (int e = 0; e < 2; e++) {
            int column = n * 8 + t * 2 + e;
            float lse2 = lse[row + column] * LOG2E;
            UNROLL for (int m = 0; m < M; m++)
                UNROLL for (int half = 0; half < 2; half++) {
                    float p = exp2_fast(s[m][n][half * 2 + e] * scale2 - lse2);
                    if (CHECKED && i0 + column < first[m][half]) p = 0.f;
                    s[m][n][half * 2 + e] = p;
                    dp[m][n][half * 2 + e] *= p;
                }
        }
    u32 a[M][W][4];
    to_fragments<M, W>(a, s);
    mma_over_rows<M, W>(dv, a, do_tile, row);
    to_fragments<M, W>(a, dp);
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int w = 0; w < W; w++)
            UNROLL for (int i = 0; i < 4; i++)
                *(u32*)(ds + (m * 16 + i % 2 * 8 + g) * ds_row + (w * 16 + i / 2 * 8 + t * 2) * 2) = a[m][w][i];
    mma_over_rows<M, W>(dk, a, q_tile, row);
}

// dq of a round: 16 queries x 32 columns at a time, over all keys.
__device__ __forceinline__ void short_dq(const Short& p, int item, int i0, u32 ds, u32 k_tile) {
    constexpr int PARTS = D / 32;
    int lane = threadIdx.x % 32, warps = blockDim.x / 32, tiles = short_rows(p, i0) / 16, key_tiles = (p.Lk + 15) / 16;
    bf16* dq = p.dq + (item / p.H) * p.q_batch + (item % p.H) * D;
    u32 a_at = ds + ((lane >> 4) * 8 + (lane & 7)) * p.ds_row + (lane >> 3 & 1) * 16;
    u32 b_at = k_tile + (lane & 15) * ROW_BYTES;
    int chunk = (lane >> 4) ^ swizzle(lane & 7);
#pragma unroll 1
    for (int piece = warp_index(); piece < tiles * PARTS; piece += warps) {
        int tile = piece / PARTS, part = piece % PARTS;
        u32 a_piece = a_at + tile * 32;
        float acc[4][4] = {};
#pragma unroll 2
        for (int key = 0; key < key_tiles; key++) {
            u32 a[4], b0[4], b1[4];
            ldmatrix_trans(a, a_piece + key * 16 * p.ds_row);
            ldmatrix_trans(b0, b_at + key * 16 * ROW_BYTES + ((chunk ^ (part * 4)) << 4));
            ldmatrix_trans(b1, b_at + key * 16 * ROW_BYTES + ((chunk ^ (part * 4 + 2)) << 4));
            mma(acc[0], a, b0[0], b0[1]);
            mma(acc[1], a, b0[2], b0[3]);
            mma(acc[2], a, b1[0], b1[1]);
            mma(acc[3], a, b1[2], b1[3]);
        }
        float scales[2] = {p.scale, p.scale};
        store_rows<4>(dq + part * 32, p.q_row, i0 + tile * 16, p.Lq, acc, scales);
    }
}

template <int M, int WIDTH>
__device__ __forceinline__ void bwd_short(Short& p) {
    short_layout<M>(p);
    u32 base = smem_address(smem);
    int key0 = warp_index() * (16 * M), g = threadIdx.x % 32 / 4;
    bool owns = key0 < p.Lk;
    float scale2 = p.scale * LOG2E;
    int keys = 0, stage = 0;  // which of the two
    short_fetch(p, blockIdx.x, 0, 0, 0);
    short_arrive(p, short_rows(p, 0), 0);
    __syncthreads();
#pragma unroll 1
    for (int item = blockIdx.x; item < p.items; item += gridDim.x) {
        u32 k_tile = base + keys * (p.key_rows * ROW_BYTES);
        u32 kf[M][K_STEPS][4], vf[M][K_STEPS][4];  // [16M, D]
        float dk[M][D_TILES][4], dv[M][D_TILES][4];
        int first[M][2];
        bool checked = false;
        clear(dk);
        clear(dv);
        if (owns) {
            tile_fragments<M>(kf, k_tile, key0);
            tile_fragments<M>(vf, base + p.v_at, key0);
            UNROLL for (int m = 0; m < M; m++)
                UNROLL for (int half = 0; half < 2; half++) {
                    int key = key0 + m * 16 + half * 8 + g;
                    bool allowed = key < p.Lk && (!p.mask || p.mask[(i64)(item / p.H) * p.Lk + key] != 0);
                    first[m][half] = allowed ? first_query(key, p.prefix) : 1 << 30;
                    checked |= first[m][half] > 0;
                }
            checked = __any_sync(ALL_LANES, checked);
        }
        // With one round per (b, h), V and the other K are overwritten at once: no warp may need them any more.
        if (p.Lq <= p.block_rows) __syncthreads();
#pragma unroll 1
        for (int i0 = 0; i0 < p.Lq; i0 += p.block_rows) {
            int rows = short_rows(p, i0), next_i0 = i0 + p.block_rows, next_item = item, next_keys = keys;
            if (next_i0 >= p.Lq) { next_i0 = 0; next_item += gridDim.x; next_keys ^= 1; }
            bool more = next_item < p.items;
            if (more) short_fetch(p, next_item, next_i0, stage ^ 1, next_keys);
            int ds_at = p.ds_at + stage * p.ds_bytes;
            if (owns) {
                u32 q_tile = base + p.stage_at + stage * p.stage_bytes, do_tile = q_tile + p.stage_bytes / 2;
                const float *lse = short_lse(p, stage), *delta = lse + p.block_rows;
                u8* ds = smem + ds_at + key0 * p.ds_row;
#define STEP(W, CHECKED) short_step<M, W, CHECKED>(dk, dv, kf, vf, q_tile, do_tile, lse, delta, i, i0 + i, ds + i * 2, p.ds_row, first, scale2)
#pragma unroll 1
                for (int i = 0; i < rows; i += 16 * WIDTH) {
                    if (WIDTH > 1 && i + 16 >= rows) STEP(1, true);
                    else if (checked) STEP(WIDTH, true);
                    else STEP(WIDTH, false);
                }
#undef STEP
            }
            if (more) short_arrive(p, short_rows(p, next_i0), stage ^ 1);
            __syncthreads();  // dS^T is complete, the next round is there, and every warp is done with this one's stage
            short_dq(p, item, i0, base + ds_at, k_tile);
            stage ^= 1;
        }
        if (owns) {
            int b = item / p.H, h = item % p.H, width = p.H * D;
            i64 own = b * p.kv_batch + h * D - p.C * p.kv_row, common = ((i64)b * p.C * 2 * p.H + h) * D;
            auto dk_at = [&](int key) { return key < p.C ? p.d_common + common + key * 2 * width : p.dk + own + key * p.kv_row; };
            auto dv_at = [&](int key) { return key < p.C ? p.d_common + common + key * 2 * width + width : p.dv + own + key * p.kv_row; };
            float one[2] = {1.f, 1.f}, scales[2] = {p.scale, p.scale};
            UNROLL for (int m = 0; m < M; m++) {
                store_rows<D_TILES>(dv_at, key0 + m * 16, p.Lk, dv[m], one);
                store_rows<D_TILES>(dk_at, key0 + m * 16, p.Lk, dk[m], scales);
            }
        }
        keys ^= 1;
    }
}

#define SHORT(M, THREADS)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                     \
    attention_bwd_short_##M(const bf16* q, const bf16* k, const bf16* v, const bf16* o, const bf16* d_o, const float* lse,    \
                            const u32* mask, bf16* dq, bf16* dk, bf16* dv, int items, int H, int Lq, int Lk, i64 q_batch,     \
                            i64 q_row, i64 kv_batch, i64 kv_row, int prefix, float scale, int block_rows, const bf16* common, \
                            const u32* of, bf16* d_common, int C) {                                                           \
        Short p = {q, k, v, o, d_o, lse, mask, dq, dk, dv, items, H, Lq, Lk, q_batch, q_row, kv_batch, kv_row, prefix,        \
                   scale, block_rows, common, of, d_common, C};                                                               \
        bwd_short<M, SHORT_WIDTH_##M>(p);                                                                                     \
    }
// A bound of 384 threads leaves 168 registers, so that two blocks of up to 6 warps fit a multiprocessor.
SHORT(1, HEAD_DIM <= 64 ? 384 : 256)
#if HEAD_DIM <= 64
SHORT(2, 256)
#endif
