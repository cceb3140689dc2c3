// Put before every kernel file. No #include anywhere: NVRTC then needs no toolkit headers.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// ---- bf16: storage only, arithmetic is always f32 ------------------------------------------
struct alignas(2) bf16 { u16 bits; };
struct alignas(4) bf16x2 { u32 bits; };

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(bf16 x) { return __int_as_float((int)((u32)x.bits << 16)); }

// Two floats to a packed pair, round to nearest even; `lo` lands in the low half (lower address).
__device__ __forceinline__ u32 pack_bf16(float lo, float hi) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
__device__ __forceinline__ float lo_f32(u32 pair) { return __int_as_float((int)(pair << 16)); }
__device__ __forceinline__ float hi_f32(u32 pair) { return __int_as_float((int)(pair & 0xffff0000u)); }

template <typename T> __device__ __forceinline__ T from_f32(float x);
template <> __device__ __forceinline__ float from_f32<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_f32<bf16>(float x) {
    bf16 r;
    r.bits = (u16)(pack_bf16(x, 0.f) & 0xffffu);
    return r;
}

// ---- eight elements at a time: one 16-byte access for bf16, two for f32 --------------------
struct alignas(16) Vec4u { u32 x, y, z, w; };
struct alignas(16) Vec4f { float x, y, z, w; };

__device__ __forceinline__ void load8(const float* p, float (&v)[8]) {
    Vec4f a = ((const Vec4f*)p)[0], b = ((const Vec4f*)p)[1];
    v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w;
    v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
}
__device__ __forceinline__ void load8(const bf16* p, float (&v)[8]) {
    Vec4u a = *(const Vec4u*)p;
    v[0] = lo_f32(a.x); v[1] = hi_f32(a.x); v[2] = lo_f32(a.y); v[3] = hi_f32(a.y);
    v[4] = lo_f32(a.z); v[5] = hi_f32(a.z); v[6] = lo_f32(a.w); v[7] = hi_f32(a.w);
}
__device__ __forceinline__ void store8(float* p, const float (&v)[8]) {
    ((Vec4f*)p)[0] = Vec4f{v[0], v[1], v[2], v[3]};
    ((Vec4f*)p)[1] = Vec4f{v[4], v[5], v[6], v[7]};
}
__device__ __forceinline__ void store8(bf16* p, const float (&v)[8]) {
    *(Vec4u*)p = Vec4u{pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
}

// ---- reductions ----------------------------------------------------------------------------
// Sums and maxima over a warp; every lane gets the result. The order is fixed, so results repeat bit for bit.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}
// Sum over a block of at most 1024 threads (a multiple of 32); `scratch` holds 33 floats; every thread gets it.
__device__ __forceinline__ float block_sum(float v, float* scratch) {
    v = warp_sum(v);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    __syncthreads();
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    if (warp == 0) {
        float t = lane < warps ? scratch[lane] : 0.f;
        t = warp_sum(t);
        if (lane == 0) scratch[32] = t;
    }
    __syncthreads();
    return scratch[32];
}
__device__ __forceinline__ float block_max(float v, float* scratch) {
    v = warp_max(v);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    __syncthreads();
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    if (warp == 0) {
        float t = lane < warps ? scratch[lane] : -3.402823e38f;
        t = warp_max(t);
        if (lane == 0) scratch[32] = t;
    }
    __syncthreads();
    return scratch[32];
}

// ---- Philox4x32-10, the same bits as src/rng.rs ----------------------------------------------
// `key` points to [seed low, seed high, stream, step]; reading it from memory lets a captured graph be replayed with
// another seed. The counter is (index, example, step, stream).
struct Words { u32 v[4]; };

__device__ __forceinline__ Words philox(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
#pragma unroll
    for (int i = 0; i < 10; i++) {
        u32 h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        u32 h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    return Words{{c0, c1, c2, c3}};
}
__device__ __forceinline__ Words noise_words(const u32* key, u32 step, u32 example, u32 index) {
    return philox(index, example, key[3] + step, key[2], key[0], key[1]);
}
__device__ __forceinline__ float uniform_of(u32 x) { return __fmul_rn((float)(x >> 8), 5.9604644775390625e-8f); }

// Box-Muller. Explicitly rounded operations: nothing is contracted, so the bits are those of the CPU.
__device__ __forceinline__ void normal_pair(u32 a, u32 b, float& z0, float& z1) {
    float u = __fmaf_rn(__uint2float_rn(a), 2.3283064365386963e-10f, 1.1641532182693481e-10f);
    int bits = __float_as_int(u), e = (bits - 0x3f3504f3) >> 23;
    float m = __fadd_rn(__int_as_float(bits - (e << 23)), -1.0f), z = __fmul_rn(m, m), fe = (float)e;
    float p = 7.0376836292e-2f;
    p = __fmaf_rn(p, m, -1.1514610310e-1f); p = __fmaf_rn(p, m, 1.1676998740e-1f); p = __fmaf_rn(p, m, -1.2420140846e-1f);
    p = __fmaf_rn(p, m, 1.4249322787e-1f); p = __fmaf_rn(p, m, -1.6668057665e-1f); p = __fmaf_rn(p, m, 2.0000714765e-1f);
    p = __fmaf_rn(p, m, -2.4999993993e-1f); p = __fmaf_rn(p, m, 3.3333331174e-1f);
    float y = __fmul_rn(__fmul_rn(p, m), z);
    y = __fmaf_rn(fe, -2.12194440e-4f, y);
    y = __fmaf_rn(z, -0.5f, y);
    float ln = __fmaf_rn(fe, 0.693359375f, __fadd_rn(m, y));
    float r = __fsqrt_rn(fmaxf(__fmul_rn(-2.0f, ln), 0.0f));
    float x = __fmul_rn(__fadd_rn((float)((int)(b & 0x3fffffffu) - 0x20000000), 0.5f), 1.4629180792671596e-9f);
    float w = __fmul_rn(x, x);
    float s = __fmaf_rn(-1.9515295891e-4f, w, 8.3321608736e-3f);
    s = __fmaf_rn(s, w, -1.6666654611e-1f);
    s = __fmaf_rn(__fmul_rn(s, w), x, x);
    float c = __fmaf_rn(2.443315711809948e-5f, w, -1.388731625493765e-3f);
    c = __fmaf_rn(c, w, 4.166664568298827e-2f);
    c = __fmaf_rn(c, __fmul_rn(w, w), __fmaf_rn(w, -0.5f, 1.0f));
    u32 q = b >> 30;
    float cc = (q & 1u) ? s : c, ss = (q & 1u) ? c : s;
    if (q == 1u || q == 2u) cc = -cc;
    if (q >= 2u) ss = -ss;
    z0 = __fmul_rn(r, cc);
    z1 = __fmul_rn(r, ss);
}
__device__ __forceinline__ void normals_of(const Words& w, float (&z)[4]) {
    normal_pair(w.v[0], w.v[1], z[0], z[1]);
    normal_pair(w.v[2], w.v[3], z[2], z[3]);
}
