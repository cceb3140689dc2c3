// Attention, forward, by warpgroups: heads of 64, up to 256 queries and keys, no mask and no prefix. Follows wgmma.cu.
//
// A block takes one (b, h) after the other; each of its warpgroups has 64 queries. All keys and values of a (b, h) are in
// shared memory, and with two stages those of the next one arrive meanwhile.
//   grid       any number up to B * H (= items)
//   threads    128 * ceil(Lq / 64)
//   shared     stages * 128 * (2 * round_up(Lk, 16) + round_up(Lq, 64)) bytes: keys, values, queries
// The first C keys may come from elsewhere, as in attention.cu.

#ifdef HAS_WGMMA
constexpr float GROUP_LAG = 8.f;  // as MAX_LAG in attention.cu

struct Group {
    const bf16 *q, *k, *v;
    int H, Lq, Lk;
    i64 q_batch, q_row, kv_batch, kv_row;
    const bf16* common;
    const u32* of;
    int C;
    int key_bytes;  // of the tile of keys, and of values
};

// The warp's part of 64 queries.
struct GroupRows {
    float o[D_TILES][4];
    float top[2], sum[2];
    u32 p[4][4];  // the weights that wgmma may still be reading
};

__device__ __forceinline__ void group_fetch(const Group& g, int item, u32 stage) {
    int b = item / g.H, h = item % g.H;
    i64 at = b * g.kv_batch + h * D, common_row = 2 * (i64)g.H * D;
    const bf16* common = g.C ? g.common + (i64)g.of[b] * g.C * common_row + h * D : nullptr;
    int rows = round_up(g.Lk, 16);
    load_rows(stage + 2 * g.key_bytes, g.q + b * g.q_batch + h * D, g.q_row, 0, round_up(g.Lq, 16), g.Lq);
    load_key_rows(stage, {g.k + at, common, g.kv_row, common_row, g.C}, 0, rows, g.Lk);
    load_key_rows(stage + g.key_bytes, {g.v + at, common + g.H * D, g.kv_row, common_row, g.C}, 0, rows, g.Lk);
    copies_commit();
}

// The next 16W keys, of which `valid` exist. Warps without queries only take part in the products.
template <int W, bool LAST>
__device__ __forceinline__ void group_step(GroupRows& r, u32 q_tile, u32 k_tile, u32 v_tile, int valid, bool live, float scale2) {
    int t = threadIdx.x % 4;
    float s[2 * W][4];  // scores, then weights [16, 16W]
    wgmma_fence();
    UNROLL for (int k = 0; k < K_STEPS; k++) wgmma_shared<false, false>(s, operand(q_tile + k * 32), operand(k_tile + k * 32), k > 0);
    wgmma_commit();
    wgmma_wait();  // for the values of the keys before, too
    hold(s);
    hold(r.o);
    hold(r.p);
    if (live) {
        float peak[2];
        UNROLL for (int half = 0; half < 2; half++) {
            float x = NEG_INF;
            UNROLL for (int n = 0; n < 2 * W; n++)
                UNROLL for (int e = 0; e < 2; e++) {
                    float& y = s[n][half * 2 + e];
                    if (LAST && n * 8 + t * 2 + e >= valid) y = NEG_INF;
                    x = fmaxf(x, y);
                }
            peak[half] = x * scale2;
        }
        if (__any_sync(ALL_LANES, peak[0] > r.top[0] + GROUP_LAG || peak[1] > r.top[1] + GROUP_LAG)) {
            UNROLL for (int half = 0; half < 2; half++) {
                float x = fmaxf(r.top[half], peak[half]);
                x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
                x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
                float shrink = exp2_fast(r.top[half] - x);
                r.top[half] = x;
                r.sum[half] *= shrink;
                UNROLL for (int d = 0; d < D_TILES; d++) {
                    r.o[d][half * 2] *= shrink;
                    r.o[d][half * 2 + 1] *= shrink;
                }
            }
        }
        UNROLL for (int half = 0; half < 2; half++) {
            float even = 0.f, odd = 0.f;  // two chains of additions
            UNROLL for (int n = 0; n < 2 * W; n++) {
                float &x = s[n][half * 2], &y = s[n][half * 2 + 1];
                x = exp2_fast(x * scale2 - r.top[half]);
                y = exp2_fast(y * scale2 - r.top[half]);
                even += x;
                odd += y;
            }
            r.sum[half] += even + odd;
        }
        UNROLL for (int w = 0; w < W; w++)
            UNROLL for (int i = 0; i < 4; i++) r.p[w][i] = pack_bf16(s[2 * w + i / 2][i % 2 * 2], s[2 * w + i / 2][i % 2 * 2 + 1]);
    }
    hold(r.p);
    hold(r.o);
    wgmma_fence();
    UNROLL for (int w = 0; w < W; w++) wgmma<true>(r.o, r.p[w], operand(v_tile + w * 16 * ROW_BYTES), 1);
    wgmma_commit();
}

