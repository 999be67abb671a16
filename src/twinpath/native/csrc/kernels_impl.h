// The kernels, written once over a sixteen-float vector V and a few integer micro-kernels.
//
// A unit of one instruction set defines, inside its anonymous namespace and before including this file: V and its operations
// (see vec_portable.h), `quantize_block` and `quant_tile`. Nothing here has external linkage, and no standard library template
// is instantiated: a function compiled for AVX-512 must never be merged by the linker with a portable one.
#pragma once

inline int least(int a, int b) { return a < b ? a : b; }
inline int most(int a, int b) { return a > b ? a : b; }

// ---- elementwise -----------------------------------------------------------------------------------------------------

// exp(x) for x <= 88, within 2 ulp; below -87.3 it stays at exp(-87.3), callers mask what must be zero.
// Source: Cephes expf, polynomial on [-ln 2 / 2, ln 2 / 2].
inline V vexp(V x) {
    x = vmin(vmax(x, vset(-87.33654f)), vset(88.0f));
    const V n = vround(vmul(x, vset(1.44269504f)));
    V r = vfma(n, vset(-0.693359375f), x);
    r = vfma(n, vset(2.12194440e-4f), r);
    V p = vset(1.9875691500e-4f);
    p = vfma(p, r, vset(1.3981999507e-3f));
    p = vfma(p, r, vset(8.3334519073e-3f));
    p = vfma(p, r, vset(4.1665795894e-2f));
    p = vfma(p, r, vset(1.6666665459e-1f));
    p = vfma(p, r, vset(5.0000001201e-1f));
    p = vadd(vfma(p, vmul(r, r), r), vset(1.0f));
    return vscale2(p, n);
}

// exp(x) for x <= 0, relative error 1e-7 plus the rounding of x log2 e; below -87 it stays at 2^-126, callers mask what must be zero.
// 2^f on [-1/2, 1/2]: least relative error of degree 5 with 2^0 = 1 exactly.
inline V vexp_softmax(V x) {
    x = vmax(vmul(x, vset(1.44269504f)), vset(-126.0f));
    const V n = vround(x), f = vsub(x, n);
    V p = vset(1.3264726899e-3f);
    p = vfma(p, f, vset(9.6715126606e-3f));
    p = vfma(p, f, vset(5.5507337442e-2f));
    p = vfma(p, f, vset(2.4022242085e-1f));
    p = vfma(p, f, vset(6.9314697760e-1f));
    return vscale2(vfma(p, f, vset(1.0f)), n);
}

