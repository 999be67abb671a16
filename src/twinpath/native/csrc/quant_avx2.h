// Quantised micro-kernels in 256-bit integers, for kernels_avx2.cpp and kernels_avxvnni.cpp. Included inside the including
// unit's own namespace, after vec_avx2.h; the unit defines TP_AVX_VNNI as 0 or 1.
//
// Activations are two planes of signed bytes, integer = 256 * high + low; weights unsigned bytes.
//   AVX-VNNI: vpdpbusd adds four exact products per lane.
//   AVX2: vpmaddubsw adds two products in 16 bits, which saturate; so sums stay in 16 bits only for as many cells as the
//     format's largest code allows, and Q8_0, whose codes do not allow even one, is multiplied in 16 bits (vpmaddwd).
// All integer sums are exact, so every path gives the same totals.
#pragma once

// Loops over tokens and halves carry registers, so they are unrolled. Loops over cells stay rolled for AVX2: unrolled, GCC
// hoists their loads and spills the sums (Q4_1, four tokens: 46 GMAC/s rolled, 41 unrolled). VNNI has half as many
// instructions and gains from unrolling (Q8_0, four tokens: 51 and 72).
#if defined(__GNUC__) && !defined(__clang__)
#define TP_UNROLL _Pragma("GCC unroll 16")
#define TP_ROLL _Pragma("GCC unroll 1")
#else
#define TP_UNROLL _Pragma("unroll")
#define TP_ROLL _Pragma("nounroll")
#endif
#if TP_AVX_VNNI
#define TP_CELLS TP_UNROLL
#else
#define TP_CELLS TP_ROLL
#endif

template <int kBits>
inline void quantize_block(const float* x, int8_t* planes, BlockNote* note) {
    constexpr float kTop = kBits == 16 ? 32639.0f : 127.0f;
    __m256 in[4];
    for (int i = 0; i < 4; ++i) in[i] = _mm256_loadu_ps(x + 8 * i);
    // Compared as integers so that a not-a-number is the greatest and reaches the scale.
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_and_si256(_mm256_castps_si256(in[0]), magnitude);
    for (int i = 1; i < 4; ++i) most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(in[i]), magnitude));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    const int32_t top_bits = _mm_cvtsi128_si32(four);
    const float top = _mm_cvtss_f32(_mm_castsi128_ps(four));
    const bool finite = top_bits < 0x7f800000;
    const bool usable = finite && top > 1e-30f;

    __m256i q[4];
    const __m256 inverse = _mm256_set1_ps(usable ? kTop / top : 0.0f);
    for (int i = 0; i < 4; ++i) {
        q[i] = usable ? _mm256_cvtps_epi32(_mm256_mul_ps(in[i], inverse)) : _mm256_setzero_si256();
    }
    const auto total = [](__m256i v) {
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
    };
    const int32_t first_sum = total(_mm256_add_epi32(q[0], q[1]));
    const int32_t sum = first_sum + total(_mm256_add_epi32(q[2], q[3]));

    // Packing works within 128-bit lanes; the permutation puts the columns back in order.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const auto pack = [&](const __m256i* v) {
        const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
        return _mm256_permutevar8x32_epi32(bytes, order);
    };
    __m256i high[4], low[4];
    for (int i = 0; i < 4; ++i) {
        high[i] = kBits == 16 ? _mm256_srai_epi32(_mm256_add_epi32(q[i], _mm256_set1_epi32(128)), 8) : q[i];
        low[i] = kBits == 16 ? _mm256_sub_epi32(q[i], _mm256_slli_epi32(high[i], 8)) : _mm256_setzero_si256();
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(planes), pack(high));
    _mm256_store_si256(reinterpret_cast<__m256i*>(planes + kBlock), pack(low));
    note->scale = !finite || top > 1e-30f ? top / kTop : 0.0f;
    note->scaled_sum = note->scale * static_cast<float>(sum);
    note->sum = sum;
    note->first_sum = first_sum;
}

inline __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
// Four consecutive bytes of a plane in every lane.
inline __m256i spread(const int8_t* p) {
    return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(p)));
}

