// Attention, backward, by warpgroups: as attention_short.cu, for heads of 64 without mask and prefix. Follows bulk.cu.
//
// A warpgroup owns 64 keys and the sums dk, dv of them; queries go by in rounds of 64 or less. Keys, values and queries are read by
// wgmma where they lie. dS^T of a round goes to shared memory, and one of the warpgroups, another each round, multiplies it
// with all keys: dq of those queries. Where the last one would own 16 keys or less, it does this for all rounds, and multiplies
// with its keys from the other side: they are the columns of a product then, of which 16 can be had, not its 64 rows.
//   grid       any number up to B * H (= items)
//   threads    128 * ceil(Lk / 64)
//   shared     see GroupGradients
//   maps       q, d_o, o: boxes of ROUND rows; k, v: of round_up(Lk, 16) - C; common: of C
// The first C keys may come from elsewhere, as in attention.cu; each example's gradient of them goes to d_common [B, C, ..].

constexpr int ROUND = 64;
constexpr int ROUND_BYTES = ROUND * ROW_BYTES;

#ifdef HAS_WGMMA
struct GroupGradients {
    const TileMap &q, &o, &d_o;
    KeyMaps keys;
    const float* lse;
    bf16 *dq, *dk, *dv, *d_common;
    int items, H, Lq, Lk;
    i64 q_batch, q_row, kv_batch, kv_row;
    float scale;
    // Where things lie in shared memory: K and V twice, two stages of q and d_o, o, dS^T [keys, ROUND] twice, P^T of the
    // last 16 keys, lse and delta of two stages, barriers of the keys and of the stages.
    int key_bytes, stage_at, o_at, ds_at, p_at, rows_at, barriers_at;
};

__device__ __forceinline__ float* group_lse(const GroupGradients& p, int stage) { return (float*)(smem + p.rows_at) + stage * 2 * ROUND; }

// Queries of the next round, of so many left. A last round of few would leave no time for what is asked for meanwhile.
__device__ __forceinline__ int round_rows(int left) { return left > ROUND && left <= ROUND + 16 ? ROUND - 16 : min(left, ROUND); }

// Ask for the keys of a (b, h), and for a round of its queries. One thread does.
__device__ __forceinline__ void group_ask_keys(const GroupGradients& p, int item, int keys) {
    u32 base = smem_address(smem), k_tile = base + keys * p.key_bytes, barrier = base + p.barriers_at + keys * 8;
    barrier_expect(barrier, 2 * p.key_bytes);
    copy_keys(p.keys, item / p.H, item % p.H, p.H, k_tile, k_tile + 2 * p.key_bytes, barrier);
}
__device__ __forceinline__ void group_ask_round(const GroupGradients& p, int item, int i0, int stage) {
    int b = item / p.H, column = item % p.H * D;
    u32 base = smem_address(smem), to = base + p.stage_at + stage * (2 * ROUND_BYTES), barrier = base + p.barriers_at + 16 + stage * 8;
    barrier_expect(barrier, 3 * ROUND_BYTES);
    copy_tile(to, p.q, column, i0, b, barrier);
    copy_tile(to + ROUND_BYTES, p.d_o, column, i0, b, barrier);
    copy_tile(base + p.o_at, p.o, column, i0, b, barrier);
}

// Log-sum-exps of a round, by the threads that will scale them.
__device__ __forceinline__ void group_fetch_lse(const GroupGradients& p, int item, int i0, int stage) {
    int r = threadIdx.x;
    bool valid = i0 + r < p.Lq;
    if (r < ROUND) copy4_async(smem_address(group_lse(p, stage) + r), p.lse + (i64)item * p.Lq + (valid ? i0 + r : 0), valid);
    copies_commit();
}

// Wait for a round and compute its delta. `round` counts from the block's first.
__device__ __forceinline__ void group_arrive(const GroupGradients& p, int round) {
    int stage = round & 1;
    barrier_wait(smem_address(smem) + p.barriers_at + 16 + stage * 8, round >> 1 & 1);
    copies_wait_all();
    int step = blockDim.x / ROW_LANES, chunk = threadIdx.x % ROW_LANES;
    const u8 *d_o = smem + p.stage_at + stage * (2 * ROUND_BYTES) + ROUND_BYTES, *o = smem + p.o_at;
    float* rows = group_lse(p, stage);
    if (threadIdx.x < ROUND) rows[threadIdx.x] *= LOG2E;
#pragma unroll 1
    for (int row = threadIdx.x / ROW_LANES; row < ROUND; row += step) {  // the lanes of a warp agree on the end
        int at = row * ROW_BYTES + ((chunk ^ swizzle(row)) << 4);
        float x[8], y[8], sum = 0.f;
        load8((const bf16*)(d_o + at), x);
        load8((const bf16*)(o + at), y);
        UNROLL for (int e = 0; e < 8; e++) sum += x[e] * y[e];
        UNROLL for (int lanes = 1; lanes < ROW_LANES; lanes *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, lanes);
        if (chunk == 0) rows[ROUND + row] = sum;
    }
}

