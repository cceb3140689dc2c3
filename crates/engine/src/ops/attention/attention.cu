// Flash attention, forward and backward: bf16 tensors, tensor cores (mma.sync m16n8k16), f32 accumulation.
// Compiled once per head size: -DHEAD_DIM=32|64|96|128. No atomics, so results repeat bit for bit.
//
//   q            element (b, i, h, d) at q + b*q_batch + i*q_row + h*HEAD_DIM + d      (dq: the same strides)
//   k, v         element (b, j, h, d) at k + b*kv_batch + j*kv_row + h*HEAD_DIM + d    (dk, dv: the same strides)
//   o, d_o       [B, Lq, H, D] contiguous
//   lse, delta   f32 [B, H, Lq]: natural log-sum-exp of the scaled scores, row sums of o * d_o
//   mask         u32 [B, Lk] or null, nonzero = the key may be attended to
//   prefix       queries i < prefix see only keys j < prefix; 0 = no such limit
//   scale        must be > 0. Strides are multiples of 8 elements, pointers 16-byte aligned.
// A query without any allowed key gives o = 0, lse = -inf and zero gradients.
//
// Launch. Every kernel but attention_delta has 128 threads (4 warps); a warp owns TILES x 16 rows of the output.
//   kernel               grid                              dynamic shared memory (bytes)
//   attention_fwd        (ceil(Lq / R), H, B)              512 * D            R = 128 for D <= 64, else 64
//   attention_bwd_dkdv   (ceil(Lk / R), H, B)              512 * D + 1024     R = 64
//   attention_bwd_dq     (ceil(Lq / R), H, B)              512 * D            R = 128 for D <= 64, else 64
//   attention_bwd_dq_delta                                 as attention_bwd_dq
//   attention_delta      (ceil(Lq * H / 64), B, 1)         0                  256 threads
// Backward: attention_delta, then dkdv and dq in any order; or, with less memory traffic, dq_delta and then dkdv.
// That is R = 64 * FWD_TILES and so on, should those be changed with -D.
// x is the fastest grid axis: the blocks of one (b, h) run side by side and share its tensors through L2.

constexpr int D = HEAD_DIM;
constexpr int CHUNKS = D / 8;         // 16-byte pieces in a row
constexpr int K_STEPS = D / 16;       // mma steps along the head dimension
constexpr int D_TILES = D / 8;        // mma column tiles along the head dimension
constexpr int THREADS = 128;
constexpr int STAGE_ROWS = 64;        // rows of a tile streamed through shared memory
constexpr int ROW_BYTES = D * 2;
constexpr int TILE_BYTES = STAGE_ROWS * ROW_BYTES;

// 16-row tiles per warp: two share each fragment read from shared memory, which is what bounds small head sizes.
#ifndef FWD_TILES
#define FWD_TILES (HEAD_DIM <= 64 ? 2 : 1)
#endif
#ifndef DQ_TILES
#define DQ_TILES (HEAD_DIM <= 64 ? 2 : 1)
#endif
#ifndef DKDV_TILES
#define DKDV_TILES 1
#endif
// 16-wide tiles of the streamed axis handled at once: 1 or 2.
#ifndef FWD_WIDTH
#define FWD_WIDTH 2
#endif
#ifndef DQ_WIDTH
#define DQ_WIDTH (DQ_TILES == 2 ? 1 : 2)
#endif
#ifndef DKDV_WIDTH
#define DKDV_WIDTH (HEAD_DIM <= 64 ? 2 : 1)
#endif
// Blocks per multiprocessor asked of the register allocator.
#ifndef FWD_BLOCKS
#define FWD_BLOCKS (HEAD_DIM == 32 ? 4 : HEAD_DIM == 96 ? 4 : 3)
#endif
#ifndef DQ_BLOCKS
#define DQ_BLOCKS (HEAD_DIM == 32 ? 3 : 2)
#endif
#ifndef DKDV_BLOCKS
#define DKDV_BLOCKS (HEAD_DIM == 32 ? 4 : HEAD_DIM == 64 ? 3 : 2)
#endif

constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
constexpr u32 ALL_LANES = 0xffffffffu;
#define UNROLL _Pragma("unroll")
#define NEG_INF (__int_as_float((int)0xff800000u))

static_assert(FWD_WIDTH <= 2 && DQ_WIDTH <= 2 && DKDV_WIDTH <= 2, "mask bits and the narrow last piece rely on it");

