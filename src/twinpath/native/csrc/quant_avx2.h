// Quantised micro-kernels in 256-bit integers, for kernels_avx2.cpp and kernels_avxvnni.cpp. Included inside the including
// unit's own namespace, after vec_avx2.h.
//
// Activations are two planes of signed bytes, integer = 256 * high + low; weights unsigned bytes.
//   AVX-VNNI: vpdpbusd adds four exact products per lane.
//   AVX2: vpmaddubsw adds two products in 16 bits, which saturate; so sums stay in 16 bits only for as many cells as the
//     format's largest code allows, and Q8_0, whose codes do not allow even one, is multiplied in 16 bits (vpmaddwd).
// All integer sums are exact, so every path gives the same totals.
#pragma once

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

// Sixteen rows' 32-bit integers.
struct Totals {
    __m256i a, b;
};

inline __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
// Four consecutive bytes of a plane in every lane.
inline __m256i spread(const int8_t* p) {
    return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(p)));
}

// Codes of one block as bytes: cells[2 j] are rows 0..7 of columns 4 j .. 4 j + 3, cells[2 j + 1] rows 8..15.
template <Format F>
inline void load_cells(const uint8_t* p, __m256i* cells) {
    if constexpr (format_info(F).code_bits == 4) {
        const __m256i nibble = _mm256_set1_epi8(15);
        for (int i = 0; i < 8; ++i) {
            const __m256i packed = load_256(p + 32 * i);
            cells[i] = _mm256_and_si256(packed, nibble);
            cells[8 + i] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
        }
    } else {
        for (int i = 0; i < 16; ++i) cells[i] = load_256(p + 32 * i);
    }
}

// Products of cells that fit a signed 16-bit sum: 256 * (largest code) * cells <= 32767.
constexpr int narrow_cells(Format f) {
    switch (f) {
        case Format::kQ4_0: case Format::kQ4_1: case Format::kQ4_K: return 8;  // 15 * 256 * 8 = 30720
        case Format::kQ5_0: case Format::kQ5_1: case Format::kQ5_K: return 4;  // 31 * 256 * 4 = 31744
        case Format::kQ6_K: return 2;                                          // 63 * 256 * 2 = 32256
        default: return 0;
    }
}

// totals[t] = sum over cells [kBegin, kEnd) of code * integer, for T tokens whose planes are `stride` bytes apart.
template <Format F, int kBits, int T, int kBegin, int kEnd>
inline void multiply_cells(const __m256i* cells, const int8_t* planes, int64_t stride, Totals* totals) {
#if defined(__AVXVNNI__)
    Totals low[T];
    for (int t = 0; t < T; ++t) totals[t].a = totals[t].b = low[t].a = low[t].b = _mm256_setzero_si256();
    for (int j = kBegin; j < kEnd; ++j) {
        for (int t = 0; t < T; ++t) {
            const __m256i h = spread(planes + t * stride + 4 * j);
            totals[t].a = _mm256_dpbusd_avx_epi32(totals[t].a, cells[2 * j], h);
            totals[t].b = _mm256_dpbusd_avx_epi32(totals[t].b, cells[2 * j + 1], h);
            if constexpr (kBits == 16) {
                const __m256i l = spread(planes + t * stride + kBlock + 4 * j);
                low[t].a = _mm256_dpbusd_avx_epi32(low[t].a, cells[2 * j], l);
                low[t].b = _mm256_dpbusd_avx_epi32(low[t].b, cells[2 * j + 1], l);
            }
        }
    }
    if constexpr (kBits == 16) {
        for (int t = 0; t < T; ++t) {
            totals[t].a = _mm256_add_epi32(_mm256_slli_epi32(totals[t].a, 8), low[t].a);
            totals[t].b = _mm256_add_epi32(_mm256_slli_epi32(totals[t].b, 8), low[t].b);
        }
    }
#else
    constexpr int kNarrow = narrow_cells(F);
    const __m256i one = _mm256_set1_epi16(1), high_weight = _mm256_set1_epi16(kBits == 16 ? 256 : 1);
    for (int begin = kBegin; begin < kEnd; begin += kNarrow) {
        const int end = begin + kNarrow < kEnd ? begin + kNarrow : kEnd;
        Totals high[T], low[T];
        for (int j = begin; j < end; ++j) {
            for (int t = 0; t < T; ++t) {
                const __m256i h = spread(planes + t * stride + 4 * j);
                const Totals product = {_mm256_maddubs_epi16(cells[2 * j], h), _mm256_maddubs_epi16(cells[2 * j + 1], h)};
                high[t].a = j == begin ? product.a : _mm256_add_epi16(high[t].a, product.a);
                high[t].b = j == begin ? product.b : _mm256_add_epi16(high[t].b, product.b);
                if constexpr (kBits == 16) {
                    const __m256i l = spread(planes + t * stride + kBlock + 4 * j);
                    const Totals rest = {_mm256_maddubs_epi16(cells[2 * j], l), _mm256_maddubs_epi16(cells[2 * j + 1], l)};
                    low[t].a = j == begin ? rest.a : _mm256_add_epi16(low[t].a, rest.a);
                    low[t].b = j == begin ? rest.b : _mm256_add_epi16(low[t].b, rest.b);
                }
            }
        }
        for (int t = 0; t < T; ++t) {
            Totals wide = {_mm256_madd_epi16(high[t].a, high_weight), _mm256_madd_epi16(high[t].b, high_weight)};
            if constexpr (kBits == 16) {
                wide.a = _mm256_add_epi32(wide.a, _mm256_madd_epi16(low[t].a, one));
                wide.b = _mm256_add_epi32(wide.b, _mm256_madd_epi16(low[t].b, one));
            }
            totals[t].a = begin == kBegin ? wide.a : _mm256_add_epi32(totals[t].a, wide.a);
            totals[t].b = begin == kBegin ? wide.b : _mm256_add_epi32(totals[t].b, wide.b);
        }
    }
#endif
}

