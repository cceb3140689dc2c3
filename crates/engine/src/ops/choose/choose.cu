// A token for each row of logits. One block owns a row and reads it once for the largest logit; where more than that is asked
// for, again for the sums and for the probabilities; a draw reads one tile more. Probabilities are added up in f64; the
// exponentials are those of the CPU bit for bit, so that both devices draw the same token.

constexpr int MAX_TILES = 512, MAX_BANNED = 32;
constexpr u32 FREE = 0xffffffffu;
#define NEG_INF __int_as_float(0xff800000)

// e^x as in src/cpu/math.rs: explicitly rounded operations.
__device__ __forceinline__ float exp_same(float x) {
    const float magic = 12582912.f;
    float c = fminf(fmaxf(x, -87.3f), 88.7f);
    float shifted = __fmaf_rn(c, 1.44269504088896340736f, magic), n = __fsub_rn(shifted, magic);
    float r = __fmaf_rn(n, 2.12194440e-4f, __fmaf_rn(n, -0.693359375f, c));
    float p = 1.9875691500e-4f;
    p = __fmaf_rn(p, r, 1.3981999507e-3f); p = __fmaf_rn(p, r, 8.3334519073e-3f); p = __fmaf_rn(p, r, 4.1665795894e-2f);
    p = __fmaf_rn(p, r, 1.6666665459e-1f); p = __fmaf_rn(p, r, 5.0000001201e-1f);
    float e = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0f);
    int k = __float_as_int(shifted) - __float_as_int(magic), h = k >> 1;
    e = __fmul_rn(__fmul_rn(e, __int_as_float((h + 127) << 23)), __int_as_float((k - h + 127) << 23));
    return x < -87.3f ? 0.f : e;
}

__device__ __forceinline__ double warp_sum(double v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

__device__ __forceinline__ double block_sum(double v, double* scratch) {
    v = warp_sum(v);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    __syncthreads();
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    double t = 0.0;
    for (int w = 0; w < warps; w++) t += scratch[w];
    return t;
}

// The sum over the threads before this one.
__device__ __forceinline__ double block_before(double v, double* scratch) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    double s = v;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        double t = __shfl_up_sync(0xffffffffu, s, o);
        if (lane >= o) s += t;
    }
    __syncthreads();
    if (lane == 31) scratch[warp] = s;
    __syncthreads();
    double before = 0.0;
    for (int w = 0; w < warp; w++) before += scratch[w];
    double own = __shfl_up_sync(0xffffffffu, s, 1);
    return before + (lane ? own : 0.0);
}

// Largest value with the smallest index; every thread gets both.
struct Best { float value; int at; };
__device__ __forceinline__ bool better(float v, int i, const Best& b) { return v > b.value || (v == b.value && i < b.at); }
__device__ __forceinline__ Best block_best(Best b, Best* scratch) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        float v = __shfl_xor_sync(0xffffffffu, b.value, o);
        int i = __shfl_xor_sync(0xffffffffu, b.at, o);
        if (better(v, i, b)) b = Best{v, i};
    }
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    __syncthreads();
    if (lane == 0) scratch[warp] = b;
    __syncthreads();
    b = scratch[0];
    for (int w = 1; w < warps; w++)
        if (better(scratch[w].value, scratch[w].at, b)) b = scratch[w];
    return b;
}

