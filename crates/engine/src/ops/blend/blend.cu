// out (rows, d) = by[0]·first + by[1]·second + by[2]·third; a row's by is `step` (3, or 0 for one and the same) behind that of the
// row before. The first is x (rows, d), or where that is null column ids[row] of
// matrix (d, v); the others may be null. One thread an element: columns lie far apart in memory, but there are few of them.
template <typename T>
__device__ void blend(float* out, const float* by, int step, const T* x, const float* matrix, const u32* ids, int v,
                      const float* second, const float* third, i64 n, int d) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    by += i / d * step;
    float f;
    if (x) {
        f = to_f32(x[i]);
    } else {
        u32 id = ids[i / d];
        f = id < (u32)v ? matrix[i % d * v + id] : 0.f;
    }
    float o = by[0] * f;
    if (second) o = fmaf(by[1], second[i], o);
    if (third) o = fmaf(by[2], third[i], o);
    out[i] = o;
}

// out (B, each) = u + w·(c − u) of pairs (B, 2, each): c, then u. n = B·each. A thread has eight elements, of one example or not.
template <typename T> __device__ void guide(T* out, const T* pairs, const float* weight, int weight_step, i64 n, i64 each) {
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at >= n) return;
    if (each % 8 == 0) {
        float w = weight[at / each * weight_step];
        const T* c = pairs + at / each * each + at;
        float x[8], y[8];
        load8(c, x);
        load8(c + each, y);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = fmaf(w, x[i] - y[i], y[i]);
        store8(out + at, x);
        return;
    }
    for (i64 i = at; i < min(at + 8, n); i++) {
        const T* c = pairs + i / each * each + i;
        float u = to_f32(c[each]), w = weight[i / each * weight_step];
        out[i] = from_f32<T>(fmaf(w, to_f32(*c) - u, u));
    }
}

#define BLEND(T, S)                                                                                                       \
    extern "C" __global__ void blend_##S(float* out, const float* by, int step, const T* x, const float* matrix,          \
                                         const u32* ids, int v, const float* second, const float* third, i64 n, int d) {  \
        blend<T>(out, by, step, x, matrix, ids, v, second, third, n, d);                                                  \
    }                                                                                                                     \
    extern "C" __global__ void guide_##S(T* out, const T* pairs, const float* weight, int weight_step, i64 n, i64 each) {                  \
        guide<T>(out, pairs, weight, weight_step, n, each);                                                                            \
    }
BLEND(float, f32)
BLEND(bf16, bf16)
