// Plain C++ kernels: the slow twin of every other set, and what runs where no other set does.
#include "kernels.h"

namespace tp {
namespace {

#include "half.h"
#include "vec_portable.h"

template <int kBits>
inline void quantize_block(const float* x, int8_t* planes, BlockNote* note) {
    constexpr float kTop = kBits == 16 ? 32639.0f : 127.0f;
    // Compared as integers so that a not-a-number is the greatest and reaches the scale.
    union { uint32_t i; float f; } top;
    top.i = 0;
    for (int i = 0; i < kBlock; ++i) {
        union { uint32_t i; float f; } u;
        u.f = x[i];
        u.i &= 0x7fffffffu;
        top.i = u.i > top.i ? u.i : top.i;
    }
    const bool usable = top.f > 1e-30f && top.i < 0x7f800000u;
    const float inverse = usable ? kTop / top.f : 0.0f;
    int32_t sum = 0;
    for (int i = 0; i < kBlock; ++i) {
        if (i == kBlock / 2) note->first_sum = sum;
        const float scaled = usable ? x[i] * inverse : 0.0f;
        volatile float rounded = scaled + 12582912.0f;  // nearest, ties to even
        const int32_t q = static_cast<int32_t>(rounded - 12582912.0f);
        const int32_t high = kBits == 16 ? (q + 128) >> 8 : q;
        planes[i] = static_cast<int8_t>(high);
        planes[kBlock + i] = static_cast<int8_t>(kBits == 16 ? q - 256 * high : 0);
        sum += q;
    }
    note->scale = top.f > 1e-30f || top.i >= 0x7f800000u ? top.f / kTop : 0.0f;
    note->scaled_sum = note->scale * static_cast<float>(sum);
    note->sum = sum;
}

template <Format F>
inline void load_codes(const uint8_t* p, uint8_t codes[kBlock][kGroup]) {
    constexpr int kBits = format_info(F).code_bits;
    for (int j = 0; j < (kBits == 4 ? 4 : 8); ++j) {
        for (int r = 0; r < kGroup; ++r) {
            for (int i = 0; i < 4; ++i) {
                const uint8_t byte = p[j * 64 + r * 4 + i];
                if (kBits == 4) {
                    codes[4 * j + i][r] = byte & 15;
                    codes[16 + 4 * j + i][r] = byte >> 4;
                } else {
                    codes[4 * j + i][r] = byte;
                }
            }
        }
    }
}

// sum[t] = 16 rows of the group times token t; planes and notes are those of the first token.
template <Format F, int kBits, int T>
inline void quant_tile(const uint8_t* codes, const uint8_t* scales, int num_blocks, const int8_t* planes, const BlockNote* notes,
                       bool /*is_first*/, V* sum) {
    constexpr FormatInfo kInfo = format_info(F);
    constexpr int kHalves = kInfo.half_scales ? 2 : 1;
    constexpr int kPart = kBlock / kHalves;
    for (int t = 0; t < T; ++t) sum[t] = vzero();
    for (int b = 0; b < num_blocks; ++b, codes += code_bytes(F), scales += scale_bytes(F)) {
        uint8_t w[kBlock][kGroup];
        load_codes<F>(codes, w);
        for (int t = 0; t < T; ++t) {
            const int8_t* x = planes + (static_cast<int64_t>(t) * num_blocks + b) * 2 * kBlock;
            const BlockNote& note = notes[static_cast<int64_t>(t) * num_blocks + b];
            for (int h = 0; h < kHalves; ++h) {
                int32_t total[kGroup] = {};
                int32_t inputs = 0;
                for (int c = h * kPart; c < (h + 1) * kPart; ++c) {
                    const int32_t q = kBits == 16 ? 256 * x[c] + x[kBlock + c] : x[c];
                    inputs += q;
                    for (int r = 0; r < kGroup; ++r) total[r] += q * w[c][r];
                }
                V value;
                for (int r = 0; r < kGroup; ++r) {
                    value.v[r] = static_cast<float>(total[r] - (kInfo.zero_shift >= 0 ? inputs << (kInfo.zero_shift & 7) : 0));
                }
                const V scale = kInfo.wide_scales ? vload(reinterpret_cast<const float*>(scales) + h * kGroup)
                                                  : vload_f16(reinterpret_cast<const uint16_t*>(scales));
                sum[t] = vfma(value, vmul(scale, vset(note.scale)), sum[t]);
            }
            if (kInfo.has_min) {
                const V minimum = kInfo.wide_scales ? vload(reinterpret_cast<const float*>(scales) + kGroup)
                                                    : vload_f16(reinterpret_cast<const uint16_t*>(scales) + kGroup);
                sum[t] = vfma(minimum, vset(note.scaled_sum), sum[t]);
            }
        }
    }
}

#include "kernels_impl.h"

constexpr Kernels kTable = TP_KERNEL_TABLE("portable");

}  // namespace

const Kernels* kernels_portable() { return &kTable; }

}  // namespace tp