// A warp's part of a warpgroup's 64 keys.
struct GroupKeys {
    float dk[D_TILES][4], dv[D_TILES][4];
    u32 k_tile, v_tile;  // of the warpgroup
    int valid;           // of the warp's 16 keys so many exist
};

// What 16W queries add to dk and dv; their tiles, log-sum-exps and deltas begin here. ds: the warp's rows of dS^T, from query
// `column` of the round on.
template <int W>
__device__ __forceinline__ void group_bwd_step(GroupKeys& x, u32 q_tile, u32 do_tile, const float* lse, u8* ds, int column, float scale2) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float* delta = lse + ROUND;
    float s[2 * W][4], dp[2 * W][4];  // S^T then P^T, dP^T - delta: [16 keys, 16W queries]
    UNROLL for (int n = 0; n < 2 * W; n++)
        UNROLL for (int i = 0; i < 4; i++) dp[n][i] = -delta[n * 8 + t * 2 + i % 2];
    hold(dp);
    wgmma_fence();
    UNROLL for (int k = 0; k < K_STEPS; k++) wgmma_shared<false, false>(s, operand(x.k_tile + k * 32), operand(q_tile + k * 32), k > 0);
    wgmma_commit();
    UNROLL for (int k = 0; k < K_STEPS; k++) wgmma_shared<false, false>(dp, operand(x.v_tile + k * 32), operand(do_tile + k * 32), 1);
    wgmma_commit();
    wgmma_wait<1>();  // exponentials go on beside dP^T
    hold(s);
    UNROLL for (int n = 0; n < 2 * W; n++)
        UNROLL for (int e = 0; e < 2; e++) {
            float lse2 = lse[n * 8 + t * 2 + e];
            UNROLL for (int half = 0; half < 2; half++) s[n][half * 2 + e] = exp2_fast(s[n][half * 2 + e] * scale2 - lse2);
        }
    wgmma_wait<0>();
    hold(dp);
    u32 a[W][4], b[W][4];  // P^T, dS^T
    UNROLL for (int w = 0; w < W; w++)
        UNROLL for (int i = 0; i < 4; i++) {  // beyond the keys lies anything
            const float *y = s[2 * w + i / 2] + i % 2 * 2, *z = dp[2 * w + i / 2] + i % 2 * 2;
            bool exists = i % 2 * 8 + g < x.valid;
            a[w][i] = exists ? pack_bf16(y[0], y[1]) : 0u;
            b[w][i] = exists ? pack_bf16(y[0] * z[0], y[1] * z[1]) : 0u;
            int chunk = (column / 8 + w * 2 + i / 2) ^ g;
            if (x.valid > 0) *(u32*)(ds + (i % 2 * 8 + g) * ROW_BYTES + chunk * 16 + t * 4) = b[w][i];
        }
    hold(a);
    hold(b);
    hold(x.dk);
    hold(x.dv);
    wgmma_fence();
    UNROLL for (int w = 0; w < W; w++) wgmma<true>(x.dv, a[w], operand(do_tile + w * 16 * ROW_BYTES), 1);
    UNROLL for (int w = 0; w < W; w++) wgmma<true>(x.dk, b[w], operand(q_tile + w * 16 * ROW_BYTES), 1);
    wgmma_commit();
    wgmma_wait<0>();
    hold(a);
    hold(b);
    hold(x.dk);
    hold(x.dv);
}