extern __shared__ u8 smem[];

// ---- instructions ---------------------------------------------------------------------------
__device__ __forceinline__ u32 smem_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// c[16, 8] += a[16, 16] b[16, 8]. With g = lane / 4, t = lane % 4: c = rows g, g+8 x columns 2t, 2t+1;
// a = (g, 2t), (g+8, 2t), (g, 2t+8), (g+8, 2t+8) and their right neighbours; b = (2t, g), (2t+8, g) and those below.
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four 8x8 matrices; lanes 8i .. 8i+7 give the row addresses of matrix i.
__device__ __forceinline__ void ldmatrix(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix_trans(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
// Asynchronous copies to shared memory; zeros are written when !valid.
__device__ __forceinline__ void copy16_async(u32 to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy4_async(u32 to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void copies_wait_all() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
// ---- end of instructions --------------------------------------------------------------------

// The shuffle tells the compiler that the number is the same for the whole warp, so branches on it cannot diverge.
__device__ __forceinline__ int warp_index() { return __shfl_sync(ALL_LANES, threadIdx.x / 32, 0); }

__device__ __forceinline__ int round_up(int x, int to) { return (x + to - 1) / to * to; }

// Shared tiles are XOR-swizzled by 16-byte chunk so that the 8 rows of an ldmatrix hit 8 different bank groups.
// Rows of 64 or 192 bytes shift by half the banks each anyway, so there two rows share a pattern.
__device__ __forceinline__ int swizzle(int row) { return D % 64 == 0 ? row & 7 : (row >> 1) & 3; }

// Rows [row0, row0 + STAGE_ROWS) of src [rows, D] to a shared tile. Rows past `end` become zero, up to the
// 16-row tile that holds the last one; nothing beyond is ever read. A thread's rows are a multiple of 8 apart, so they
// share one swizzle; 8 neighbouring threads write 8 different bank groups.
__device__ __forceinline__ void load_tile(u32 tile, const bf16* src, i64 row_stride, int row0, int end) {
    constexpr int LANES = D % 64 == 0 ? 8 : 4, STEP = THREADS / LANES;  // threads per row, rows per pass
    int row = threadIdx.x / LANES, chunk = threadIdx.x % LANES;
    src += (row0 + row) * row_stride + chunk * 8;
    tile += row * ROW_BYTES + ((chunk ^ swizzle(row)) << 4);
    int valid = end - row0 - row, needed = round_up(end - row0, 16) - row;
    UNROLL for (int r = 0; r < STAGE_ROWS; r += STEP) {
        if (r < needed) {
            UNROLL for (int c = 0; c < CHUNKS; c += LANES) copy16_async(tile + r * ROW_BYTES + c * 16, src + c * 8, r < valid);
        }
        src += STEP * row_stride;
    }
}

// A stage of K [64, D] and V [64, D].
__device__ __forceinline__ void load_keys(u32 stage, const bf16* k, const bf16* v, i64 kv_row, int key0, int end) {
    load_tile(stage, k, kv_row, key0, end);
    load_tile(stage + TILE_BYTES, v, kv_row, key0, end);
    copies_commit();
}

// In each quad of lanes: lane t gives a[i], gets lane i's a[t]. Turns 16 bytes of one row per lane (good for global
// memory) into the mma layout, where a lane holds one pair of each 8-column tile, and back.
__device__ __forceinline__ void quad_transpose(u32 (&a)[4]) {
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    u32 x = __shfl_xor_sync(ALL_LANES, odd ? a[0] : a[1], 1);
    u32 y = __shfl_xor_sync(ALL_LANES, odd ? a[2] : a[3], 1);
    if (odd) { a[0] = x; a[2] = y; } else { a[1] = x; a[3] = y; }
    x = __shfl_xor_sync(ALL_LANES, high ? a[0] : a[2], 2);
    y = __shfl_xor_sync(ALL_LANES, high ? a[1] : a[3], 2);
    if (high) { a[0] = x; a[1] = y; } else { a[2] = x; a[3] = y; }
}

// Rows row0 + 16m + (0..16) of src [rows, D] as A fragments, straight from global memory; rows past `end` are zero.
template <int M>
__device__ __forceinline__ void load_fragments(u32 (&a)[M][K_STEPS][4], const bf16* src, i64 row_stride, int row0, int end) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int half = 0; half < 2; half++) {
            int row = row0 + m * 16 + half * 8 + g;
            UNROLL for (int j = 0; j < CHUNKS / 4; j++) {
                Vec4u raw = {0, 0, 0, 0};
                if (row < end) raw = *(const Vec4u*)(src + row * row_stride + (j * 4 + t) * 8);
                u32 x[4] = {raw.x, raw.y, raw.z, raw.w};
                quad_transpose(x);
                a[m][j * 2][half] = x[0];
                a[m][j * 2][half + 2] = x[1];
                a[m][j * 2 + 1][half] = x[2];
                a[m][j * 2 + 1][half + 2] = x[3];
            }
        }
}

// One 16-row accumulator tile to rows row0 + (0..16) of dst [rows, D]; rows g and g + 8 have their own factor.
__device__ __forceinline__ void store_rows(bf16* dst, i64 row_stride, int row0, int end, const float (&acc)[D_TILES][4], const float (&factor)[2]) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    UNROLL for (int half = 0; half < 2; half++) {
        int row = row0 + half * 8 + g;
        // a zero factor means "nothing attended": the accumulator may then hold inf or NaN
        float f = factor[half];
        bool zero = f == 0.f;
        UNROLL for (int j = 0; j < CHUNKS / 4; j++) {
            u32 x[4];
            UNROLL for (int i = 0; i < 4; i++) {
                const float (&c)[4] = acc[j * 4 + i];
                x[i] = zero ? 0u : pack_bf16(c[half * 2] * f, c[half * 2 + 1] * f);
            }
            quad_transpose(x);
            if (row < end) *(Vec4u*)(dst + row * row_stride + (j * 4 + t) * 8) = Vec4u{x[0], x[1], x[2], x[3]};
        }
    }
}

// acc[m] [16, 16W] += a[m] [16, D] * (rows row0 .. row0+16W of the tile)^T: the tile's rows are the columns of the result.
template <int M, int W>
__device__ __forceinline__ void mma_by_rows(float (&acc)[M][2 * W][4], const u32 (&a)[M][K_STEPS][4], u32 tile, int row0) {
    int lane = threadIdx.x % 32;
    u32 base = tile + (row0 + (lane >> 4) * 8 + (lane & 7)) * ROW_BYTES;
    int chunk = ((lane >> 3) & 1) ^ swizzle(lane & 7);
    UNROLL for (int k = 0; k < K_STEPS; k++)
        UNROLL for (int w = 0; w < W; w++) {
            u32 b[4];
            ldmatrix(b, base + w * 16 * ROW_BYTES + ((chunk ^ (2 * k)) << 4));
            UNROLL for (int m = 0; m < M; m++) {
                mma(acc[m][2 * w], a[m][k], b[0], b[1]);
                mma(acc[m][2 * w + 1], a[m][k], b[2], b[3]);
            }
        }
}

// acc[m] [16, D] += a[m] [16, 16W] * (rows row0 .. row0+16W of the tile): the tile's rows are summed over.
template <int M, int W>
__device__ __forceinline__ void mma_over_rows(float (&acc)[M][D_TILES][4], const u32 (&a)[M][W][4], u32 tile, int row0) {
    int lane = threadIdx.x % 32;
    u32 base = tile + (row0 + (lane & 15)) * ROW_BYTES;
    int chunk = (lane >> 4) ^ swizzle(lane & 7);
    UNROLL for (int w = 0; w < W; w++)
        UNROLL for (int d = 0; d < D_TILES; d += 2) {
            u32 b[4];
            ldmatrix_trans(b, base + w * 16 * ROW_BYTES + ((chunk ^ d) << 4));
            UNROLL for (int m = 0; m < M; m++) {
                mma(acc[m][d], a[m][w], b[0], b[1]);
                mma(acc[m][d + 1], a[m][w], b[2], b[3]);
            }
        }
}

// Accumulator tiles [16, 16W] to A fragments: the layouts match pair for pair, only the rounding is work.
template <int M, int W>
__device__ __forceinline__ void to_fragments(u32 (&a)[M][W][4], const float (&c)[M][2 * W][4]) {
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int w = 0; w < W; w++)
            UNROLL for (int i = 0; i < 4; i++) {
                const float (&pair)[4] = c[m][2 * w + i / 2];
                a[m][w][i] = i % 2 == 0 ? pack_bf16(pair[0], pair[1]) : pack_bf16(pair[2], pair[3]);
            }
}

