// Clipping, AdamW, EMA and the bf16 shadow in one pass. State (f32, see src/optim/mod.rs): steps, skipped, skipped in a
// row, norm, scale, 1/(1-b1^t), 1/(1-b2^t), EMA decay, learning rate.
enum { STEPS, SKIPPED, IN_A_ROW, NORM, SCALE, CORRECTION1, CORRECTION2, EMA_DECAY, LR };

// g (n) -> part (blocks): sums of squares. n is a multiple of 128.
extern "C" __global__ void norm_parts(const float* g, float* part, i64 n) {
    __shared__ float scratch[33];
    float s = 0.f;
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 4; i < n; i += (i64)gridDim.x * blockDim.x * 4) {
        Vec4f v = *(const Vec4f*)(g + i);
        s += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    s = block_sum(s, scratch);
    if (threadIdx.x == 0) part[blockIdx.x] = s;
}

// One block: the sum of what norm_parts found.
extern "C" __global__ void sum_parts(const float* part, int blocks, float* out) {
    __shared__ float scratch[33];
    float s = 0.f;
    for (int i = threadIdx.x; i < blocks; i += blockDim.x) s += part[i];
    s = block_sum(s, scratch);
    if (threadIdx.x == 0) *out = s;
}

// One block: the norm, and what this step needs of it.
extern "C" __global__ void norm_finish(const float* part, int blocks, float* state, float clip, float b1, float b2, float ema) {
    __shared__ float scratch[33];
    float s = 0.f;
    for (int i = threadIdx.x; i < blocks; i += blockDim.x) s += part[i];
    s = block_sum(s, scratch);
    if (threadIdx.x != 0) return;
    float norm = sqrtf(s);
    state[NORM] = norm;
    if (!(norm < __int_as_float(0x7f800000))) {  // infinite or NaN
        state[SKIPPED] += 1.f;
        state[IN_A_ROW] += 1.f;
        state[SCALE] = 0.f;
        return;
    }
    state[IN_A_ROW] = 0.f;
    float t = state[STEPS] += 1.f;
    state[SCALE] = clip > 0.f ? fminf(clip / (norm + 1e-6f), 1.f) : 1.f;
    state[CORRECTION1] = (float)(1.0 / (1.0 - pow((double)b1, (double)t)));
    state[CORRECTION2] = (float)(1.0 / (1.0 - pow((double)b2, (double)t)));
    state[EMA_DECAY] = fminf(ema, (1.f + t) / (10.f + t));
}

// w, g, m, v, ema (n); low (n) is the bf16 shadow. ema and low may be null. n is a multiple of 128.
extern "C" __global__ void adamw(float* w, const float* g, float* m, float* v, float* ema, bf16* low, const float* state,
                                 i64 n, float b1, float b2, float eps, float decay) {
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    float scale = state[SCALE];
    if (at >= n || scale == 0.f) return;
    float c1 = state[CORRECTION1], c2 = state[CORRECTION2], keep = state[EMA_DECAY], lr = state[LR], shrink = 1.f - lr * decay;
    Vec4f W = *(Vec4f*)(w + at), G = *(const Vec4f*)(g + at), M = *(Vec4f*)(m + at), V = *(Vec4f*)(v + at), E = W;
    if (ema) E = *(Vec4f*)(ema + at);
    float *pw = &W.x, *pm = &M.x, *pv = &V.x, *pe = &E.x;
    const float* pg = &G.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float x = pg[i] * scale;
        pm[i] = b1 * pm[i] + (1.f - b1) * x;
        pv[i] = b2 * pv[i] + (1.f - b2) * x * x;
        pw[i] = pw[i] * shrink - lr * (pm[i] * c1 / (sqrtf(pv[i] * c2) + eps));
        pe[i] += (1.f - keep) * (pw[i] - pe[i]);
    }
    *(Vec4f*)(w + at) = W;
    *(Vec4f*)(m + at) = M;
    *(Vec4f*)(v + at) = V;
    if (ema) *(Vec4f*)(ema + at) = E;
    if (low) {
        u32 pair[2] = {pack_bf16(W.x, W.y), pack_bf16(W.z, W.w)};
        *(u64*)(low + at) = (u64)pair[1] << 32 | pair[0];
    }
}