// The logits that count: guided, without what is banned or not a number.
template <typename T> struct Row {
    const T *c, *u;  // u: null without guidance
    float w;
    const u32* banned;
    int bans, vocab;
    bool wide;  // all of the row can be read 16 bytes at a time, what lies beside it included

    __device__ __forceinline__ float guided(float c, float u) const { return __fmaf_rn(w, __fsub_rn(c, u), u); }
    __device__ __forceinline__ bool is_banned(int i) const {
        bool is = false;
#pragma unroll 1
        for (int k = 0; k < bans; k++) is |= banned[k] == (u32)i;
        return is;
    }
    __device__ __forceinline__ float one(int i) const {
        float l = u ? guided(to_f32(c[i]), to_f32(u[i])) : to_f32(c[i]);
        return l == l && !is_banned(i) ? l : NEG_INF;
    }
    // Eight from `at` as they are, where the row is wide.
    template <bool PAIR> __device__ __forceinline__ void plain(int at, float (&l)[8]) const {
        load8(c + at, l);
        if (PAIR) {
            float y[8];
            load8(u + at, y);
#pragma unroll
            for (int i = 0; i < 8; i++) l[i] = guided(l[i], y[i]);
        }
    }
    // Eight from `at`; beyond the vocabulary −∞.
    __device__ __forceinline__ void eight(int at, float (&l)[8]) const {
        if (wide && at < vocab) {
            if (u) plain<true>(at, l);
            else plain<false>(at, l);
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (at + i >= vocab || !(l[i] == l[i])) l[i] = NEG_INF;
#pragma unroll 1
            for (int k = 0; k < bans; k++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (banned[k] == (u32)(at + i)) l[i] = NEG_INF;
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) l[i] = at + i < vocab ? one(at + i) : NEG_INF;
        }
    }

    // The larger of `best` and eight logits from `at`, all of them before the vocabulary's end. Few of them are larger.
    __device__ __forceinline__ void improve(const float (&l)[8], int at, Best& best) const {
        float most = l[0];
#pragma unroll
        for (int i = 1; i < 8; i++) most = fmaxf(most, l[i]);
        if (!(most > best.value)) return;
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (l[i] > best.value && !is_banned(at + i)) best = Best{l[i], at + i};
    }

    // This thread's largest logit, the first of equals. Four loads are under way at a time, with nothing to wait for between.
    template <bool PAIR> __device__ __forceinline__ Best largest() const {
        constexpr int AHEAD = 4;
        Best best{NEG_INF, 0x7fffffff};
        int at = threadIdx.x * 8, step = blockDim.x * 8;
        if (wide) {
            for (; at + (AHEAD - 1) * step + 8 <= vocab; at += AHEAD * step) {
                float l[AHEAD][8];
#pragma unroll
                for (int j = 0; j < AHEAD; j++) plain<PAIR>(at + j * step, l[j]);
#pragma unroll
                for (int j = 0; j < AHEAD; j++) improve(l[j], at + j * step, best);
            }
        }
        for (; at < vocab; at += step) {
            float l[8];
            eight(at, l);
            improve(l, at, best);
        }
        return best;
    }
};

// logits (B·N, V), or (2·B·N, V) with weight (1, or B with a weight_step of 1): per example N rows with condition, N without; rows lie `stride` apart.
// examples (B), classes (bans), bits, given, tokens, log_prob, entropy (B·N), prob (B·N, V), top_tokens and top_log_prob
// (B·N, k); nulls: not asked for. Without `add_up` there is nothing but the most likely token.
// Dynamic shared memory: a double for each warp and tile, if they are added up.
extern __shared__ double parts[];

