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

// y (rows, width) += b (width)
template <typename T> __device__ void add_bias(T* y, const T* b, i64 n, int width) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = from_f32<T>(to_f32(y[i]) + to_f32(b[i % width]));
}

#define LINEAR(T, S)                                                                                               \
    extern "C" __global__ void act_forward_##S(const T* pre, const T* d, T* y, i64 n, int kind) {                  \
        act<T, false>(pre, d, y, n, kind);                                                                         \
    }                                                                                                              \
    extern "C" __global__ void act_backward_##S(const T* pre, const T* d, T* y, i64 n, int kind) {                 \
        act<T, true>(pre, d, y, n, kind);                                                                          \
    }                                                                                                              \
    extern "C" __global__ void add_bias_##S(T* y, const T* b, i64 n, int width) { add_bias<T>(y, b, n, width); }
LINEAR(float, f32)
LINEAR(bf16, bf16)
