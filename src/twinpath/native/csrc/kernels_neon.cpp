// NEON kernels with the dot product instructions (Armv8.2: Apple M, Graviton 2 and later, Cortex-A76 and later).
#include "kernels.h"

#include <arm_neon.h>

namespace tp {
namespace {

#include "vec_neon.h"

template <int kBits>
inline void quantize_block(const float* x, int8_t* planes, BlockNote* note) {
    constexpr float kTop = kBits == 16 ? 32639.0f : 127.0f;
    // Compared as integers so that a not-a-number is the greatest and reaches the scale.
    uint32x4_t most = vdupq_n_u32(0);
    for (int i = 0; i < 8; ++i) {
        const uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(x + 4 * i));
        most = vmaxq_u32(most, vandq_u32(bits, vdupq_n_u32(0x7fffffffu)));
    }
    union { uint32_t i; float f; } top;
    top.i = vmaxvq_u32(most);
    const bool finite = top.i < 0x7f800000u;
    const bool usable = finite && top.f > 1e-30f;
    const float32x4_t inverse = vdupq_n_f32(usable ? kTop / top.f : 0.0f);
    int32_t sums[2] = {0, 0};
    for (int part = 0; part < 2; ++part) {
        int16x8_t high[2], low[2];
        int32x4_t sum = vdupq_n_s32(0);
        for (int i = 0; i < 2; ++i) {
            int32x4_t h[2], l[2];
            for (int k = 0; k < 2; ++k) {
                const float32x4_t scaled = vmulq_f32(vld1q_f32(x + 16 * part + 8 * i + 4 * k), inverse);
                const int32x4_t q = usable ? vcvtnq_s32_f32(scaled) : vdupq_n_s32(0);
                sum = vaddq_s32(sum, q);
                h[k] = kBits == 16 ? vshrq_n_s32(vaddq_s32(q, vdupq_n_s32(128)), 8) : q;
                l[k] = kBits == 16 ? vsubq_s32(q, vshlq_n_s32(h[k], 8)) : vdupq_n_s32(0);
            }
            high[i] = vcombine_s16(vmovn_s32(h[0]), vmovn_s32(h[1]));
            low[i] = vcombine_s16(vmovn_s32(l[0]), vmovn_s32(l[1]));
        }
        vst1q_s8(planes + 16 * part, vcombine_s8(vmovn_s16(high[0]), vmovn_s16(high[1])));
        vst1q_s8(planes + kBlock + 16 * part, vcombine_s8(vmovn_s16(low[0]), vmovn_s16(low[1])));
        sums[part] = vaddvq_s32(sum);
    }
    note->scale = !finite || top.f > 1e-30f ? top.f / kTop : 0.0f;
    note->sum = sums[0] + sums[1];
    note->first_sum = sums[0];
    note->scaled_sum = note->scale * static_cast<float>(note->sum);
}

// The pieces of a tile are inlined by force: called, they would pass their sums through memory.

// Sixteen rows' sums of code * plane over a few cells.
struct Sums {
    int32x4_t of[4];
};
TP_INLINED inline Sums no_sums() { return {{vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)}}; }

// One cell (four columns of sixteen rows) times lane kLane of sixteen activations.
template <int kLane>
TP_INLINED inline void add_cell(Sums& sums, const int8x16_t* codes, int8x16_t x) {
    for (int i = 0; i < 4; ++i) sums.of[i] = vdotq_laneq_s32(sums.of[i], codes[i], x, kLane);
}

// Codes as signed bytes: those of Q8_0 less their zero point, all others fit as they are.
template <Format F>
TP_INLINED inline void load_cell(const uint8_t* codes, int cell, int8x16_t* out) {
    constexpr bool kNibbles = format_info(F).code_bits == 4;
    for (int i = 0; i < 4; ++i) {
        const uint8x16_t raw = vld1q_u8(codes + (kNibbles ? cell % 4 : cell) * 64 + 16 * i);
        if constexpr (kNibbles) {
            out[i] = vreinterpretq_s8_u8(cell < 4 ? vandq_u8(raw, vdupq_n_u8(15)) : vshrq_n_u8(raw, 4));
        } else if constexpr (F == Format::kQ8_0) {
            out[i] = vreinterpretq_s8_u8(veorq_u8(raw, vdupq_n_u8(0x80)));
        } else {
            out[i] = vreinterpretq_s8_u8(raw);
        }
    }
}

template <Format F, int kBits, int T, int kLane>
TP_INLINED inline void add_column_cell(Sums* high, Sums* low, const uint8_t* codes, int part, const int8x16_t* x_high,
                                       const int8x16_t* x_low) {
    int8x16_t cell[4];
    load_cell<F>(codes, 4 * part + kLane, cell);
    for (int t = 0; t < T; ++t) {
        add_cell<kLane>(high[t], cell, x_high[t]);
        if constexpr (kBits == 16) add_cell<kLane>(low[t], cell, x_low[t]);
    }
}

