// AVX-512 kernels; the integer products use VNNI (vpdpbusd: four unsigned x signed byte products per lane and instruction).
#include <immintrin.h>

#include "kernels.h"

namespace tp {
namespace {

#include "vec_avx512.h"

template <int kBits>
inline void quantize_block(const float* x, int8_t* planes, BlockNote* note) {
    constexpr float kTop = kBits == 16 ? 32639.0f : 127.0f;
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    const __m512i absolute = _mm512_set1_epi32(0x7fffffff);
    // Compared as integers so that a not-a-number is the greatest and reaches the scale.
    const int32_t top_bits = _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), absolute),
                                                                      _mm512_and_si512(_mm512_castps_si512(b), absolute)));
    const float top = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(top_bits)));
    const bool usable = top > 1e-30f && top_bits < 0x7f800000;
    const __m512 inverse = _mm512_set1_ps(usable ? kTop / top : 0.0f);
    const __mmask16 all = usable ? 0xffff : 0;
    const __m512i qa = _mm512_maskz_cvtps_epi32(all, _mm512_mul_ps(a, inverse));
    const __m512i qb = _mm512_maskz_cvtps_epi32(all, _mm512_mul_ps(b, inverse));
    const int32_t first = _mm512_reduce_add_epi32(qa), sum = first + _mm512_reduce_add_epi32(qb);
    if constexpr (kBits == 16) {
        const __m512i half = _mm512_set1_epi32(128);
        const __m512i ha = _mm512_srai_epi32(_mm512_add_epi32(qa, half), 8), hb = _mm512_srai_epi32(_mm512_add_epi32(qb, half), 8);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(planes), _mm512_cvtepi32_epi8(ha));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(planes + 16), _mm512_cvtepi32_epi8(hb));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(planes + 32), _mm512_cvtepi32_epi8(qa));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(planes + 48), _mm512_cvtepi32_epi8(qb));
    } else {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(planes), _mm512_cvtepi32_epi8(qa));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(planes + 16), _mm512_cvtepi32_epi8(qb));
    }
    note->scale = top > 1e-30f || top_bits >= 0x7f800000 ? top / kTop : 0.0f;
    note->scaled_sum = note->scale * static_cast<float>(sum);
    note->sum = sum;
    note->first_sum = first;
}

// Weights stream through once per step, for several passes of tokens if there are more than a tile takes: fetched this far ahead into the second-level cache. Measured on Emerald Rapids, one
// core, 96 MB of Q4_1: 9.2 GB/s without, 11.6 at 2 KB, 13.7 at 8 KB, 14.6 at 16 KB, 14.2 at 32 KB; plain reads reach 16.
constexpr int64_t kPrefetchBytes = 16 * 1024;

