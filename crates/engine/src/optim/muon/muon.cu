// Muon around its products; see mod.rs beside this. Matrices lie in stacks of bf16, padded with zeros to whole groups of eight rows
// and columns. Table, per matrix: start in the flat buffers, rows, columns, start in the stacks. State as in optim.cu.
enum { STEPS, SKIPPED, IN_A_ROW, NORM, SCALE, CORRECTION1, CORRECTION2, EMA_DECAY, LR };
#define PARTS 32  // blocks per matrix: gridDim.y

// A matrix of this block, and where groups of eight of it lie.
struct Matrix {
    i64 start, place;
    int rows, cols, groups;  // groups of eight per padded row
    i64 total;               // groups in all
    bool whole;              // each group is eight values, aligned in the flat buffers
};
__device__ __forceinline__ Matrix matrix_of(const u32* table, int i) {
    Matrix m;
    m.start = table[i * 4], m.rows = table[i * 4 + 1], m.cols = table[i * 4 + 2], m.place = table[i * 4 + 3];
    m.groups = (m.cols + 7) / 8;
    m.total = (i64)((m.rows + 7) / 8 * 8) * m.groups;
    m.whole = m.cols % 8 == 0;
    return m;
}

// g, m: flat. m <- mu m + g, x = g + mu m, part (matrices, PARTS): sums of x squared.
extern "C" __global__ void muon_momentum(const u32* table, const float* g, float* m, bf16* x, float* part, const float* state,
                                         float mu) {
    __shared__ float scratch[33];
    float scale = state[SCALE];
    if (scale == 0.f) return;
    Matrix a = matrix_of(table, blockIdx.x);
    float s = 0.f;
    for (i64 i = (i64)blockIdx.y * blockDim.x + threadIdx.x; i < a.total; i += (i64)PARTS * blockDim.x) {
        int row = (int)(i / a.groups), col = (int)(i % a.groups) * 8;
        i64 at = a.start + (i64)row * a.cols + col;
        float X[8] = {};
        if (row < a.rows && a.whole) {
            float G[8], M[8];
            load8(g + at, G);
            load8(m + at, M);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                float y = G[k] * scale;
                M[k] = mu * M[k] + y;
                X[k] = mu * M[k] + y;
            }
            store8(m + at, M);
        } else if (row < a.rows) {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                if (col + k < a.cols) {
                    float y = g[at + k] * scale, M = mu * m[at + k] + y;
                    m[at + k] = M;
                    X[k] = mu * M + y;
                }
            }
        }
#pragma unroll
        for (int k = 0; k < 8; k++) s += X[k] * X[k];
        store8(x + a.place + i * 8, X);
    }
    s = block_sum(s, scratch);
    if (threadIdx.x == 0) part[blockIdx.x * PARTS + blockIdx.y] = s;
}

// x <- x / norm.
extern "C" __global__ void muon_normalise(const u32* table, bf16* x, const float* part, const float* state) {
    if (state[SCALE] == 0.f) return;
    Matrix a = matrix_of(table, blockIdx.x);
    float factor = 1.f / (sqrtf(warp_sum(part[blockIdx.x * PARTS + (threadIdx.x & 31)])) + 1e-7f);
    for (i64 i = (i64)blockIdx.y * blockDim.x + threadIdx.x; i < a.total; i += (i64)PARTS * blockDim.x) {
        float X[8];
        load8(x + a.place + i * 8, X);
#pragma unroll
        for (int k = 0; k < 8; k++) X[k] *= factor;
        store8(x + a.place + i * 8, X);
    }
}

// gram, square (len): stacks of n by n, n a multiple of 8. square <- a + b gram + c square.
extern "C" __global__ void muon_polynomial(const bf16* gram, bf16* square, int n, i64 len) {
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at >= len) return;
    int row = (int)(at / n % n), col = (int)(at % n);
    float A[8], S[8];
    load8(gram + at, A);
    load8(square + at, S);
#pragma unroll
    for (int k = 0; k < 8; k++) S[k] = (col + k == row ? 3.4445f : 0.f) - 4.7750f * A[k] + 2.0315f * S[k];
    store8(square + at, S);
}

// w, ema, low: flat; ema and low (the bf16 shadow) may be null. w <- w (1 - lr decay) - lr 0.2 sqrt(longer side) x.
extern "C" __global__ void muon_apply(const u32* table, const bf16* x, float* w, float* ema, bf16* low, const float* state,
                                      float decay) {
    if (state[SCALE] == 0.f) return;
    Matrix a = matrix_of(table, blockIdx.x);
    float lr = state[LR], keep = state[EMA_DECAY], shrink = 1.f - lr * decay;
    float rate = lr * 0.2f * sqrtf((float)max(a.rows, a.cols));
    for (i64 i = (i64)blockIdx.y * blockDim.x + threadIdx.x; i < a.total; i += (i64)PARTS * blockDim.x) {
        int row = (int)(i / a.groups), col = (int)(i % a.groups) * 8;
        if (row >= a.rows) continue;
        i64 at = a.start + (i64)row * a.cols + col;
        float X[8];
        load8(x + a.place + i * 8, X);
        if (a.whole) {
            float W[8], E[8];
            load8(w + at, W);
#pragma unroll
            for (int k = 0; k < 8; k++) W[k] = W[k] * shrink - rate * X[k];
            store8(w + at, W);
            if (low) store8(low + at, W);
            if (ema) {
                load8(ema + at, E);
#pragma unroll
                for (int k = 0; k < 8; k++) E[k] += (1.f - keep) * (W[k] - E[k]);
                store8(ema + at, E);
            }
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                if (col + k < a.cols) {
                    float W = w[at + k] * shrink - rate * X[k];
                    w[at + k] = W;
                    if (low) low[at + k] = from_f32<bf16>(W);
                    if (ema) ema[at + k] += (1.f - keep) * (W - ema[at + k]);
                }
            }
        }
    }
}