template <int A, int B, int C>
__device__ __forceinline__ void clear(float (&x)[A][B][C]) {
    UNROLL for (int a = 0; a < A; a++)
        UNROLL for (int b = 0; b < B; b++)
            UNROLL for (int c = 0; c < C; c++) x[a][b][c] = 0.f;
}

// Query i may see keys j < key_limit(i), where the mask allows.
__device__ __forceinline__ int key_limit(int i, int prefix, int Lk) { return i < prefix ? min(prefix, Lk) : Lk; }
// Key j is seen by queries i >= first_query(j).
__device__ __forceinline__ int first_query(int j, int prefix) { return j < prefix ? 0 : prefix; }

// Bit c: the mask allows key key0 + c. A collective of the warp.
__device__ __forceinline__ u32 mask_bits(const u32* mask, int key0, int Lk) {
    if (!mask) return ALL_LANES;
    int key = key0 + threadIdx.x % 32;
    return __ballot_sync(ALL_LANES, key < Lk && mask[key] != 0);
}

// Stops the compiler from computing what depends on x before the loop and then holding it in registers throughout.
__device__ __forceinline__ void keep_in_loop(int& x) { asm volatile("" : "+r"(x)); }

// What is left of such bits for a query that sees only the first `count` of the keys; bit 0 then is column 2t.
__device__ __forceinline__ u32 row_bits(u32 bits, int count) {
    if (count < 32) bits &= count > 0 ? (1u << count) - 1u : 0u;
    return bits >> (threadIdx.x % 4 * 2);
}