__device__ __forceinline__ void group_rows(const Group& g, u32 stage, bf16* o, float* lse, float scale2) {
    int row0 = warp_index() * 16, lane = threadIdx.x % 32, t = lane % 4;
    bool live = row0 < g.Lq;
    u32 k_tile = stage, v_tile = stage + g.key_bytes, q_tile = v_tile + g.key_bytes + row0 / 64 * 64 * ROW_BYTES;
    GroupRows r;
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int w = 0; w < 4; w++) r.p[w][i] = 0;
    UNROLL for (int d = 0; d < D_TILES; d++)
        UNROLL for (int i = 0; i < 4; i++) r.o[d][i] = 0.f;
    UNROLL for (int half = 0; half < 2; half++) { r.top[half] = NEG_INF; r.sum[half] = 0.f; }

    int rest = g.Lk % 64;
#pragma unroll 1
    for (int key = rest; key < g.Lk; key += 64) {
        group_step<4, false>(r, q_tile, k_tile, v_tile, 64, live, scale2);
        k_tile += 64 * ROW_BYTES;
        v_tile += 64 * ROW_BYTES;
    }
    if (rest > 48) group_step<4, true>(r, q_tile, k_tile, v_tile, rest, live, scale2);
    else if (rest > 32) group_step<3, true>(r, q_tile, k_tile, v_tile, rest, live, scale2);
    else if (rest > 16) group_step<2, true>(r, q_tile, k_tile, v_tile, rest, live, scale2);
    else if (rest > 0) group_step<1, true>(r, q_tile, k_tile, v_tile, rest, live, scale2);
    wgmma_wait();
    hold(r.o);
    hold(r.p);

    if (!live) return;
    float factor[2];
    UNROLL for (int half = 0; half < 2; half++) {
        float total = r.sum[half];
        total += __shfl_xor_sync(ALL_LANES, total, 1);
        total += __shfl_xor_sync(ALL_LANES, total, 2);
        factor[half] = 1.f / total;
        int row = row0 + half * 8 + lane / 4;
        if (lse && t == 0 && row < g.Lq) lse[row] = (r.top[half] + __log2f(total)) * LN2;
    }
    store_rows(o, (i64)g.H * D, row0, g.Lq, r.o, factor);
}
#endif

// 128 registers for each thread, so that four warpgroups fit a multiprocessor.
extern "C" __global__ void __launch_bounds__(512, 1)
attention_fwd_group(const bf16* q, const bf16* k, const bf16* v, bf16* o, float* lse, int items, int H, int Lq, int Lk, i64 q_batch, i64 q_row,
                    i64 kv_batch, i64 kv_row, float scale, int stages, const bf16* common, const u32* of, int C) {
#ifdef HAS_WGMMA
    Group g = {q, k, v, H, Lq, Lk, q_batch, q_row, kv_batch, kv_row, common, of, C, round_up(Lk, 16) * ROW_BYTES};
    u32 here = smem_address(smem), other = here;
    if (stages > 1) other += 2 * g.key_bytes + round_up(Lq, 64) * ROW_BYTES;
    group_fetch(g, blockIdx.x, here);
#pragma unroll 1
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        int next = item + gridDim.x;
        copies_wait_all();
        shared_fence();
        __syncthreads();  // this item is there, and every warp is done with the one before
        if (stages > 1 && next < items) group_fetch(g, next, other);
        i64 at = ((i64)(item / H) * Lq * H + item % H) * D;
        group_rows(g, here, o + at, lse ? lse + (i64)item * Lq : nullptr, scale * LOG2E);
        if (stages == 1) {
            __syncthreads();
            if (next < items) group_fetch(g, next, here);
        }
        u32 swap = here;
        here = other;
        other = swap;
    }
#else
    __trap();  // never launched on other chips
#endif
}
