// Rows of `from` values to rows of `to`: wider ones end in zeros, narrower ones are cut. Attention uses it to run head
// sizes that its kernels are not compiled for: zeros in queries, keys and values change no score and no output.
template <typename T> __device__ void resize_rows(const T* src, T* dst, i64 rows, int from, int to) {
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < rows * to; i += step) {
        i64 row = i / to;
        int col = (int)(i - row * to);
        dst[i] = col < from ? src[row * from + col] : from_f32<T>(0.f);
    }
}

#define RESIZE(T, S)                                                                                        \
    extern "C" __global__ void resize_rows_##S(const T* src, T* dst, i64 rows, int from, int to) {         \
        resize_rows<T>(src, dst, rows, from, to);                                                           \
    }
RESIZE(float, f32)
RESIZE(bf16, bf16)
