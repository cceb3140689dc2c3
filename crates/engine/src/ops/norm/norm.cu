// Layer norm. One warp owns a row and keeps it in registers between the statistics and the output, so that x is read
// once. Rows longer than 256·MAX_VEC, or not a multiple of 8 long, take a plain path that reads x again.

constexpr int WARPS = 4;    // rows in flight per block
constexpr int MAX_VEC = 5;  // up to 1,280 values in registers

template <typename T> __device__ __forceinline__ bool vectorised(int d) { return d % 8 == 0 && d <= 32 * 8 * MAX_VEC; }

// x, y (rows, d); stats (rows, 2): mean, 1/deviation. EARLY: gain and bias are read together with x. That takes registers,
// but few rows have nobody else to wait with.
template <typename T, bool EARLY>
__device__ void norm_fwd(const T* x, const float* gain, const float* bias, T* y, float* stats, int rows, int d, float eps) {
    int lane = threadIdx.x & 31, row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (row >= rows) return;
    x += (i64)row * d;
    y += (i64)row * d;
    float inv = 1.f / d;
    if (vectorised<T>(d)) {
        float v[MAX_VEC][8], g[MAX_VEC][8], b[MAX_VEC][8];
        float sum = 0.f;
#pragma unroll
        for (int c = 0; c < MAX_VEC; c++) {
            int at = (c * 32 + lane) * 8;
            if (at < d) {
                load8(x + at, v[c]);
                if (EARLY) {
                    load8(gain + at, g[c]);
                    load8(bias + at, b[c]);
                }
            }
        }
#pragma unroll
        for (int c = 0; c < MAX_VEC; c++)
            if ((c * 32 + lane) * 8 < d)
#pragma unroll
                for (int i = 0; i < 8; i++) sum += v[c][i];
        float mean = warp_sum(sum) * inv, sq = 0.f;
#pragma unroll
        for (int c = 0; c < MAX_VEC; c++)
            if ((c * 32 + lane) * 8 < d)
#pragma unroll
                for (int i = 0; i < 8; i++) sq += (v[c][i] - mean) * (v[c][i] - mean);
        float rstd = rsqrtf(warp_sum(sq) * inv + eps);
        if (lane == 0) { stats[2 * row] = mean; stats[2 * row + 1] = rstd; }
#pragma unroll
        for (int c = 0; c < MAX_VEC; c++) {
            int at = (c * 32 + lane) * 8;
            if (at < d) {
                if (!EARLY) {
                    load8(gain + at, g[c]);
                    load8(bias + at, b[c]);
                }
#pragma unroll
                for (int i = 0; i < 8; i++) v[c][i] = (v[c][i] - mean) * rstd * g[c][i] + b[c][i];
                store8(y + at, v[c]);
            }
        }
    } else {
        float sum = 0.f, sq = 0.f;
        for (int i = lane; i < d; i += 32) sum += to_f32(x[i]);
        float mean = warp_sum(sum) * inv;
        for (int i = lane; i < d; i += 32) { float t = to_f32(x[i]) - mean; sq += t * t; }
        float rstd = rsqrtf(warp_sum(sq) * inv + eps);
        if (lane == 0) { stats[2 * row] = mean; stats[2 * row + 1] = rstd; }
        for (int i = lane; i < d; i += 32) y[i] = from_f32<T>((to_f32(x[i]) - mean) * rstd * gain[i] + bias[i]);
    }
}

// The whole backward pass, reading x and dy once: dx, and this block's share of dgain = Σ dy·x̂ and dbias = Σ dy in
// part (blocks, 2, d). A warp walks over rows and keeps its sums in registers; VEC·256 ≥ d. dx may be null.
// Dynamic shared memory: WARPS·2·d floats.
template <typename T, int VEC>
__device__ void norm_bwd(const T* x, const float* gain, const float* stats, const T* dy, T* dx, float* part, int rows, int d, int acc) {
    extern __shared__ float sums[];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float inv = 1.f / d, w[VEC][8], sg[VEC][8], sb[VEC][8];
#pragma unroll
    for (int c = 0; c < VEC; c++) {
#pragma unroll
        for (int i = 0; i < 8; i++) sg[c][i] = sb[c][i] = 0.f;
        if ((c * 32 + lane) * 8 < d) load8(gain + (c * 32 + lane) * 8, w[c]);
    }
    for (i64 row = blockIdx.x * WARPS + warp; row < rows; row += gridDim.x * WARPS) {
        const T *xr = x + row * d, *dyr = dy + row * d;
        float mean = stats[2 * row], rstd = stats[2 * row + 1], s1 = 0.f, s2 = 0.f;
        float h[VEC][8], g[VEC][8];  // x̂ and gain·dy
#pragma unroll
        for (int c = 0; c < VEC; c++) {
            int at = (c * 32 + lane) * 8;
            if (at < d) {
                load8(xr + at, h[c]);
                load8(dyr + at, g[c]);
            }
        }
#pragma unroll
        for (int c = 0; c < VEC; c++) {
            if ((c * 32 + lane) * 8 < d) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    h[c][i] = (h[c][i] - mean) * rstd;
                    sg[c][i] += g[c][i] * h[c][i];
                    sb[c][i] += g[c][i];
                    g[c][i] *= w[c][i];
                    s1 += g[c][i];
                    s2 += g[c][i] * h[c][i];
                }
            }
        }
        s1 = warp_sum(s1) * inv;
        s2 = warp_sum(s2) * inv;
        if (!dx) continue;
#pragma unroll
        for (int c = 0; c < VEC; c++) {
            int at = (c * 32 + lane) * 8;
            if (at < d) {
                float o[8];
                if (acc) load8(dx + row * d + at, o);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    float v = rstd * (g[c][i] - s1 - h[c][i] * s2);
                    o[i] = acc ? o[i] + v : v;
                }
                store8(dx + row * d + at, o);
            }
        }
    }
