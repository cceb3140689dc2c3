// Softmax cross-entropy over a chunk of classes. One block owns a row; a row is read once per pass, eight logits a
// thread at a time, in 16-byte accesses where the row is aligned.
//
// state (rows, 5): largest logit, sum of exp(l - largest), sum of q·l, sum of l, sum of q
// stats (rows, 3): largest logit, 1 / sum of exp(l - largest), sum of q

constexpr int STATE = 5, STATS = 3;
#define NEG_INF __int_as_float(0xff800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

__device__ __forceinline__ bool aligned(const void* p) { return ((u64)p & 15) == 0; }

// Up to eight values from p; those beyond n are `fill`.
template <typename T> __device__ __forceinline__ void load_some(const T* p, int n, bool wide, float fill, float (&v)[8]) {
    if (wide && n >= 8) return load8(p, v);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = i < n ? to_f32(p[i]) : fill;
}

// l += bias, where there is one.
__device__ __forceinline__ void add_bias(const float* bias, int n, bool wide, float (&l)[8]) {
    if (!bias) return;
    float b[8];
    load_some(bias, n, wide, 0.f, b);
#pragma unroll
    for (int i = 0; i < 8; i++) l[i] += b[i];
}

// logits (rows, stride), bias (count) or null: classes first..first+count of `classes`. hard (rows) or soft (rows, classes).
template <typename T>
__device__ void ce_update(const T* logits, int stride, const float* bias, const u32* hard, const float* soft, float* state,
                          int count, int first, int classes, int smooth) {
    __shared__ float scratch[33];
    i64 row = blockIdx.x;
    logits += row * stride;
    state += row * STATE;
    if (soft) soft += row * classes + first;
    bool wide = aligned(logits), wide_bias = aligned(bias), wide_soft = aligned(soft);
    float largest = NEG_INF, sum = 0.f, dot = 0.f, total = 0.f, mass = 0.f;
    for (int at = threadIdx.x * 8; at < count; at += blockDim.x * 8) {
        int n = count - at;
        float l[8], top = largest;
        load_some(logits + at, n, wide, NEG_INF, l);
        add_bias(bias ? bias + at : bias, n, wide_bias, l);
#pragma unroll
        for (int i = 0; i < 8; i++) top = fmaxf(top, l[i]);
        if (top > largest) {
            sum *= expf(largest - top);
            largest = top;
        }
        float base = largest == NEG_INF ? 0.f : largest;  // -inf - -inf would be NaN
#pragma unroll
        for (int i = 0; i < 8; i++) sum += expf(l[i] - base);
        if (smooth) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i < n) total += l[i];
        }
        if (soft) {
            float q[8];
            load_some(soft + at, n, wide_soft, 0.f, q);
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i < n) { dot += q[i] * l[i]; mass += q[i]; }
        }
    }
    float before = first ? state[0] : NEG_INF;
    float all = block_max(fmaxf(largest, before), scratch);
    sum = block_sum(largest == all ? sum : sum * expf(largest - all), scratch);
    if (smooth) total = block_sum(total, scratch);
    if (soft) { dot = block_sum(dot, scratch); mass = block_sum(mass, scratch); }
    if (threadIdx.x) return;
    if (first) {
        sum += before == all ? state[1] : state[1] * expf(before - all);
        dot += state[2];
        total += state[3];
        mass += state[4];
    }
    if (hard) {
        i64 at = (i64)hard[row] - first;
        if (at >= 0 && at < count) {
            dot = to_f32(logits[at]) + (bias ? bias[at] : 0.f);
            mass = 1.f;
        }
    }
    state[0] = all; state[1] = sum; state[2] = dot; state[3] = total; state[4] = mass;
}

// loss (rows) and stats from the state. A class that was in no chunk makes the row NaN, so that it is noticed.
extern "C" __global__ void ce_finish(const float* state, const float* weights, float* loss, float* stats, int rows,
                                     int classes, float smoothing, int is_hard) {
    i64 row = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    state += row * STATE;
    float largest = state[0], sum = state[1], dot = state[2], total = state[3], mass = state[4];
    if (is_hard && mass == 0.f) mass = NOT_A_NUMBER;
    float ln = logf(sum), y = mass * ln + (mass * largest - dot);
    if (smoothing > 0.f) y = (1.f - smoothing) * y + smoothing * mass * (ln + (largest - total / classes));
    loss[row] = weights ? weights[row] * y : y;
    stats[row * STATS] = largest;
    stats[row * STATS + 1] = 1.f / sum;
    stats[row * STATS + 2] = mass;
}

