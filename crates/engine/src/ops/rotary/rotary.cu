// Rows from..to of each example of x (B, l, w) have the pairs (i, i + half) of the heads in their first `columns` columns
// turned by the angles of table (places, 2, half): cosines, then sines. y may be x, which then keeps the rest as it is.
// Block = one row; a thread has sixteen columns at a time: eight pairs, or what is copied. It reads all of them before it
// writes, and nobody else reads them.
template <typename T>
__device__ void rotary(const T* x, T* y, const float* table, int l, int w, int head, int columns, int from, int to, int back) {
    int place = (int)(blockIdx.x % (u32)l), half = head / 2;
    bool turned = place >= from && place < to, same = x == y;
    if (same && !turned) return;
    i64 row = (i64)blockIdx.x * w;
    x += row;
    y += row;
    if (!turned) columns = 0;
    const float *cos = table + (i64)(turned ? place - from : 0) * 2 * half, *sin = cos + half;
    float sign = back ? -1.f : 1.f;
    // Every row begins at a multiple of 16 bytes, and so does each half of a head.
    if (w % 8 == 0 && (columns == 0 || head % 16 == 0) && (((u64)x | (u64)y | (u64)table) & 15) == 0) {
        int end = same ? columns : w;
        for (int at = threadIdx.x * 16; at < end; at += blockDim.x * 16) {
            float p[8], q[8];
            if (at < columns) {
                int i = at % head / 2, first = at / head * head + i;
                float c[8], s[8], u[8], v[8];
                load8(x + first, p);
                load8(x + first + half, q);
                load8(cos + i, c);
                load8(sin + i, s);
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    u[k] = c[k] * p[k] - sign * s[k] * q[k];
                    v[k] = sign * s[k] * p[k] + c[k] * q[k];
                }
                store8(y + first, u);
                store8(y + first + half, v);
            } else {
                bool both = at + 8 < w;
                load8(x + at, p);
                if (both) load8(x + at + 8, q);
                store8(y + at, p);
                if (both) store8(y + at + 8, q);
            }
        }
        return;
    }
    for (int at = threadIdx.x; at < w; at += blockDim.x) {
        int i = at % head;
        if (at >= columns || i >= 2 * half) {
            y[at] = x[at];
        } else if (i < half) {
            float p = to_f32(x[at]), q = to_f32(x[at + half]), c = cos[i], s = sign * sin[i];
            y[at] = from_f32<T>(c * p - s * q);
            y[at + half] = from_f32<T>(s * p + c * q);
        }
    }
}

#define ROTARY(T, S)                                                                                                   \
    extern "C" __global__ void rotary_##S(const T* x, T* y, const float* table, int l, int w, int head, int columns,   \
                                          int from, int to, int back) {                                                \
        rotary<T>(x, y, table, l, w, head, columns, from, to, back);                                                   \
    }
ROTARY(float, f32)
ROTARY(bf16, bf16)
