// From the rows of a file to the layout of layout.h, values untouched.
#pragma once

#include <string>

#include "layout.h"
#include "pool.h"

namespace tp {

int64_t file_row_bytes(Format format, int64_t cols);  // -1: cols is not a multiple of the format's block

// Describes the packed matrix (data stays null); matrix_bytes() says what to allocate.
Matrix describe_matrix(Format format, int32_t rows, int32_t cols);
inline int64_t matrix_bytes(const Matrix& m) { return m.num_groups * m.group_bytes; }

// Fills m.data (zeroed) from `rows` consecutive file rows.
void repack(const uint8_t* file, Matrix& m, ThreadPool& pool);

// Row `row` of a packed matrix as fp32 [cols].
void dequantize_row(const Matrix& m, int32_t row, float* out);

// A dense vector of a file as fp32; false when the format is quantised.
bool decode_vector(Format format, const uint8_t* file, int32_t n, float* out);

}  // namespace tp