#if !defined(__AVXVNNI__)
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

// The same as multiply_cells for a whole block of 8-bit codes straight from memory.
template <int kBits, int T>
inline void multiply_wide(const uint8_t* codes, const int8_t* planes, int64_t stride, Totals* totals) {
    alignas(32) int32_t pairs[T][16];
    for (int t = 0; t < T; ++t) {
        pair_up<kBits>(planes + t * stride, pairs[t]);
        totals[t].a = totals[t].b = _mm256_setzero_si256();
    }
    const __m256i low_byte = _mm256_set1_epi16(0xff);
    for (int j = 0; j < 8; ++j) {
        const __m256i a = load_256(codes + 64 * j), b = load_256(codes + 64 * j + 32);
        const __m256i even_a = _mm256_and_si256(a, low_byte), even_b = _mm256_and_si256(b, low_byte);
        const __m256i odd_a = _mm256_srli_epi16(a, 8), odd_b = _mm256_srli_epi16(b, 8);
        for (int t = 0; t < T; ++t) {
            const __m256i even = _mm256_set1_epi32(pairs[t][j]), odd = _mm256_set1_epi32(pairs[t][8 + j]);
            totals[t].a = _mm256_add_epi32(totals[t].a, _mm256_madd_epi16(even_a, even));
            totals[t].b = _mm256_add_epi32(totals[t].b, _mm256_madd_epi16(even_b, even));
            totals[t].a = _mm256_add_epi32(totals[t].a, _mm256_madd_epi16(odd_a, odd));
            totals[t].b = _mm256_add_epi32(totals[t].b, _mm256_madd_epi16(odd_b, odd));
        }
    }
}
#endif

// sum += (totals - zero * inputs) * (weight scale * activation scale)
template <Format F>
inline V scale_totals(const Totals& totals, int32_t inputs, V weight_scale, float activation_scale, V sum) {
    constexpr int kZeroShift = format_info(F).zero_shift;
    __m256i a = totals.a, b = totals.b;
    if constexpr (kZeroShift >= 0) {
        const __m256i zero = _mm256_set1_epi32(inputs << kZeroShift);
        a = _mm256_sub_epi32(a, zero);
        b = _mm256_sub_epi32(b, zero);
    }
    const V value = {_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b)};
    return vfma(value, vmul(weight_scale, vset(activation_scale)), sum);
}

template <Format F>
inline V load_scale(const uint8_t* scales, int index) {
    if constexpr (format_info(F).wide_scales) return vload(reinterpret_cast<const float*>(scales) + index * kGroup);
    else return vload_f16(reinterpret_cast<const uint16_t*>(scales) + index * kGroup);
}

// sum[t] = 16 rows of the group times token t; planes and notes are those of the first token. Tokens go in pairs: eight sums,
// two cells and the spread bytes fill the sixteen registers.
template <Format F, int kBits, int T>
inline void quant_tile(const uint8_t* codes, const uint8_t* scales, int num_blocks, const int8_t* planes, const BlockNote* notes,
                       V* sum) {
    constexpr FormatInfo kInfo = format_info(F);
    constexpr int kPair = T < 2 ? T : 2;
    const int64_t stride = static_cast<int64_t>(num_blocks) * 2 * kBlock;
    for (int t = 0; t < T; ++t) sum[t] = vzero();
    for (int b = 0; b < num_blocks; ++b, codes += code_bytes(F), scales += scale_bytes(F), planes += 2 * kBlock) {
        Totals totals[T], second[T];
#if !defined(__AVXVNNI__)
        if constexpr (F == Format::kQ8_0) {
            multiply_wide<kBits, T>(codes, planes, stride, totals);
        } else
#endif
        {
            __m256i cells[16];
            load_cells<F>(codes, cells);
            for (int t = 0; t < T; t += kPair) {
                constexpr int kMiddle = kInfo.half_scales ? 4 : 8;
                multiply_cells<F, kBits, kPair, 0, kMiddle>(cells, planes + t * stride, stride, totals + t);
                if constexpr (kInfo.half_scales) {
                    multiply_cells<F, kBits, kPair, 4, 8>(cells, planes + t * stride, stride, second + t);
                }
            }
        }
        const V scale = load_scale<F>(scales, 0);
        for (int t = 0; t < T; ++t) {
            const BlockNote& note = notes[static_cast<int64_t>(t) * num_blocks + b];
            const int32_t inputs = kInfo.half_scales ? note.first_sum : note.sum;
            sum[t] = scale_totals<F>(totals[t], inputs, scale, note.scale, sum[t]);
            if constexpr (kInfo.half_scales) {
                sum[t] = scale_totals<F>(second[t], note.sum - inputs, load_scale<F>(scales, 1), note.scale, sum[t]);
            } else if constexpr (kInfo.has_min) {
                sum[t] = vfma(load_scale<F>(scales, 1), vset(note.scaled_sum), sum[t]);
            }
        }
    }
}
