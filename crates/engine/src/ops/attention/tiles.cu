// Shared by the attention kernels for bf16, and put before each of their files: tensor cores (mma.sync m16n8k16), shared
// tiles, fragments, masks. Compiled once per head size: -DHEAD_DIM=32|64|96|128.
//
//   q            element (b, i, h, d) at q + b*q_batch + i*q_row + h*HEAD_DIM + d      (dq: the same strides)
//   k, v         element (b, j, h, d) at k + b*kv_batch + j*kv_row + h*HEAD_DIM + d    (dk, dv: the same strides)
//   o, d_o       [B, Lq, H, D] contiguous
//   lse, delta   f32 [B, H, Lq]: natural log-sum-exp of the scaled scores, row sums of o * d_o
//   mask         u32 [B, Lk] or null, nonzero = the key may be attended to
//   prefix       queries i < prefix see only keys j < prefix; 0 = no such limit
//   scale        must be > 0. Strides are multiples of 8 elements, pointers 16-byte aligned.
// A query without any allowed key gives o = 0, lse = -inf and zero gradients. No atomics: results repeat bit for bit.

constexpr int D = HEAD_DIM;
constexpr int CHUNKS = D / 8;         // 16-byte pieces in a row
constexpr int K_STEPS = D / 16;       // mma steps along the head dimension
constexpr int D_TILES = D / 8;        // mma column tiles along the head dimension
constexpr int ROW_BYTES = D * 2;
constexpr int ROW_LANES = D % 64 == 0 ? 8 : 4;  // threads that copy a row together

constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
constexpr u32 ALL_LANES = 0xffffffffu;
#define UNROLL _Pragma("unroll")
#define NEG_INF (__int_as_float((int)0xff800000u))

alignas(1024) extern __shared__ u8 smem[];

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

// Rows [row0, row0 + rows) of src [.., D] to a shared tile; rows from `end` on become zero. Neighbouring threads write
// different bank groups.
__device__ __forceinline__ void load_rows(u32 tile, const bf16* src, i64 row_stride, int row0, int rows, int end) {
    int step = blockDim.x / ROW_LANES, row = threadIdx.x / ROW_LANES, chunk = threadIdx.x % ROW_LANES;
    const bf16* from = src + (row0 + row) * row_stride + chunk * 8;
    i64 hop = step * row_stride;
#pragma unroll 4
    for (; row < rows; row += step, from += hop) {
        u32 to = tile + row * ROW_BYTES + ((chunk ^ swizzle(row)) << 4);
        UNROLL for (int c = 0; c < CHUNKS; c += ROW_LANES) copy16_async(to + c * 16, from + c * 8, row0 + row < end);
    }
}

// Keys or values of one (b, h): the first C from `common`, the others from `own`.
struct KeyRows {
    const bf16 *own, *common;
    i64 own_row, common_row;
    int C;
};

// As load_rows.
__device__ __forceinline__ void load_key_rows(u32 tile, const KeyRows& x, int row0, int rows, int end) {
    if (x.C == 0) return load_rows(tile, x.own, x.own_row, row0, rows, end);
    int step = blockDim.x / ROW_LANES, chunk = threadIdx.x % ROW_LANES;
#pragma unroll 2
    for (int row = threadIdx.x / ROW_LANES; row < rows; row += step) {
        int key = row0 + row;
        const bf16* from = (key < x.C ? x.common + key * x.common_row : x.own + (key - x.C) * x.own_row) + chunk * 8;
        u32 to = tile + row * ROW_BYTES + ((chunk ^ swizzle(row)) << 4);
        UNROLL for (int c = 0; c < CHUNKS; c += ROW_LANES) copy16_async(to + c * 16, from + c * 8, key < end);
    }
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

// One 16-row accumulator tile of 8N columns to rows row0 + (0..16), those before `end`; at(row) says where a row begins.
// Rows g and g + 8 have their own factor.
template <int N, typename At>
__device__ __forceinline__ void store_rows(At at, int row0, int end, const float (&acc)[N][4], const float (&factor)[2]) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    UNROLL for (int half = 0; half < 2; half++) {
        int row = row0 + half * 8 + g;
        // a zero factor means "nothing attended": the accumulator may then hold inf or NaN
        float f = factor[half];
        bool zero = f == 0.f;
        UNROLL for (int j = 0; j < N / 4; j++) {
            u32 x[4];
            UNROLL for (int i = 0; i < 4; i++) {
                const float (&c)[4] = acc[j * 4 + i];
                x[i] = zero ? 0u : pack_bf16(c[half * 2] * f, c[half * 2 + 1] * f);
            }
            quad_transpose(x);
            if (row < end) *(Vec4u*)(at(row) + (j * 4 + t) * 8) = Vec4u{x[0], x[1], x[2], x[3]};
        }
    }
}
template <int N>
__device__ __forceinline__ void store_rows(bf16* dst, i64 row_stride, int row0, int end, const float (&acc)[N][4], const float (&factor)[2]) {
    store_rows<N>([=](int row) { return dst + row * row_stride; }, row0, end, acc, factor);
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

// The first of some tiles.
template <typename X, int M>
__device__ __forceinline__ X (&first(X (&x)[M]))[1] { return (X (&)[1])x; }

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
