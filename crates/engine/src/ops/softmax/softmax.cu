// Softmax over rows, and its logarithm, cut off at a floor below 0; a floor of 0 stands for softmax itself. One warp owns a row and reads
// it several times, all but the first from cache.

constexpr int WARPS = 4;  // rows in flight per block

// The largest of a row, and the sum of exp(x - largest).
template <typename T> __device__ __forceinline__ void largest_and_sum(const T* x, int d, float& top, float& sum) {
    int lane = threadIdx.x & 31;
    top = __int_as_float(0xff800000);
    sum = 0.f;
    for (int i = lane; i < d; i += 32) top = fmaxf(top, to_f32(x[i]));
    top = warp_max(top);
    for (int i = lane; i < d; i += 32) sum += expf(to_f32(x[i]) - top);
    sum = warp_sum(sum);
}

// x (rows, d) -> y (rows, d)
template <typename T> __device__ void softmax_fwd(const T* x, T* y, int rows, int d, float floor) {
    int lane = threadIdx.x & 31;
    i64 row = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    x += row * d;
    y += row * d;
    float top, sum;
    largest_and_sum(x, d, top, sum);
    float ln = logf(sum);
    for (int i = lane; i < d; i += 32) {
        float l = to_f32(x[i]) - top;
        y[i] = from_f32<T>(floor < 0.f ? fmaxf(l - ln, floor) : expf(l) / sum);
    }
}

// dx = p·(dy - sum p·dy), or for the logarithm dy - p·(sum dy) over what is not cut off; added to dx if acc
template <typename T> __device__ void softmax_bwd(const T* x, const T* dy, T* dx, int rows, int d, float floor, int acc) {
    int lane = threadIdx.x & 31;
    i64 row = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    x += row * d;
    dy += row * d;
    dx += row * d;
    float top, sum, all = 0.f;
    largest_and_sum(x, d, top, sum);
    bool log = floor < 0.f;
    float ln = logf(sum);
    for (int i = lane; i < d; i += 32) {
        float l = to_f32(x[i]) - top, g = to_f32(dy[i]);
        all += log ? (l - ln > floor ? g : 0.f) : expf(l) / sum * g;
    }
    all = warp_sum(all);
    for (int i = lane; i < d; i += 32) {
        float l = to_f32(x[i]) - top, p = expf(l) / sum, g = to_f32(dy[i]);
        float own = log ? (l - ln > floor ? g : 0.f) - p * all : p * (g - all);
        dx[i] = from_f32<T>(acc ? to_f32(dx[i]) + own : own);
    }
}

#define SOFTMAX(T, S)                                                                                                  \
    extern "C" __global__ void softmax_fwd_##S(const T* x, T* y, int rows, int d, float floor) {                       \
        softmax_fwd<T>(x, y, rows, d, floor);                                                                          \
    }                                                                                                                  \
    extern "C" __global__ void softmax_bwd_##S(const T* x, const T* dy, T* dx, int rows, int d, float floor, int acc) { \
        softmax_bwd<T>(x, dy, dx, rows, d, floor, acc);                                                                \
    }
SOFTMAX(float, f32)
SOFTMAX(bf16, bf16)
