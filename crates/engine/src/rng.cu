// Noise on its own; see src/rng.rs. One thread makes four consecutive numbers of a row.

__device__ __forceinline__ bool place(int rows, int n, u32& row, u32& four) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 per_row = (n + 3) / 4;
    row = (u32)(i / per_row);
    four = (u32)(i % per_row);
    return row < (u32)rows;
}

__device__ __forceinline__ void put(float* out, u32 row, u32 four, int n, const float (&v)[4]) {
    float* p = out + (u64)row * n + 4 * four;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if ((int)(4 * four + i) < n) p[i] = v[i];
}

// out (rows, n), examples (rows)
extern "C" __global__ void fill_normal(float* out, const u32* examples, const u32* key, int key_step, u32 step, int rows, int n) {
    u32 row, four;
    if (!place(rows, n, row, four)) return;
    float z[4];
    normals_of(noise_words(key + (u64)row * key_step, step, examples[row], four), z);
    put(out, row, four, n, z);
}

extern "C" __global__ void fill_uniform(float* out, const u32* examples, const u32* key, int key_step, u32 step, int rows, int n) {
    u32 row, four;
    if (!place(rows, n, row, four)) return;
    Words w = noise_words(key + (u64)row * key_step, step, examples[row], four);
    float u[4] = {uniform_of(w.v[0]), uniform_of(w.v[1]), uniform_of(w.v[2]), uniform_of(w.v[3])};
    put(out, row, four, n, u);
}