template <typename T>
__device__ void choose(const T* logits, int n, int vocab, int stride, const float* weight, int weight_step,
                       const u32* key, int key_step, u32 step, const u32* examples, const u32* classes, int bans, const u32* bits, const u32* given, int add_up,
                       u32* tokens, float* log_prob, float* entropy, T* prob, int k, u32* top_tokens,
                       float* top_log_prob) {
    __shared__ double sums[33];
    __shared__ double before[MAX_TILES];
    __shared__ Best bests[32];
    __shared__ u32 banned[MAX_BANNED];
    __shared__ int ban_count, pick;
    i64 row = blockIdx.x;
    u32 fixed = given ? given[row] : FREE;
    if (!add_up && fixed < (u32)vocab) {
        if (threadIdx.x == 0) tokens[row] = fixed;
        return;
    }
    if (threadIdx.x == 0) {
        int count = 0;
        for (int j = 0; j < bans; j++)
            if (bits[row] >> j & 1) banned[count++] = classes[j];
        ban_count = count;
        pick = -1;
    }
    __syncthreads();
    Row<T> r;
    r.w = weight ? weight[row / n * weight_step] : 1.f;
    r.c = logits + (weight ? row / n * 2 * n + row % n : row) * stride;
    r.u = weight ? r.c + (i64)n * stride : 0;
    r.banned = banned;
    r.bans = ban_count;
    r.vocab = vocab;
    r.wide = stride % 8 == 0 && (((u64)r.c | (u64)r.u) & 15) == 0;

    Best best = block_best(weight ? r.template largest<true>() : r.template largest<false>(), bests);
    if (best.value == NEG_INF) best.at = 0;
    if (!add_up) {
        if (threadIdx.x == 0) tokens[row] = (u32)best.at;
        return;
    }
    float base = best.value == NEG_INF ? 0.f : best.value;

    // The sum of each tile; before[t] is what lies before tile t.
    int tile = blockDim.x * 8, tiles = (vocab + tile - 1) / tile, warps = blockDim.x >> 5;
    double sum = 0.0, weighted = 0.0;
    float l[8];
    for (int t = 0; t < tiles; t++) {
        r.eight(t * tile + threadIdx.x * 8, l);
        double s = 0.0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float x = __fsub_rn(l[i], base), e = exp_same(x);
            s += (double)e;
            if (e > 0.f) weighted += (double)e * (double)x;
        }
        s = warp_sum(s);
        if ((threadIdx.x & 31) == 0) parts[t * warps + (threadIdx.x >> 5)] = s;
    }
    weighted = block_sum(weighted, sums);  // after its barriers all parts are there
    for (int t = 0; t < tiles; t++) {
        if (threadIdx.x == 0) before[t] = sum;
        for (int w = 0; w < warps; w++) sum += parts[t * warps + w];
    }
    __syncthreads();

    u32 token = fixed < (u32)vocab ? fixed : (u32)best.at;
    if (key && fixed >= (u32)vocab && sum > 0.0) {
        Words words = noise_words(key + row / n * key_step, step, examples[row / n], (u32)(row % n));
        double u = (double)((u64)words.v[0] << 21 | words.v[1] >> 11) * 1.1102230246251565e-16;  // 2^-53
        double target = u * sum;
        // The last place of positive weight before which no more than the target lies: tile, thread, then class.
        int t = tiles - 1;
        while (t > 0 && (before[t] > target || !((t + 1 < tiles ? before[t + 1] : sum) > before[t]))) t--;
        r.eight(t * tile + threadIdx.x * 8, l);
        double own = 0.0;
#pragma unroll
        for (int i = 0; i < 8; i++) own += (double)exp_same(__fsub_rn(l[i], base));
        double at = before[t] + block_before(own, sums);
        if (own > 0.0 && at <= target) atomicMax(&pick, (int)threadIdx.x);
        __syncthreads();
        int thread = pick;
        __syncthreads();
        if ((int)threadIdx.x == thread) {
            int found = -1;
            for (int i = 0; i < 8; i++) {
                float e = exp_same(__fsub_rn(l[i], base));
                if (e > 0.f && (at <= target || found < 0)) found = t * tile + threadIdx.x * 8 + i;
                at += (double)e;
            }
            pick = found;
        }
        __syncthreads();
        if (thread >= 0 && pick >= 0) token = (u32)pick;
    }
    double ln = log(sum);
    if (threadIdx.x == 0) {
        tokens[row] = token;
        if (log_prob) {
            log_prob[row] = (float)((double)__fsub_rn(r.one((int)token), base) - ln);
            entropy[row] = (float)(ln - weighted / sum);
        }
    }
    if (prob) {
        float by = (float)(1.0 / sum);
        T* p = prob + row * vocab;
        bool wide = ((u64)p & 15) == 0;
        for (int at = threadIdx.x * 8; at < vocab; at += tile) {
            if (fixed < (u32)vocab) {
#pragma unroll
                for (int i = 0; i < 8; i++) l[i] = at + i == (int)fixed ? 1.f : 0.f;
            } else {
                r.eight(at, l);
#pragma unroll
                for (int i = 0; i < 8; i++) l[i] = by * exp_same(__fsub_rn(l[i], base));
            }
            if (wide && at + 8 <= vocab) {
                store8(p + at, l);
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (at + i < vocab) p[at + i] = from_f32<T>(l[i]);
            }
        }
    }
    // The next in the order of (value, index) each time.
    for (int j = 0; j < k; j++) {
        if (threadIdx.x == 0) {
            top_tokens[row * k + j] = (u32)best.at;
            top_log_prob[row * k + j] = (float)((double)__fsub_rn(best.value, base) - ln);
        }
        if (j + 1 == k) break;
        Best last = best;
        best = Best{NEG_INF, 0x7fffffff};
        for (int at = threadIdx.x * 8; at < vocab; at += tile) {
            r.eight(at, l);
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (at + i < vocab && better(last.value, last.at, Best{l[i], at + i}) && better(l[i], at + i, best))
                    best = Best{l[i], at + i};
        }
        best = block_best(best, bests);
    }
}

#define CHOOSE(T, S)                                                                                                    \
    extern "C" __global__ void choose_##S(const T* logits, int n, int vocab, int stride, const float* weight,           \
                                          int weight_step, const u32* key, int key_step, u32 step, const u32* examples, \
                                          const u32* classes, int bans, const u32* bits, const u32* given, int add_up,  \
                                          u32* tokens, float* log_prob, float* entropy, T* prob, int k,                 \
                                          u32* top_tokens, float* top_log_prob) {                                       \
        choose<T>(logits, n, vocab, stride, weight, weight_step, key, key_step, step, examples, classes, bans, bits,    \
                  given, add_up, tokens, log_prob, entropy, prob, k, top_tokens, top_log_prob);                         \
    }
CHOOSE(float, f32)
CHOOSE(bf16, bf16)
