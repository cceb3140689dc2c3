// Attention in f32, forward and backward, for debugging: plain FMA, no tensor cores, no atomics.
// Same contract as attention.cu (see there for layouts, mask and prefix), with float tensors and kernel suffix _f32.
// Compiled once per head size: -DHEAD_DIM=32|64|96|128.
//
// Launch. No dynamic shared memory. Four neighbouring lanes own one output row.
//   kernel                   grid                         threads
//   attention_fwd_f32        (ceil(Lq / 32), H, B)        128
//   attention_bwd_dkdv_f32   (ceil(Lk / 32), H, B)        128
//   attention_bwd_dq_f32     (ceil(Lq / 32), H, B)        128
//   attention_delta_f32      (ceil(Lq * H / 64), B, 1)    256

constexpr int D = HEAD_DIM;
constexpr int ROWS = 32;          // output rows of a block, and rows of a shared tile
constexpr int PARTS = D / 16;     // groups of four floats per lane
constexpr u32 ALL_LANES = 0xffffffffu;
#define NEG_INF (__int_as_float((int)0xff800000u))

// A lane's quarter of a row: groups of four floats t, t+4, t+8, ... with t = lane % 4.
struct Part { Vec4f x[PARTS]; };
typedef Vec4f Tile[ROWS][D / 4];  // [32, D]

__device__ __forceinline__ Part zero_part() {
    Part p;
#pragma unroll
    for (int j = 0; j < PARTS; j++) p.x[j] = Vec4f{0.f, 0.f, 0.f, 0.f};
    return p;
}
__device__ __forceinline__ Part load_part(const float* row, bool valid) {
    Part p = zero_part();
    if (valid) {
#pragma unroll
        for (int j = 0; j < PARTS; j++) p.x[j] = ((const Vec4f*)row)[j * 4 + threadIdx.x % 4];
    }
    return p;
}
__device__ __forceinline__ void store_part(float* row, const Part& p, float factor) {
#pragma unroll
    for (int j = 0; j < PARTS; j++)
        ((Vec4f*)row)[j * 4 + threadIdx.x % 4] = Vec4f{p.x[j].x * factor, p.x[j].y * factor, p.x[j].z * factor, p.x[j].w * factor};
}
__device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(ALL_LANES, v, 1);
    return v + __shfl_xor_sync(ALL_LANES, v, 2);
}
// Dot product with a row of a tile; all four lanes get it.
__device__ __forceinline__ float dot(const Part& p, const Vec4f* row) {
    float s = 0.f;
#pragma unroll
    for (int j = 0; j < PARTS; j++) {
        Vec4f r = row[j * 4 + threadIdx.x % 4];
        s += p.x[j].x * r.x + p.x[j].y * r.y + p.x[j].z * r.z + p.x[j].w * r.w;
    }
    return quad_sum(s);
}
// p += factor * row
__device__ __forceinline__ void add_scaled(Part& p, float factor, const Vec4f* row) {
#pragma unroll
    for (int j = 0; j < PARTS; j++) {
        Vec4f r = row[j * 4 + threadIdx.x % 4];
        p.x[j].x += factor * r.x;
        p.x[j].y += factor * r.y;
        p.x[j].z += factor * r.z;
        p.x[j].w += factor * r.w;
    }
}
// Rows row0 .. row0 + 32 of src [rows, D]; those past `end` are zero.
__device__ __forceinline__ void load_tile(Tile& tile, const float* src, i64 row_stride, int row0, int end) {
    for (int n = threadIdx.x; n < ROWS * D / 4; n += 128) {
        int row = n / (D / 4), group = n % (D / 4);
        Vec4f x = {0.f, 0.f, 0.f, 0.f};
        if (row0 + row < end) x = ((const Vec4f*)(src + (row0 + row) * row_stride))[group];
        tile[row][group] = x;
    }
}
__device__ __forceinline__ bool allowed(int i, int j, const u32* mask, int prefix) {
    return (i >= prefix || j < prefix) && (!mask || mask[j] != 0);
}

extern "C" __global__ void __launch_bounds__(128)
attention_fwd_f32(const float* q, const float* k, const float* v, float* o, float* lse, const u32* mask, int H, int Lq, int Lk,
                  i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, int prefix, float scale) {
    __shared__ Tile k_tile, v_tile;
    int h = blockIdx.y, b = blockIdx.z, i = blockIdx.x * ROWS + threadIdx.x / 4;
    k += b * kv_batch + h * D;
    v += b * kv_batch + h * D;
    if (mask) mask += (i64)b * Lk;
    Part query = load_part(q + b * q_batch + i * q_row + h * D, i < Lq), acc = zero_part();
    float top = NEG_INF, sum = 0.f;
    for (int j0 = 0; j0 < Lk; j0 += ROWS) {
        __syncthreads();
        load_tile(k_tile, k, kv_row, j0, Lk);
        load_tile(v_tile, v, kv_row, j0, Lk);
        __syncthreads();
        for (int r = 0; r < ROWS && j0 + r < Lk; r++) {
            float s = dot(query, k_tile[r]) * scale;
            if (!allowed(i, j0 + r, mask, prefix)) continue;
            if (s > top) {
                float shrink = expf(top - s);
                top = s;
                sum *= shrink;
#pragma unroll
                for (int j = 0; j < PARTS; j++) { acc.x[j].x *= shrink; acc.x[j].y *= shrink; acc.x[j].z *= shrink; acc.x[j].w *= shrink; }
            }
            float p = expf(s - top);
            sum += p;
            add_scaled(acc, p, v_tile[r]);
        }
    }
    if (i >= Lq) return;
    store_part(o + (((i64)b * Lq + i) * H + h) * D, acc, sum > 0.f ? 1.f / sum : 0.f);
    if (lse && threadIdx.x % 4 == 0) lse[((i64)b * H + h) * Lq + i] = sum > 0.f ? top + logf(sum) : NEG_INF;
}

