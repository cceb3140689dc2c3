// Sums and scales. One thread handles eight consecutive elements; the last few go one by one.

__device__ __forceinline__ i64 first_of_thread() { return ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8; }

// f(in values, out values) over eight elements at a time. A and B may be null for unused operands.
template <typename A, typename B, typename Y, typename F>
__device__ __forceinline__ void each(const A* a, const B* b, Y* y, i64 n, bool read_y, F f) {
    i64 at = first_of_thread();
    if (at >= n) return;
    float x[8], z[8], o[8];
    // Views into flat buffers start at multiples of 64 elements, but a reshaped slice need not.
    bool aligned = (((u64)(a + at) | (u64)(b + at) | (u64)(y + at)) & 15) == 0;
    if (at + 8 <= n && aligned) {
        if (a) load8(a + at, x);
        if (b) load8(b + at, z);
        if (read_y) load8(y + at, o);
#pragma unroll
        for (int i = 0; i < 8; i++) o[i] = f(x[i], z[i], o[i]);
        store8(y + at, o);
    } else {
        for (int i = 0; i < 8 && at + i < n; i++) {
            float p = a ? to_f32(a[at + i]) : 0.f, q = b ? to_f32(b[at + i]) : 0.f, r = read_y ? to_f32(y[at + i]) : 0.f;
            y[at + i] = from_f32<Y>(f(p, q, r));
        }
    }
}

extern "C" __global__ void cast_to_f32(const bf16* x, float* y, i64 n) {
    each(x, (const bf16*)0, y, n, false, [](float a, float, float) { return a; });
}
extern "C" __global__ void cast_to_bf16(const float* x, bf16* y, i64 n) {
    each(x, (const float*)0, y, n, false, [](float a, float, float) { return a; });
}

// y (outer·mid·inner) = x + p, p (inner) or (outer, inner).
template <typename T, typename P>
__device__ void add_spread(const T* x, const P* p, T* y, i64 n, int mid, i64 inner, int per_example) {
    i64 at = first_of_thread();
    if (at >= n) return;
    if (inner % 8 == 0 && (((u64)x | (u64)p | (u64)y) & 15) == 0) {
        i64 row = at / inner, col = at % inner;
        if (per_example) p += row / mid * inner;
        float a[8], b[8];
        load8(x + at, a);
        load8(p + col, b);
#pragma unroll
        for (int i = 0; i < 8; i++) a[i] += b[i];
        store8(y + at, a);
    } else {
        for (int i = 0; i < 8 && at + i < n; i++) {
            i64 row = (at + i) / inner, col = (at + i) % inner;
            i64 from = (per_example ? row / mid * inner : 0) + col;
            y[at + i] = from_f32<T>(to_f32(x[at + i]) + to_f32(p[from]));
        }
    }
}

// dy (groups, terms, inner) -> part (groups, bands, inner): band sums.
template <typename T> __device__ void sum_rows(const T* dy, float* part, int terms, int inner, int band) {
    int col = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * band, last = min(first + band, terms);
    if (col >= inner) return;
    dy += (i64)blockIdx.z * terms * inner + col;
    float s = 0.f;
#pragma unroll 8
    for (int r = first; r < last; r++) s += to_f32(dy[(i64)r * inner]);
    part[((i64)blockIdx.z * gridDim.y + blockIdx.y) * inner + col] = s;
}
template <typename T> __device__ void sum_bands(const float* part, T* out, int bands, int inner, int acc) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= inner) return;
    part += (i64)blockIdx.z * bands * inner + col;
    float s = 0.f;
#pragma unroll 8
    for (int b = 0; b < bands; b++) s += part[(i64)b * inner];
    i64 at = (i64)blockIdx.z * inner + col;
    out[at] = from_f32<T>(acc ? to_f32(out[at]) + s : s);
}

// by · sum of x over a grid-stride loop: one number a block.
template <typename T> __device__ void sum_all(const T* x, float* out, i64 n, float by) {
    __shared__ float scratch[33];
    float s = 0.f;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) s += to_f32(x[i]);
    s = block_sum(s, scratch);
    if (threadIdx.x == 0) out[blockIdx.x] = s * by;
}

#define ADD_INTO(D, S, NAME)                                                                                     \
    extern "C" __global__ void add_into_##NAME(D* dst, const S* src, i64 n, int acc) {                           \
        each(src, (const S*)0, dst, n, acc, [=](float a, float, float o) { return acc ? o + a : a; });           \
    }
ADD_INTO(float, float, f32_f32)
ADD_INTO(float, bf16, f32_bf16)
ADD_INTO(bf16, float, bf16_f32)
ADD_INTO(bf16, bf16, bf16_bf16)

#define ADD_SPREAD(T, P, NAME)                                                                                          \
    extern "C" __global__ void add_spread_##NAME(const T* x, const P* p, T* y, i64 n, int mid, i64 inner, int per) {    \
        add_spread<T, P>(x, p, y, n, mid, inner, per);                                                                 \
    }
ADD_SPREAD(float, float, f32_f32)
ADD_SPREAD(bf16, float, bf16_f32)
ADD_SPREAD(bf16, bf16, bf16_bf16)

#define ELEMENTWISE(T, S)                                                                                      \
    extern "C" __global__ void add_##S(const T* a, const T* b, T* y, i64 n) {                                  \
        each(a, b, y, n, false, [](float p, float q, float) { return p + q; });                                \
    }                                                                                                          \
    extern "C" __global__ void scale_##S(const T* x, T* y, float by, i64 n) {                                  \
        each(x, (const T*)0, y, n, false, [=](float p, float, float) { return by * p; });                      \
    }                                                                                                          \
    extern "C" __global__ void fill_from_##S(T* y, const float* value, float by, i64 n) {                      \
        float v = by * *value;                                                                                 \
        each((const T*)0, (const T*)0, y, n, false, [=](float, float, float) { return v; });                   \
    }                                                                                                          \
    extern "C" __global__ void sum_rows_##S(const T* dy, float* part, int terms, int inner, int band) {        \
        sum_rows<T>(dy, part, terms, inner, band);                                                             \
    }                                                                                                          \
    extern "C" __global__ void sum_bands_##S(const float* part, T* out, int bands, int inner, int acc) {       \
        sum_bands<T>(part, out, bands, inner, acc);                                                            \
    }                                                                                                          \
    extern "C" __global__ void sum_all_##S(const T* x, float* out, i64 n, float by) { sum_all<T>(x, out, n, by); }
ELEMENTWISE(float, f32)
ELEMENTWISE(bf16, bf16)
