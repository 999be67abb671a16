// Sixteen floats as two AVX2 registers (needs FMA and F16C too). Included inside the including unit's own namespace.
#pragma once

struct V {
    __m256 a, b;
};

constexpr int kAttendRows = 4;  // query rows that share a converted key: 8 sums, 2 keys, 1 query of 16 registers
constexpr int kAttendKeys = 1;  // key tiles in flight
constexpr int kAttendDims = 2;  // value registers in flight
constexpr int kAttendSums = 8;  // rows times tiles in flight at most
constexpr int kMaxTokenTile = 4;
#define TP_DENSE_TILES 2  // outputs of a dense tile: four registers each

inline V vload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void vstore(float* p, V x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline V vset(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline V vzero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline V vadd(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline V vsub(V x, V y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline V vmul(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline V vdiv(V x, V y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline V vfma(V x, V y, V z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline V vmax(V x, V y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline V vmin(V x, V y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }

inline V vround(V x) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, kNearest), _mm256_round_ps(x.b, kNearest)};
}

// x * 2^n for integral n in [-126, 127].
inline __m256 scale2(__m256 x, __m256 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
inline V vscale2(V x, V n) { return {scale2(x.a, n.a), scale2(x.b, n.b)}; }

inline float vsum(V x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float vtop(V x) {
    const __m256 eight = _mm256_max_ps(x.a, x.b);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Lanes lo <= i < hi of x, else those of y.
inline V vkeep(V x, V y, int lo, int hi) {
    const __m256i low = _mm256_set1_epi32(lo - 1), high = _mm256_set1_epi32(hi);
    const __m256i lane_a = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i lane_b = _mm256_add_epi32(lane_a, _mm256_set1_epi32(8));
    const __m256i in_a = _mm256_and_si256(_mm256_cmpgt_epi32(lane_a, low), _mm256_cmpgt_epi32(high, lane_a));
    const __m256i in_b = _mm256_and_si256(_mm256_cmpgt_epi32(lane_b, low), _mm256_cmpgt_epi32(high, lane_b));
    return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(in_a)), _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(in_b))};
}

inline __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline V vload_f16(const uint16_t* p) { return {_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 8))}; }
inline void vstore_f16(uint16_t* p, V x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline V vload_bf16(const uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(p)), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(p + 8)), 16))};
}
