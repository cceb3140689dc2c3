// Rows of a table by id, and the deterministic scatter of their gradients: positions are listed by id (integer atomics,
// any order), each list is sorted, and each row of the table is summed in the order of its list.

constexpr u32 LIGHT = 32;        // lists up to here are sorted and summed by one warp
constexpr u32 IN_SHARED = 4096;  // lists up to here are sorted in shared memory
constexpr u32 ALL = 0xffffffffu;

__device__ __forceinline__ u32 lanes_below() { return (1u << (threadIdx.x & 31)) - 1u; }

// y (n/d, d) = table[ids]; 0 for an id that is not in the table.
template <typename T> __device__ void embed_fwd(const float* table, const u32* ids, T* y, i64 n, int d, u32 vocab) {
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at >= n) return;
    if (d % 8 == 0 && (((u64)table | (u64)y) & 15) == 0) {
        u32 id = ids[at / d];
        float v[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
        if (id < vocab) load8(table + (i64)id * d + at % d, v);
        store8(y + at, v);
    } else {
        for (int i = 0; i < 8 && at + i < n; i++) {
            u32 id = ids[(at + i) / d];
            y[at + i] = from_f32<T>(id < vocab ? table[(i64)id * d + (at + i) % d] : 0.f);
        }
    }
}

// Add 1 to where[id] for each thread with an id below vocab, one atomic per distinct id of the warp; the count before.
__device__ __forceinline__ u32 count_up(u32* where, u32 id, u32 vocab) {
    bool mine = id < vocab;
    u32 active = __ballot_sync(ALL, mine), before = 0;
    if (mine) {
        u32 peers = __match_any_sync(active, id), below = __popc(peers & lanes_below());
        if (below == 0) before = atomicAdd(where + id, __popc(peers));
        before = __shfl_sync(peers, before, __ffs(peers) - 1) + below;
    }
    return before;
}

extern "C" __global__ void embed_count(const u32* ids, u32* counts, int n, u32 vocab) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    count_up(counts, i < n ? ids[i] : ALL, vocab);
}

// The next free places behind `cursor`, one for each thread that wants it.
__device__ __forceinline__ u32 take(u32* cursor, bool wanted) {
    u32 all = __ballot_sync(ALL, wanted), base = 0;
    if ((threadIdx.x & 31) == 0 && all) base = atomicAdd(cursor, __popc(all));
    return __shfl_sync(ALL, base, 0) + __popc(all & lanes_below());
}

// A stretch of the list for every id: ends[id] is where it starts until embed_fill has moved it to its end. Which stretch
// an id gets is left to chance and does not show in the sums.
extern "C" __global__ void embed_segments(const u32* counts, u32* ends, u32* cursors, u32* light, u32* heavy, int vocab) {
    int v = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    u32 c = v < vocab ? counts[v] : 0, upto = c, base = 0;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        u32 left = __shfl_up_sync(ALL, upto, o);
        if (lane >= o) upto += left;
    }
    if (lane == 31 && upto) base = atomicAdd(cursors, upto);
    base = __shfl_sync(ALL, base, 31);
    if (v < vocab) ends[v] = base + upto - c;
    bool few = c > 0 && c <= LIGHT, many = c > LIGHT;
    u32 at = take(cursors + 1, few);
    if (few) light[at] = v;
    at = take(cursors + 2, many);
    if (many) heavy[at] = v;
}

extern "C" __global__ void embed_fill(const u32* ids, u32* ends, u32* list, int n, u32 vocab) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    u32 id = i < n ? ids[i] : ALL, at = count_up(ends, id, vocab);
    if (id < vocab) list[at] = i;
}

// Sort the long lists. One block each; a list too long for shared memory is made anew by walking over all ids in order.
extern "C" __global__ void embed_sort(const u32* ids, const u32* counts, const u32* ends, const u32* cursors,
                                      const u32* heavy, u32* list, int n) {
    __shared__ u32 s[IN_SHARED];
    if (blockIdx.x >= cursors[2]) return;
    u32 id = heavy[blockIdx.x], c = counts[id], tid = threadIdx.x;
    list += ends[id] - c;
    if (c <= IN_SHARED) {
        u32 m = LIGHT;
        while (m < c) m <<= 1;
        for (u32 i = tid; i < m; i += blockDim.x) s[i] = i < c ? list[i] : ALL;
        for (u32 k = 2; k <= m; k <<= 1)
            for (u32 j = k >> 1; j > 0; j >>= 1) {
                __syncthreads();
                for (u32 i = tid; i < m; i += blockDim.x) {
                    u32 o = i ^ j, a = s[i], b = s[o];
                    if (o > i && (a > b) == ((i & k) == 0)) { s[i] = b; s[o] = a; }
                }
            }
        __syncthreads();
        for (u32 i = tid; i < c; i += blockDim.x) list[i] = s[i];
        return;
    }
    u32 lane = tid & 31, warp = tid >> 5, done = 0;
    for (i64 first = 0; first < n; first += blockDim.x) {
        i64 i = first + tid;
        bool mine = i < n && ids[i] == id;
        u32 hits = __ballot_sync(ALL, mine);
        if (lane == 0) s[warp] = __popc(hits);
        __syncthreads();
        u32 found = s[lane];
        u32 before = __reduce_add_sync(ALL, lane < warp ? found : 0u), all = __reduce_add_sync(ALL, found);
        if (mine) list[done + before + __popc(hits & lanes_below())] = (u32)i;
        done += all;
        __syncthreads();
    }
}