#pragma unroll
    for (int c = 0; c < VEC; c++) {
        int at = (c * 32 + lane) * 8;
        if (at < d) {
            store8(sums + warp * 2 * d + at, sg[c]);
            store8(sums + (warp * 2 + 1) * d + at, sb[c]);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * d; i += blockDim.x) {
        float s = 0.f;
#pragma unroll
        for (int k = 0; k < WARPS; k++) s += sums[k * 2 * d + i];
        part[(i64)blockIdx.x * 2 * d + i] = s;
    }
}

// For widths that the above does not take: dx = rstd·(g·dy − mean(g·dy) − x̂·mean(g·dy·x̂)), added to dx if acc.
template <typename T>
__device__ void norm_bwd_x(const T* x, const float* gain, const float* stats, const T* dy, T* dx, int rows, int d, int acc) {
    int lane = threadIdx.x & 31, row = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    x += (i64)row * d;
    dy += (i64)row * d;
    dx += (i64)row * d;
    float mean = stats[2 * row], rstd = stats[2 * row + 1], inv = 1.f / d, s1 = 0.f, s2 = 0.f;
    for (int i = lane; i < d; i += 32) {
        float g = gain[i] * to_f32(dy[i]);
        s1 += g;
        s2 += g * (to_f32(x[i]) - mean) * rstd;
    }
    s1 = warp_sum(s1) * inv;
    s2 = warp_sum(s2) * inv;
    for (int i = lane; i < d; i += 32) {
        float v = rstd * (gain[i] * to_f32(dy[i]) - s1 - (to_f32(x[i]) - mean) * rstd * s2);
        dx[i] = from_f32<T>(acc ? to_f32(dx[i]) + v : v);
    }
}

// Column sums of dy·x̂ and dy over a band of rows: part (bands, 2, d). Thread = one column; block = 128 columns × one band.
template <typename T>
__device__ void norm_bwd_params(const T* x, const float* stats, const T* dy, float* part, int rows, int d, int band) {
    int col = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * band, last = min(first + band, rows);
    if (col >= d) return;
    float sg = 0.f, sb = 0.f;
#pragma unroll 8
    for (int r = first; r < last; r++) {
        float g = to_f32(dy[(i64)r * d + col]);
        sg += g * (to_f32(x[(i64)r * d + col]) - stats[2 * r]) * stats[2 * r + 1];
        sb += g;
    }
    part[((i64)blockIdx.y * 2) * d + col] = sg;
    part[((i64)blockIdx.y * 2 + 1) * d + col] = sb;
}

// Add up the bands: part (bands, 2, d) -> dgain, dbias (d), either may be null. Block: 32 columns × 32 groups of bands.
extern "C" __global__ void norm_bwd_reduce(const float* part, float* dgain, float* dbias, int bands, int d, int acc_gain, int acc_bias) {
    __shared__ float sums[32][33];
    int lane = threadIdx.x & 31, group = threadIdx.x >> 5, col = blockIdx.x * 32 + lane;
    float s = 0.f;
    if (col < 2 * d)
        for (int b = group; b < bands; b += 32) s += part[(i64)b * 2 * d + col];
    sums[group][lane] = s;
    __syncthreads();
    if (group != 0 || col >= 2 * d) return;
    s = 0.f;
#pragma unroll
    for (int g = 0; g < 32; g++) s += sums[g][lane];
    float* to = col < d ? dgain : dbias;
    int acc = col < d ? acc_gain : acc_bias;
    if (!to) return;
    to += col < d ? col : col - d;
    *to = acc ? *to + s : s;
}

#define NORM(T, S)                                                                                                      \
    extern "C" __global__ void norm_fwd_##S(const T* x, const float* gain, const float* bias, T* y, float* stats,      \
                                            int rows, int d, float eps) {                                              \
        norm_fwd<T, false>(x, gain, bias, y, stats, rows, d, eps);                                                     \
    }                                                                                                                  \
    extern "C" __global__ void norm_fwd_few_##S(const T* x, const float* gain, const float* bias, T* y, float* stats,  \
                                                int rows, int d, float eps) {                                          \
        norm_fwd<T, true>(x, gain, bias, y, stats, rows, d, eps);                                                      \
    }                                                                                                                  \
    extern "C" __global__ void norm_bwd_x_##S(const T* x, const float* gain, const float* stats, const T* dy, T* dx,   \
                                              int rows, int d, int acc) {                                              \
        norm_bwd_x<T>(x, gain, stats, dy, dx, rows, d, acc);                                                           \
    }                                                                                                                  \
    extern "C" __global__ void norm_bwd_params_##S(const T* x, const float* stats, const T* dy, float* part, int rows, \
                                                   int d, int band) {                                                  \
        norm_bwd_params<T>(x, stats, dy, part, rows, d, band);                                                         \
    }
NORM(float, f32)
NORM(bf16, bf16)

#define NORM_BWD(T, S, VEC)                                                                                            \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) norm_bwd##VEC##_##S(                                      \
        const T* x, const float* gain, const float* stats, const T* dy, T* dx, float* part, int rows, int d, int acc) { \
        norm_bwd<T, VEC>(x, gain, stats, dy, dx, part, rows, d, acc);                                                  \
    }
#define NORM_BWD_ALL(T, S) NORM_BWD(T, S, 1) NORM_BWD(T, S, 2) NORM_BWD(T, S, 3) NORM_BWD(T, S, 4) NORM_BWD(T, S, 5)
NORM_BWD_ALL(float, f32)
NORM_BWD_ALL(bf16, bf16)
