#include "repack.h"

#include <cstring>

namespace tp {
namespace {

#include "half.h"

inline uint16_t read16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}

// Thirty-two columns of one row: codes, and scale and second number (minimum or second half's scale) in the layout's type.
struct RowBlock {
    uint8_t codes[kBlock];
    uint16_t narrow[2];
    float wide[2];
};

inline void nibbles(const uint8_t* q, uint8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = q[i] & 15;
        codes[16 + i] = q[i] >> 4;
    }
}

inline void fifth_bits(const uint8_t* p, uint8_t* codes) {
    uint32_t bits;
    std::memcpy(&bits, p, 4);
    for (int i = 0; i < kBlock; ++i) codes[i] |= static_cast<uint8_t>((bits >> i & 1) << 4);
}

// Six-bit scale and minimum number j of a Q4_K or Q5_K super-block.
inline void k_scale(const uint8_t* p, int j, float* scale, float* minimum) {
    if (j < 4) {
        *scale = p[j] & 63;
        *minimum = p[j + 4] & 63;
    } else {
        *scale = static_cast<float>((p[j + 4] & 15) | (p[j - 4] >> 6 << 4));
        *minimum = static_cast<float>((p[j + 4] >> 4) | (p[j] >> 6 << 4));
    }
}

inline void decode_k45(Format f, const uint8_t* s, int j, RowBlock* out) {
    const float d = half_to_float(read16(s)), d_min = half_to_float(read16(s + 2));
    float scale, minimum;
    k_scale(s + 4, j, &scale, &minimum);
    out->wide[0] = d * scale;
    out->wide[1] = -(d_min * minimum);
    const uint8_t* high = s + 16;
    const uint8_t* q = s + (f == Format::kQ5_K ? 48 : 16) + j / 2 * 32;
    for (int i = 0; i < kBlock; ++i) {
        out->codes[i] = j % 2 ? q[i] >> 4 : q[i] & 15;
        if (f == Format::kQ5_K) out->codes[i] |= static_cast<uint8_t>((high[i] >> j & 1) << 4);
    }
}

inline void decode_q6k(const uint8_t* s, int j, RowBlock* out) {
    const int half = j / 4, quarter = j % 4;  // 128 columns, 32 columns
    const uint8_t* low = s + half * 64 + (quarter % 2) * 32;
    const uint8_t* high = s + 128 + half * 32;
    const int8_t* scales = reinterpret_cast<const int8_t*>(s + 192) + j * 2;
    const float d = half_to_float(read16(s + 208));
    for (int i = 0; i < kBlock; ++i) {
        const int l = quarter < 2 ? low[i] & 15 : low[i] >> 4;
        out->codes[i] = static_cast<uint8_t>(l | (high[i] >> (2 * quarter) & 3) << 4);
    }
    out->wide[0] = d * static_cast<float>(scales[0]);
    out->wide[1] = d * static_cast<float>(scales[1]);
}

inline void decode_block(Format f, const uint8_t* row, int block, RowBlock* out) {
    const FormatInfo info = format_info(f);
    const int per_file_block = info.file_block_elements / kBlock;
    const uint8_t* s = row + static_cast<int64_t>(block / per_file_block) * info.file_block_bytes;
    out->narrow[0] = read16(s);
    out->narrow[1] = info.has_min ? read16(s + 2) : 0;
    switch (f) {
        case Format::kQ8_0:
            for (int i = 0; i < kBlock; ++i) out->codes[i] = s[2 + i] ^ 0x80;
            break;
        case Format::kQ4_0: nibbles(s + 2, out->codes); break;
        case Format::kQ4_1: nibbles(s + 4, out->codes); break;
        case Format::kQ5_0:
            nibbles(s + 6, out->codes);
            fifth_bits(s + 2, out->codes);
            break;
        case Format::kQ5_1:
            nibbles(s + 8, out->codes);
            fifth_bits(s + 4, out->codes);
            break;
        case Format::kQ4_K:
        case Format::kQ5_K: decode_k45(f, s, block % per_file_block, out); break;
        case Format::kQ6_K: decode_q6k(s, block % per_file_block, out); break;
        default: break;
    }
}

void put_block(const Matrix& m, int group, int lane, int block, const RowBlock& in) {
    const FormatInfo info = format_info(m.format);
    uint8_t* codes = m.data + group * m.group_bytes + static_cast<int64_t>(block) * code_bytes(m.format) + lane * 4;
    if (info.code_bits == 4) {
        for (int j = 0; j < 4; ++j) {
            for (int i = 0; i < 4; ++i) codes[j * 64 + i] = static_cast<uint8_t>(in.codes[4 * j + i] | in.codes[16 + 4 * j + i] << 4);
        }
    } else {
        for (int j = 0; j < 8; ++j) std::memcpy(codes + j * 64, in.codes + 4 * j, 4);
    }
    uint8_t* scales = const_cast<uint8_t*>(m.scales(group)) + static_cast<int64_t>(block) * scale_bytes(m.format);
    const int count = info.has_min || info.half_scales ? 2 : 1;
    for (int n = 0; n < count; ++n) {
        if (info.wide_scales) std::memcpy(scales + (n * kGroup + lane) * 4, &in.wide[n], 4);
        else std::memcpy(scales + (n * kGroup + lane) * 2, &in.narrow[n], 2);
    }
}