// Adds the products of one half block of sixteen columns.
template <Format F, int kBits, int T>
TP_INLINED inline void add_half(Sums* high, Sums* low, const uint8_t* codes, int part, const int8_t* planes, int64_t stride) {
    int8x16_t x_high[T], x_low[T];
    for (int t = 0; t < T; ++t) {
        x_high[t] = vld1q_s8(planes + t * stride + 16 * part);
        x_low[t] = vld1q_s8(planes + t * stride + kBlock + 16 * part);
    }
    add_column_cell<F, kBits, T, 0>(high, low, codes, part, x_high, x_low);
    add_column_cell<F, kBits, T, 1>(high, low, codes, part, x_high, x_low);
    add_column_cell<F, kBits, T, 2>(high, low, codes, part, x_high, x_low);
    add_column_cell<F, kBits, T, 3>(high, low, codes, part, x_high, x_low);
}

template <Format F>
TP_INLINED inline V load_scale(const uint8_t* scales, int index) {
    if constexpr (format_info(F).wide_scales) return vload(reinterpret_cast<const float*>(scales) + index * kGroup);
    else return vload_f16(reinterpret_cast<const uint16_t*>(scales) + index * kGroup);
}

// sum += (256 high + low - zero * inputs) * (weight scale * activation scale)
template <Format F, int kBits>
TP_INLINED inline V scale_sums(const Sums& high, const Sums& low, int32_t inputs, V weight_scale, float activation_scale, V sum) {
    constexpr int kZeroShift = F == Format::kQ8_0 ? -1 : format_info(F).zero_shift;
    float32x4_t value[4];
    for (int i = 0; i < 4; ++i) {
        int32x4_t total = kBits == 16 ? vaddq_s32(vshlq_n_s32(high.of[i], 8), low.of[i]) : high.of[i];
        if constexpr (kZeroShift >= 0) total = vsubq_s32(total, vdupq_n_s32(inputs * (1 << kZeroShift)));
        value[i] = vcvtq_f32_s32(total);
    }
    return vfma({value[0], value[1], value[2], value[3]}, vmul(weight_scale, vset(activation_scale)), sum);
}

// y[t] = 16 rows of the group times token t, over all blocks; at most two tokens: sixteen sums of thirty-two registers.
template <Format F, int kBits, int T>
inline void multiply_rows(const uint8_t* codes, const uint8_t* scales, int num_blocks, const int8_t* planes,
                          const BlockNote* notes, V* y) {
    constexpr FormatInfo kInfo = format_info(F);
    const int64_t stride = static_cast<int64_t>(num_blocks) * 2 * kBlock;
    for (int t = 0; t < T; ++t) y[t] = vzero();
    for (int b = 0; b < num_blocks; ++b, codes += code_bytes(F), scales += scale_bytes(F), planes += 2 * kBlock) {
        Sums high[T], low[T];
        for (int t = 0; t < T; ++t) high[t] = low[t] = no_sums();
        add_half<F, kBits, T>(high, low, codes, 0, planes, stride);
        if constexpr (kInfo.half_scales) {
            for (int t = 0; t < T; ++t) {
                const BlockNote& note = notes[static_cast<int64_t>(t) * num_blocks + b];
                y[t] = scale_sums<F, kBits>(high[t], low[t], note.first_sum, load_scale<F>(scales, 0), note.scale, y[t]);
                high[t] = low[t] = no_sums();
            }
        }
        add_half<F, kBits, T>(high, low, codes, 1, planes, stride);
        for (int t = 0; t < T; ++t) {
            const BlockNote& note = notes[static_cast<int64_t>(t) * num_blocks + b];
            const int32_t inputs = kInfo.half_scales ? note.sum - note.first_sum : note.sum;
            y[t] = scale_sums<F, kBits>(high[t], low[t], inputs, load_scale<F>(scales, kInfo.half_scales), note.scale, y[t]);
            if constexpr (kInfo.has_min) y[t] = vfma(load_scale<F>(scales, 1), vset(note.scaled_sum), y[t]);
        }
    }
}

// sum[t] = 16 rows of the group times token t; planes and notes are those of the first token.
template <Format F, int kBits, int T>
inline void quant_tile(const uint8_t* codes, const uint8_t* scales, int num_blocks, const int8_t* planes, const BlockNote* notes,
                       bool /*is_first*/, V* sum) {
    const int64_t stride = static_cast<int64_t>(num_blocks) * 2 * kBlock;
    for (int t = 0; t + 2 <= T; t += 2) {
        multiply_rows<F, kBits, 2>(codes, scales, num_blocks, planes + t * stride, notes + t * num_blocks, sum + t);
    }
    if constexpr (T % 2) {
        multiply_rows<F, kBits, 1>(codes, scales, num_blocks, planes + (T - 1) * stride, notes + (T - 1) * num_blocks, sum + T - 1);
    }
}

#include "kernels_impl.h"

constexpr Kernels kTable = TP_KERNEL_TABLE("neon");

}  // namespace

const Kernels* kernels_neon() { return &kTable; }

}  // namespace tp
