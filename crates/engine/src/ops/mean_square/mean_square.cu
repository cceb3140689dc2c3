// Mean square error of each row. One warp owns a row; eight elements a lane at a time where rows are aligned.

constexpr int WARPS = 4;  // rows in flight per block

__device__ __forceinline__ bool aligned(const void* p) { return ((u64)p & 15) == 0; }

// p, t (rows, d), w (rows) or null -> y (rows)
template <typename T> __device__ void mean_square_fwd(const T* p, const float* t, const float* w, float* y, int rows, int d) {
    int lane = threadIdx.x & 31;
    i64 row = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    p += row * d;
    t += row * d;
    float sum = 0.f;
    if (d % 8 == 0 && aligned(p) && aligned(t)) {
        for (int at = lane * 8; at < d; at += 256) {
            float a[8], b[8];
            load8(p + at, a);
            load8(t + at, b);
#pragma unroll
            for (int i = 0; i < 8; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
        }
    } else {
        for (int i = lane; i < d; i += 32) {
            float e = to_f32(p[i]) - t[i];
            sum += e * e;
        }
    }
    sum = warp_sum(sum) / d;
    if (lane == 0) y[row] = w ? w[row] * sum : sum;
}

// dp = dy·w·2/d·(p - t), added to dp if acc
template <typename T>
__device__ void mean_square_bwd(const T* p, const float* t, const float* w, const float* dy, T* dp, int rows, int d, int acc) {
    int lane = threadIdx.x & 31;
    i64 row = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    p += row * d;
    t += row * d;
    dp += row * d;
    float by = dy[row] * (w ? w[row] : 1.f) * 2.f / d;
    if (d % 8 == 0 && aligned(p) && aligned(t) && aligned(dp)) {
        for (int at = lane * 8; at < d; at += 256) {
            float a[8], b[8], o[8];
            load8(p + at, a);
            load8(t + at, b);
            if (acc) load8(dp + at, o);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float v = by * (a[i] - b[i]);
                o[i] = acc ? o[i] + v : v;
            }
            store8(dp + at, o);
        }
    } else {
        for (int i = lane; i < d; i += 32) {
            float v = by * (to_f32(p[i]) - t[i]);
            dp[i] = from_f32<T>(acc ? to_f32(dp[i]) + v : v);
        }
    }
}

#define MEAN_SQUARE(T, S)                                                                                              \
    extern "C" __global__ void mean_square_fwd_##S(const T* p, const float* t, const float* w, float* y, int rows,    \
                                                   int d) {                                                           \
        mean_square_fwd<T>(p, t, w, y, rows, d);                                                                      \
    }                                                                                                                 \
    extern "C" __global__ void mean_square_bwd_##S(const T* p, const float* t, const float* w, const float* dy,       \
                                                   T* dp, int rows, int d, int acc) {                                 \
        mean_square_bwd<T>(p, t, w, dy, dp, rows, d, acc);                                                            \
    }
MEAN_SQUARE(float, f32)
MEAN_SQUARE(bf16, bf16)