// One warp per id: sort its list by rank, then sum the rows of dy (n, d) column by column.
template <typename T>
__device__ void embed_sum_light(const T* dy, const u32* counts, const u32* ends, const u32* cursors, const u32* light,
                                const u32* list, float* dtable, int d, int acc) {
    __shared__ u32 sorted[4][LIGHT];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, entry = blockIdx.x * 4 + warp;
    if (entry >= cursors[1]) return;
    u32 id = light[entry], c = counts[id], at = lane < c ? list[ends[id] - c + lane] : ALL, rank = 0;
    for (u32 j = 0; j < c; j++) rank += __shfl_sync(ALL, at, j) < at;
    if (lane < c) sorted[warp][rank] = at;
    __syncwarp();
    dtable += (i64)id * d;
    if (d % 8 == 0 && (((u64)dy | (u64)dtable) & 15) == 0) {
        for (int col = lane * 8; col < d; col += 256) {
            float s[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f}, v[8];
            for (u32 j = 0; j < c; j++) {
                load8(dy + (i64)sorted[warp][j] * d + col, v);
#pragma unroll
                for (int i = 0; i < 8; i++) s[i] += v[i];
            }
            if (acc) {
                load8(dtable + col, v);
#pragma unroll
                for (int i = 0; i < 8; i++) s[i] += v[i];
            }
            store8(dtable + col, s);
        }
    } else {
        for (int col = lane; col < d; col += 32) {
            float s = 0.f;
            for (u32 j = 0; j < c; j++) s += to_f32(dy[(i64)sorted[warp][j] * d + col]);
            dtable[col] = acc ? dtable[col] + s : s;
        }
    }
}

// Block = one id × 64 columns: 8 threads of 8 columns × 32 bands of its sorted list, added up in order.
template <typename T>
__device__ void embed_sum_heavy(const T* dy, const u32* counts, const u32* ends, const u32* cursors, const u32* heavy,
                                const u32* list, float* dtable, int d, int acc) {
    __shared__ float part[32][64];
    if (blockIdx.x >= cursors[2]) return;
    u32 id = heavy[blockIdx.x], c = counts[id], band = threadIdx.x >> 3;
    int group = (threadIdx.x & 7) * 8, col = blockIdx.y * 64 + group;
    list += ends[id] - c;
    float s[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f}, v[8];
    bool vec = d % 8 == 0 && ((u64)dy & 15) == 0;
    if (vec && col < d) {
#pragma unroll 4
        for (u32 j = band; j < c; j += 32) {
            load8(dy + (i64)list[j] * d + col, v);
#pragma unroll
            for (int i = 0; i < 8; i++) s[i] += v[i];
        }
    } else if (!vec) {
        for (u32 j = band; j < c; j += 32)
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (col + i < d) s[i] += to_f32(dy[(i64)list[j] * d + col + i]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) part[band][group + i] = s[i];
    __syncthreads();
    col = blockIdx.y * 64 + threadIdx.x;
    if (threadIdx.x < 64 && col < d) {
        float t = 0.f;
#pragma unroll
        for (int b = 0; b < 32; b++) t += part[b][threadIdx.x];
        i64 to = (i64)id * d + col;
        dtable[to] = acc ? dtable[to] + t : t;
    }
}

#define EMBED(T, S)                                                                                                   \
    extern "C" __global__ void embed_fwd_##S(const float* table, const u32* ids, T* y, i64 n, int d, u32 vocab) {    \
        embed_fwd<T>(table, ids, y, n, d, vocab);                                                                    \
    }                                                                                                                \
    extern "C" __global__ void embed_sum_light_##S(const T* dy, const u32* counts, const u32* ends,                  \
                                                   const u32* cursors, const u32* light, const u32* list,            \
                                                   float* dtable, int d, int acc) {                                  \
        embed_sum_light<T>(dy, counts, ends, cursors, light, list, dtable, d, acc);                                  \
    }                                                                                                                \
    extern "C" __global__ void embed_sum_heavy_##S(const T* dy, const u32* counts, const u32* ends,                  \
                                                   const u32* cursors, const u32* heavy, const u32* list,            \
                                                   float* dtable, int d, int acc) {                                  \
        embed_sum_heavy<T>(dy, counts, ends, cursors, heavy, list, dtable, d, acc);                                  \
    }
EMBED(float, f32)
EMBED(bf16, bf16)
