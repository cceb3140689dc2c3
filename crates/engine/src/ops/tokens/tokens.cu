// Token sequences. One thread handles eight consecutive elements of the output, in one access where rows allow it.

__device__ __forceinline__ i64 first_of_thread() { return ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8; }
__device__ __forceinline__ bool aligned(const void* p) { return ((u64)p & 15) == 0; }

// dst (rows, inner; dst_stride apart) = or += src row r / div (src_stride apart).
template <typename T>
__device__ void strips(const T* src, T* dst, i64 rows, i64 inner, int div, i64 src_stride, i64 dst_stride, int acc) {
    i64 at = first_of_thread(), n = rows * inner;
    if (at >= n) return;
    if (((inner | src_stride | dst_stride) & 7) == 0 && aligned(src) && aligned(dst)) {
        i64 row = at / inner, col = at % inner;
        dst += row * dst_stride + col;
        float v[8], o[8];
        load8(src + row / div * src_stride + col, v);
        if (acc) {
            load8(dst, o);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] += o[i];
        }
        store8(dst, v);
    } else {
        for (int i = 0; i < 8 && at + i < n; i++) {
            i64 row = (at + i) / inner, col = (at + i) % inner, to = row * dst_stride + col;
            float v = to_f32(src[row / div * src_stride + col]);
            dst[to] = from_f32<T>(acc ? to_f32(dst[to]) + v : v);
        }
    }
}

