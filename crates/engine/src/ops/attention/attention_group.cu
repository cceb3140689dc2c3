// Attention, forward, by warpgroups: heads of 64, up to 256 queries, 65 to 256 keys, no mask and no prefix. Follows bulk.cu.
//
// A block takes one (b, h) after the other; each of its warpgroups has 64 queries and goes its own pace. All keys and values
// of a (b, h) are in shared memory, and with two stages those of the next one arrive meanwhile.
//   grid       any number up to B * H (= items)
//   threads    128 * ceil(Lq / 64)
//   key_rows   16 times 7, 10, 13, 15 or 16, of which less than 48 are no keys
//   shared     stages * (128 * (2 * key_rows + round_up(Lq, 64)) + 16) bytes: keys, values, queries; barriers
//   maps       q: boxes of round_up(Lq, 16) rows; k, v: of key_rows - C; common: of C
// The first C keys may come from elsewhere, as in attention.cu.

#ifdef HAS_WGMMA
constexpr float GROUP_LAG = 8.f;  // as MAX_LAG in attention.cu

// The warp's part of 64 queries.
struct GroupRows {
    float o[D_TILES][4];
    float top[2], sum[2];
    float s[8][4];  // scores of up to 64 keys, then weights
    u32 p[4][4];    // the weights that wgmma may still be reading
};

// Begin the scores of 16W keys.
template <int W>
__device__ __forceinline__ void group_scores(GroupRows& r, u32 q_tile, u32 k_tile) {
    auto& s = (float (&)[2 * W][4])r.s;
    wgmma_fence();
    UNROLL for (int k = 0; k < K_STEPS; k++) wgmma_shared<false, false>(s, operand(q_tile + k * 32), operand(k_tile + k * 32), k > 0);
    wgmma_commit();
}

// Scores of 16W keys to weights, the last time of no more than `valid` of them, while the values of the keys before may still be under
// way. Returns whether, and by how much, what was summed up before must shrink: that has to wait for those values, and a wait must be
// reached by the four warps of a warpgroup together, while each of them has a maximum of its own.
template <int W, bool LAST>
__device__ __forceinline__ bool group_weights(GroupRows& r, float (&shrink)[2], int valid, float scale2) {
    int t = threadIdx.x % 4;
    if (LAST) {
        UNROLL for (int n = 0; n < 2 * W; n++)
            UNROLL for (int i = 0; i < 4; i++)
                if (n * 8 + t * 2 + i % 2 >= valid) r.s[n][i] = NEG_INF;
    }
    float peak[2];
    UNROLL for (int half = 0; half < 2; half++) {
        float x = NEG_INF;
        UNROLL for (int n = 0; n < 2 * W; n++) x = fmaxf(x, fmaxf(r.s[n][half * 2], r.s[n][half * 2 + 1]));
        peak[half] = x * scale2;
    }
    bool grew = __any_sync(ALL_LANES, peak[0] > r.top[0] + GROUP_LAG || peak[1] > r.top[1] + GROUP_LAG);
    if (grew) {
        UNROLL for (int half = 0; half < 2; half++) {
            float x = fmaxf(r.top[half], peak[half]);
            x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
            x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
            shrink[half] = exp2_fast(r.top[half] - x);
            r.top[half] = x;
            r.sum[half] *= shrink[half];
        }
    }
    UNROLL for (int half = 0; half < 2; half++) {
        float even = 0.f, odd = 0.f;  // two chains of additions
        UNROLL for (int n = 0; n < 2 * W; n++) {
            float &x = r.s[n][half * 2], &y = r.s[n][half * 2 + 1];
            x = exp2_fast(x * scale2 - r.top[half]);
            y = exp2_fast(y * scale2 - r.top[half]);
            even += x;
            odd += y;
        }
        r.sum[half] += even + odd;
    }
    return grew;
}