void repack_dense_row(const uint8_t* row, const Matrix& m, int group, int lane) {
    const int bytes = format_info(m.format).dense_bytes;
    uint8_t* out = m.data + group * m.group_bytes + lane * bytes;
    for (int c = 0; c < m.cols; ++c) std::memcpy(out + static_cast<int64_t>(c) * kGroup * bytes, row + static_cast<int64_t>(c) * bytes, bytes);
}

float dense_value(Format f, const uint8_t* p) {
    uint32_t bits;
    float v;
    if (f == Format::kF16) return half_to_float(read16(p));
    if (f == Format::kBF16) bits = static_cast<uint32_t>(read16(p)) << 16;
    else std::memcpy(&bits, p, 4);
    std::memcpy(&v, &bits, 4);
    return v;
}

}  // namespace

int64_t file_row_bytes(Format format, int64_t cols) {
    const FormatInfo info = format_info(format);
    return cols % info.file_block_elements ? -1 : cols / info.file_block_elements * info.file_block_bytes;
}

Matrix describe_matrix(Format format, int32_t rows, int32_t cols) {
    Matrix m;
    m.format = format;
    m.rows = rows;
    m.cols = cols;
    m.num_groups = static_cast<int32_t>(round_up(rows, kGroup) / kGroup);
    m.num_blocks = static_cast<int32_t>(round_up(cols, kBlock) / kBlock);
    m.group_bytes = round_up(static_cast<int64_t>(m.num_blocks) * (code_bytes(format) + scale_bytes(format)), 64);
    return m;
}

void repack(const uint8_t* file, Matrix& m, ThreadPool& pool) {
    const int64_t row_bytes = file_row_bytes(m.format, m.cols);
    constexpr int kPerTask = 8;
    pool.run((m.num_groups + kPerTask - 1) / kPerTask, [&](int task, int) {
        for (int g = task * kPerTask; g < (task + 1) * kPerTask && g < m.num_groups; ++g) {
            for (int lane = 0; lane < kGroup && g * kGroup + lane < m.rows; ++lane) {
                const uint8_t* row = file + (static_cast<int64_t>(g) * kGroup + lane) * row_bytes;
                if (m.dense()) {
                    repack_dense_row(row, m, g, lane);
                    continue;
                }
                RowBlock block;
                for (int b = 0; b < m.num_blocks; ++b) {
                    decode_block(m.format, row, b, &block);
                    put_block(m, g, lane, b, block);
                }
            }
        }
    });
}

void dequantize_row(const Matrix& m, int32_t row, float* out) {
    const FormatInfo info = format_info(m.format);
    const int group = row / kGroup, lane = row % kGroup;
    if (m.dense()) {
        const uint8_t* p = m.codes(group) + lane * info.dense_bytes;
        for (int c = 0; c < m.cols; ++c) out[c] = dense_value(m.format, p + static_cast<int64_t>(c) * kGroup * info.dense_bytes);
        return;
    }
    const int zero = info.zero_shift >= 0 ? 1 << (info.zero_shift & 7) : 0;
    for (int b = 0; b < m.num_blocks; ++b) {
        const uint8_t* codes = m.codes(group) + static_cast<int64_t>(b) * code_bytes(m.format) + lane * 4;
        const uint8_t* scales = m.scales(group) + static_cast<int64_t>(b) * scale_bytes(m.format);
        float number[2] = {0, 0};
        for (int n = 0; n < (info.has_min || info.half_scales ? 2 : 1); ++n) {
            if (info.wide_scales) std::memcpy(&number[n], scales + (n * kGroup + lane) * 4, 4);
            else number[n] = half_to_float(read16(scales + (n * kGroup + lane) * 2));
        }
        for (int c = 0; c < kBlock; ++c) {
            const int in_cell = c % 16;
            const uint8_t byte = info.code_bits == 4 ? codes[in_cell / 4 * 64 + in_cell % 4] : codes[c / 4 * 64 + c % 4];
            const int code = info.code_bits == 4 ? (c < 16 ? byte & 15 : byte >> 4) : byte;
            const float scale = info.half_scales && c >= 16 ? number[1] : number[0];
            out[b * kBlock + c] = scale * static_cast<float>(code - zero) + (info.has_min ? number[1] : 0.0f);
        }
    }
}

bool decode_vector(Format format, const uint8_t* file, int32_t n, float* out) {
    const FormatInfo info = format_info(format);
    if (info.code_bits) return false;
    for (int i = 0; i < n; ++i) out[i] = dense_value(format, file + static_cast<int64_t>(i) * info.dense_bytes);
    return true;
}

}  // namespace tp