// Cells (four columns of eight rows) whose products fit a signed 16-bit sum: 256 * (largest code) * cells <= 32767.
constexpr int narrow_cells(Format f) {
    switch (f) {
        case Format::kQ4_0: case Format::kQ4_1: case Format::kQ4_K: return 8;  // 15 * 256 * 8 = 30720
        case Format::kQ5_0: case Format::kQ5_1: case Format::kQ5_K: return 4;  // 31 * 256 * 4 = 31744
        case Format::kQ6_K: return 2;                                          // 63 * 256 * 2 = 32256
        default: return 0;
    }
}

// Sums of code * plane, for the high and the low plane of T tokens and H half groups of eight rows.
template <Format F, int kBits, int T, int H>
struct Sums {
    __m256i high[T][H], low[T][H];

    void clear() {
        TP_UNROLL
        for (int t = 0; t < T; ++t) {
            TP_UNROLL
            for (int h = 0; h < H; ++h) high[t][h] = low[t][h] = _mm256_setzero_si256();
        }
    }

    void add_cell(const __m256i* codes, const int8_t* planes, int64_t stride) {
        TP_UNROLL
        for (int t = 0; t < T; ++t) {
            const __m256i x = spread(planes + t * stride);
            TP_UNROLL
            for (int h = 0; h < H; ++h) high[t][h] = add_products(high[t][h], codes[h], x);
            if constexpr (kBits == 16) {
                const __m256i y = spread(planes + t * stride + kBlock);
                TP_UNROLL
                for (int h = 0; h < H; ++h) low[t][h] = add_products(low[t][h], codes[h], y);
            }
        }
    }

#if TP_AVX_VNNI
    static constexpr int kMaxCells = 8;
    static __m256i add_products(__m256i sum, __m256i codes, __m256i x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
    __m256i total(int t, int h) const {
        return kBits == 16 ? _mm256_add_epi32(_mm256_slli_epi32(high[t][h], 8), low[t][h]) : high[t][h];
    }
#else
    static constexpr int kMaxCells = narrow_cells(F);
    static __m256i add_products(__m256i sum, __m256i codes, __m256i x) {
        return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x));
    }
    __m256i total(int t, int h) const {
        const __m256i wide = _mm256_madd_epi16(high[t][h], _mm256_set1_epi16(kBits == 16 ? 256 : 1));
        return kBits == 16 ? _mm256_add_epi32(wide, _mm256_madd_epi16(low[t][h], _mm256_set1_epi16(1))) : wide;
    }
#endif
};

template <int T, int H>
struct Totals {
    __m256i of[T][H];
};

// Sum of code * integer over cells [kBegin, kEnd) of a block.
template <Format F, int kBits, int T, int H, int kBegin, int kEnd>
inline Totals<T, H> multiply_cells(const uint8_t* codes, const int8_t* planes, int64_t stride) {
    Sums<F, kBits, T, H> sums;
    Totals<T, H> totals;
    __m256i cell[H];
    if constexpr (format_info(F).code_bits == 4) {  // cell j in the low nibbles, cell 4 + j in the high ones
        static_assert(sums.kMaxCells == 8, "a whole block fits one sum");
        const __m256i nibble = _mm256_set1_epi8(15);
        sums.clear();
        TP_CELLS
        for (int j = 0; j < 4; ++j) {
            __m256i upper[H];
            TP_UNROLL
            for (int h = 0; h < H; ++h) {
                const __m256i packed = load_256(codes + 64 * j + 32 * h);
                cell[h] = _mm256_and_si256(packed, nibble);
                upper[h] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
            }
            sums.add_cell(cell, planes + 4 * j, stride);
            sums.add_cell(upper, planes + 16 + 4 * j, stride);
        }
        TP_UNROLL
        for (int t = 0; t < T; ++t) {
            TP_UNROLL
            for (int h = 0; h < H; ++h) totals.of[t][h] = sums.total(t, h);
        }
    } else {
        constexpr int kStep = sums.kMaxCells < kEnd - kBegin ? sums.kMaxCells : kEnd - kBegin;
        TP_UNROLL
        for (int t = 0; t < T; ++t) {
            TP_UNROLL
            for (int h = 0; h < H; ++h) totals.of[t][h] = _mm256_setzero_si256();
        }
        TP_UNROLL
        for (int begin = kBegin; begin < kEnd; begin += kStep) {
            sums.clear();
            TP_CELLS
            for (int j = begin; j < begin + kStep; ++j) {
                TP_UNROLL
                for (int h = 0; h < H; ++h) cell[h] = load_256(codes + 64 * j + 32 * h);
                sums.add_cell(cell, planes + 4 * j, stride);
            }
            TP_UNROLL
            for (int t = 0; t < T; ++t) {
                TP_UNROLL
                for (int h = 0; h < H; ++h) totals.of[t][h] = _mm256_add_epi32(totals.of[t][h], sums.total(t, h));
            }
        }
    }
    return totals;
}

