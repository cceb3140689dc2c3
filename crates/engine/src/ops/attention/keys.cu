// Keys and values that several examples share, put beside each example's own, and their gradients taken apart again.
//   keys  [R, C, 2w]        shared; example e sees row of[e]
//   qkv   [B, N, 3w]        the examples' own queries, keys and values
//   kv    [B, C + N, 2w]    what an example sees: shared keys, then its own
// The copies count in units of 16, 4 or 2 bytes, whichever divides a row. A warp moves one row.

template <typename U>
__device__ void join_keys(const U* keys, const U* qkv, const u32* of, U* kv, i64 rows, int C, int N, int w) {
    i64 row = (i64)blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    i64 e = row / (C + N);
    int j = (int)(row - e * (C + N));
    const U* from = j < C ? keys + ((i64)of[e] * C + j) * 2 * w : qkv + (e * N + j - C) * 3 * w + w;
    U* to = kv + row * 2 * w;
    for (int c = threadIdx.x % 32; c < 2 * w; c += 32) to[c] = from[c];
}

// Gradients of the own keys and values to their place in d_qkv [B, N, 3w].
template <typename U>
__device__ void own_keys_grad(const U* d_kv, U* d_qkv, i64 rows, int C, int N, int w) {
    i64 row = (i64)blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    i64 e = row / N;
    const U* from = d_kv + (e * (C + N) + C + (row - e * N)) * 2 * w;
    U* to = d_qkv + row * 3 * w + w;
    for (int c = threadIdx.x % 32; c < 2 * w; c += 32) to[c] = from[c];
}

// d_keys [R, C, width] = sums over the examples order[starts[r]] .. order[starts[r + 1] - 1] that see row r, in that order.
// A block per (r, key); V columns per thread.
template <typename T, int V>
__device__ void shared_keys_grad(const T* d_kv, const u32* order, const u32* starts, T* d_keys, int C, int N, int width) {
    int r = blockIdx.x / C, j = blockIdx.x % C, begin = (int)starts[r], end = (int)starts[r + 1];
    for (int c = threadIdx.x * V; c < width; c += blockDim.x * V) {
        float sum[V] = {};
#pragma unroll 4
        for (int s = begin; s < end; s++) {
            const T* from = d_kv + ((i64)order[s] * (C + N) + j) * width + c;
            float x[V];
            if constexpr (V == 8) load8(from, x); else x[0] = to_f32(from[0]);
#pragma unroll
            for (int i = 0; i < V; i++) sum[i] += x[i];
        }
        T* to = d_keys + (i64)blockIdx.x * width + c;
        if constexpr (V == 8) store8(to, sum); else to[0] = from_f32<T>(sum[0]);
    }
}

#define COPIES(U, S)                                                                                                            \
    extern "C" __global__ void join_keys_##S(const U* keys, const U* qkv, const u32* of, U* kv, i64 rows, int C, int N, int w) { \
        join_keys<U>(keys, qkv, of, kv, rows, C, N, w);                                                                         \
    }                                                                                                                           \
    extern "C" __global__ void own_keys_grad_##S(const U* d_kv, U* d_qkv, i64 rows, int C, int N, int w) {                      \
        own_keys_grad<U>(d_kv, d_qkv, rows, C, N, w);                                                                           \
    }
COPIES(Vec4u, 16)
COPIES(u32, 4)
COPIES(u16, 2)

#define SUMS(T, S)                                                                                                              \
    extern "C" __global__ void shared_keys_grad_##S(const T* d_kv, const u32* order, const u32* starts, T* d_keys, int C, int N, int width) { \
        if (width % 8 == 0) shared_keys_grad<T, 8>(d_kv, order, starts, d_keys, C, N, width);                                   \
        else shared_keys_grad<T, 1>(d_kv, order, starts, d_keys, C, N, width);                                                  \
    }
SUMS(float, f32)
SUMS(bf16, bf16)