void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
    V s0 = vzero(), s1 = vzero();
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        const V a = vload(x + i), b = vload(x + i + 16);
        s0 = vfma(a, a, s0);
        s1 = vfma(b, b, s1);
    }
    float sum = vsum(vadd(s0, s1));
    for (; i < n; ++i) sum += x[i] * x[i];
    const float factor = 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
    const V f = vset(factor);
    for (i = 0; i + 16 <= n; i += 16) vstore(out + i, vmul(vmul(vload(x + i), f), vload(weight + i)));
    for (; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void rope(float* x, const float* cos, const float* sin, int head_dim) {
    const int half = head_dim / 2;
    int i = 0;
    for (; i + 16 <= half; i += 16) {
        const V a = vload(x + i), b = vload(x + half + i), c = vload(cos + i), s = vload(sin + i);
        vstore(x + i, vsub(vmul(a, c), vmul(b, s)));
        vstore(x + half + i, vfma(b, c, vmul(a, s)));
    }
    for (; i < half; ++i) {
        const float a = x[i], b = x[half + i];
        x[i] = a * cos[i] - b * sin[i];
        x[half + i] = b * cos[i] + a * sin[i];
    }
}

void glu(const float* gate, const float* up, int n, Activation activation, float* out) {
    const V one = vset(1.0f), zero = vzero();
    for (int i = 0; i < n; i += 16) {
        const V x = vload(gate + i);
        V u = x;
        if (activation == Activation::kGeluTanh) {
            // x (1 + tanh z) / 2 = x sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3)
            u = vmul(x, vfma(vmul(x, x), vset(0.0713548162726f), vset(1.59576912160573f)));
        }
        vstore(out + i, vmul(vdiv(x, vadd(one, vexp(vsub(zero, u)))), vload(up + i)));
    }
}

void add(float* y, const float* x, int n) {
    int i = 0;
    for (; i + 16 <= n; i += 16) vstore(y + i, vadd(vload(y + i), vload(x + i)));
    for (; i < n; ++i) y[i] += x[i];
}

void quantize(const float* x, int num_blocks, const Acts& out, int token, int block_begin) {
    int8_t* planes = out.token_planes(token) + block_begin * 2 * kBlock;
    BlockNote* notes = out.token_notes(token) + block_begin;
    if (out.bits == 16) {
        for (int b = 0; b < num_blocks; ++b) quantize_block<16>(x + b * kBlock, planes + b * 2 * kBlock, notes + b);
    } else {
        for (int b = 0; b < num_blocks; ++b) quantize_block<8>(x + b * kBlock, planes + b * 2 * kBlock, notes + b);
    }
    if (out.dense) {
        float* dense = out.token_dense(token) + block_begin * kBlock;
        for (int i = 0; i < num_blocks * kBlock; i += 16) vstore(dense + i, vload(x + i));
    }
}

// ---- matrix multiplication -------------------------------------------------------------------------------------------

// Most outputs (tokens times groups) of a dense tile, each with two sums in registers.
#ifndef TP_DENSE_TILES
#define TP_DENSE_TILES 8
#endif

template <Format F>
inline V load_column(const uint8_t* p) {
    if constexpr (F == Format::kF32) return vload(reinterpret_cast<const float*>(p));
    else if constexpr (F == Format::kF16) return vload_f16(reinterpret_cast<const uint16_t*>(p));
    else return vload_bf16(reinterpret_cast<const uint16_t*>(p));
}

inline void put(float* y, V value, bool add_to) { vstore(y, add_to ? vadd(vload(y), value) : value); }

// Two sums per output (even and odd columns), joined at the end: the order that every tile keeps.
template <Format F, int T, int G>
inline void dense_tile(const Matrix& w, int group, const Acts& x, int token, float* y, int64_t y_stride, bool add_to) {
    constexpr int kBytes = format_info(F).dense_bytes * kGroup;
    V even[G][T], odd[G][T];
    for (int g = 0; g < G; ++g) for (int t = 0; t < T; ++t) even[g][t] = odd[g][t] = vzero();
    const uint8_t* p = w.codes(group);
    const float* in = x.token_dense(token);
    const int64_t stride = static_cast<int64_t>(x.num_blocks) * kBlock;
    const int columns = w.num_blocks * kBlock;
    for (int c = 0; c < columns; c += 2) {
        for (int g = 0; g < G; ++g) {
            const uint8_t* q = p + g * w.group_bytes + static_cast<int64_t>(c) * kBytes;
            const V a = load_column<F>(q), b = load_column<F>(q + kBytes);
            for (int t = 0; t < T; ++t) {
                even[g][t] = vfma(a, vset(in[t * stride + c]), even[g][t]);
                odd[g][t] = vfma(b, vset(in[t * stride + c + 1]), odd[g][t]);
            }
        }
    }
    for (int g = 0; g < G; ++g) {
        for (int t = 0; t < T; ++t) put(y + t * y_stride + g * kGroup, vadd(even[g][t], odd[g][t]), add_to);
    }
}

template <Format F, int kBits, int T>
inline void gemm_tokens(const Matrix& w, int group_begin, int num_groups, const Acts& x, int token, float* y, int64_t y_stride,
                        bool add_to) {
    int g = 0;
    if constexpr (format_info(F).code_bits == 0) {
        constexpr int kTokens = T <= TP_DENSE_TILES ? T : T % TP_DENSE_TILES ? 1 : TP_DENSE_TILES;
        constexpr int kWide = T == 1 ? 4 : T <= 4 ? 2 : 1;
        constexpr int G = kWide * kTokens <= TP_DENSE_TILES ? kWide : TP_DENSE_TILES / kTokens;
        for (; g + G <= num_groups; g += G) {
            for (int t = 0; t < T; t += kTokens) {
                dense_tile<F, kTokens, G>(w, group_begin + g, x, token + t, y + t * y_stride + g * kGroup, y_stride, add_to);
            }
        }
        for (; g < num_groups; ++g) {
            for (int t = 0; t < T; t += kTokens) {
                dense_tile<F, kTokens, 1>(w, group_begin + g, x, token + t, y + t * y_stride + g * kGroup, y_stride, add_to);
            }
        }
    } else {
        for (; g < num_groups; ++g) {
            V sum[T];
            quant_tile<F, kBits, T>(w.codes(group_begin + g), w.scales(group_begin + g), w.num_blocks, x.token_planes(token),
                                    x.token_notes(token), sum);
            for (int t = 0; t < T; ++t) put(y + t * y_stride + g * kGroup, sum[t], add_to);
        }
    }
}

constexpr int smaller_tile(int tokens) { return tokens > 4 ? tokens - 2 : tokens - 1; }  // 8, 6, 4, 3, 2, 1

template <Format F, int kBits, int T>
void gemm_tiles(const Matrix& w, int group_begin, int num_groups, const Acts& x, int token, int num_tokens, float* y,
                int64_t y_stride, bool add_to) {
    for (; num_tokens >= T; num_tokens -= T, token += T, y += T * y_stride)
        gemm_tokens<F, kBits, T>(w, group_begin, num_groups, x, token, y, y_stride, add_to);
    if constexpr (T > 1) {
        if (num_tokens) gemm_tiles<F, kBits, smaller_tile(T)>(w, group_begin, num_groups, x, token, num_tokens, y, y_stride, add_to);
    }
}

template <Format F, int kBits>
void gemm_format(const Matrix& w, int group_begin, int num_groups, const Acts& x, int token, int num_tokens, float* y,
                 int64_t y_stride, bool add_to) {
    gemm_tiles<F, kBits, kMaxTokenTile>(w, group_begin, num_groups, x, token, num_tokens, y, y_stride, add_to);
}

template <int kBits>
void gemm_bits(const Matrix& w, int gb, int ng, const Acts& x, int t, int nt, float* y, int64_t ys, bool a) {
    switch (w.format) {
        case Format::kF32: return gemm_format<Format::kF32, 16>(w, gb, ng, x, t, nt, y, ys, a);
        case Format::kF16: return gemm_format<Format::kF16, 16>(w, gb, ng, x, t, nt, y, ys, a);
        case Format::kBF16: return gemm_format<Format::kBF16, 16>(w, gb, ng, x, t, nt, y, ys, a);
        case Format::kQ8_0: return gemm_format<Format::kQ8_0, kBits>(w, gb, ng, x, t, nt, y, ys, a);
        case Format::kQ5_0: return gemm_format<Format::kQ5_0, kBits>(w, gb, ng, x, t, nt, y, ys, a);
        case Format::kQ5_1: return gemm_format<Format::kQ5_1, kBits>(w, gb, ng, x, t, nt, y, ys, a);
        case Format::kQ4_0: return gemm_format<Format::kQ4_0, kBits>(w, gb, ng, x, t, nt, y, ys, a);
        case Format::kQ4_1: return gemm_format<Format::kQ4_1, kBits>(w, gb, ng, x, t, nt, y, ys, a);
        case Format::kQ4_K: return gemm_format<Format::kQ4_K, kBits>(w, gb, ng, x, t, nt, y, ys, a);
        case Format::kQ5_K: return gemm_format<Format::kQ5_K, kBits>(w, gb, ng, x, t, nt, y, ys, a);
        case Format::kQ6_K: return gemm_format<Format::kQ6_K, kBits>(w, gb, ng, x, t, nt, y, ys, a);
    }
}

void gemm(const Matrix& w, int group_begin, int num_groups, const Acts& x, int token_begin, int num_tokens, float* y,
          int64_t y_stride, bool add_to) {
    if (x.bits == 16) gemm_bits<16>(w, group_begin, num_groups, x, token_begin, num_tokens, y, y_stride, add_to);
    else gemm_bits<8>(w, group_begin, num_groups, x, token_begin, num_tokens, y, y_stride, add_to);
}

// ---- attention -------------------------------------------------------------------------------------------------------

void store_kv(uint16_t* page, int page_size, int head_dim, int slot, const float* key, const float* value) {
    uint16_t* tile = page + static_cast<int64_t>(slot / kKeyTile) * head_dim * kKeyTile + slot % kKeyTile;
    uint16_t* values = page + static_cast<int64_t>(page_size + slot) * head_dim;
    for (int d = 0; d < head_dim; d += 16) {
        uint16_t half[16];
        vstore_f16(half, vload(key + d));
        for (int i = 0; i < 16; ++i) tile[(d + i) * kKeyTile] = half[i];
        vstore_f16(values + d, vload(value + d));
    }
}

inline const uint16_t* key_tile(const AttendTask& t, int position) {
    const int64_t page = t.pages[position / t.page_size];
    return t.pool + page * t.page_stride + static_cast<int64_t>(position % t.page_size) * t.head_dim;
}
inline const uint16_t* value_row(const AttendTask& t, int position) {
    const int64_t page = t.pages[position / t.page_size];
    return t.pool + page * t.page_stride + static_cast<int64_t>(t.page_size + position % t.page_size) * t.head_dim;
}

// How many key tiles or value registers R rows take at once, and how many rows the next smaller tile has.
constexpr int in_flight(int rows, int limit) { return kAttendSums / rows < 1 ? 1 : kAttendSums / rows < limit ? kAttendSums / rows : limit; }
constexpr int fewer_rows(int rows) { return rows > 6 ? 6 : rows - 1; }

// Keys and values lie in runs of a few KB, too short for the hardware's prefetcher: the first rows fetch ahead for all.
inline void fetch(const uint16_t* p) { __builtin_prefetch(p, 0, 2); }

// Scores of R rows against K tiles of 16 keys: one chain over the head's dimensions per score.
template <int R, int K, bool kFetch>
inline void score_tiles(const AttendTask& t, int row, int position, int end, float* scores) {
    const uint16_t* key[K];
    const uint16_t* ahead[K];
    for (int k = 0; k < K; ++k) {
        key[k] = key_tile(t, position + k * kKeyTile);
        const int next = position + (K + k) * kKeyTile;
        ahead[k] = kFetch && next < end ? key_tile(t, next) : key[k];
    }
    const float* q[R];
    for (int r = 0; r < R; ++r) q[r] = t.rows[row + r].q;
    V acc[R][K];
    for (int r = 0; r < R; ++r) for (int k = 0; k < K; ++k) acc[r][k] = vzero();
    for (int d = 0; d < t.head_dim; ++d) {
        if (kFetch && d % 2 == 0) {
            for (int k = 0; k < K; ++k) fetch(ahead[k] + d * kKeyTile);
        }
        V x[K];
        for (int k = 0; k < K; ++k) x[k] = vload_f16(key[k] + d * kKeyTile);
        for (int r = 0; r < R; ++r) {
            const V s = vset(q[r][d]);
            for (int k = 0; k < K; ++k) acc[r][k] = vfma(s, x[k], acc[r][k]);
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int k = 0; k < K; ++k) vstore(scores + (row + r) * kSpan + position % kSpan + k * kKeyTile, acc[r][k]);
    }
}

template <int R, bool kFetch>
inline void score_rows(const AttendTask& t, int row, int begin, int end, float* scores) {
    constexpr int K = in_flight(R, kAttendKeys);
    int p = begin;
    for (; p + K * kKeyTile <= end; p += K * kKeyTile) score_tiles<R, K, kFetch>(t, row, p, end, scores);
    for (; p < end; p += kKeyTile) score_tiles<R, 1, false>(t, row, p, end, scores);
}

// All rows from `row` on: as many tiles of R rows as there are, then of fewer.
template <int R>
void score_all(const AttendTask& t, int row, int begin, int end, float* scores) {
    for (; row + R <= t.num_rows; row += R) {
        if (row == 0) score_rows<R, true>(t, row, begin, end, scores);
        else score_rows<R, false>(t, row, begin, end, scores);
    }
    if constexpr (R > 1) {
        if (row < t.num_rows) score_all<fewer_rows(R)>(t, row, begin, end, scores);
    }
}

// out[row][dims] = sum over positions, ascending, of weight * value.
template <int R, int D, bool kFetch>
inline void weigh_values(const AttendTask& t, int row, int dim, int begin, int end, const float* weights, float* out) {
    V acc[R][D];
    for (int r = 0; r < R; ++r) for (int d = 0; d < D; ++d) acc[r][d] = vzero();
    for (int p = begin; p < end;) {
        const uint16_t* v = value_row(t, p) + dim;
        const int stop = least(end, (p / t.page_size + 1) * t.page_size);
        const uint16_t* ahead = kFetch && stop < end ? value_row(t, stop) + dim : v;
        const float* weight = weights + row * kSpan + p % kSpan;
        for (; p < stop; ++p, ++weight, v += t.head_dim, ahead += t.head_dim) {
            if (kFetch) {
                for (int d = 0; d < D; d += 2) fetch(ahead + d * 16);
            }
            V x[D];
            for (int d = 0; d < D; ++d) x[d] = vload_f16(v + d * 16);
            for (int r = 0; r < R; ++r) {
                const V w = vset(weight[r * kSpan]);
                for (int d = 0; d < D; ++d) acc[r][d] = vfma(w, x[d], acc[r][d]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int d = 0; d < D; ++d) vstore(out + static_cast<int64_t>(row + r) * t.head_dim + dim + d * 16, acc[r][d]);
    }
}

template <int R, bool kFetch>
inline void weigh_rows(const AttendTask& t, int row, int begin, int end, const float* weights, float* out) {
    constexpr int D = in_flight(R, kAttendDims);
    int d = 0;
    for (; d + D * 16 <= t.head_dim; d += D * 16) weigh_values<R, D, kFetch>(t, row, d, begin, end, weights, out);
    for (; d < t.head_dim; d += 16) weigh_values<R, 1, kFetch>(t, row, d, begin, end, weights, out);
}

template <int R>
void weigh_all(const AttendTask& t, int row, int begin, int end, const float* weights, float* out) {
    for (; row + R <= t.num_rows; row += R) {
        if (row == 0) weigh_rows<R, true>(t, row, begin, end, weights, out);
        else weigh_rows<R, false>(t, row, begin, end, weights, out);
    }
    if constexpr (R > 1) {
        if (row < t.num_rows) weigh_all<fewer_rows(R)>(t, row, begin, end, weights, out);
    }
}

// Scores -> unnormalised weights of one row over [begin, end) of the span.
inline SpanPartial soften(const QueryRow& row, int begin, int end, float* scores) {
    const int base = begin / kSpan * kSpan;
    const V low = vset(-__builtin_inff());
    // Only the tiles at the ends of what the row sees need a mask.
    const auto whole = [&row](int p) { return p >= row.first && p + kKeyTile <= row.last + 1; };
    V top = low;
    for (int p = begin; p < end; p += kKeyTile) {
        const V s = vload(scores + p - base);
        top = vmax(top, whole(p) ? s : vkeep(s, low, row.first - p, row.last + 1 - p));
    }
    const float maximum = vtop(top);
    const V shift = vset(maximum);
    V sum = vzero();
    for (int p = begin; p < end; p += kKeyTile) {
        V w = vexp_softmax(vsub(vload(scores + p - base), shift));
        if (!whole(p)) w = vkeep(w, vzero(), row.first - p, row.last + 1 - p);
        vstore(scores + p - base, w);
        sum = vadd(sum, w);
    }
    return {maximum, vsum(sum)};
}

void attend_span(const AttendTask& t, int span, SpanPartial* partials, float* values) {
    float* scores = t.scratch;
    int first = 0x7fffffff, last = -1;
    for (int r = 0; r < t.num_rows; ++r) {
        first = least(first, t.rows[r].first);
        last = most(last, t.rows[r].last);
    }
    const int begin = most(first, span * kSpan) / kKeyTile * kKeyTile;
    const int end = least(last + 1, (span + 1) * kSpan);
    const int rounded = (end + kKeyTile - 1) / kKeyTile * kKeyTile;
    score_all<kAttendRows>(t, 0, begin, rounded, scores);
    for (int r = 0; r < t.num_rows; ++r) {
        const QueryRow& row = t.rows[r];
        if (row.last < begin || row.first >= end) {  // sees nothing of this span
            partials[r] = {0.0f, 0.0f};
            for (int p = begin; p < rounded; ++p) scores[r * kSpan + p % kSpan] = 0.0f;
        } else {
            partials[r] = soften(row, begin, rounded, scores + r * kSpan);
        }
    }
    weigh_all<kAttendRows>(t, 0, begin, end, scores, values);
}

void merge_span(SpanPartial* state, float* values, const SpanPartial& next, const float* next_values, int head_dim) {
    if (next.sum == 0.0f) return;
    if (state->sum == 0.0f) {
        *state = next;
        for (int d = 0; d < head_dim; d += 16) vstore(values + d, vload(next_values + d));
        return;
    }
    const float maximum = state->maximum > next.maximum ? state->maximum : next.maximum;
    const V a = vexp(vset(state->maximum - maximum)), b = vexp(vset(next.maximum - maximum));
    float factor_a[16], factor_b[16];
    vstore(factor_a, a);
    vstore(factor_b, b);
    state->maximum = maximum;
    state->sum = state->sum * factor_a[0] + next.sum * factor_b[0];
    for (int d = 0; d < head_dim; d += 16) {
        vstore(values + d, vfma(vload(next_values + d), b, vmul(vload(values + d), a)));
    }
}

void attend(const AttendTask& t) {
    float* next = t.scratch + kMaxQueryRows * kSpan;
    SpanPartial state[kMaxQueryRows], partial[kMaxQueryRows];
    int first = 0x7fffffff, last = -1;
    for (int r = 0; r < t.num_rows; ++r) {
        first = least(first, t.rows[r].first);
        last = most(last, t.rows[r].last);
        state[r] = {0.0f, 0.0f};
    }
    for (int span = first / kSpan; span <= last / kSpan; ++span) {
        attend_span(t, span, partial, next);
        for (int r = 0; r < t.num_rows; ++r) {
            merge_span(&state[r], t.rows[r].out, partial[r], next + static_cast<int64_t>(r) * t.head_dim, t.head_dim);
        }
    }
    for (int r = 0; r < t.num_rows; ++r) {
        const V f = vset(1.0f / state[r].sum);
        for (int d = 0; d < t.head_dim; d += 16) vstore(t.rows[r].out + d, vmul(vload(t.rows[r].out + d), f));
    }
}

#define TP_KERNEL_TABLE(label) \
    {label, quantize, gemm, rms_norm, rope, glu, add, store_kv, attend, attend_span, merge_span}
