// Attention, backward, by warpgroups: as attention_short.cu, for heads of 64 without mask and prefix. Follows wgmma.cu, rounds.cu.
//
// A warpgroup owns 64 keys and the sums dk, dv of them; queries go by 64 at a time. Keys, values and queries are read by
// wgmma where they lie. dS^T of a round goes to shared memory, and one of the warpgroups, another each round, multiplies it
// with all keys: dq of those queries.
//   grid       any number up to B * H (= items)
//   threads    128 * ceil(Lk / 64)
//   shared     see group_layout

constexpr int ROUND = 64;

// K and V twice, two stages of q and d_o, o, dS^T [keys, ROUND] twice, lse and delta of two stages.
__device__ __forceinline__ void group_layout(Short& p) {
    p.block_rows = ROUND;
    p.key_rows = round_up(p.Lk, 16);
    int keys = p.key_rows * ROW_BYTES, rows = ROUND * ROW_BYTES;
    p.v_at = 2 * keys;
    p.v_bytes = keys;
    p.stage_at = 4 * keys;
    p.stage_bytes = 2 * rows;
    p.o_at = p.stage_at + 2 * p.stage_bytes;
    p.ds_at = p.o_at + rows;
    p.ds_bytes = keys;
    p.rows_at = p.ds_at + 2 * keys;
}

#ifdef HAS_WGMMA
// 16W queries, the first of which begin at q_tile, d_o_tile, lse and delta. ds: the warp's rows of dS^T, from query `column`
// of the round on. Of the warp's 16 keys `valid` exist; if none do it only takes part in the products.
template <int W>
__device__ __forceinline__ void group_bwd_step(float (&dk)[D_TILES][4], float (&dv)[D_TILES][4], u32 k_tile, u32 v_tile, u32 q_tile, u32 do_tile,
                                               const float* lse, u8* ds, int column, int valid, float scale2) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float* delta = lse + ROUND;
    float s[2 * W][4], dp[2 * W][4];  // S^T then P^T, dP^T - delta then dS^T: [16 keys, 16W queries]
    wgmma_fence();
    UNROLL for (int k = 0; k < K_STEPS; k++) wgmma_shared<false, false>(s, operand(k_tile + k * 32), operand(q_tile + k * 32), k > 0);
    wgmma_commit();
    wgmma_wait();
    hold(s);
    u32 a[W][4], b[W][4];  // P^T, dS^T
    UNROLL for (int n = 0; n < 2 * W; n++)
        UNROLL for (int e = 0; e < 2; e++) {
            dp[n][e] = dp[n][2 + e] = -delta[n * 8 + t * 2 + e];
            float lse2 = lse[n * 8 + t * 2 + e] * LOG2E;
            UNROLL for (int half = 0; half < 2; half++) s[n][half * 2 + e] = exp2_fast(s[n][half * 2 + e] * scale2 - lse2);
        }
    UNROLL for (int w = 0; w < W; w++)
        UNROLL for (int i = 0; i < 4; i++) {  // beyond the keys lies anything
            const float* x = s[2 * w + i / 2] + i % 2 * 2;
            a[w][i] = i % 2 * 8 + g < valid ? pack_bf16(x[0], x[1]) : 0u;
        }
    hold(a);
    hold(dv);
    hold(dp);
    wgmma_fence();
    UNROLL for (int k = 0; k < K_STEPS; k++) wgmma_shared<false, false>(dp, operand(v_tile + k * 32), operand(do_tile + k * 32), 1);
    UNROLL for (int w = 0; w < W; w++) wgmma<true>(dv, a[w], operand(do_tile + w * 16 * ROW_BYTES), 1);
    wgmma_commit();
    wgmma_wait();
    hold(a);
    hold(dv);
    hold(dp);
    UNROLL for (int w = 0; w < W; w++)
        UNROLL for (int i = 0; i < 4; i++) {
            const float *x = s[2 * w + i / 2] + i % 2 * 2, *y = dp[2 * w + i / 2] + i % 2 * 2;
            b[w][i] = i % 2 * 8 + g < valid ? pack_bf16(x[0] * y[0], x[1] * y[1]) : 0u;
            int chunk = (column / 8 + w * 2 + i / 2) ^ g;
            if (valid > 0) *(u32*)(ds + (i % 2 * 8 + g) * ROW_BYTES + chunk * 16 + t * 4) = b[w][i];
        }
    hold(b);
    hold(dk);
    wgmma_fence();
    UNROLL for (int w = 0; w < W; w++) wgmma<true>(dk, b[w], operand(q_tile + w * 16 * ROW_BYTES), 1);
    wgmma_commit();
    wgmma_wait();
    hold(b);
    hold(dk);
}