// ---- forward --------------------------------------------------------------------------------
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

// Rows row0 .. row0 + 16M of one (b, h), for one warp; pointers are those of the (b, h). The block's warps share the
// K/V tiles, keys [0, block_keys).
template <int M>
__device__ __forceinline__ void fwd_rows(const bf16* q, const bf16* k, const bf16* v, bf16* o, float* lse, const u32* mask, int row0, int block_keys,
                                         int Lq, int Lk, i64 q_row, i64 kv_row, i64 o_row, int prefix, float scale) {
    u32 tiles = smem_address(smem);  // two stages of K [64, D], V [64, D]
    load_keys(tiles, k, v, kv_row, 0, block_keys);

    u32 qf[M][K_STEPS][4];  // [16M, D]
    load_fragments<M>(qf, q, q_row, row0, Lq);
    float acc[M][D_TILES][4], top[M][2], sum[M][2];
    clear(acc);
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int half = 0; half < 2; half++) { top[m][half] = NEG_INF; sum[m][half] = 0.f; }

    // keys below `safe` need no check, keys from `end` on are for none of the rows
    int end = row0 < Lq ? key_limit(min(row0 + 16 * M, Lq) - 1, prefix, Lk) : 0;
    int safe = mask ? 0 : min(key_limit(row0, prefix, Lk), end);
    float scale2 = scale * LOG2E;
#define STEP(WIDTH, CHECKED) fwd_step<M, WIDTH, CHECKED>(acc, top, sum, qf, stage, stage + TILE_BYTES, key % STAGE_ROWS, row0, key, mask, Lk, prefix, scale2)
#pragma unroll 1
    for (int key = 0; key < block_keys; key += 16 * FWD_WIDTH) {
        u32 stage = tiles + (key / STAGE_ROWS % 2) * 2 * TILE_BYTES;
        if (key % STAGE_ROWS == 0) {
            copies_wait_all();
            __syncthreads();  // this tile is complete, and every warp is done with the one before
            int next = key + STAGE_ROWS;
            if (next < block_keys) load_keys(tiles + (next / STAGE_ROWS % 2) * 2 * TILE_BYTES, k, v, kv_row, next, block_keys);
        }
        if (key + 16 * FWD_WIDTH <= safe) STEP(FWD_WIDTH, false);
        else if (FWD_WIDTH > 1 && key + 16 < end) STEP(FWD_WIDTH, true);
        else if (key < end) STEP(1, true);
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
            if (lse && t == 0 && row < Lq) lse[row] = total > 0.f ? (top[m][half] + __log2f(total)) * LN2 : NEG_INF;
        }
        store_rows(o, o_row, row0 + m * 16, Lq, acc[m], factor);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, FWD_BLOCKS)
