// Attention over paged keys and values, written once over V; part of kernels_impl.h, whose rules hold here too.
#pragma once

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