// The last keys, up to 16 of them, and a round of queries: what they add to dk^T and dv^T [D, 16], and dS^T. k_tile, v_tile, ds
// and p begin at these keys.
__device__ __forceinline__ void group_bwd_last(float (&dk)[2][4], float (&dv)[2][4], u32 k_tile, u32 v_tile, u32 q_tile, u32 do_tile,
                                               const float* lse, u8* ds, u8* p, int rows, int valid, float scale2) {
    int warp = warp_index() % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float s[2][4], dp[2][4];  // S then P, dP: [16 queries, 16 keys]
    wgmma_fence();
    UNROLL for (int k = 0; k < K_STEPS; k++) wgmma_shared<false, false>(s, operand(q_tile + k * 32), operand(k_tile + k * 32), k > 0);
    UNROLL for (int k = 0; k < K_STEPS; k++) wgmma_shared<false, false>(dp, operand(do_tile + k * 32), operand(v_tile + k * 32), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    hold(s);
    hold(dp);
    UNROLL for (int half = 0; half < 2; half++) {
        int row = warp * 16 + half * 8 + g;
        float lse2 = lse[row], delta = lse[ROUND + row];
        UNROLL for (int n = 0; n < 2; n++)
            UNROLL for (int e = 0; e < 2; e++) {
                int key = n * 8 + t * 2 + e, at = key * ROW_BYTES + (((warp * 2 + half) ^ (t * 2 + e)) << 4) + g * 2;
                float x = row < rows && key < valid ? exp2_fast(s[n][half * 2 + e] * scale2 - lse2) : 0.f;
                *(bf16*)(p + at) = from_f32<bf16>(x);
                *(bf16*)(ds + at) = from_f32<bf16>(x * (dp[n][half * 2 + e] - delta));
            }
    }
    shared_fence();
    group_sync();
    u32 p_tile = smem_address(p), ds_tile = smem_address(ds);
    hold(dk);
    hold(dv);
    wgmma_fence();
    UNROLL for (int i = 0; i < ROUND / 16; i++) {
        wgmma_shared<true, false>(dv, operand(do_tile + i * 16 * ROW_BYTES), operand(p_tile + i * 32), 1);
        wgmma_shared<true, false>(dk, operand(q_tile + i * 16 * ROW_BYTES), operand(ds_tile + i * 32), 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold(dk);
    hold(dv);
}

// dq of a round, by one warpgroup.
__device__ __forceinline__ void group_dq(const GroupGradients& p, int item, int i0, int rows, u32 ds, u32 k_tile) {
    float acc[D_TILES][4];
    UNROLL for (int d = 0; d < D_TILES; d++)
        UNROLL for (int i = 0; i < 4; i++) acc[d][i] = 0.f;
    hold(acc);
    wgmma_fence();
#pragma unroll 1
    for (int key = 0; key < p.keys.key_rows; key += 16) {
        wgmma_shared<true, true>(acc, operand(ds), operand(k_tile), 1);
        ds += 16 * ROW_BYTES;
        k_tile += 16 * ROW_BYTES;
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold(acc);
    float scales[2] = {p.scale, p.scale};
    bf16* dq = p.dq + (item / p.H) * p.q_batch + (item % p.H) * D;
    store_rows(dq, p.q_row, i0 + warp_index() % 4 * 16, i0 + rows, acc, scales);
}

// The accumulator of a warpgroup [D, 16] to rows row0 + (0..16), those before `end`: its columns.
template <typename At>
__device__ __forceinline__ void store_columns(At at, int row0, int end, const float (&acc)[2][4], float factor) {
    int d = warp_index() % 4 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    UNROLL for (int n = 0; n < 2; n++)
        UNROLL for (int i = 0; i < 4; i++) {
            int row = row0 + n * 8 + t * 2 + i % 2;
            if (row < end) at(row)[d + i / 2 * 8] = from_f32<bf16>(acc[n][i] * factor);
        }
}

__device__ __forceinline__ void bwd_group(const GroupGradients& p) {
    u32 base = smem_address(smem), barriers = base + p.barriers_at;
    int group = warp_index() / 4, groups = blockDim.x / 128, key0 = warp_index() * 16;
    bool asks = threadIdx.x == blockDim.x - 32;  // the last warp has the fewest keys
    bool apart = p.Lk % 64 > 0 && p.Lk % 64 <= 16, last = apart && group == groups - 1;
    float scale2 = p.scale * LOG2E;
    int count = 0, round = 0;  // of the block's (b, h) and their rounds so far: even ones lie in the first of two places
    if (asks) {
        UNROLL for (int i = 0; i < 4; i++) barrier_init(barriers + i * 8, 1);
        barrier_made();
    }
    __syncthreads();
    if (asks) {
        group_ask_keys(p, blockIdx.x, 0);
        group_ask_round(p, blockIdx.x, 0, 0);
    }
    __syncwarp();
    group_fetch_lse(p, blockIdx.x, 0, 0);
    group_arrive(p, 0);
    __syncthreads();
#pragma unroll 1
    for (int item = blockIdx.x; item < p.items; item += gridDim.x) {
        GroupKeys x;
        u32 k_tile = base + (count & 1) * p.key_bytes;
        x.k_tile = k_tile + group * (64 * ROW_BYTES);
        x.v_tile = x.k_tile + 2 * p.key_bytes;
        x.valid = min(max(p.Lk - key0, 0), 16);
        UNROLL for (int d = 0; d < D_TILES; d++)
            UNROLL for (int i = 0; i < 4; i++) x.dk[d][i] = x.dv[d][i] = 0.f;
        barrier_wait(barriers + (count & 1) * 8, count >> 1 & 1);
        // With one round per (b, h), the other keys are overwritten at once: no warpgroup may need them any more.
        if (p.Lq <= ROUND) __syncthreads();
#pragma unroll 1
        for (int i0 = 0, rows; i0 < p.Lq; i0 += rows) {
            rows = round_rows(p.Lq - i0);
            int next_i0 = i0 + rows, next_item = item, stage = round & 1;
            if (next_i0 >= p.Lq) { next_i0 = 0; next_item += gridDim.x; }
            bool more = next_item < p.items;
            // The keys before were needed until the first round's end; what comes next has the other rounds' time.
            if (asks && i0 == (p.Lq > ROUND ? round_rows(p.Lq) : 0) && item + gridDim.x < p.items) group_ask_keys(p, item + gridDim.x, ~count & 1);
            if (asks && more) group_ask_round(p, next_item, next_i0, stage ^ 1);
            __syncwarp();
            if (more) group_fetch_lse(p, next_item, next_i0, stage ^ 1);
            u32 q_tile = base + p.stage_at + stage * (2 * ROUND_BYTES), do_tile = q_tile + ROUND_BYTES;
            const float* lse = group_lse(p, stage);
            int ds_at = p.ds_at + stage * p.key_bytes;
            u8* ds = smem + ds_at + key0 * ROW_BYTES;
            int i = last ? rows : 0;
            if (last)
                group_bwd_last((float (&)[2][4])x.dk, (float (&)[2][4])x.dv, x.k_tile, x.v_tile, q_tile, do_tile, lse,
                               smem + ds_at + group * (64 * ROW_BYTES), smem + p.p_at, rows, p.Lk % 64, scale2);
#pragma unroll 1
            for (; i + 16 < rows; i += 32) group_bwd_step<2>(x, q_tile + i * ROW_BYTES, do_tile + i * ROW_BYTES, lse + i, ds, i, scale2);
            if (i < rows) group_bwd_step<1>(x, q_tile + i * ROW_BYTES, do_tile + i * ROW_BYTES, lse + i, ds, i, scale2);
            if (more) group_arrive(p, round + 1);
            shared_fence();
            __syncthreads();  // dS^T is complete, the next round is there, and every warp is done with this one's stage
            if ((apart ? groups - 1 : round % groups) == group) group_dq(p, item, i0, rows, base + ds_at, k_tile);
            round++;
        }
        if (last || x.valid > 0) {
            int e = item / p.H, h = item % p.H, width = p.H * D, C = p.keys.C;
            i64 own = e * p.kv_batch + h * D - C * p.kv_row, common = ((i64)e * C * 2 * p.H + h) * D;
            auto dk_at = [&](int key) { return key < C ? p.d_common + common + key * 2 * width : p.dk + own + key * p.kv_row; };
            auto dv_at = [&](int key) { return key < C ? p.d_common + common + key * 2 * width + width : p.dv + own + key * p.kv_row; };
            float one[2] = {1.f, 1.f}, scales[2] = {p.scale, p.scale};
            if (last) {
                store_columns(dv_at, group * 64, p.Lk, (const float (&)[2][4])x.dv, 1.f);
                store_columns(dk_at, group * 64, p.Lk, (const float (&)[2][4])x.dk, p.scale);
            } else {
                store_rows<D_TILES>(dv_at, key0, p.Lk, x.dv, one);
                store_rows<D_TILES>(dk_at, key0, p.Lk, x.dk, scales);
            }
        }
        count++;
    }
}
#endif

extern "C" __global__ void __launch_bounds__(512, 1)
attention_bwd_group(const __grid_constant__ TileMap q, const __grid_constant__ TileMap k, const __grid_constant__ TileMap v,
                    const __grid_constant__ TileMap common, const __grid_constant__ TileMap o, const __grid_constant__ TileMap d_o, const u32* of,
                    int C, int key_rows, const float* lse, bf16* dq, bf16* dk, bf16* dv, bf16* d_common, int items, int H, int Lq, int Lk,
                    i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, float scale) {
#ifdef HAS_WGMMA
    int key_bytes = key_rows * ROW_BYTES, stage_at = 4 * key_bytes, o_at = stage_at + 4 * ROUND_BYTES, ds_at = o_at + ROUND_BYTES;
    int p_at = ds_at + 2 * key_bytes, rows_at = p_at + 16 * ROW_BYTES, barriers_at = rows_at + 4 * ROUND * 4;
    bwd_group({q, o, d_o, {k, v, common, of, C, key_rows}, lse, dq, dk, dv, d_common, items, H, Lq, Lk, q_batch, q_row, kv_batch, kv_row, scale,
               key_bytes, stage_at, o_at, ds_at, p_at, rows_at, barriers_at});
#else
    __trap();  // never launched on other chips
#endif
}