// dq of a round, by one warpgroup.
__device__ __forceinline__ void group_dq(const Short& p, int item, int i0, u32 ds, u32 k_tile) {
    float acc[D_TILES][4];
    UNROLL for (int d = 0; d < D_TILES; d++)
        UNROLL for (int i = 0; i < 4; i++) acc[d][i] = 0.f;
    hold(acc);
    wgmma_fence();
#pragma unroll 1
    for (int key = 0; key < p.key_rows; key += 16) {
        wgmma_shared<true, true>(acc, operand(ds), operand(k_tile), 1);
        ds += 16 * ROW_BYTES;
        k_tile += 16 * ROW_BYTES;
    }
    wgmma_commit();
    wgmma_wait();
    hold(acc);
    float scales[2] = {p.scale, p.scale};
    bf16* dq = p.dq + (item / p.H) * p.q_batch + (item % p.H) * D;
    store_rows(dq, p.q_row, i0 + warp_index() % 4 * 16, p.Lq, acc, scales);
}

__device__ __forceinline__ void bwd_group(Short& p) {
    group_layout(p);
    u32 base = smem_address(smem);
    int group = warp_index() / 4, groups = blockDim.x / 128, key0 = warp_index() * 16;
    int valid = min(max(p.Lk - key0, 0), 16);
    float scale2 = p.scale * LOG2E;
    int keys = 0, stage = 0;  // which of the two
    short_fetch(p, blockIdx.x, 0, 0, 0);
    short_arrive(p, short_rows(p, 0), 0);
    shared_fence();
    __syncthreads();
#pragma unroll 1
    for (int item = blockIdx.x; item < p.items; item += gridDim.x) {
        u32 k_tile = base + keys * p.v_bytes, v_tile = k_tile + p.v_at;
        float dk[D_TILES][4], dv[D_TILES][4];
        UNROLL for (int d = 0; d < D_TILES; d++)
            UNROLL for (int i = 0; i < 4; i++) dk[d][i] = dv[d][i] = 0.f;
        // With one round per (b, h), the other keys are overwritten at once: no warpgroup may need them any more.
        if (p.Lq <= ROUND) __syncthreads();
#pragma unroll 1
        for (int i0 = 0; i0 < p.Lq; i0 += ROUND) {
            int rows = short_rows(p, i0), next_i0 = i0 + ROUND, next_item = item, next_keys = keys;
            if (next_i0 >= p.Lq) { next_i0 = 0; next_item += gridDim.x; next_keys ^= 1; }
            bool more = next_item < p.items;
            if (more) short_fetch(p, next_item, next_i0, stage ^ 1, next_keys);
            u32 q_tile = base + p.stage_at + stage * p.stage_bytes, do_tile = q_tile + p.stage_bytes / 2;
            const float* lse = short_lse(p, stage);
            int ds_at = p.ds_at + stage * p.ds_bytes, i = 0;
#define STEP(W)                                                                                                                 \
    group_bwd_step<W>(dk, dv, k_tile + group * (64 * ROW_BYTES), v_tile + group * (64 * ROW_BYTES), q_tile + i * ROW_BYTES,      \
                      do_tile + i * ROW_BYTES, lse + i, smem + ds_at + key0 * ROW_BYTES, i, valid, scale2)
#pragma unroll 1
            for (; i + 32 <= rows; i += 32) STEP(2);
            if (i < rows) STEP(1);
#undef STEP
            if (more) short_arrive(p, short_rows(p, next_i0), stage ^ 1);
            shared_fence();
            __syncthreads();  // dS^T is complete, the next round is there, and every warp is done with this one's stage
            if (i0 / ROUND % groups == group) group_dq(p, item, i0, base + ds_at, k_tile);
            stage ^= 1;
        }
        if (valid > 0) {
            int e = item / p.H, h = item % p.H, width = p.H * D;
            i64 own = e * p.kv_batch + h * D - p.C * p.kv_row, common = ((i64)e * p.C * 2 * p.H + h) * D;
            auto dk_at = [&](int key) { return key < p.C ? p.d_common + common + key * 2 * width : p.dk + own + key * p.kv_row; };
            auto dv_at = [&](int key) { return key < p.C ? p.d_common + common + key * 2 * width + width : p.dv + own + key * p.kv_row; };
            float one[2] = {1.f, 1.f}, scales[2] = {p.scale, p.scale};
            store_rows<D_TILES>(dv_at, key0, p.Lk, dv, one);
            store_rows<D_TILES>(dk_at, key0, p.Lk, dk, scales);
        }
        keys ^= 1;
    }
}
#endif

extern "C" __global__ void __launch_bounds__(512, 1)
attention_bwd_group(const bf16* q, const bf16* k, const bf16* v, const bf16* o, const bf16* d_o, const float* lse, bf16* dq, bf16* dk, bf16* dv,
                    int items, int H, int Lq, int Lk, i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, float scale, const bf16* common,
                    const u32* of, bf16* d_common, int C) {
#ifdef HAS_WGMMA
    Short p = {q, k, v, o, d_o, lse, nullptr, dq, dk, dv, items, H, Lq, Lk, q_batch, q_row, kv_batch, kv_row, 0, scale, ROUND, common, of, d_common, C};
    bwd_group(p);
#else
    __trap();  // never launched on other chips
#endif
}
