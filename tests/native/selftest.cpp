// Every kernel of a table against double-precision arithmetic written straight from layout.h and kernels.h, and the rule that
// an output depends on its own inputs only: whole calls and calls cut into pieces must agree to the bit.
//
// Usage: selftest NAME...   one line per set; exit status 1 when a check fails, 77 when a named set cannot run here.
// With -DSELFTEST_TABLE=kernels_neon it needs no dispatcher and checks that table.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.h"

namespace tp {
namespace {

int num_failures = 0;
int num_checks = 0;

void check(bool ok, const std::string& what) {
    ++num_checks;
    if (!ok && ++num_failures <= 20) std::printf("  FAILED %s\n", what.c_str());
}

struct Random {
    uint64_t state = 88172645463325252ull;
    uint32_t bits() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return static_cast<uint32_t>(state >> 16);
    }
    int below(int n) { return static_cast<int>(bits() % static_cast<uint32_t>(n)); }
    float uniform(float low, float high) { return low + (high - low) * static_cast<float>(bits()) / 4294967296.0f; }
} rng;

template <typename T>
struct Buffer {  // 64-byte aligned, NaN-like garbage until written
    explicit Buffer(size_t n) : size(n), data(static_cast<T*>(std::aligned_alloc(64, (n * sizeof(T) + 127) / 64 * 64))) {
        std::memset(data, 0xff, n * sizeof(T));
    }
    ~Buffer() { std::free(data); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    T& operator[](size_t i) { return data[i]; }
    bool operator==(const Buffer& other) const { return size == other.size && !std::memcmp(data, other.data, size * sizeof(T)); }
    size_t size;
    T* data;
};

float from_half(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const float magnitude = exponent ? std::ldexp(1024.0f + fraction, exponent - 25) : std::ldexp(static_cast<float>(fraction), -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

uint16_t random_half(int low_exponent, int high_exponent) {  // 2^low <= |x| < 2^high
    const int exponent = 15 + low_exponent + rng.below(high_exponent - low_exponent);
    return static_cast<uint16_t>((rng.bits() & 0x8000) | exponent << 10 | (rng.bits() & 1023));
}

const char* name_of(Format f) {
    const char* names[] = {"F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K"};
    return names[static_cast<int>(f)];
}

int largest_code(Format f) {
    switch (f) {
        case Format::kQ8_0: return 255;
        case Format::kQ5_0: case Format::kQ5_1: case Format::kQ5_K: return 31;
        case Format::kQ6_K: return 63;
        default: return 15;
    }
}

// ---- packed weights, decoded one element at a time -------------------------------------------------------------------

struct Packed {
    Packed(Format f, int rows, int cols, bool extreme) : bytes(static_cast<size_t>(rows / kGroup) * group_size(f, cols)) {
        m.format = f;
        m.rows = rows;
        m.cols = cols;
        m.num_groups = rows / kGroup;
        m.num_blocks = cols / kBlock;
        m.group_bytes = group_size(f, cols);
        m.data = bytes.data;
        for (int g = 0; g < m.num_groups; ++g) fill(g, extreme);
    }

    static int64_t group_size(Format f, int cols) { return round_up(static_cast<int64_t>(cols / kBlock) * (code_bytes(f) + scale_bytes(f)), 64); }

    void fill(int group, bool extreme) {
        const FormatInfo info = format_info(m.format);
        auto* p = const_cast<uint8_t*>(m.codes(group));
        const int64_t num_codes = static_cast<int64_t>(m.num_blocks) * code_bytes(m.format);
        if (!info.code_bits) {
            for (int64_t i = 0; i < num_codes / info.dense_bytes; ++i) {
                const float x = rng.uniform(-1, 1);
                const uint16_t half = m.format == Format::kF16 ? random_half(-6, 0) : static_cast<uint16_t>(bits_of(x) >> 16);
                if (info.dense_bytes == 4) std::memcpy(p + 4 * i, &x, 4);
                else std::memcpy(p + 2 * i, &half, 2);
            }
            return;
        }
        const int top = largest_code(m.format);
        for (int64_t i = 0; i < num_codes; ++i) {
            const bool full = extreme && rng.below(4);
            if (info.code_bits == 4) p[i] = full ? 0xff : static_cast<uint8_t>(rng.bits());
            else p[i] = static_cast<uint8_t>(full ? top : rng.below(top + 1));
        }
        auto* scales = const_cast<uint8_t*>(m.scales(group));
        for (int i = 0; i < m.num_blocks * scale_bytes(m.format) / (info.wide_scales || info.half_scales ? 4 : 2); ++i) {
            const uint16_t half = random_half(-9, -3);
            const float wide = rng.uniform(-0.1f, 0.1f);
            if (info.wide_scales || info.half_scales) std::memcpy(scales + 4 * i, &wide, 4);
            else std::memcpy(scales + 2 * i, &half, 2);
        }
    }

    static uint32_t bits_of(float x) {
        uint32_t u;
        std::memcpy(&u, &x, 4);
        return u;
    }

    int code(int row, int col) const {  // column within the matrix
        const int r = row % kGroup, c = col % kBlock;
        const uint8_t* block = m.codes(row / kGroup) + static_cast<int64_t>(col / kBlock) * code_bytes(m.format);
        if (format_info(m.format).code_bits == 8) return block[c / 4 * 64 + 4 * r + c % 4];
        const uint8_t byte = block[c % 16 / 4 * 64 + 4 * r + c % 4];
        return c < 16 ? byte & 15 : byte >> 4;
    }

    float scale(int row, int block, int index) const {  // index 1: the minimum, or the second half's scale
        const uint8_t* p = m.scales(row / kGroup) + static_cast<int64_t>(block) * scale_bytes(m.format);
        const int at = index * kGroup + row % kGroup;
        if (format_info(m.format).wide_scales || format_info(m.format).half_scales) {
            float x;
            std::memcpy(&x, p + 4 * at, 4);
            return x;
        }
        uint16_t half;
        std::memcpy(&half, p + 2 * at, 2);
        return from_half(half);
    }

    float dense(int row, int col) const {
        const int64_t at = static_cast<int64_t>(col) * kGroup + row % kGroup;
        const uint8_t* p = m.codes(row / kGroup) + at * format_info(m.format).dense_bytes;
        uint32_t u = 0;
        std::memcpy(&u, p, format_info(m.format).dense_bytes);
        if (m.format == Format::kF16) return from_half(static_cast<uint16_t>(u));
        if (m.format == Format::kBF16) u <<= 16;
        float x;
        std::memcpy(&x, &u, 4);
        return x;
    }

    Matrix m;
    Buffer<uint8_t> bytes;
};

struct Inputs {
    Inputs(const Kernels& k, int num_tokens, int cols, int bits, bool extreme)
        : x(static_cast<size_t>(num_tokens) * cols), planes(x.size * 2), notes(x.size / kBlock), dense(x.size) {
        acts.planes = planes.data;
        acts.notes = notes.data;
        acts.dense = dense.data;
        acts.num_blocks = cols / kBlock;
        acts.bits = bits;
        for (int t = 0; t < num_tokens; ++t) {
            for (int c = 0; c < cols; ++c) {
                // Extremes: runs of equal sign that saturate 16-bit pair sums, and integers whose low byte is -128.
                const float sign = c / 2 % 2 ? -1.0f : 1.0f;
                const float level = rng.below(2) ? 1.0f : (256.0f * 126 + 128) / 32639.0f;
                x[static_cast<size_t>(t) * cols + c] = extreme ? sign * level : rng.uniform(-2, 3);
            }
            const int half = acts.num_blocks / 2;
            k.quantize(x.data + static_cast<int64_t>(t) * cols, half, acts, t, 0);
            k.quantize(x.data + static_cast<int64_t>(t) * cols + half * kBlock, acts.num_blocks - half, acts, t, half);
        }
    }

    int integer(int t, int c) const {
        const int8_t* p = acts.token_planes(t) + c / kBlock * 2 * kBlock + c % kBlock;
        return acts.bits == 16 ? 256 * p[0] + p[kBlock] : p[0];
    }
    const BlockNote& note(int t, int block) const { return acts.token_notes(t)[block]; }

    Buffer<float> x;
    Buffer<int8_t> planes;
    Buffer<BlockNote> notes;
    Buffer<float> dense;
    Acts acts;
};

void check_quantize(const Kernels& k, int bits) {
    constexpr int kCols = 5 * kBlock;
    Inputs in(k, 3, kCols, bits, false);
    const float top_integer = bits == 16 ? 32639.0f : 127.0f;
    for (int t = 0; t < 3; ++t) {
        for (int b = 0; b < 5; ++b) {
            const float* x = in.x.data + t * kCols + b * kBlock;
            float top = 0;
            for (int i = 0; i < kBlock; ++i) top = std::fmax(top, std::fabs(x[i]));
            const BlockNote& note = in.note(t, b);
            int sum = 0, first = 0;
            bool near = true;
            for (int i = 0; i < kBlock; ++i) {
                const int q = in.integer(t, b * kBlock + i);
                near = near && q == static_cast<int>(std::nearbyint(x[i] * (top_integer / top)));
                near = near && in.acts.token_dense(t)[b * kBlock + i] == x[i];
                sum += q;
                first += i < 16 ? q : 0;
            }
            check(near && note.scale == top / top_integer, "quantize: integers and scale");
            check(note.sum == sum && note.first_sum == first, "quantize: sums");
            check(note.scaled_sum == note.scale * static_cast<float>(sum), "quantize: scaled sum");
        }
    }
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
        in.x[7] = bad;
        k.quantize(in.x.data, 5, in.acts, 0, 0);
        check(!std::isfinite(in.note(0, 0).scale), "quantize: a bad input must reach the scale");
        check(std::isfinite(in.note(0, 1).scale), "quantize: a bad input stays in its block");
    }
    std::memset(in.x.data, 0, kBlock * sizeof(float));
    k.quantize(in.x.data, 5, in.acts, 0, 0);
    check(in.note(0, 0).scale == 0 && in.note(0, 0).sum == 0 && in.integer(0, 0) == 0, "quantize: zeros");
}

// One output in double, and how far float arithmetic may stray from it.
void expect_output(const Packed& w, const Inputs& in, int t, int row, double* value, double* bound) {
    const FormatInfo info = format_info(w.m.format);
    double sum = 0, magnitude = 0;
    for (int b = 0; b < w.m.num_blocks; ++b) {
        for (int part = 0; part < 2; ++part) {  // halves of 16 columns
            double products = 0, weight = 0;
            for (int c = b * kBlock + part * 16; c < b * kBlock + part * 16 + 16; ++c) {
                if (info.code_bits) {
                    const int zero = info.zero_shift >= 0 ? 1 << info.zero_shift : 0;
                    products += static_cast<double>(w.code(row, c) - zero) * in.integer(t, c);
                } else {
                    const double product = static_cast<double>(w.dense(row, c)) * in.x.data[static_cast<size_t>(t) * w.m.cols + c];
                    sum += product;
                    magnitude += std::fabs(product);
                }
            }
            if (!info.code_bits) continue;
            weight = static_cast<double>(w.scale(row, b, info.half_scales ? part : 0)) * in.note(t, b).scale;
            sum += products * weight;
            magnitude += std::fabs(products * weight);
        }
        if (info.has_min) {
            const double product = static_cast<double>(w.scale(row, b, 1)) * in.note(t, b).scaled_sum;
            sum += product;
            magnitude += std::fabs(product);
        }
    }
    *value = sum;
    *bound = magnitude * (3 * w.m.num_blocks + 8) * std::ldexp(1.0, -24);
}

// A single block shows the integers: one rounding of the total, one of the scales, one of their product.
float expect_block(const Packed& w, const Inputs& in, int t, int row, bool fused) {
    const FormatInfo info = format_info(w.m.format);
    float y = 0;
    for (int part = 0; part < (info.half_scales ? 2 : 1); ++part) {
        const int begin = part * 16, end = info.half_scales ? begin + 16 : kBlock;
        int64_t total = 0;
        for (int c = begin; c < end; ++c) {
            total += static_cast<int64_t>(w.code(row, c) - (info.zero_shift >= 0 ? 1 << info.zero_shift : 0)) * in.integer(t, c);
        }
        const float scale = w.scale(row, 0, part) * in.note(t, 0).scale;
        const float product = static_cast<float>(total) * scale;
        y = fused ? std::fma(static_cast<float>(total), scale, y) : y + product;
    }
    if (!info.has_min) return y;
    const float minimum = w.scale(row, 0, 1) * in.note(t, 0).scaled_sum;
    return fused ? std::fma(w.scale(row, 0, 1), in.note(t, 0).scaled_sum, y) : y + minimum;
}

void check_gemm(const Kernels& k, Format f, int bits, bool extreme) {
    const std::string what = std::string("gemm ") + name_of(f) + (bits == 16 ? " 16 bits" : " 8 bits") + (extreme ? " extreme" : "");
    constexpr int kRows = 5 * kGroup, kTokens = 17, kStride = kRows + 32;
    for (const int cols : {kBlock, 3 * kBlock, 8 * kBlock}) {
        Packed w(f, kRows, cols, extreme);
        Inputs in(k, kTokens, cols, bits, extreme);
        Buffer<float> y(kTokens * kStride), pieces(kTokens * kStride), added(kTokens * kStride);
        k.gemm(w.m, 0, 5, in.acts, 0, kTokens, y.data, kStride, false);
        bool near = true, exact = true;
        for (int t = 0; t < kTokens; ++t) {
            for (int r = 0; r < kRows; ++r) {
                const float got = y[static_cast<size_t>(t) * kStride + r];
                double value, bound;
                expect_output(w, in, t, r, &value, &bound);
                near = near && std::fabs(got - value) <= bound;
                if (cols == kBlock && format_info(f).code_bits) {
                    exact = exact && (got == expect_block(w, in, t, r, true) || got == expect_block(w, in, t, r, false));
                }
            }
        }
        check(near, what + ": value");
        check(exact, what + ": integer totals");

        // Cut by groups and by tokens in uneven pieces.
        for (int t = 0, n = 1; t < kTokens; t += n, n = n % 5 + 1) {
            const int count = t + n <= kTokens ? n : kTokens - t;
            for (int g = 0; g < 5; g += 2) {
                k.gemm(w.m, g, g + 2 <= 5 ? 2 : 1, in.acts, t, count, pieces.data + t * kStride + g * kGroup, kStride, false);
            }
        }
        check(pieces == y, what + ": pieces equal the whole");

        bool adds = true;
        for (int i = 0; i < kTokens * kStride; ++i) added[i] = static_cast<float>(i % 7);
        k.gemm(w.m, 0, 5, in.acts, 0, kTokens, added.data, kStride, true);
        for (int t = 0; t < kTokens; ++t) {
            for (int r = 0; r < kStride; ++r) {
                const int i = t * kStride + r;
                const float before = static_cast<float>(i % 7);
                adds = adds && added[i] == (r < kRows ? before + y[i] : before);
            }
        }
        check(adds, what + ": add");
    }
}

// ---- elementwise -----------------------------------------------------------------------------------------------------

void check_elementwise(const Kernels& k) {
    for (const int n : {16, 33, 64, 576, 1000}) {
        Buffer<float> x(n), w(n), out(n), sum(n);
        double squares = 0;
        for (int i = 0; i < n; ++i) {
            x[i] = rng.uniform(-3, 3);
            w[i] = rng.uniform(0.5f, 2);
            squares += static_cast<double>(x[i]) * x[i];
        }
        k.rms_norm(x.data, w.data, n, 1e-5f, out.data);
        bool ok = true;
        for (int i = 0; i < n; ++i) {
            const double want = x[i] * static_cast<double>(w[i]) / std::sqrt(squares / n + 1e-5);
            ok = ok && std::fabs(out[i] - want) <= 3e-6 * std::fabs(want);
        }
        check(ok, "rms_norm");
        std::memcpy(sum.data, w.data, n * sizeof(float));
        k.add(sum.data, x.data, n);
        ok = true;
        for (int i = 0; i < n; ++i) ok = ok && sum[i] == w[i] + x[i];
        check(ok, "add");
        k.rms_norm(x.data, w.data, n, 1e-5f, x.data);
        check(x == out, "rms_norm in place");
    }
    for (const int head_dim : {32, 64, 80, 128, 256}) {
        Buffer<float> x(head_dim), before(head_dim), cosines(head_dim / 2), sines(head_dim / 2);
        for (int i = 0; i < head_dim; ++i) x[i] = before[i] = rng.uniform(-3, 3);
        for (int i = 0; i < head_dim / 2; ++i) {
            cosines[i] = std::cos(static_cast<float>(i) * 0.7f);
            sines[i] = std::sin(static_cast<float>(i) * 0.7f);
        }
        k.rope(x.data, cosines.data, sines.data, head_dim);
        bool ok = true;
        for (int i = 0; i < head_dim / 2; ++i) {
            const double a = before[i], b = before[head_dim / 2 + i], c = cosines[i], s = sines[i];
            ok = ok && std::fabs(x[i] - (a * c - b * s)) < 1e-6 && std::fabs(x[head_dim / 2 + i] - (b * c + a * s)) < 1e-6;
        }
        check(ok, "rope");
    }
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
        constexpr int n = 1600;
        Buffer<float> gate(n), up(n), out(n);
        for (int i = 0; i < n; ++i) {
            gate[i] = i == 0 ? -200.0f : i == 1 ? 200.0f : (i - 800) * 0.02f;
            up[i] = rng.uniform(0.5f, 2);
        }
        k.glu(gate.data, up.data, n, activation, out.data);
        bool ok = true;
        for (int i = 0; i < n; ++i) {
            const double g = gate[i];
            const double silu = g / (1 + std::exp(-g));
            const double gelu = 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
            const double want = (activation == Activation::kSilu ? silu : gelu) * up[i];
            ok = ok && std::fabs(out[i] - want) <= 4e-6 * std::fabs(want) + 1e-6;
        }
        check(ok, activation == Activation::kSilu ? "glu silu" : "glu gelu");
    }
}

// ---- attention -------------------------------------------------------------------------------------------------------

struct Cache {
    Cache(const Kernels& k, int page_size, int head_dim, int num_tokens)
        : head_dim(head_dim), num_pages((num_tokens + page_size - 1) / page_size), pool(static_cast<size_t>(num_pages) * 2 * page_size * head_dim),
          keys(static_cast<size_t>(num_tokens) * head_dim), values(keys.size) {
        for (int p = 0; p < num_pages; ++p) pages.push_back((p * 7 + 3) % num_pages);
        if (num_pages % 7 == 0) for (int p = 0; p < num_pages; ++p) pages[p] = num_pages - 1 - p;
        task.head_dim = head_dim;
        task.page_size = page_size;
        task.pages = pages.data();
        task.pool = pool.data;
        task.page_stride = 2 * page_size * head_dim;
        for (int t = 0; t < num_tokens; ++t) {
            for (int d = 0; d < head_dim; ++d) {  // exact in fp16, so that storing does not round
                keys[t * head_dim + d] = from_half(random_half(-4, 0));
                values[t * head_dim + d] = from_half(random_half(-4, 0));
            }
            k.store_kv(pool.data + pages[t / page_size] * task.page_stride, page_size, head_dim, t % page_size,
                       keys.data + t * head_dim, values.data + t * head_dim);
        }
    }
    int head_dim, num_pages;
    Buffer<uint16_t> pool;
    Buffer<float> keys, values;
    std::vector<int32_t> pages;
    AttendTask task{};
};

bool near_attention(Cache& cache, const QueryRow& row) {
    const int n = cache.head_dim;
    std::vector<double> scores, out(n, 0.0);
    double top = -INFINITY, total = 0;
    for (int p = row.first; p <= row.last; ++p) {
        double score = 0;
        for (int d = 0; d < n; ++d) score += static_cast<double>(row.q[d]) * cache.keys[p * n + d];
        scores.push_back(score);
        top = std::fmax(top, score);
    }
    for (int p = row.first; p <= row.last; ++p) {
        const double weight = std::exp(scores[p - row.first] - top);
        total += weight;
        for (int d = 0; d < n; ++d) out[d] += weight * cache.values[p * n + d];
    }
    for (int d = 0; d < n; ++d) if (!(std::fabs(row.out[d] - out[d] / total) <= 5e-6)) return false;
    return true;
}

void check_attend(const Kernels& k, int page_size, int head_dim) {
    constexpr int kTokens = 700;
    const std::string what = "attend page " + std::to_string(page_size) + " head " + std::to_string(head_dim);
    Cache cache(k, page_size, head_dim, kTokens);
    Buffer<float> scratch(attend_scratch_floats(head_dim));
    cache.task.scratch = scratch.data;
    for (const int num_rows : {1, 2, 3, 4, 7, 12, 32}) {
        Buffer<float> q(num_rows * head_dim), out(num_rows * head_dim), alone(num_rows * head_dim), joined(num_rows * head_dim);
        std::vector<QueryRow> rows;
        for (int r = 0; r < num_rows; ++r) {
            for (int d = 0; d < head_dim; ++d) q[r * head_dim + d] = rng.uniform(-1, 1);
            const int last = r == 0 ? rng.below(20) : rng.below(kTokens);
            rows.push_back({q.data + r * head_dim, out.data + r * head_dim, r % 3 == 2 ? rng.below(last + 1) : 0, last});
        }
        cache.task.rows = rows.data();
        cache.task.num_rows = num_rows;
        k.attend(cache.task);
        bool ok = true;
        for (const QueryRow& row : rows) ok = ok && near_attention(cache, row);
        check(ok, what + ": value");

        for (int r = 0; r < num_rows; ++r) {
            QueryRow row = rows[r];
            row.out = alone.data + r * head_dim;
            cache.task.rows = &row;
            cache.task.num_rows = 1;
            k.attend(cache.task);
        }
        check(alone == out, what + ": a row does not depend on its neighbours");

        cache.task.rows = rows.data();
        cache.task.num_rows = num_rows;
        std::vector<SpanPartial> states(num_rows, SpanPartial{0, 0}), partials(num_rows);
        Buffer<float> part(num_rows * head_dim);
        int first = kTokens, last = 0;
        for (const QueryRow& row : rows) {
            first = row.first < first ? row.first : first;
            last = row.last > last ? row.last : last;
        }
        for (int span = first / kSpan; span <= last / kSpan; ++span) {
            k.attend_span(cache.task, span, partials.data(), part.data);
            for (int r = 0; r < num_rows; ++r) {
                k.merge_span(&states[r], joined.data + r * head_dim, partials[r], part.data + r * head_dim, head_dim);
            }
        }
        for (int i = 0; i < num_rows * head_dim; ++i) joined[i] *= 1.0f / states[i / head_dim].sum;
        check(joined == out, what + ": spans joined in order equal the whole");
    }
}

void check_table(const Kernels& k) {
    for (const int bits : {16, 8}) {
        check_quantize(k, bits);
        for (int f = 0; f < kNumFormats; ++f) {
            for (const bool extreme : {false, true}) check_gemm(k, static_cast<Format>(f), bits, extreme);
        }
    }
    check_elementwise(k);
    for (const int head_dim : {16, 64, 80, 128}) {
        for (const int page_size : {16, 32}) check_attend(k, page_size, head_dim);
    }
}

int run(const Kernels* k, const char* name) {
    if (!k) {
        std::printf("%s: cannot run here\n", name);
        return 77;
    }
    num_checks = num_failures = 0;
    check_table(*k);
    std::printf("%s: %d checks, %d failed\n", k->name, num_checks, num_failures);
    return num_failures ? 1 : 0;
}

}  // namespace
}  // namespace tp

int main(int argc, char** argv) {
#if defined(SELFTEST_TABLE)
    (void)argc;
    return tp::run(tp::SELFTEST_TABLE(), argv[0]);
#else
    int status = 0;
    for (int i = 1; i < argc; ++i) {
        const int one = tp::run(tp::choose_kernels(argv[i]), argv[i]);
        status = status == 1 ? 1 : one ? one : status;
    }
    return status;
#endif
}