#if !TP_AVX_VNNI
// One token's block as 16-bit integers: columns 4 j, 4 j + 2 in pairs[j], columns 4 j + 1, 4 j + 3 in pairs[8 + j].
template <int kBits>
inline void pair_up(const int8_t* planes, int32_t* pairs) {
    const __m256i high = load_256(planes);
    __m256i even = _mm256_slli_epi16(high, 8), odd = high;
    if constexpr (kBits == 16) {
        const __m256i low = load_256(planes + kBlock);
        odd = _mm256_and_si256(high, _mm256_set1_epi16(static_cast<int16_t>(0xff00)));
        even = _mm256_add_epi16(even, _mm256_srai_epi16(_mm256_slli_epi16(low, 8), 8));
        odd = _mm256_add_epi16(odd, _mm256_srai_epi16(low, 8));
    } else {
        even = _mm256_srai_epi16(even, 8);
        odd = _mm256_srai_epi16(odd, 8);
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), even);
    _mm256_store_si256(reinterpret_cast<__m256i*>(pairs + 8), odd);
}

// The same as multiply_cells over a whole block, for 8-bit codes of any size.
template <int kBits, int T, int H>
inline Totals<T, H> multiply_pairs(const uint8_t* codes, const int8_t* planes, int64_t stride) {
    alignas(32) int32_t pairs[T][16];
    Totals<T, H> totals;
    TP_UNROLL
    for (int t = 0; t < T; ++t) {
        pair_up<kBits>(planes + t * stride, pairs[t]);
        TP_UNROLL
        for (int h = 0; h < H; ++h) totals.of[t][h] = _mm256_setzero_si256();
    }
    TP_CELLS
    for (int j = 0; j < 8; ++j) {
        __m256i even[H], odd[H];
        TP_UNROLL
        for (int h = 0; h < H; ++h) {
            const __m256i cell = load_256(codes + 64 * j + 32 * h);
            even[h] = _mm256_and_si256(cell, _mm256_set1_epi16(0xff));
            odd[h] = _mm256_srli_epi16(cell, 8);
        }
        TP_UNROLL
        for (int t = 0; t < T; ++t) {
            const __m256i x = _mm256_set1_epi32(pairs[t][j]), y = _mm256_set1_epi32(pairs[t][8 + j]);
            TP_UNROLL
            for (int h = 0; h < H; ++h) {
                const __m256i sum = _mm256_add_epi32(totals.of[t][h], _mm256_madd_epi16(even[h], x));
                totals.of[t][h] = _mm256_add_epi32(sum, _mm256_madd_epi16(odd[h], y));
            }
        }
    }
    return totals;
}
#endif

template <Format F, int kBits, int T, int H>
inline Totals<T, H> multiply_block(const uint8_t* codes, const int8_t* planes, int64_t stride) {
#if !TP_AVX_VNNI
    if constexpr (!narrow_cells(F)) return multiply_pairs<kBits, T, H>(codes, planes, stride);
    else
#endif
        return multiply_cells<F, kBits, T, H, 0, format_info(F).half_scales ? 4 : 8>(codes, planes, stride);
}

// Scales (index 0), minima or second scales (index 1) of eight rows.
template <Format F>
inline __m256 load_scale(const uint8_t* scales, int index, int half) {
    const int at = index * kGroup + half * 8;
    if constexpr (format_info(F).wide_scales) return _mm256_loadu_ps(reinterpret_cast<const float*>(scales) + at);
    else return _mm256_cvtph_ps(load_128(reinterpret_cast<const uint16_t*>(scales) + at));
}

// sum += (total - zero * inputs) * (weight scale * activation scale)
template <Format F>
inline __m256 scale_total(__m256i total, int32_t inputs, __m256 weight_scale, float activation_scale, __m256 sum) {
    constexpr int kZeroShift = format_info(F).zero_shift;
    if constexpr (kZeroShift >= 0) total = _mm256_sub_epi32(total, _mm256_set1_epi32(inputs << kZeroShift));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), _mm256_mul_ps(weight_scale, _mm256_set1_ps(activation_scale)), sum);
}

