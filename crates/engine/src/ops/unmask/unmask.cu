// Reveal masked tokens, and mask revealed ones again. One block owns an example; sequences are short, so a rank is counted against
// all other tokens.

constexpr u32 FREE = 0xffffffffu;

__device__ __forceinline__ float trust(const float* confidence, int i) {
    float c = confidence[i];
    return c == c ? c : __int_as_float(0xff800000);  // not a number is trusted least
}

// old, old_log_prob, chosen, confidence, tokens, log_prob (B, n); share (1, or B with a share_step of 1); key null: the most confident.
extern "C" __global__ void unmask(const u32* old, const float* old_log_prob, const u32* chosen, const float* confidence,
                                  u32 mask, const float* share, int share_step, const u32* key, int key_step, u32 step,
                                  const u32* examples, int n, u32* tokens, float* log_prob) {
    __shared__ int masked;
    i64 first = (i64)blockIdx.x * n;
    old += first; old_log_prob += first; chosen += first; confidence += first; tokens += first; log_prob += first;
    share += (i64)blockIdx.x * share_step;
    if (threadIdx.x == 0) masked = 0;
    __syncthreads();
    int own = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) own += old[i] == mask;
    if (own) atomicAdd(&masked, own);
    __syncthreads();
    float wanted = fmaxf(ceilf(__fsub_rn(__fmul_rn((float)masked, *share), 1e-3f)), 1.f);
    int count = min((int)wanted, masked);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        bool reveal = false;
        if (old[i] == mask) {
            if (key) {
                reveal = uniform_of(noise_words(key + (u64)blockIdx.x * key_step, step, examples[blockIdx.x], (u32)i).v[0]) < *share;
            } else {
                float mine = trust(confidence, i);
                int rank = 0;
                for (int j = 0; j < n; j++) {
                    if (old[j] != mask) continue;
                    float other = trust(confidence, j);
                    rank += other > mine || (other == mine && j < i);
                }
                reveal = rank < count;
            }
        }
        tokens[i] = reveal ? chosen[i] : old[i];
        log_prob[i] = reveal ? confidence[i] : old_log_prob[i];
    }
}

// before, before_log_prob, after, after_log_prob, kept (null: none), tokens, log_prob (B, n); share and key as above; key null: the
// least confident of those that were revealed before.
extern "C" __global__ void remask(const u32* before, const float* before_log_prob, const u32* after,
                                  const float* after_log_prob, const u32* kept, u32 mask, const float* share, int share_step,
                                  const u32* key, int key_step, u32 step, const u32* examples, int n, u32* tokens,
                                  float* log_prob) {
    __shared__ int revealed;
    i64 first = (i64)blockIdx.x * n;
    before += first; before_log_prob += first; after += first; after_log_prob += first; tokens += first; log_prob += first;
    if (kept) kept += first;
    share += (i64)blockIdx.x * share_step;
    auto loose = [&](int i) { return before[i] != mask && (!kept || kept[i] == FREE); };
    if (threadIdx.x == 0) revealed = 0;
    __syncthreads();
    int own = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) own += loose(i);
    if (own) atomicAdd(&revealed, own);
    __syncthreads();
    int count = min((int)floorf(__fadd_rn(__fmul_rn((float)revealed, *share), 0.5f)), revealed);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        bool again = false;
        if (loose(i)) {
            if (key) {
                again = uniform_of(noise_words(key + (u64)blockIdx.x * key_step, step, examples[blockIdx.x], (u32)i).v[0]) < *share;
            } else {
                float mine = trust(before_log_prob, i);
                int rank = 0;
                for (int j = 0; j < n; j++) {
                    if (!loose(j)) continue;
                    float other = trust(before_log_prob, j);
                    rank += other < mine || (other == mine && j < i);
                }
                again = rank < count;
            }
        }
        tokens[i] = again ? mask : after[i];
        log_prob[i] = again ? 0.f : after_log_prob[i];
    }
}
