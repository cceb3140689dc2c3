// x·(1 + scale) + shift and x + g·y, with scale, shift and g (b, d) for x, y (b, tokens, d).

// f(p, q, r, s) of a and b at the element and of u and w at its example's column; eight elements a thread.
template <typename T, typename F>
__device__ __forceinline__ void each(const T* a, const T* b, const T* u, const T* w, T* y, i64 n, int tokens, int d, F f) {
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at >= n) return;
    if (d % 8 == 0 && (((u64)a | (u64)b | (u64)u | (u64)w | (u64)y) & 15) == 0) {
        i64 per = at / d / tokens * d + at % d;
        float p[8], q[8], r[8], s[8];
        load8(a + at, p);
        if (b) load8(b + at, q);
        load8(u + per, r);
        if (w) load8(w + per, s);
#pragma unroll
        for (int i = 0; i < 8; i++) p[i] = f(p[i], q[i], r[i], s[i]);
        store8(y + at, p);
    } else {
        for (int i = 0; i < 8 && at + i < n; i++) {
            i64 per = (at + i) / d / tokens * d + (at + i) % d;
            float q = b ? to_f32(b[at + i]) : 0.f, s = w ? to_f32(w[per]) : 0.f;
            y[at + i] = from_f32<T>(f(to_f32(a[at + i]), q, to_f32(u[per]), s));
        }
    }
}

// dx (b, tokens, d) = or += dy·(one + factor); dfactor (b, d) = Σ dy·x; dshift (b, d) = Σ dy. Any of the three may be null.
// Block = one example × 64 columns: 8 threads of 8 columns × 32 bands of tokens, whose sums are added up in order.
template <typename T>
__device__ void modulate_bwd(const T* x, const T* factor, const T* dy, T* dx, T* dfactor, T* dshift, float one, int tokens,
                             int d, int acc) {
    __shared__ float part[2][32][64];
    int group = (threadIdx.x & 7) * 8, band = threadIdx.x >> 3, col = blockIdx.y * 64 + group;
    i64 first = (i64)blockIdx.x * tokens * d;
    float f[8], sp[8], ss[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sp[i] = ss[i] = 0.f;
        f[i] = col + i < d ? one + to_f32(factor[(i64)blockIdx.x * d + col + i]) : 0.f;
    }
    if (d % 8 == 0 && (((u64)x | (u64)dy | (u64)dx) & 15) == 0) {
        if (col < d)
            for (int t = band; t < tokens; t += 32) {
                i64 at = first + (i64)t * d + col;
                float a[8], g[8], o[8];
                load8(dy + at, g);
                if (dfactor) load8(x + at, a);
                if (dx) {
                    if (acc) load8(dx + at, o);
#pragma unroll
                    for (int i = 0; i < 8; i++) o[i] = acc ? o[i] + g[i] * f[i] : g[i] * f[i];
                    store8(dx + at, o);
                }
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    if (dfactor) sp[i] += g[i] * a[i];
                    ss[i] += g[i];
                }
            }
    } else {
        for (int t = band; t < tokens; t += 32)
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (col + i < d) {
                    i64 at = first + (i64)t * d + col + i;
                    float g = to_f32(dy[at]);
                    if (dx) dx[at] = from_f32<T>(acc ? to_f32(dx[at]) + g * f[i] : g * f[i]);
                    sp[i] += g * to_f32(x[at]);
                    ss[i] += g;
                }
    }
    if (!dfactor && !dshift) return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        part[0][band][group + i] = sp[i];
        part[1][band][group + i] = ss[i];
    }
    __syncthreads();
    int which = threadIdx.x >> 6, c = threadIdx.x & 63;
    T* out = which == 0 ? dfactor : dshift;
    col = blockIdx.y * 64 + c;
    if (which < 2 && out && col < d) {
        float s = 0.f;
#pragma unroll
        for (int b = 0; b < 32; b++) s += part[which][b][c];
        out[(i64)blockIdx.x * d + col] = from_f32<T>(s);
    }
}

#define MODULATE(T, S)                                                                                                   \
    extern "C" __global__ void modulate_fwd_##S(const T* x, const T* shift, const T* scale, T* y, i64 n, int tokens,    \
                                                int d) {                                                                \
        each(x, (const T*)0, shift, scale, y, n, tokens, d,                                                             \
             [](float x, float, float shift, float scale) { return x * (1.f + scale) + shift; });                       \
    }                                                                                                                   \
    extern "C" __global__ void gate_fwd_##S(const T* x, const T* y, const T* g, T* out, i64 n, int tokens, int d) {     \
        each(x, y, g, (const T*)0, out, n, tokens, d,                                                                   \
             [](float x, float y, float g, float) { return x + g * y; });                                               \
    }                                                                                                                   \
    extern "C" __global__ void modulate_bwd_##S(const T* x, const T* factor, const T* dy, T* dx, T* dfactor, T* dshift, \
                                                float one, int tokens, int d, int acc) {                                \
        modulate_bwd<T>(x, factor, dy, dx, dfactor, dshift, one, tokens, d, acc);                                       \
    }
MODULATE(float, f32)
MODULATE(bf16, bf16)
