// y_t = signal·onehot(token) + spread·ε, four classes a thread, one row a block column: no division by the vocabulary. Noise as in src/rng.rs: token n of an example takes
// words n·⌈V/4⌉ + v/4 of that example's stream.

// y (rows, stride ≥ V) holds rows first.. of all (B·N, V), zeros after each; tokens (B·N); examples (B); eps (B·N, V) or null; signal,
// spread (B·N / sharing), each for `sharing` rows.
template <typename T>
__device__ void noisy_rows(T* y, const u32* tokens, const float* signal, const float* spread, int sharing,
                           const float* eps, const u32* key, int key_step, u32 step, const u32* examples, int first, int n, int v, int stride) {
    u32 fours = (v + 3) / 4, local = blockIdx.x, four = blockIdx.y * blockDim.x + threadIdx.x;
    if (4 * four >= stride) return;
    u32 row = first + local, example = row / (u32)n, token = row % (u32)n;
    int at = 4 * four, hot = (int)tokens[row] - at;
    u32 level = row / (u32)sharing;
    float scale = spread[level], z[4];
    if (eps) {
#pragma unroll
        for (int j = 0; j < 4; j++) z[j] = at + j < v ? eps[(u64)row * v + at + j] : 0.f;
    } else {
        normals_of(noise_words(key + (u64)example * key_step, step, examples[example], token * fours + four), z);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) z[j] = at + j < v ? scale * z[j] + (j == hot ? signal[level] : 0.f) : 0.f;
    T* p = y + (u64)local * stride + at;
    if (sizeof(T) == 2 && stride % 4 == 0) {
        *(u64*)p = (u64)pack_bf16(z[2], z[3]) << 32 | pack_bf16(z[0], z[1]);
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (at + j < stride) p[j] = from_f32<T>(z[j]);
}

// to (rows, to_stride) = or += from (rows, from_stride), with zeros after shorter rows.
template <typename T> __device__ void restride(const T* from, T* to, int from_stride, int to_stride, int acc) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= to_stride) return;
    T x = col < from_stride ? from[(i64)blockIdx.y * from_stride + col] : from_f32<T>(0.f);
    to += (i64)blockIdx.y * to_stride + col;
    *to = acc ? from_f32<T>(to_f32(*to) + to_f32(x)) : x;
}

#define NOISY(T, S)                                                                                                     \
    extern "C" __global__ void noisy_rows_##S(T* y, const u32* tokens, const float* signal, const float* spread,        \
                                              int sharing, const float* eps, const u32* key, int key_step, u32 step,                  \
                                              const u32* examples, int first, int n, int v, int stride) {               \
        noisy_rows<T>(y, tokens, signal, spread, sharing, eps, key, key_step, step, examples, first, n, v, stride);               \
    }                                                                                                                   \
    extern "C" __global__ void restride_##S(const T* from, T* to, int from_stride, int to_stride, int acc) {     \
        restride<T>(from, to, from_stride, to_stride, acc);                                                          \
    }
NOISY(float, f32)
NOISY(bf16, bf16)
