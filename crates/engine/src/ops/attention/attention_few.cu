// Attention among at most FEW tokens, bf16: a classifier's noisy class beside its condition. Tiles of 16 would be nearly empty,
// so a few lanes take a head of an example, eight elements each, with all its keys and values in registers.
//
//   attention_fwd_few, attention_bwd_few    (ceil(B * H / (128 / LANES))), 128 threads, no shared memory
//
// Arguments as in tiles.cu; Lq, Lk <= FEW, items = B * H.

constexpr int FEW = 4;
constexpr int LANES = D <= 32 ? 4 : D <= 64 ? 8 : 16;  // of a head

// Where a thread's elements lie. Threads without any still take part in sums.
struct Place {
    int b, h, d;
    bool here;
};
__device__ __forceinline__ Place place(int items, int H) {
    int item = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES, d = threadIdx.x % LANES * 8;
    bool here = item < items && d < D;
    return {here ? item / H : 0, here ? item % H : 0, d, here};
}
__device__ __forceinline__ float over_head(float x) {
    UNROLL for (int lane = LANES / 2; lane; lane /= 2) x += __shfl_xor_sync(ALL_LANES, x, lane);
    return x;
}
__device__ __forceinline__ float dot(const float (&x)[8], const float (&y)[8]) {
    float sum = 0.f;
    UNROLL for (int e = 0; e < 8; e++) sum += x[e] * y[e];
    return over_head(sum);
}
__device__ __forceinline__ void add(float (&to)[8], float factor, const float (&x)[8]) {
    UNROLL for (int e = 0; e < 8; e++) to[e] += factor * x[e];
}
__device__ __forceinline__ void clear(float (&x)[8]) {
    UNROLL for (int e = 0; e < 8; e++) x[e] = 0.f;
}
__device__ __forceinline__ void load(float (&x)[8], const bf16* from, bool here) {
    clear(x);
    if (here) load8(from, x);
}
__device__ __forceinline__ void load(float (&x)[FEW][8], const bf16* from, i64 row, int rows, bool here) {
    UNROLL for (int j = 0; j < FEW; j++) load(x[j], from + j * row, here && j < rows);
}
__device__ __forceinline__ bool sees(int i, int j, const u32* mask, int prefix, int Lk) {
    return j < key_limit(i, prefix, Lk) && (!mask || mask[j]);
}

extern "C" __global__ void __launch_bounds__(128)
attention_fwd_few(const bf16* q, const bf16* k, const bf16* v, bf16* o, float* lse, const u32* mask, int H, int Lq, int Lk,
                  i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, int prefix, float scale, int items) {
    auto [b, h, d, here] = place(items, H);
    i64 kv_at = b * kv_batch + h * D + d;
    float keys[FEW][8], values[FEW][8];
    load(keys, k + kv_at, kv_row, Lk, here);
    load(values, v + kv_at, kv_row, Lk, here);
    if (mask) mask += (i64)b * Lk;
    for (int i = 0; i < Lq; i++) {
        float x[8], s[FEW], top = NEG_INF, sum = 0.f, out[8];
        load(x, q + b * q_batch + i * q_row + h * D + d, here);
        UNROLL for (int j = 0; j < FEW; j++) {
            s[j] = dot(x, keys[j]) * scale;
            if (!sees(i, j, mask, prefix, Lk)) s[j] = NEG_INF;
            top = fmaxf(top, s[j]);
        }
        clear(out);
        UNROLL for (int j = 0; j < FEW; j++) {
            float p = s[j] == NEG_INF ? 0.f : exp2_fast((s[j] - top) * LOG2E);
            sum += p;
            add(out, p, values[j]);
        }
        float factor = sum > 0.f ? 1.f / sum : 0.f;
        UNROLL for (int e = 0; e < 8; e++) out[e] *= factor;
        if (here) store8(o + (((i64)b * Lq + i) * H + h) * D + d, out);
        if (here && lse && d == 0) lse[((i64)b * H + h) * Lq + i] = sum > 0.f ? top + __logf(sum) : NEG_INF;
    }
}

extern "C" __global__ void __launch_bounds__(128)
attention_bwd_few(const bf16* q, const bf16* k, const bf16* v, const bf16* o, const bf16* d_o, const float* lse, const u32* mask, bf16* dq, bf16* dk,
                  bf16* dv, int H, int Lq, int Lk, i64 q_batch, i64 q_row, i64 kv_batch, i64 kv_row, int prefix, float scale, int items) {
    auto [b, h, d, here] = place(items, H);
    i64 kv_at = b * kv_batch + h * D + d;
    float keys[FEW][8], values[FEW][8], d_keys[FEW][8], d_values[FEW][8];
    load(keys, k + kv_at, kv_row, Lk, here);
    load(values, v + kv_at, kv_row, Lk, here);
    UNROLL for (int j = 0; j < FEW; j++) {
        clear(d_keys[j]);
        clear(d_values[j]);
    }
    if (mask) mask += (i64)b * Lk;
    for (int i = 0; i < Lq; i++) {
        i64 q_at = b * q_batch + i * q_row + h * D + d, o_at = (((i64)b * Lq + i) * H + h) * D + d;
        float x[8], y[8], dy[8], dx[8], of_row = lse[((i64)b * H + h) * Lq + i];
        load(x, q + q_at, here);
        load(y, o + o_at, here);
        load(dy, d_o + o_at, here);
        clear(dx);
        float delta = dot(y, dy);
        UNROLL for (int j = 0; j < FEW; j++) {
            float s = dot(x, keys[j]) * scale, dp = dot(dy, values[j]);
            float p = sees(i, j, mask, prefix, Lk) ? exp2_fast((s - of_row) * LOG2E) : 0.f, ds = p * (dp - delta) * scale;
            add(dx, ds, keys[j]);
            add(d_keys[j], ds, x);
            add(d_values[j], p, dy);
        }
        if (here) store8(dq + q_at, dx);
    }
    UNROLL for (int j = 0; j < FEW; j++)
        if (here && j < Lk) {
            store8(dk + kv_at + j * kv_row, d_keys[j]);
            store8(dv + kv_at + j * kv_row, d_values[j]);
        }
}
