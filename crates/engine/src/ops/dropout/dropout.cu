// Dropout: forward, backward and drop path are one kernel. One thread handles eight consecutive elements of an example, two
// blocks of noise.

// y (rows, inner) = or += by·x where the uniform number of the element (`whole`: of the example) is not below p, else 0.
template <typename T>
__device__ void dropout(const T* x, T* y, const u32* examples, const u32* key, u32 step, int rows, i64 inner, float p,
                        float by, int whole, int acc) {
    i64 thread = (i64)blockIdx.x * blockDim.x + threadIdx.x, per_row = (inner + 7) / 8, row = thread / per_row;
    if (row >= rows) return;
    i64 first = thread % per_row * 8;
    u32 id = examples[row];
    float m[8];
    if (whole) {
        float keep = uniform_of(noise_words(key, step, id, 0).v[0]) < p ? 0.f : by;
#pragma unroll
        for (int i = 0; i < 8; i++) m[i] = keep;
    } else {
        Words a = noise_words(key, step, id, (u32)(first / 4)), b = noise_words(key, step, id, (u32)(first / 4 + 1));
#pragma unroll
        for (int i = 0; i < 8; i++) m[i] = uniform_of(i < 4 ? a.v[i & 3] : b.v[i & 3]) < p ? 0.f : by;
    }
    x += row * inner + first;
    y += row * inner + first;
    // A dropped element is 0 whatever it was, so it is chosen and not multiplied.
    if (first + 8 <= inner && (((u64)x | (u64)y) & 15) == 0) {
        float v[8], o[8];
        load8(x, v);
        if (acc) load8(y, o);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = m[i] == 0.f ? 0.f : m[i] * v[i];
            if (acc) v[i] += o[i];
        }
        store8(y, v);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (first + i < inner) {
                float v = m[i] == 0.f ? 0.f : m[i] * to_f32(x[i]);
                y[i] = from_f32<T>(acc ? to_f32(y[i]) + v : v);
            }
    }
}

#define DROPOUT(T, S)                                                                                                \
    extern "C" __global__ void dropout_##S(const T* x, T* y, const u32* examples, const u32* key, u32 step, int rows, \
                                           i64 inner, float p, float by, int whole, int acc) {                       \
        dropout<T>(x, y, examples, key, step, rows, inner, p, by, whole, acc);                                       \
    }
DROPOUT(float, f32)
DROPOUT(bf16, bf16)