// delta[b, h, i] = sum_d o[b, i, h, d] d_o[b, i, h, d]
extern "C" __global__ void __launch_bounds__(256) attention_delta_f32(const float* o, const float* d_o, float* delta, int H, int Lq) {
    int row = blockIdx.x * 64 + threadIdx.x / 4, b = blockIdx.y;  // row = i * H + h
    bool valid = row < Lq * H;
    i64 at = ((i64)b * Lq * H + row) * D;
    Part x = load_part(o + at, valid), y = load_part(d_o + at, valid);
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < PARTS; j++) sum += x.x[j].x * y.x[j].x + x.x[j].y * y.x[j].y + x.x[j].z * y.x[j].z + x.x[j].w * y.x[j].w;
    sum = quad_sum(sum);
    if (valid && threadIdx.x % 4 == 0) delta[((i64)b * H + row % H) * Lq + row / H] = sum;
}

extern "C" __global__ void __launch_bounds__(128)
attention_bwd_dkdv_f32(const float* q, const float* k, const float* v, const float* d_o, const float* lse, const float* delta, const u32* mask, float* dk, float* dv,
                       int H, int Lq, int Lk, i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, int prefix, float scale) {
    __shared__ Tile q_tile, do_tile;
    int h = blockIdx.y, b = blockIdx.z, j = blockIdx.x * ROWS + threadIdx.x / 4;
    i64 kv_at = b * kv_batch + j * kv_row + h * D;
    q += b * q_batch + h * D;
    d_o += ((i64)b * Lq * H + h) * D;
    lse += ((i64)b * H + h) * Lq;
    delta += ((i64)b * H + h) * Lq;
    if (mask) mask += (i64)b * Lk;
    Part key = load_part(k + kv_at, j < Lk), value = load_part(v + kv_at, j < Lk), dk_acc = zero_part(), dv_acc = zero_part();
    for (int i0 = 0; i0 < Lq; i0 += ROWS) {
        __syncthreads();
        load_tile(q_tile, q, q_row, i0, Lq);
        load_tile(do_tile, d_o, (i64)H * D, i0, Lq);
        __syncthreads();
        for (int r = 0; r < ROWS && i0 + r < Lq; r++) {
            float s = dot(key, q_tile[r]) * scale, dp = dot(value, do_tile[r]);
            if (j >= Lk || !allowed(i0 + r, j, mask, prefix)) continue;
            float p = expf(s - lse[i0 + r]);
            add_scaled(dv_acc, p, do_tile[r]);
            add_scaled(dk_acc, p * (dp - delta[i0 + r]), q_tile[r]);
        }
    }
    if (j >= Lk) return;
    store_part(dk + kv_at, dk_acc, scale);
    store_part(dv + kv_at, dv_acc, 1.f);
}

extern "C" __global__ void __launch_bounds__(128)
attention_bwd_dq_f32(const float* q, const float* k, const float* v, const float* d_o, const float* lse, const float* delta, const u32* mask, float* dq,
                     int H, int Lq, int Lk, i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, int prefix, float scale) {
    __shared__ Tile k_tile, v_tile;
    int h = blockIdx.y, b = blockIdx.z, i = blockIdx.x * ROWS + threadIdx.x / 4;
    i64 q_at = b * q_batch + i * q_row + h * D, row_at = ((i64)b * H + h) * Lq + i;
    k += b * kv_batch + h * D;
    v += b * kv_batch + h * D;
    if (mask) mask += (i64)b * Lk;
    Part query = load_part(q + q_at, i < Lq), grad = load_part(d_o + (((i64)b * Lq + i) * H + h) * D, i < Lq), acc = zero_part();
    float row_lse = i < Lq ? lse[row_at] : 0.f, row_delta = i < Lq ? delta[row_at] : 0.f;
    for (int j0 = 0; j0 < Lk; j0 += ROWS) {
        __syncthreads();
        load_tile(k_tile, k, kv_row, j0, Lk);
        load_tile(v_tile, v, kv_row, j0, Lk);
        __syncthreads();
        for (int r = 0; r < ROWS && j0 + r < Lk; r++) {
            float s = dot(query, k_tile[r]) * scale, dp = dot(grad, v_tile[r]);
            if (!allowed(i, j0 + r, mask, prefix)) continue;
            add_scaled(acc, expf(s - row_lse) * (dp - row_delta), k_tile[r]);
        }
    }
    if (i < Lq) store_part(dq + q_at, acc, scale);
}