inline __m512i cell(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline __m512i four(const int8_t* p) {
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

// Adds columns 4 j .. 4 j + 3 to the totals of T tokens: 2 T independent chains, which hide the instruction's latency.
template <int kBits, int T>
inline void accumulate(__m512i w, const int8_t* x, int64_t stride, int j, __m512i* high, __m512i* low) {
    for (int t = 0; t < T; ++t) high[t] = _mm512_dpbusd_epi32(high[t], w, four(x + t * stride + 4 * j));
    if constexpr (kBits == 16) {
        for (int t = 0; t < T; ++t) low[t] = _mm512_dpbusd_epi32(low[t], w, four(x + t * stride + kBlock + 4 * j));
    }
}

template <int kBits>
inline __m512i join(__m512i high, __m512i low) {
    if constexpr (kBits == 8) return high;
    else return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

// Integer totals of one half (16 columns: half 0 or 1) or, with kHalf = -1, of all 32.
template <Format F, int kBits, int T, int kHalf>
inline void totals(const uint8_t* codes, const int8_t* x, int64_t stride, __m512i* out) {
    __m512i high[T], low[T];
    for (int t = 0; t < T; ++t) high[t] = low[t] = _mm512_setzero_si512();
    if constexpr (format_info(F).code_bits == 4) {
        const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const __m512i c = cell(codes + 64 * j);
            if (kHalf != 1) accumulate<kBits, T>(_mm512_and_si512(c, mask), x, stride, j, high, low);
            if (kHalf != 0) accumulate<kBits, T>(_mm512_and_si512(_mm512_srli_epi16(c, 4), mask), x, stride, 4 + j, high, low);
        }
    } else {
#pragma GCC unroll 8
        for (int j = kHalf == 1 ? 4 : 0; j < (kHalf == 0 ? 4 : 8); ++j) accumulate<kBits, T>(cell(codes + 64 * j), x, stride, j, high, low);
    }
    for (int t = 0; t < T; ++t) out[t] = join<kBits>(high[t], low[t]);
}

template <Format F>
inline V load_scale(const uint8_t* p, int which) {
    if constexpr (format_info(F).wide_scales) return vload(reinterpret_cast<const float*>(p) + which * kGroup);
    else return vload_f16(reinterpret_cast<const uint16_t*>(p) + which * kGroup);
}

inline __m512 less_zero(__m512i total, int32_t inputs, int shift) {
    if (shift >= 0) total = _mm512_sub_epi32(total, _mm512_set1_epi32(inputs << shift));
    return _mm512_cvtepi32_ps(total);
}

template <Format F, int kBits, int T>
inline void quant_tile(const uint8_t* codes, const uint8_t* scales, int num_blocks, const int8_t* planes, const BlockNote* notes,
                       bool is_first, V* sum) {
    constexpr FormatInfo kInfo = format_info(F);
    V acc[T];
    for (int t = 0; t < T; ++t) acc[t] = vzero();
    const int64_t plane_stride = static_cast<int64_t>(num_blocks) * 2 * kBlock;
    for (int b = 0; b < num_blocks; ++b, codes += code_bytes(F), scales += scale_bytes(F)) {
        if (is_first) {
            for (int i = 0; i < code_bytes(F); i += 64) _mm_prefetch(codes + kPrefetchBytes + i, _MM_HINT_T1);
            _mm_prefetch(scales + kPrefetchBytes, _MM_HINT_T1);
        }
        const V scale = load_scale<F>(scales, 0);
        const int8_t* x = planes + b * 2 * kBlock;
        const BlockNote* note = notes + b;
        if constexpr (kInfo.half_scales) {
            const V second = load_scale<F>(scales, 1);
            __m512i first[T], last[T];
            totals<F, kBits, T, 0>(codes, x, plane_stride, first);
            totals<F, kBits, T, 1>(codes, x, plane_stride, last);
            for (int t = 0; t < T; ++t, note += num_blocks) {
                const V factor = vset(note->scale);
                acc[t] = vfma(less_zero(first[t], note->first_sum, kInfo.zero_shift), vmul(scale, factor), acc[t]);
                acc[t] = vfma(less_zero(last[t], note->sum - note->first_sum, kInfo.zero_shift), vmul(second, factor), acc[t]);
            }
        } else {
            __m512i all[T];
            totals<F, kBits, T, -1>(codes, x, plane_stride, all);
            V minimum = vzero();
            if constexpr (kInfo.has_min) minimum = load_scale<F>(scales, 1);
            for (int t = 0; t < T; ++t, note += num_blocks) {
                acc[t] = vfma(less_zero(all[t], note->sum, kInfo.zero_shift), vmul(scale, vset(note->scale)), acc[t]);
                if constexpr (kInfo.has_min) acc[t] = vfma(minimum, vset(note->scaled_sum), acc[t]);
            }
        }
    }
    for (int t = 0; t < T; ++t) sum[t] = acc[t];
}

#include "kernels_impl.h"

constexpr Kernels kTable = TP_KERNEL_TABLE("avx512vnni");

}  // namespace

const Kernels* kernels_avx512vnni() { return &kTable; }

}  // namespace tp