// dst (rows, stride) = 0 but for src (rows, len) at `lo` of each row.
template <typename T> __device__ void put_strips(const T* src, T* dst, i64 rows, i64 stride, i64 lo, i64 len) {
    i64 at = first_of_thread(), n = rows * stride;
    if (at >= n) return;
    if (((stride | lo | len) & 7) == 0 && aligned(src) && aligned(dst)) {
        i64 row = at / stride, col = at % stride - lo;
        float v[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
        if (col >= 0 && col < len) load8(src + row * len + col, v);
        store8(dst + at, v);
    } else {
        for (int i = 0; i < 8 && at + i < n; i++) {
            i64 row = (at + i) / stride, col = (at + i) % stride - lo;
            dst[at + i] = col >= 0 && col < len ? src[row * len + col] : from_f32<T>(0.f);
        }
    }
}

// dst (inner) = or += sum over the (masked) rows of src. Block = 32 columns × 32 bands of rows, added up in order.
template <typename T, typename D>
__device__ void sum_examples(const T* src, i64 stride, int rows, i64 inner, const u32* mask, D* dst, int acc) {
    __shared__ float part[32][32];
    int lane = threadIdx.x & 31, band = threadIdx.x >> 5;
    i64 col = (i64)blockIdx.x * 32 + lane;
    float s = 0.f;
    if (col < inner) {
#pragma unroll 4
        for (int r = band; r < rows; r += 32)
            if (!mask || mask[r]) s += to_f32(src[r * stride + col]);
    }
    part[band][lane] = s;
    __syncthreads();
    if (band == 0 && col < inner) {
        s = 0.f;
#pragma unroll
        for (int b = 0; b < 32; b++) s += part[b][lane];
        dst[col] = from_f32<D>(acc ? to_f32(dst[col]) + s : s);
    }
}

// dx (n/inner, inner) = or += the sum of the k copies in dy, in order.
template <typename T> __device__ void repeat_bwd(const T* dy, T* dx, i64 n, int k, i64 inner, int acc) {
    i64 at = first_of_thread();
    if (at >= n) return;
    if ((inner & 7) == 0 && aligned(dy) && aligned(dx)) {
        float s[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f}, v[8];
        if (acc) load8(dx + at, s);
        dy += at / inner * k * inner + at % inner;
        for (int j = 0; j < k; j++) {
            load8(dy + j * inner, v);
#pragma unroll
            for (int i = 0; i < 8; i++) s[i] += v[i];
        }
        store8(dx + at, s);
    } else {
        for (int i = 0; i < 8 && at + i < n; i++) {
            i64 from = (at + i) / inner * k * inner + (at + i) % inner;
            float s = acc ? to_f32(dx[at + i]) : 0.f;
            for (int j = 0; j < k; j++) s += to_f32(dy[from + j * inner]);
            dx[at + i] = from_f32<T>(s);
        }
    }
}

// y (b, d) = mean of x (b, tokens, d) over tokens lo .. lo + len. Block = one example × 64 columns: 8 threads of 8 columns
// × 32 bands of tokens, added up in order.
template <typename T> __device__ void mean_fwd(const T* x, T* y, int tokens, int lo, int len, int d) {
    __shared__ float part[32][64];
    int group = (threadIdx.x & 7) * 8, band = threadIdx.x >> 3, col = blockIdx.y * 64 + group;
    float s[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f}, v[8];
    x += ((i64)blockIdx.x * tokens + lo) * d;
    if (d % 8 == 0 && aligned(x)) {
        if (col < d)
            for (int r = band; r < len; r += 32) {
                load8(x + (i64)r * d + col, v);
#pragma unroll
                for (int i = 0; i < 8; i++) s[i] += v[i];
            }
    } else {
        for (int r = band; r < len; r += 32)
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (col + i < d) s[i] += to_f32(x[(i64)r * d + col + i]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) part[band][group + i] = s[i];
    __syncthreads();
    col = blockIdx.y * 64 + threadIdx.x;
    if (threadIdx.x < 64 && col < d) {
        float t = 0.f;
#pragma unroll
        for (int b = 0; b < 32; b++) t += part[b][threadIdx.x];
        y[(i64)blockIdx.x * d + col] = from_f32<T>(t / len);
    }
}

// dx (b, tokens, d) = dy (b, d) / len on tokens lo .. lo + len, 0 elsewhere; or added.
template <typename T>
__device__ void mean_bwd(const T* dy, T* dx, i64 n, int tokens, int lo, int len, int d, int acc) {
    i64 at = first_of_thread();
    if (at >= n) return;
    float by = 1.f / len;
    if (d % 8 == 0 && aligned(dy) && aligned(dx)) {
        i64 row = at / d;
        int token = (int)(row % tokens) - lo;
        bool in = token >= 0 && token < len;
        if (acc && !in) return;
        float v[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f}, o[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
        if (in) load8(dy + row / tokens * d + at % d, v);
        if (acc) load8(dx + at, o);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = o[i] + by * v[i];
        store8(dx + at, v);
    } else {
        for (int i = 0; i < 8 && at + i < n; i++) {
            i64 row = (at + i) / d;
            int token = (int)(row % tokens) - lo;
            float v = token >= 0 && token < len ? by * to_f32(dy[row / tokens * d + (at + i) % d]) : 0.f;
            dx[at + i] = from_f32<T>(acc ? to_f32(dx[at + i]) + v : v);
        }
    }
}

// y (b, inner) = other (inner) where mask (b) is set, else x.
template <typename T> __device__ void select_fwd(const T* x, const T* other, const u32* mask, T* y, i64 n, i64 inner) {
    i64 at = first_of_thread();
    if (at >= n) return;
    if ((inner & 7) == 0 && aligned(x) && aligned(other) && aligned(y)) {
        float v[8];
        load8(mask[at / inner] ? other + at % inner : x + at, v);
        store8(y + at, v);
    } else {
        for (int i = 0; i < 8 && at + i < n; i++) {
            i64 e = at + i;
            y[e] = mask[e / inner] ? other[e % inner] : x[e];
        }
    }
}
template <typename T> __device__ void select_bwd(const T* dy, const u32* mask, T* dx, i64 n, i64 inner, int acc) {
    i64 at = first_of_thread();
    if (at >= n) return;
    if ((inner & 7) == 0 && aligned(dy) && aligned(dx)) {
        bool kept = !mask[at / inner];
        if (acc && !kept) return;
        float v[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f}, o[8];
        if (kept) load8(dy + at, v);
        if (acc) {
            load8(dx + at, o);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] += o[i];
        }
        store8(dx + at, v);
    } else {
        for (int i = 0; i < 8 && at + i < n; i++) {
            float v = mask[(at + i) / inner] ? 0.f : to_f32(dy[at + i]);
            dx[at + i] = from_f32<T>(acc ? to_f32(dx[at + i]) + v : v);
        }
    }
}

#define SUM_EXAMPLES(T, D, S)                                                                                        \
    extern "C" __global__ void sum_examples_##S(const T* src, i64 stride, int rows, i64 inner, const u32* mask,      \
                                                D* dst, int acc) {                                                   \
        sum_examples<T, D>(src, stride, rows, inner, mask, dst, acc);                                                \
    }
SUM_EXAMPLES(float, float, f32_f32)
SUM_EXAMPLES(bf16, float, bf16_f32)
SUM_EXAMPLES(bf16, bf16, bf16_bf16)

#define TOKENS(T, S)                                                                                                    \
    extern "C" __global__ void strips_##S(const T* src, T* dst, i64 rows, i64 inner, int div, i64 src_stride,          \
                                          i64 dst_stride, int acc) {                                                   \
        strips<T>(src, dst, rows, inner, div, src_stride, dst_stride, acc);                                            \
    }                                                                                                                  \
    extern "C" __global__ void put_strips_##S(const T* src, T* dst, i64 rows, i64 stride, i64 lo, i64 len) {           \
        put_strips<T>(src, dst, rows, stride, lo, len);                                                                \
    }                                                                                                                  \
    extern "C" __global__ void repeat_bwd_##S(const T* dy, T* dx, i64 n, int k, i64 inner, int acc) {                  \
        repeat_bwd<T>(dy, dx, n, k, inner, acc);                                                                       \
    }                                                                                                                  \
    extern "C" __global__ void mean_fwd_##S(const T* x, T* y, int tokens, int lo, int len, int d) {                    \
        mean_fwd<T>(x, y, tokens, lo, len, d);                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void mean_bwd_##S(const T* dy, T* dx, i64 n, int tokens, int lo, int len, int d, int acc) {  \
        mean_bwd<T>(dy, dx, n, tokens, lo, len, d, acc);                                                               \
    }                                                                                                                  \
    extern "C" __global__ void select_fwd_##S(const T* x, const T* other, const u32* mask, T* y, i64 n, i64 inner) {   \
        select_fwd<T>(x, other, mask, y, n, inner);                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void select_bwd_##S(const T* dy, const u32* mask, T* dx, i64 n, i64 inner, int acc) {        \
        select_bwd<T>(dy, mask, dx, n, inner, acc);                                                                    \
    }
TOKENS(float, f32)
TOKENS(bf16, bf16)
