// One pass over a row of logits: its best, its weights, its sum of exponentials; and the sampler's random numbers.
// Header of sampler.cpp alone. Build with -ffp-contract=off: the twin, sampling/reference.py, has no fused multiply-add.
#pragma once

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "sampler.h"

// The loops below vectorise by themselves; glibc's loader picks the best clone.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define TP_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TP_CLONES
#endif
#define TP_INLINE static inline __attribute__((always_inline))

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr int32_t kBlock = 64;

template <typename To, typename From>
TP_INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// Float bits as integers of the same order (its own inverse). -0.0 comes just below +0.0; NaNs lie beyond the infinities.
TP_INLINE int32_t order_bits(int32_t bits) { return bits ^ ((bits >> 31) & INT_MAX); }

// Largest key of every kBlock logits; returns the smallest key of all.
TP_CLONES int32_t scan_blocks(const float* logits, int32_t n, int32_t* block_best) {
    int32_t lowest = INT_MAX;
    const int32_t whole = n / kBlock;
    for (int32_t block = 0; block < whole; ++block) {
        int32_t low = INT_MAX, high = INT_MIN;
        for (int32_t i = 0; i < kBlock; ++i) {
            const int32_t key = order_bits(bit_cast<int32_t>(logits[block * kBlock + i]));
            low = key < low ? key : low;
            high = key > high ? key : high;
        }
        block_best[block] = high;
        lowest = low < lowest ? low : lowest;
    }
    if (whole * kBlock < n) {
        int32_t high = INT_MIN;
        for (int32_t i = whole * kBlock; i < n; ++i) {
            const int32_t key = order_bits(bit_cast<int32_t>(logits[i]));
            lowest = std::min(lowest, key);
            high = std::max(high, key);
        }
        block_best[whole] = high;
    }
    return lowest;
}

// out[i] = logits[i] where bit i of the mask is set, else -inf. Returns whether every logit was finite or -inf.
TP_CLONES bool copy_masked(const float* logits, int32_t n, const uint32_t* mask, float* out) {
    constexpr int32_t kInfKey = 0x7f800000;
    int32_t lowest = INT_MAX, highest = INT_MIN;
    for (int32_t begin = 0; begin < n; begin += 32) {
        const uint32_t word = mask[begin / 32];
        const int32_t size = std::min(32, n - begin);
        for (int32_t j = 0; j < size; ++j) {
            const int32_t bits = bit_cast<int32_t>(logits[begin + j]), key = order_bits(bits);
            lowest = key < lowest ? key : lowest;
            highest = key > highest ? key : highest;
            const int32_t chosen = (word >> j) & 1 ? bits : bit_cast<int32_t>(kNever);
            out[begin + j] = bit_cast<float>(chosen);
        }
    }
    return highest < kInfKey && lowest >= order_bits(INT_MIN | kInfKey);
}

TP_INLINE int32_t num_blocks_of(int32_t n) { return (n + kBlock - 1) / kBlock; }

struct Best {
    int32_t status;
    float logit;
    int32_t id;  // the lowest that holds `logit`
};

Best find_best(const float* logits, int32_t n, const int32_t* block_best, int32_t lowest) {
    constexpr int32_t kInfKey = 0x7f800000;
    const int32_t* best_block = std::max_element(block_best, block_best + num_blocks_of(n));
    const int32_t highest = *best_block;
    if (highest >= kInfKey || lowest < order_bits(INT_MIN | kInfKey)) return {TP_SAMPLER_NOT_FINITE, 0, 0};
    const float logit = bit_cast<float>(order_bits(highest));
    if (logit == kNever) return {TP_SAMPLER_NOTHING_LEFT, 0, 0};
    // The two zeros are equal, and an earlier block may hold the lesser one.
    int32_t id = logit == 0.0f ? 0 : static_cast<int32_t>(best_block - block_best) * kBlock;
    while (logits[id] != logit) ++id;
    return {TP_SAMPLER_OK, logit, id};
}

// exp(x) for -700 <= x <= 0 as series * 2^power: the operations of sampling.reference.fixed_exp, in its order. `shifted` holds
// the power in its low bits.
TP_INLINE double exp_series(double x, double* shifted) {
    constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
    *shifted = x * 0x1.71547652b82fep+0 + kShift;
    const double power = *shifted - kShift;
    const double r = (x - power * 0x1.62e42fee00000p-1) - power * 0x1.a39ef35793c76p-33;
    double series = 1.0 / 3628800.0;
    series = series * r + 1.0 / 362880.0;
    series = series * r + 1.0 / 40320.0;
    series = series * r + 1.0 / 5040.0;
    series = series * r + 1.0 / 720.0;
    series = series * r + 1.0 / 120.0;
    series = series * r + 1.0 / 24.0;
    series = series * r + 1.0 / 6.0;
    series = series * r + 0.5;
    series = series * r + 1.0;
    return series * r + 1.0;
}

TP_INLINE double scale_by_power(double series, double shifted, int64_t extra_power) {
    const uint64_t exponent = (bit_cast<uint64_t>(shifted) + static_cast<uint64_t>(1023 + extra_power)) << 52;
    return series * bit_cast<double>(exponent);
}

// Bits of x <= 0 with its sign set, as an integer that grows with x's distance from 0. Floating-point comparisons would keep
// the loops below from vectorising (they may trap).
TP_INLINE int64_t distance_bits(double x) { return bit_cast<int64_t>(x) | INT64_MIN; }

// weights[i] = rint(2^34 exp((logits[i] - best) * inverse_temperature)); returns their sum.
TP_CLONES uint64_t weigh(const float* logits, int32_t n, double best, double inverse_temperature, uint64_t* weights) {
    constexpr double kShift = 4503599627370496.0;  // 2^52
    constexpr uint64_t kMantissa = (uint64_t{1} << 52) - 1;
    uint64_t total = 0;
    for (int32_t i = 0; i < n; ++i) {
        const double x = (static_cast<double>(logits[i]) - best) * inverse_temperature;
        const int64_t distance = distance_bits(x), most = distance_bits(-64.0);
        double shifted;
        const double series = exp_series(bit_cast<double>(distance < most ? distance : most), &shifted);
        const uint64_t weight = bit_cast<uint64_t>(scale_by_power(series, shifted, 34) + kShift) & kMantissa;
        weights[i] = weight;
        total += weight;
    }
    return total;
}

// exp(x) for x <= 0; 0 below exp(-700).
TP_INLINE double exp_or_zero(double x) {
    const int64_t distance = distance_bits(x), most = distance_bits(-700.0);
    double shifted;
    const double series = exp_series(bit_cast<double>(distance < most ? distance : most), &shifted);
    const int64_t all_if_near = -static_cast<int64_t>(distance < most);
    return bit_cast<double>(bit_cast<int64_t>(scale_by_power(series, shifted, 0)) & all_if_near);
}

// Sum of exp(logits[i] - best), in eight lanes so that it vectorises.
TP_CLONES double sum_exp(const float* logits, int32_t n, double best) {
    double lanes[8] = {};
    int32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int32_t j = 0; j < 8; ++j) lanes[j] += exp_or_zero(static_cast<double>(logits[i + j]) - best);
    }
    for (; i < n; ++i) lanes[0] += exp_or_zero(static_cast<double>(logits[i]) - best);
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// The first two words of Philox4x32-10 (Salmon et al., SC 2011), low word first.
uint64_t philox(uint64_t key, uint64_t counter) {
    uint32_t c[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
        const uint32_t next[4] = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
                                  static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
        std::memcpy(c, next, sizeof c);
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    return uint64_t{c[1]} << 32 | c[0];
}

}  // namespace
