// Images (b, channels, height, width) to patches (b, height/p · width/p, channels·p·p) and back. Each element of one is one
// element of the other, so both directions walk over the patches. Patches a multiple of 8 wide move eight pixels at a time.

// Where element `at` of the patches lies in the images.
__device__ __forceinline__ i64 pixel(i64 at, int channels, int height, int width, int p) {
    int len = channels * p * p, across = width / p, cells = height / p * across;
    i64 row = at / len;
    int in = (int)(at % len), cell = (int)(row % cells);
    int c = in / (p * p), py = in / p % p, px = in % p;
    int y = cell / across * p + py, x = cell % across * p + px;
    return ((row / cells * channels + c) * height + y) * width + x;
}

template <typename T>
__device__ void patchify_fwd(const float* images, T* y, i64 n, int channels, int height, int width, int p) {
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at >= n) return;
    if (p % 8 == 0 && (((u64)images | (u64)y) & 15) == 0) {
        float v[8];
        load8(images + pixel(at, channels, height, width, p), v);
        store8(y + at, v);
    } else {
        for (int i = 0; i < 8 && at + i < n; i++)
            y[at + i] = from_f32<T>(images[pixel(at + i, channels, height, width, p)]);
    }
}

template <typename T>
__device__ void patchify_bwd(const T* dy, float* dimages, i64 n, int channels, int height, int width, int p, int acc) {
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at >= n) return;
    if (p % 8 == 0 && (((u64)dimages | (u64)dy) & 15) == 0) {
        float v[8], o[8];
        dimages += pixel(at, channels, height, width, p);
        load8(dy + at, v);
        if (acc) {
            load8(dimages, o);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] += o[i];
        }
        store8(dimages, v);
    } else {
        for (int i = 0; i < 8 && at + i < n; i++) {
            i64 to = pixel(at + i, channels, height, width, p);
            float v = to_f32(dy[at + i]);
            dimages[to] = acc ? dimages[to] + v : v;
        }
    }
}

#define PATCHIFY(T, S)                                                                                                  \
    extern "C" __global__ void patchify_fwd_##S(const float* images, T* y, i64 n, int channels, int height, int width, \
                                                int p) {                                                               \
        patchify_fwd<T>(images, y, n, channels, height, width, p);                                                     \
    }                                                                                                                  \
    extern "C" __global__ void patchify_bwd_##S(const T* dy, float* dimages, i64 n, int channels, int height,          \
                                                int width, int p, int acc) {                                           \
        patchify_bwd<T>(dy, dimages, n, channels, height, width, p, acc);                                              \
    }
PATCHIFY(float, f32)
PATCHIFY(bf16, bf16)
