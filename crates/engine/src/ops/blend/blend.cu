// out (rows, d) = by[0]·first + by[1]·second + by[2]·third. The first is x (rows, d), or where that is null column ids[row] of
// matrix (d, v); the others may be null. One thread an element: columns lie far apart in memory, but there are few of them.
template <typename T>
__device__ void blend(float* out, const float* by, const T* x, const float* matrix, const u32* ids, int v,
                      const float* second, const float* third, i64 n, int d) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
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

#define BLEND(T, S)                                                                                                  \
    extern "C" __global__ void blend_##S(float* out, const float* by, const T* x, const float* matrix, const u32* ids, \
                                         int v, const float* second, const float* third, i64 n, int d) {             \
        blend<T>(out, by, x, matrix, ids, v, second, third, n, d);                                                   \
    }
BLEND(float, f32)
BLEND(bf16, bf16)