attention_fwd(const bf16* q, const bf16* k, const bf16* v, bf16* o, float* lse, const u32* mask, int H, int Lq, int Lk,
              i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, int prefix, float scale) {
    int h = blockIdx.y, b = blockIdx.z;
    int block_row = blockIdx.x * (64 * FWD_TILES), row0 = block_row + warp_index() * (16 * FWD_TILES);
    int block_keys = key_limit(min(block_row + 64 * FWD_TILES, Lq) - 1, prefix, Lk);
    q += b * q_batch + h * D;
    k += b * kv_batch + h * D;
    v += b * kv_batch + h * D;
    o += ((i64)b * Lq * H + h) * D;
    if (lse) lse += ((i64)b * H + h) * Lq;
    if (mask) mask += (i64)b * Lk;
    if (FWD_TILES == 1 || row0 + 16 < Lq)
        fwd_rows<FWD_TILES>(q, k, v, o, lse, mask, row0, block_keys, Lq, Lk, q_row, kv_row, (i64)H * D, prefix, scale);
    else  // one tile of rows left, or none: such a warp only helps to load
        fwd_rows<1>(q, k, v, o, lse, mask, row0, block_keys, Lq, Lk, q_row, kv_row, (i64)H * D, prefix, scale);
}

// ---- backward -------------------------------------------------------------------------------
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
    load_tile(stage, q, q_row, i0, Lq);
    load_tile(stage + TILE_BYTES, d_o, o_row, i0, Lq);
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
    int block_key = blockIdx.x * (64 * DKDV_TILES), key0 = block_key + warp_index() * (16 * DKDV_TILES);
    int block_begin = first_query(block_key, prefix) / STAGE_ROWS * STAGE_ROWS;
    i64 kv_at = b * kv_batch + h * D, row_at = ((i64)b * H + h) * Lq;
    q += b * q_batch + h * D;
    d_o += ((i64)b * Lq * H + h) * D;
    if (mask) mask += (i64)b * Lk;
    if (DKDV_TILES == 1 || key0 + 16 < Lk)
        dkdv_rows<DKDV_TILES>(q, k + kv_at, v + kv_at, d_o, lse + row_at, delta + row_at, mask, dk + kv_at, dv + kv_at,
                              key0, block_begin, Lq, Lk, q_row, kv_row, (i64)H * D, prefix, scale);
    else
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

// The loop is that of fwd_rows. With `o`, delta is computed here and written; else it is read.
template <int M, bool WITH_O>
__device__ __forceinline__ void dq_rows(const bf16* q, const bf16* k, const bf16* v, const bf16* o, const bf16* d_o, const float* lse, float* delta, const u32* mask, bf16* dq,
                                        int row0, int block_keys, int Lq, int Lk, i64 q_row, i64 kv_row, i64 o_row, int prefix, float scale) {
    u32 tiles = smem_address(smem);  // two stages of K [64, D], V [64, D]
    load_keys(tiles, k, v, kv_row, 0, block_keys);

    u32 qf[M][K_STEPS][4], dof[M][K_STEPS][4];  // [16M, D]
    load_fragments<M>(dof, d_o, o_row, row0, Lq);
    float acc[M][D_TILES][4], lse2[M][2], deltas[M][2];
    clear(acc);
    load_fragments<M>(qf, WITH_O ? o : q, WITH_O ? o_row : q_row, row0, Lq);  // o only for now, if at all
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int half = 0; half < 2; half++) {
            int row = row0 + m * 16 + half * 8 + g;
            lse2[m][half] = row < Lq ? lse[row] * LOG2E : 0.f;
            if (WITH_O) {
                float sum = 0.f;
                UNROLL for (int n = 0; n < K_STEPS; n++)
                    UNROLL for (int i = half; i < 4; i += 2)
                        sum += lo_f32(qf[m][n][i]) * lo_f32(dof[m][n][i]) + hi_f32(qf[m][n][i]) * hi_f32(dof[m][n][i]);
                sum += __shfl_xor_sync(ALL_LANES, sum, 1);
                sum += __shfl_xor_sync(ALL_LANES, sum, 2);
                deltas[m][half] = sum;
                if (t == 0 && row < Lq) delta[row] = sum;
            } else deltas[m][half] = row < Lq ? delta[row] : 0.f;
        }
    if (WITH_O) load_fragments<M>(qf, q, q_row, row0, Lq);

    int end = row0 < Lq ? key_limit(min(row0 + 16 * M, Lq) - 1, prefix, Lk) : 0;
    int safe = mask ? 0 : min(key_limit(row0, prefix, Lk), end);
    float scale2 = scale * LOG2E;
