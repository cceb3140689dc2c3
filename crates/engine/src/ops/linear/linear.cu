// Activations beside cuBLASLt's products, for the forms it does not fuse. Formulas as in src/cpu/math.rs.

__device__ __forceinline__ float gelu_tanh(float x) { return tanhf(0.7978845608f * (x + 0.044715f * x * x * x)); }

__device__ __forceinline__ float act_value(int kind, float x) {
    if (kind == 0) return 0.5f * x * (1.f + erff(x * 0.7071067812f));
    if (kind == 1) return 0.5f * x * (1.f + gelu_tanh(x));
    return x / (1.f + expf(-x));
}
__device__ __forceinline__ float act_slope(int kind, float x) {
    if (kind == 0) return 0.5f * (1.f + erff(x * 0.7071067812f)) + x * 0.3989422804f * expf(-0.5f * x * x);
    if (kind == 1) {
        float t = gelu_tanh(x);
        return 0.5f * (1.f + t) + 0.5f * x * (1.f - t * t) * 0.7978845608f * (1.f + 3.f * 0.044715f * x * x);
    }
    float s = 1.f / (1.f + expf(-x));
    return s * (1.f + x * (1.f - s));
}

// y = act(pre), or y = d·act'(pre); d may be y.
template <typename T, bool BACKWARD> __device__ void act(const T* pre, const T* d, T* y, i64 n, int kind) {
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at + 8 <= n) {
        float x[8], g[8];
        load8(pre + at, x);
        if (BACKWARD) load8(d + at, g);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = BACKWARD ? g[i] * act_slope(kind, x[i]) : act_value(kind, x[i]);
        store8(y + at, x);
    } else {
        for (i64 i = at; i < n; i++) {
            float x = to_f32(pre[i]);
            y[i] = from_f32<T>(BACKWARD ? to_f32(d[i]) * act_slope(kind, x) : act_value(kind, x));
        }
    }
}

// d = d·act'(pre) in place and h = act(pre), in one pass.
template <typename T> __device__ void act_both(const T* pre, T* d, T* h, i64 n, int kind) {
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at + 8 <= n) {
        float x[8], g[8];
        load8(pre + at, x);
        load8(d + at, g);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            g[i] *= act_slope(kind, x[i]);
            x[i] = act_value(kind, x[i]);
        }
        store8(d + at, g);
        store8(h + at, x);
    } else {
        for (i64 i = at; i < n; i++) {
            float x = to_f32(pre[i]);
            d[i] = from_f32<T>(to_f32(d[i]) * act_slope(kind, x));
            h[i] = from_f32<T>(act_value(kind, x));
        }
    }
}

// y (rows, stride) += b (width); n elements of y, with those beyond the width
template <typename T> __device__ void add_bias(T* y, const T* b, i64 n, int stride, int width) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && i % stride < width) y[i] = from_f32<T>(to_f32(y[i]) + to_f32(b[i % stride]));
}

// y (rows, n) = act(x (rows, k)·wᵀ + bias) or x·wᵀ + bias + residual for at most M rows, w (n, k): a team of warps owns a column,
// reads its weights once for all rows and adds up in f32. For products so small that the weights' way from memory is all there
// is: everything a thread needs is asked for before any of it is waited for, and teams (1, 2, 4 or 8 warps) grow with k.
// bias, residual and pre may be null; kind < 0: no activation. k is a multiple of 8, x and w are 16-byte aligned.
constexpr int FEW_WARPS = 8, FEW_AHEAD = 3;
template <typename T, int M>
__device__ void few_rows(const T* x, const T* w, const T* bias, const T* residual, T* y, T* pre, int rows, int n, int k, int kind, int team) {
    __shared__ float parts[FEW_WARPS][M];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, col = blockIdx.x * (FEW_WARPS / team) + warp / team;
    bool writes = col < n && warp % team == 0 && lane < rows;  // lane m keeps row m
    i64 to = (i64)lane * n + col;
    float add = writes && bias ? to_f32(bias[col]) : 0.f, more = writes && residual ? to_f32(residual[to]) : 0.f;
    float sum[M];
#pragma unroll
    for (int m = 0; m < M; m++) sum[m] = 0.f;
    w += (i64)min(col, n - 1) * k;
    int step = team * 256;
    for (int at = (warp % team * 32 + lane) * 8; at < k; at += FEW_AHEAD * step) {
        float a[FEW_AHEAD][8], b[FEW_AHEAD][M][8];
#pragma unroll
        for (int j = 0; j < FEW_AHEAD; j++) load8(w + min(at + j * step, k - 8), a[j]);
#pragma unroll
        for (int j = 0; j < FEW_AHEAD; j++)
#pragma unroll
            for (int m = 0; m < M; m++)  // rows that are not there read the last one
                load8(x + (i64)min(m, rows - 1) * k + min(at + j * step, k - 8), b[j][m]);
#pragma unroll
        for (int j = 0; j < FEW_AHEAD; j++) {
            bool in = at + j * step < k;  // beyond the end the last weights were read
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float weight = in ? a[j][i] : 0.f;
#pragma unroll
                for (int m = 0; m < M; m++) sum[m] = fmaf(weight, b[j][m][i], sum[m]);
            }
        }
    }
    float mine = 0.f;  // lane m keeps row m: a register array must not be indexed by the lane
#pragma unroll
    for (int m = 0; m < M; m++) {
        float s = warp_sum(sum[m]);
        if (lane == m) mine = s;
    }
    if (team > 1) {
        if (lane < M) parts[warp][lane] = mine;
        __syncthreads();
        if (!writes) return;
        for (int p = 1; p < team; p++) mine += parts[warp + p][lane];
    }
    if (!writes) return;
    mine = mine + add + more;
    T rounded = from_f32<T>(mine);
    if (kind >= 0) {
        if (pre) pre[to] = rounded;
        rounded = from_f32<T>(act_value(kind, to_f32(rounded)));
    }
    y[to] = rounded;
}

#define FEW(T, S, M)                                                                                               \
    extern "C" __global__ void __launch_bounds__(FEW_WARPS * 32, 1) few_rows##M##_##S(                                                                  \
        const T* x, const T* w, const T* bias, const T* residual, T* y, T* pre, int rows, int n, int k, int kind,  \
        int team) {                                                                                                \
        few_rows<T, M>(x, w, bias, residual, y, pre, rows, n, k, kind, team);                                      \
    }
FEW(float, f32, 2)
FEW(float, f32, 4)
FEW(float, f32, 8)
FEW(bf16, bf16, 2)
FEW(bf16, bf16, 4)
FEW(bf16, bf16, 8)

#define LINEAR(T, S)                                                                                               \
    extern "C" __global__ void act_forward_##S(const T* pre, const T* d, T* y, i64 n, int kind) {                  \
        act<T, false>(pre, d, y, n, kind);                                                                         \
    }                                                                                                              \
    extern "C" __global__ void act_backward_##S(const T* pre, const T* d, T* y, i64 n, int kind) {                 \
        act<T, true>(pre, d, y, n, kind);                                                                          \
    }                                                                                                              \
    extern "C" __global__ void act_both_##S(const T* pre, T* d, T* h, i64 n, int kind) {                           \
        act_both<T>(pre, d, h, n, kind);                                                                           \
    }                                                                                                              \
    extern "C" __global__ void add_bias_##S(T* y, const T* b, i64 n, int stride, int width) {                      \
        add_bias<T>(y, b, n, stride, width);                                                                       \
    }
LINEAR(float, f32)
LINEAR(bf16, bf16)
