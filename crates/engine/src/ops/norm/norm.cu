// Layer norm. One warp owns a row and keeps it in registers between the statistics and the output, so that x is read
// once. Rows longer than 32·8·MAX_VEC, or not a multiple of 8 long, take the plain path that reads x again.

constexpr int WARPS = 4;    // rows in flight per block
constexpr int MAX_VEC = 5;  // up to 1,280 values in registers

template <typename T> __device__ __forceinline__ bool vectorised(int d) { return d % 8 == 0 && d <= 32 * 8 * MAX_VEC; }

// x, y (rows, d); stats (rows, 2): mean, 1/deviation
template <typename T>
__device__ void norm_fwd(const T* x, const float* gain, const float* bias, T* y, float* stats, int rows, int d, float eps) {
    int lane = threadIdx.x & 31, row = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    x += (i64)row * d;
    y += (i64)row * d;
    float inv = 1.f / d;
    if (vectorised<T>(d)) {
        float v[MAX_VEC][8];
        float sum = 0.f;
#pragma unroll
        for (int c = 0; c < MAX_VEC; c++) {
            int at = (c * 32 + lane) * 8;
            if (at < d) {
                load8(x + at, v[c]);
#pragma unroll
                for (int i = 0; i < 8; i++) sum += v[c][i];
            }
        }
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
                float g[8], b[8];
                load8(gain + at, g);
                load8(bias + at, b);
#pragma unroll
                for (int i = 0; i < 8; i++) v[c][i] = (v[c][i] - mean) * rstd * g[i] + b[i];
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

// dx = rstd·(g·dy − mean(g·dy) − x̂·mean(g·dy·x̂)), added to dx if acc.
template <typename T>
__device__ void norm_bwd_x(const T* x, const float* gain, const float* stats, const T* dy, T* dx, int rows, int d, int acc) {
    int lane = threadIdx.x & 31, row = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    x += (i64)row * d;
    dy += (i64)row * d;
    dx += (i64)row * d;
    float mean = stats[2 * row], rstd = stats[2 * row + 1], inv = 1.f / d, s1 = 0.f, s2 = 0.f;
    if (vectorised<T>(d)) {
        float h[MAX_VEC][8], g[MAX_VEC][8];  // x̂ and gain·dy
#pragma unroll
        for (int c = 0; c < MAX_VEC; c++) {
            int at = (c * 32 + lane) * 8;
            if (at < d) {
                float w[8];
                load8(x + at, h[c]);
                load8(dy + at, g[c]);
                load8(gain + at, w);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    h[c][i] = (h[c][i] - mean) * rstd;
                    g[c][i] *= w[i];
                    s1 += g[c][i];
                    s2 += g[c][i] * h[c][i];
                }
            }
        }
        s1 = warp_sum(s1) * inv;
        s2 = warp_sum(s2) * inv;
#pragma unroll
        for (int c = 0; c < MAX_VEC; c++) {
            int at = (c * 32 + lane) * 8;
            if (at < d) {
                float o[8];
                if (acc) load8(dx + at, o);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    float v = rstd * (g[c][i] - s1 - h[c][i] * s2);
                    o[i] = acc ? o[i] + v : v;
                }
                store8(dx + at, o);
            }
        }
    } else {
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

// Add up the bands in order: dgain, dbias (d).
extern "C" __global__ void norm_bwd_reduce(const float* part, float* dgain, float* dbias, int bands, int d, int acc_gain, int acc_bias) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= d) return;
    float sg = 0.f, sb = 0.f;
#pragma unroll 8
    for (int b = 0; b < bands; b++) {
        sg += part[((i64)b * 2) * d + col];
        sb += part[((i64)b * 2 + 1) * d + col];
    }
    if (dgain) dgain[col] = acc_gain ? dgain[col] + sg : sg;
    if (dbias) dbias[col] = acc_bias ? dbias[col] + sb : sb;
}

#define NORM(T, S)                                                                                                      \
    extern "C" __global__ void norm_fwd_##S(const T* x, const float* gain, const float* bias, T* y, float* stats,      \
                                            int rows, int d, float eps) {                                              \
        norm_fwd<T>(x, gain, bias, y, stats, rows, d, eps);                                                            \
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
