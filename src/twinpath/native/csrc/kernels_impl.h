// The kernels, written once over a sixteen-float vector V and a few integer micro-kernels.
//
// A unit of one instruction set defines, inside its anonymous namespace and before including this file: V and its operations
// (see vec_portable.h), `quantize_block` and `quant_tile` (`is_first`: the weights are not in the first-level cache yet).
// Nothing here has external linkage, and no standard library template is instantiated: a function compiled for AVX-512 must
// never be merged by the linker with a portable one.
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
inline void gemm_tokens(const Matrix& w, int group_begin, int num_groups, const Acts& x, int token, bool is_first, float* y,
                        int64_t y_stride, bool add_to) {
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
                                    x.token_notes(token), is_first, sum);
            for (int t = 0; t < T; ++t) put(y + t * y_stride + g * kGroup, sum[t], add_to);
        }
    }
}

// One pass of `size` <= T tokens.
template <Format F, int kBits, int T>
void gemm_pass(const Matrix& w, int group_begin, int num_groups, const Acts& x, int token, int size, bool is_first, float* y,
               int64_t y_stride, bool add_to) {
    if (size == T) return gemm_tokens<F, kBits, T>(w, group_begin, num_groups, x, token, is_first, y, y_stride, add_to);
    if constexpr (T > 1) gemm_pass<F, kBits, T - 1>(w, group_begin, num_groups, x, token, size, is_first, y, y_stride, add_to);
}

// As few passes over the weights as can be, of about equal size.
template <Format F, int kBits>
void gemm_format(const Matrix& w, int group_begin, int num_groups, const Acts& x, int token_begin, int num_tokens, float* y,
                 int64_t y_stride, bool add_to) {
    for (int token = token_begin; num_tokens > 0;) {
        const int num_passes = (num_tokens + kMaxTokenTile - 1) / kMaxTokenTile, size = (num_tokens + num_passes - 1) / num_passes;
        gemm_pass<F, kBits, kMaxTokenTile>(w, group_begin, num_groups, x, token, size, token == token_begin, y, y_stride, add_to);
        token += size, num_tokens -= size, y += size * y_stride;
    }
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

#include "attend_impl.h"

#define TP_KERNEL_TABLE(label) \
    {label, quantize, gemm, rms_norm, rope, glu, add, store_kv, attend, attend_span, merge_span}