#define STEP(WIDTH, CHECKED) dq_step<M, WIDTH, CHECKED>(acc, qf, dof, lse2, deltas, stage, stage + TILE_BYTES, key % STAGE_ROWS, row0, key, mask, Lk, prefix, scale2)
#pragma unroll 1
    for (int key = 0; key < block_keys; key += 16 * DQ_WIDTH) {
        u32 stage = tiles + (key / STAGE_ROWS % 2) * 2 * TILE_BYTES;
        if (key % STAGE_ROWS == 0) {
            copies_wait_all();
            __syncthreads();  // this tile is complete, and every warp is done with the one before
            int next = key + STAGE_ROWS;
            if (next < block_keys) load_keys(tiles + (next / STAGE_ROWS % 2) * 2 * TILE_BYTES, k, v, kv_row, next, block_keys);
        }
        if (key + 16 * DQ_WIDTH <= safe) STEP(DQ_WIDTH, false);
        else if (DQ_WIDTH > 1 && key + 16 < end) STEP(DQ_WIDTH, true);
        else if (key < end) STEP(1, true);
    }
#undef STEP
    float scales[2] = {scale, scale};
    UNROLL for (int m = 0; m < M; m++) store_rows(dq, q_row, row0 + m * 16, Lq, acc[m], scales);
}

template <bool WITH_O>
__device__ __forceinline__ void dq_block(const bf16* q, const bf16* k, const bf16* v, const bf16* o, const bf16* d_o, const float* lse, float* delta, const u32* mask, bf16* dq,
                                         int H, int Lq, int Lk, i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, int prefix, float scale) {
    int h = blockIdx.y, b = blockIdx.z;
    int block_row = blockIdx.x * (64 * DQ_TILES), row0 = block_row + warp_index() * (16 * DQ_TILES);
    int block_keys = key_limit(min(block_row + 64 * DQ_TILES, Lq) - 1, prefix, Lk);
    i64 q_at = b * q_batch + h * D, kv_at = b * kv_batch + h * D, o_at = ((i64)b * Lq * H + h) * D, row_at = ((i64)b * H + h) * Lq;
    if (mask) mask += (i64)b * Lk;
    if (DQ_TILES == 1 || row0 + 16 < Lq)
        dq_rows<DQ_TILES, WITH_O>(q + q_at, k + kv_at, v + kv_at, o + o_at, d_o + o_at, lse + row_at, delta + row_at, mask, dq + q_at,
                                  row0, block_keys, Lq, Lk, q_row, kv_row, (i64)H * D, prefix, scale);
    else
        dq_rows<1, WITH_O>(q + q_at, k + kv_at, v + kv_at, o + o_at, d_o + o_at, lse + row_at, delta + row_at, mask, dq + q_at,
                           row0, block_keys, Lq, Lk, q_row, kv_row, (i64)H * D, prefix, scale);
}

extern "C" __global__ void __launch_bounds__(THREADS, DQ_BLOCKS)
attention_bwd_dq(const bf16* q, const bf16* k, const bf16* v, const bf16* d_o, const float* lse, const float* delta, const u32* mask, bf16* dq,
                 int H, int Lq, int Lk, i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, int prefix, float scale) {
    dq_block<false>(q, k, v, d_o, d_o, lse, (float*)delta, mask, dq, H, Lq, Lk, q_batch, q_row, kv_batch, kv_row, prefix, scale);
}

// attention_delta and attention_bwd_dq in one: writes delta, to be launched before attention_bwd_dkdv.
extern "C" __global__ void __launch_bounds__(THREADS, DQ_BLOCKS)
attention_bwd_dq_delta(const bf16* q, const bf16* k, const bf16* v, const bf16* o, const bf16* d_o, const float* lse, float* delta, const u32* mask, bf16* dq,
                       int H, int Lq, int Lk, i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, int prefix, float scale) {
    dq_block<true>(q, k, v, o, d_o, lse, delta, mask, dq, H, Lq, Lk, q_batch, q_row, kv_batch, kv_row, prefix, scale);
}
