// What a row of logits says about a token: ln p(token), |onehot - p|², entropy. One block owns a row and reads it twice, the
// second time from cache; eight logits a thread at a time, in 16-byte accesses where the row is aligned.

#define NEG_INF __int_as_float(0xff800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

// Up to eight values from p; those beyond n are -inf.
template <typename T> __device__ __forceinline__ void load_some(const T* p, int n, bool wide, float (&v)[8]) {
    if (wide && n >= 8) return load8(p, v);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = i < n ? to_f32(p[i]) : NEG_INF;
}

// logits (rows, v), targets (rows) -> y (rows, 3)
template <typename T> __device__ void token_scores(const T* logits, const u32* targets, float* y, int v) {
    __shared__ float scratch[33];
    i64 row = blockIdx.x;
    logits += row * v;
    bool wide = ((u64)logits & 15) == 0;
    float l[8], top = NEG_INF;
    for (int at = threadIdx.x * 8; at < v; at += blockDim.x * 8) {
        load_some(logits + at, v - at, wide, l);
#pragma unroll
        for (int i = 0; i < 8; i++) top = fmaxf(top, l[i]);
    }
    top = block_max(top, scratch);
    u32 t = targets[row];
    float others = 0.f, square = 0.f, dot = 0.f;  // over all classes but t; dot over all
    for (int at = threadIdx.x * 8; at < v; at += blockDim.x * 8) {
        load_some(logits + at, v - at, wide, l);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float d = l[i] - top, e = expf(d);
            if (at + i != t) {
                others += e;
                square += e * e;
            }
            if (e > 0.f) dot += d * e;  // 0·-inf would be NaN
        }
    }
    others = block_sum(others, scratch);
    square = block_sum(square, scratch);
    dot = block_sum(dot, scratch);
    if (threadIdx.x) return;
    bool known = t < (u32)v;
    float d = known ? to_f32(logits[t]) - top : NOT_A_NUMBER, sum = others + expf(d), ln = logf(sum);
    y[row * 3] = d - ln;
    y[row * 3 + 1] = (others * others + square) / (sum * sum);
    y[row * 3 + 2] = ln - dot / sum;
}

#define TOKEN_SCORES(T, S)                                                                                             \
    extern "C" __global__ void token_scores_##S(const T* logits, const u32* targets, float* y, int v) {                \
        token_scores<T>(logits, targets, y, v);                                                                        \
    }
TOKEN_SCORES(float, f32)
TOKEN_SCORES(bf16, bf16)