// y[t][half] = rows of half groups [half, half + H) times token t, over all blocks.
template <Format F, int kBits, int T, int H>
inline void multiply_rows(const uint8_t* codes, const uint8_t* scales, int num_blocks, const int8_t* planes,
                          const BlockNote* notes, int half, __m256 (*y)[2]) {
    constexpr FormatInfo kInfo = format_info(F);
    const int64_t stride = static_cast<int64_t>(num_blocks) * 2 * kBlock;
    __m256 sums[T][H];
    TP_UNROLL
    for (int t = 0; t < T; ++t) {
        TP_UNROLL
        for (int h = 0; h < H; ++h) sums[t][h] = _mm256_setzero_ps();
    }
    codes += 32 * half;
    for (int b = 0; b < num_blocks; ++b, codes += code_bytes(F), scales += scale_bytes(F), planes += 2 * kBlock) {
        const Totals<T, H> totals = multiply_block<F, kBits, T, H>(codes, planes, stride);
        Totals<T, H> second;
        if constexpr (kInfo.half_scales) second = multiply_cells<F, kBits, T, H, 4, 8>(codes, planes, stride);
        TP_UNROLL
        for (int h = 0; h < H; ++h) {
            const __m256 scale = load_scale<F>(scales, 0, half + h);
            TP_UNROLL
            for (int t = 0; t < T; ++t) {
                const BlockNote& note = notes[static_cast<int64_t>(t) * num_blocks + b];
                const int32_t inputs = kInfo.half_scales ? note.first_sum : note.sum;
                __m256 sum = scale_total<F>(totals.of[t][h], inputs, scale, note.scale, sums[t][h]);
                if constexpr (kInfo.half_scales) {
                    sum = scale_total<F>(second.of[t][h], note.sum - inputs, load_scale<F>(scales, 1, half + h), note.scale, sum);
                } else if constexpr (kInfo.has_min) {
                    sum = _mm256_fmadd_ps(load_scale<F>(scales, 1, half + h), _mm256_set1_ps(note.scaled_sum), sum);
                }
                sums[t][h] = sum;
            }
        }
    }
    TP_UNROLL
    for (int t = 0; t < T; ++t) {
        TP_UNROLL
        for (int h = 0; h < H; ++h) y[t][half + h] = sums[t][h];
    }
}

// Eight of the sixteen registers hold sums: one per token, half group and plane (Q8_0 in 16 bits needs no planes).
template <Format F>
constexpr int sums_per_total() {
#if TP_AVX_VNNI
    return 2;
#else
    return narrow_cells(F) ? 2 : 1;
#endif
}

// Unpacking nibbles is worth sharing among four tokens; whole bytes are cheaper to load again than activations to spread.
template <Format F, int T>
constexpr int halves_at_once() {
    if (T == 3) return 1;
#if TP_AVX_VNNI
    return 2;
#else
    return T == 4 && format_info(F).code_bits == 4 ? 1 : 2;
#endif
}

// sum[t] = 16 rows of the group times token t; planes and notes are those of the first token.
template <Format F, int kBits, int T>
inline void quant_tile(const uint8_t* codes, const uint8_t* scales, int num_blocks, const int8_t* planes, const BlockNote* notes,
                       bool /*is_first*/, V* sum) {
    constexpr int H = halves_at_once<F, T>();
    constexpr int kSums = sums_per_total<F>();
    constexpr int kTokens = T * H * kSums <= 8 ? T : 8 / (H * kSums);
    static_assert(T % kTokens == 0, "tokens go in whole tiles");
    const int64_t stride = static_cast<int64_t>(num_blocks) * 2 * kBlock;
    __m256 y[T][2];
    for (int t = 0; t < T; t += kTokens) {
        for (int half = 0; half < 2; half += H) {
            multiply_rows<F, kBits, kTokens, H>(codes, scales, num_blocks, planes + t * stride, notes + t * num_blocks, half, y + t);
        }
    }
    for (int t = 0; t < T; ++t) sum[t] = {y[t][0], y[t][1]};
}