// dl (rows, d_stride) = dy·w·(sum q · p - q'), added to dl if acc. dl may be the logits themselves.
template <typename T>
__device__ void ce_grad(const T* logits, int stride, const float* bias, const u32* hard, const float* soft,
                        const float* weights, const float* stats, const float* dy, T* dl, int d_stride, int count,
                        int first, int classes, float smoothing, int acc) {
    i64 row = blockIdx.x;
    logits += row * stride;
    dl += row * d_stride;
    if (soft) soft += row * classes + first;
    bool wide = aligned(logits), wide_out = aligned(dl), wide_bias = aligned(bias), wide_soft = aligned(soft);
    float base = stats[row * STATS], mass = stats[row * STATS + 2], g = weights ? dy[row] * weights[row] : dy[row];
    if (base == NEG_INF) base = 0.f;
    float by = g * mass * stats[row * STATS + 1], even = g * mass * smoothing / classes, sharp = g * (1.f - smoothing);
    i64 target = hard ? (i64)hard[row] - first : -1;
    for (int at = threadIdx.x * 8; at < count; at += blockDim.x * 8) {
        int n = count - at;
        float l[8], q[8], o[8];
        load_some(logits + at, n, wide, 0.f, l);
        add_bias(bias ? bias + at : bias, n, wide_bias, l);
        if (soft) load_some(soft + at, n, wide_soft, 0.f, q);
        if (acc) load_some(dl + at, n, wide_out, 0.f, o);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float v = by * expf(l[i] - base) - even;
            if (soft) v -= sharp * q[i];
            if (at + i == target) v -= sharp;
            o[i] = acc ? o[i] + v : v;
        }
        if (wide_out && n >= 8) {
            store8(dl + at, o);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i < n) dl[at + i] = from_f32<T>(o[i]);
        }
    }
}

// Column sums of dl over a band of rows: part (bands, count). Thread = one column; block = 128 columns × one band.
template <typename T> __device__ void ce_bias_grad(const T* dl, int stride, float* part, int rows, int count, int band) {
    int col = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * band, last = min(first + band, rows);
    if (col >= count) return;
    float s = 0.f;
#pragma unroll 8
    for (int r = first; r < last; r++) s += to_f32(dl[(i64)r * stride + col]);
    part[(i64)blockIdx.y * count + col] = s;
}

// Add up the bands in order.
extern "C" __global__ void ce_bias_reduce(const float* part, float* db, int bands, int count, int acc) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= count) return;
    float s = 0.f;
#pragma unroll 8
    for (int b = 0; b < bands; b++) s += part[(i64)b * count + col];
    db[col] = acc ? db[col] + s : s;
}

#define CROSS_ENTROPY(T, S)                                                                                              \
    extern "C" __global__ void ce_update_##S(const T* logits, int stride, const float* bias, const u32* hard,           \
                                             const float* soft, float* state, int count, int first, int classes,        \
                                             int smooth) {                                                              \
        ce_update<T>(logits, stride, bias, hard, soft, state, count, first, classes, smooth);                           \
    }                                                                                                                   \
    extern "C" __global__ void ce_grad_##S(const T* logits, int stride, const float* bias, const u32* hard,             \
                                           const float* soft, const float* weights, const float* stats,                 \
                                           const float* dy, T* dl, int d_stride, int count, int first, int classes,     \
                                           float smoothing, int acc) {                                                  \
        ce_grad<T>(logits, stride, bias, hard, soft, weights, stats, dy, dl, d_stride, count, first, classes,           \
                   smoothing, acc);                                                                                     \
    }                                                                                                                   \
    extern "C" __global__ void ce_bias_grad_##S(const T* dl, int stride, float* part, int rows, int count, int band) {  \
        ce_bias_grad<T>(dl, stride, part, rows, count, band);                                                           \
    }
CROSS_ENTROPY(float, f32)
CROSS_ENTROPY(bf16, bf16)