// Scores that were begun become weights; then the scores of the next keys (16 NEXT of them) and the product of these
// weights with their values begin.
template <int W, int NEXT, bool FIRST>
__device__ __forceinline__ void group_step(GroupRows& r, u32 q_tile, u32 k_tile, u32 v_tile, int valid, float scale2) {
    // The scores are older than the product with the values before; the first step has none. An empty batch in its place would be a
    // product of its own for the compiler, of whatever lies at the beginning of shared memory, which is the system's.
    wgmma_wait<FIRST ? 0 : 1>();
    hold(r.s);
    float shrink[2] = {1.f, 1.f};
    bool grew = group_weights<W, NEXT == 0>(r, shrink, valid, scale2);
    if constexpr (!FIRST) wgmma_wait<0>();
    hold(r.o);
    hold(r.p);
    if (grew) {
        UNROLL for (int d = 0; d < D_TILES; d++)
            UNROLL for (int i = 0; i < 4; i++) r.o[d][i] *= shrink[i / 2];
    }
    UNROLL for (int w = 0; w < W; w++)
        UNROLL for (int i = 0; i < 4; i++) r.p[w][i] = pack_bf16(r.s[2 * w + i / 2][i % 2 * 2], r.s[2 * w + i / 2][i % 2 * 2 + 1]);
    hold(r.p);
    hold(r.o);
    k_tile += W * 16 * ROW_BYTES;
    if constexpr (NEXT > 0) group_scores<NEXT>(r, q_tile, k_tile);
    wgmma_fence();
    UNROLL for (int w = 0; w < W; w++) wgmma<true>(r.o, r.p[w], operand(v_tile + w * 16 * ROW_BYTES), 1);
    wgmma_commit();
}

template <int I, int STEPS, int WIDE>
__device__ __forceinline__ void group_steps(GroupRows& r, u32 q_tile, u32 k_tile, u32 v_tile, int left, float scale2) {
    constexpr int W = I < WIDE ? 4 : 3;
    group_step<W, (I + 1 < WIDE ? 4 : I + 1 < STEPS ? 3 : 0), I == 0>(r, q_tile, k_tile, v_tile, left, scale2);
    if constexpr (I + 1 < STEPS)
        group_steps<I + 1, STEPS, WIDE>(r, q_tile, k_tile + W * 16 * ROW_BYTES, v_tile + W * 16 * ROW_BYTES, left - W * 16, scale2);
}

// 64 queries over 16 TILES keys: steps of 64 keys, then of 48.
template <int TILES>
__device__ __forceinline__ void group_all(GroupRows& r, u32 q_tile, u32 k_tile, u32 v_tile, int Lk, float scale2) {
    constexpr int STEPS = (TILES + 3) / 4, WIDE = TILES - 3 * STEPS;
    group_scores<(WIDE > 0 ? 4 : 3)>(r, q_tile, k_tile);
    group_steps<0, STEPS, WIDE>(r, q_tile, k_tile, v_tile, Lk, scale2);
    wgmma_wait<0>();
    hold(r.o);
    hold(r.p);
}

// 64 queries over all keys, for one warpgroup.
__device__ __forceinline__ void group_rows(u32 q_tile, u32 k_tile, u32 v_tile, int key_rows, int Lq, int Lk, bf16* o, i64 o_row, float* lse,
                                           float scale2) {
    int row0 = warp_index() * 16, lane = threadIdx.x % 32, t = lane % 4;
    GroupRows r;
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int w = 0; w < 4; w++) r.p[w][i] = 0;
    UNROLL for (int d = 0; d < D_TILES; d++)
        UNROLL for (int i = 0; i < 4; i++) r.o[d][i] = r.s[d][i] = 0.f;
    UNROLL for (int half = 0; half < 2; half++) { r.top[half] = NEG_INF; r.sum[half] = 0.f; }
    // Written out: with loops over steps the compiler makes each product wait for the one before.
    switch (key_rows / 16) {
        case 7: group_all<7>(r, q_tile, k_tile, v_tile, Lk, scale2); break;
        case 10: group_all<10>(r, q_tile, k_tile, v_tile, Lk, scale2); break;
        case 13: group_all<13>(r, q_tile, k_tile, v_tile, Lk, scale2); break;
        case 15: group_all<15>(r, q_tile, k_tile, v_tile, Lk, scale2); break;
        default: group_all<16>(r, q_tile, k_tile, v_tile, Lk, scale2); break;
    }

    if (row0 >= Lq) return;  // computed along with the others of the warpgroup
    float factor[2];
    UNROLL for (int half = 0; half < 2; half++) {
        float total = r.sum[half];
        total += __shfl_xor_sync(ALL_LANES, total, 1);
        total += __shfl_xor_sync(ALL_LANES, total, 2);
        factor[half] = __fdividef(1.f, total);
        int row = row0 + half * 8 + lane / 4;
        if (lse && t == 0 && row < Lq) lse[row] = (r.top[half] + __log2f(total)) * LN2;
    }
    store_rows(o, o_row, row0, Lq, r.o, factor);
}
#endif

