// The table of kernels that each instruction set fills in.
//
// Rule for all of them (the engine is bitwise reproducible): what is computed for one token depends on that token's inputs
// only. A kernel may handle several tokens, groups or heads at once, but the order of floating-point operations per output
// element is fixed within an instruction set, whatever the tile.
#pragma once

#include "layout.h"

namespace tp {

enum class Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

// One query row: one head of one token.
struct QueryRow {
    const float* q;   // [padded head_dim], rotated and multiplied by the attention scale
    float* out;       // [padded head_dim]
    int32_t first;    // first position it sees
    int32_t last;     // its own position
};

// Query rows of one segment that share a kv head. Keys and values of all positions <= last of any row are in the pages.
struct AttendTask {
    const QueryRow* rows;
    int32_t num_rows;          // <= kMaxQueryRows
    int32_t head_dim;          // padded to 16
    int32_t page_size;         // a multiple of 16
    const int32_t* pages;      // block table of the segment
    const uint16_t* pool;      // keys and values of (layer, page 0, this kv head)
    int64_t page_stride;       // in elements, between pages
    float* scratch;            // attend_scratch_floats(head_dim) floats, 64-byte aligned, per thread
};
constexpr int kMaxQueryRows = 32;
constexpr int64_t attend_scratch_floats(int head_dim) {
    return kMaxQueryRows * (static_cast<int64_t>(kSpan) + head_dim) + 4 * kMaxQueryRows;
}

// State of an online softmax over consecutive spans: [maximum, sum, -, ...] then the weighted values.
struct SpanPartial {
    float maximum;
    float sum;
};

struct Kernels {
    const char* name;

    // Quantises one token's x [cols] (padded with zeros to 32 * num_blocks) into `out` at row `token`: blocks
    // [block_begin, block_begin + num_blocks). Also copies to out.dense when that is set. Not-a-number or infinite inputs
    // make the block's scale not finite.
    void (*quantize)(const float* x, int num_blocks, const Acts& out, int token, int block_begin);

    // y[t * y_stride + r] = (add ? y : 0) + sum over columns of w[16 * group_begin + r][c] * x[token_begin + t][c],
    // for t < num_tokens, r < 16 * num_groups. The order: per block (ascending) y = fma(float(int total), w scale * x scale, y),
    // then y = fma(minimum, scaled_sum, y); `add` joins last.
    void (*gemm)(const Matrix& w, int group_begin, int num_groups, const Acts& x, int token_begin, int num_tokens, float* y,
                 int64_t y_stride, bool add);

    // out[i] = x[i] * weight[i] / sqrt(mean(x^2) + eps); n need not be a multiple of anything; may run in place.
    void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* out);

    // Rotates pairs (i, i + head_dim / 2) in place.
    void (*rope)(float* x, const float* cos, const float* sin, int head_dim);

    // out[i] = activation(gate[i]) * up[i]; n is a multiple of 16.
    void (*glu)(const float* gate, const float* up, int n, Activation activation, float* out);

    // y[i] += x[i]
    void (*add)(float* y, const float* x, int n);

    // Writes one token's key and value [padded head_dim] at `slot` of a page (see layout.h) as fp16.
    void (*store_kv)(uint16_t* page, int page_size, int head_dim, int slot, const float* key, const float* value);

    // Full attention of the task's rows.
    void (*attend)(const AttendTask& task);
    // One span only, for long contexts spread over threads: partial results in `partials` [num_rows] and `values`
    // [num_rows][head_dim]; a row that sees nothing of the span gets sum == 0.
    void (*attend_span)(const AttendTask& task, int span, SpanPartial* partials, float* values);
    // Joins a later span into an earlier state; with the first span into sum == 0 it copies.
    void (*merge_span)(SpanPartial* state, float* values, const SpanPartial& next, const float* next_values, int head_dim);
};

const Kernels* kernels_portable();
const Kernels* kernels_avx2();        // null when not compiled in
const Kernels* kernels_avxvnni();     // null when not compiled in
const Kernels* kernels_avx512vnni();  // null when not compiled in
const Kernels* kernels_neon();        // null when not compiled in

// The best set this machine runs, or the one called `name` ("auto": best). Null when the machine cannot run it.
const Kernels* choose_kernels(const char* name);

}  // namespace tp
