// Matrix products by warpgroups (128 threads, wgmma), for chips that have them: compiled for sm_90a. Put after tiles.cu; heads of 64.
//
// Shared tiles are those of load_rows: rows of 128 bytes, 16-byte chunks swizzled by row & 7, which is the layout that wgmma
// calls 128-byte swizzle. Tiles begin at multiples of 1024 bytes. Warp w of a warpgroup holds rows 16w .. 16w + 16 of a
// fragment or accumulator, laid out as for mma.
// Kernels have 128 registers for four warpgroups. Where a change needs more, ptxas makes each product wait for the one before
// and says so with C7512 (--ptxas-options=-v).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA
#endif

constexpr u64 WGMMA_LAYOUT = 1ull << 62 | 64ull << 32 | 64ull << 16;  // 128-byte swizzle, 1024 bytes between groups of 8 rows

// A shared tile as an operand, from this address on.
__device__ __forceinline__ u64 operand(u32 address) { return WGMMA_LAYOUT | (address & 0x3ffffu) >> 4; }

// ---- warpgroup instructions -----------------------------------------------------------------
#ifdef HAS_WGMMA
// Registers may be handed over to wgmma; what was issued since the last time is a batch; all but the last N batches are done.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// What was written to shared memory can be read by wgmma, after a barrier.
__device__ __forceinline__ void shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// A barrier for the threads of one warpgroup; only one of a block may use it.
__device__ __forceinline__ void group_sync() { asm volatile("bar.sync 1, 128;" ::: "memory"); }
// Keeps the compiler from moving or reusing registers across this point: they belong to wgmma until it is waited for.
__device__ __forceinline__ void hold(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ __forceinline__ void hold(u32& x) { asm volatile("" : "+r"(x)::"memory"); }

#define SUMS2(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3]), "+f"(c[i + 1][0]), "+f"(c[i + 1][1]), "+f"(c[i + 1][2]), "+f"(c[i + 1][3])
#define SUMS4(c, i) SUMS2(c, i), SUMS2(c, i + 2)
#define SUMS6(c, i) SUMS4(c, i), SUMS2(c, i + 4)
#define SUMS8(c, i) SUMS4(c, i), SUMS4(c, i + 4)
// wgmma: c [64, 8T] (+)= a [64, 16] b [16, 8T], a in registers; ACROSS: b's rows lie along memory, else its columns do.
// wgmma_shared: a in shared memory too; A_ACROSS: its columns lie along memory, else its rows do.
#define WGMMA(T, N, REGS, A0, A1, A2, A3, B, ADD, ACROSS_B)                                                                     \
    template <bool ACROSS>                                                                                                    \
    __device__ __forceinline__ void wgmma(float (&c)[T][4], const u32 (&a)[4], u64 b, int add) {                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n"                                                       \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGS "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, %" #ACROSS_B ";\n}" \
                     : SUMS##T(c, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(ACROSS ? 1 : 0));     \
    }                                                                                                                         \
    template <bool A_ACROSS, bool ACROSS>                                                                                     \
    __device__ __forceinline__ void wgmma_shared(float (&c)[T][4], u64 a, u64 b, int add) {                                   \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #A2 ", 0;\n"                                                        \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGS "}, %" #A0 ", %" #A1 ", p, 1, 1, %" #A3 ", %" #B ";\n}" \
                     : SUMS##T(c, 0) : "l"(a), "l"(b), "r"(add), "n"(A_ACROSS ? 1 : 0), "n"(ACROSS ? 1 : 0));                  \
    }
#define REGS2 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGS4 REGS2 ", " "%8, %9, %10, %11, %12, %13, %14, %15"
#define REGS6 REGS4 ", " "%16, %17, %18, %19, %20, %21, %22, %23"
#define REGS8 REGS6 ", " "%24, %25, %26, %27, %28, %29, %30, %31"
WGMMA(2, 16, REGS2, 8, 9, 10, 11, 12, 13, 14)
WGMMA(4, 32, REGS4, 16, 17, 18, 19, 20, 21, 22)
WGMMA(6, 48, REGS6, 24, 25, 26, 27, 28, 29, 30)
WGMMA(8, 64, REGS8, 32, 33, 34, 35, 36, 37, 38)
#endif
// ---- end of warpgroup instructions ----------------------------------------------------------

template <int A, int B, typename X>
__device__ __forceinline__ void hold(X (&x)[A][B]) {
    UNROLL for (int a = 0; a < A; a++)
        UNROLL for (int b = 0; b < B; b++) hold(x[a][b]);
}