// 128 registers for each thread, so that four warpgroups fit a multiprocessor.
extern "C" __global__ void __launch_bounds__(512, 1)
attention_fwd_group(const __grid_constant__ TileMap q, const __grid_constant__ TileMap k, const __grid_constant__ TileMap v,
                    const __grid_constant__ TileMap common, const u32* of, int C, int key_rows, bf16* o, float* lse, int items, int H, int Lq, int Lk,
                    float scale, int stages) {
#ifdef HAS_WGMMA
    KeyMaps keys = {k, v, common, of, C, key_rows};
    int key_bytes = key_rows * ROW_BYTES, stage_bytes = 2 * key_bytes + round_up(Lq, 64) * ROW_BYTES;
    u32 base = smem_address(smem), full = base + stages * stage_bytes, empty = full + stages * 8;
    // The last warp has the fewest queries, so it is the one that asks for tiles and waits for room.
    bool asks = threadIdx.x == blockDim.x - 32;
    auto fetch = [&](int item, int stage) {
        int b = item / H, h = item % H;
        u32 to = base + stage * stage_bytes, barrier = full + stage * 8;
        barrier_expect(barrier, 2 * key_bytes + round_up(Lq, 16) * ROW_BYTES);
        copy_tile(to + 2 * key_bytes, q, h * D, 0, b, barrier);
        copy_keys(keys, b, h, H, to, to + key_bytes, barrier);
    };
    if (asks) {
        for (int i = 0; i < stages; i++) {
            barrier_init(full + i * 8, 1);
            barrier_init(empty + i * 8, blockDim.x / 32);
        }
        barrier_made();
    }
    __syncthreads();
    if (asks) fetch(blockIdx.x, 0);
    int stage = 0;
    u32 phase = 0;  // of the stage: how often it was used, modulo 2
#pragma unroll 1
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        int next = item + gridDim.x;
        if (asks && stages > 1 && next < items) {
            if (item != blockIdx.x) barrier_wait(empty + (stage ^ 1) * 8, phase ^ stage ^ 1);
            fetch(next, stage ^ 1);
        }
        __syncwarp();
        barrier_wait(full + stage * 8, phase);
        __syncwarp();  // each lane has asked for itself; wgmma wants the warp in one piece
        u32 k_tile = base + stage * stage_bytes, v_tile = k_tile + key_bytes, q_tile = v_tile + key_bytes + warp_index() / 4 * 64 * ROW_BYTES;
        i64 at = ((i64)(item / H) * Lq * H + item % H) * D;
        group_rows(q_tile, k_tile, v_tile, key_rows, Lq, Lk, o + at, (i64)H * D, lse ? lse + (i64)item * Lq : nullptr, scale * LOG2E);
        __syncwarp();
        // Only where the stage will be asked for again: a block must not end while an arrival that nobody waits for is under way.
        if (threadIdx.x % 32 == 0 && next + (stages - 1) * (int)gridDim.x < items) barrier_arrive(empty + stage * 8);
        if (stages == 1) {
            if (asks && next < items) {
                barrier_wait(empty, phase);
                fetch(next, 0);
            }
            phase ^= 1;
        } else {
            phase ^= stage;
            stage ^= 1;
        }
    }
#else
    __trap();  // never launched on other chips
#endif
}
