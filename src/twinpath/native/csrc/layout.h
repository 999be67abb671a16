// Data layouts shared by the loader, the kernels of every instruction set and the step driver.
//
// Weights are repacked once at load. Rows (outputs) come in groups of 16 and columns (inputs) in blocks of 32, so that one
// 64-byte cell holds four consecutive columns of sixteen rows: lane r of a register is row r on every instruction set.
#pragma once

#include <cstdint>

// Units of different instruction sets include this: a copy compiled for one must not serve another, so none is emitted.
#define TP_INLINED __attribute__((always_inline))

namespace tp {

constexpr int kGroup = 16;  // rows per group
constexpr int kBlock = 32;  // columns per block

// Storage formats of a file; the numbers are part of the C ABI (native/library.py spells them too).
enum class Format : int32_t {
    kF32 = 0,
    kF16 = 1,
    kBF16 = 2,
    kQ8_0 = 3,
    kQ5_0 = 4,
    kQ5_1 = 5,
    kQ4_0 = 6,
    kQ4_1 = 7,
    kQ4_K = 8,
    kQ5_K = 9,
    kQ6_K = 10,
};
constexpr int kNumFormats = 11;

// A quantised weight is w = scale * (code - zero) + minimum, with unsigned codes.
//
// Codes of one (group, block):
//   4 bits, 256 B: cell j (0..3), byte 4 r + i: low nibble = row r, column 4 j + i; high nibble = row r, column 16 + 4 j + i.
//   8 bits, 512 B: cell j (0..7), byte 4 r + i = row r, column 4 j + i.
// Scales of one (group, block), right after all codes of the group, block after block:
//   fp16: 16 scales (32 B), then 16 minima (32 B) when the format has them;
//   fp32: 16 scales (64 B), then 16 minima (64 B), or for Q6_K sixteen scales for each half of 16 columns (2 x 64 B).
// Dense formats: column after column, 16 rows each, in the file's own type (32 or 64 B per column).
struct FormatInfo {
    int code_bits;     // 4, 8; 0: dense
    int zero_shift;    // zero = 1 << zero_shift; -1: no zero point
    bool wide_scales;  // fp32 instead of fp16
    bool has_min;
    bool half_scales;          // one scale per 16 columns
    int file_block_elements;   // block of the file format
    int file_block_bytes;
    int dense_bytes;           // bytes per element of a dense format
};

TP_INLINED constexpr FormatInfo format_info(Format f) {
    switch (f) {
        case Format::kF32: return {0, -1, false, false, false, 1, 4, 4};
        case Format::kF16: return {0, -1, false, false, false, 1, 2, 2};
        case Format::kBF16: return {0, -1, false, false, false, 1, 2, 2};
        case Format::kQ8_0: return {8, 7, false, false, false, 32, 34, 0};
        case Format::kQ5_0: return {8, 4, false, false, false, 32, 22, 0};
        case Format::kQ5_1: return {8, -1, false, true, false, 32, 24, 0};
        case Format::kQ4_0: return {4, 3, false, false, false, 32, 18, 0};
        case Format::kQ4_1: return {4, -1, false, true, false, 32, 20, 0};
        case Format::kQ4_K: return {4, -1, true, true, false, 256, 144, 0};
        case Format::kQ5_K: return {8, -1, true, true, false, 256, 176, 0};
        case Format::kQ6_K: return {8, 5, true, false, true, 256, 210, 0};
    }
    return {0, -1, false, false, false, 1, 4, 4};
}

TP_INLINED constexpr int code_bytes(Format f) {  // per (group, block); dense: per block of 32 columns
    const FormatInfo i = format_info(f);
    return i.code_bits ? kGroup * kBlock * i.code_bits / 8 : kGroup * kBlock * i.dense_bytes;
}

TP_INLINED constexpr int scale_bytes(Format f) {
    const FormatInfo i = format_info(f);
    if (!i.code_bits) return 0;
    return kGroup * (i.wide_scales ? 4 : 2) * (1 + (i.has_min || i.half_scales ? 1 : 0));
}

// One repacked matrix. Rows beyond `rows` in the last group and columns beyond `cols` are zero weights.
struct Matrix {
    Format format = Format::kF32;
    int32_t rows = 0, cols = 0;
    int32_t num_groups = 0, num_blocks = 0;
    int64_t group_bytes = 0;  // codes of all blocks, then scales of all blocks; a multiple of 64
    uint8_t* data = nullptr;  // 64-byte aligned

    TP_INLINED bool dense() const { return format_info(format).code_bits == 0; }
    TP_INLINED const uint8_t* codes(int group) const { return data + group * group_bytes; }
    TP_INLINED const uint8_t* scales(int group) const {
        return data + group * group_bytes + static_cast<int64_t>(num_blocks) * code_bytes(format);
    }
};

// What a kernel must know of one quantised 32-block of activations.
struct BlockNote {
    float scale;       // x = scale * integer
    float scaled_sum;  // scale * sum: what a minimum is multiplied with
    int32_t sum;       // of the 32 integers
    int32_t first_sum;  // of the first 16 integers (for formats with a scale per 16 columns)
};

// Activations of several tokens as a matrix multiplication reads them.
// 16 bits: integer = 256 * high + low with two signed 8-bit planes, |integer| <= 32639, so products are exact.
// 8 bits: integer = high, |integer| <= 127; the low plane is not read.
struct Acts {
    int8_t* planes = nullptr;    // [token][block][high 32 B | low 32 B], 64-byte aligned
    BlockNote* notes = nullptr;  // [token][block]
    float* dense = nullptr;      // [token][32 * num_blocks]; null when no dense weight reads these
    int32_t num_blocks = 0;
    int32_t bits = 16;

    TP_INLINED int8_t* token_planes(int64_t t) const { return planes + t * num_blocks * 2 * kBlock; }
    TP_INLINED BlockNote* token_notes(int64_t t) const { return notes + t * num_blocks; }
    TP_INLINED float* token_dense(int64_t t) const { return dense + t * num_blocks * kBlock; }
};

// Keys and values of one (layer, page, kv head), fp16, head_dim padded to a multiple of 16:
//   keys   [page_size / 16][head_dim][16 tokens]   (dim-major: scores of 16 tokens are one register)
//   values [page_size][head_dim]
constexpr int kKeyTile = 16;
// Softmax runs over spans of this many positions, aligned to position 0, merged in order: a row's result depends on its
// own position only, never on how rows are tiled, chunked or spread over threads.
constexpr int kSpan = 256;

TP_INLINED constexpr int64_t round_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }

}  // namespace tp
