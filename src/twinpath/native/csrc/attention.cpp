// The attention block of a step: heads are prepared (bias, norm, rotation), keys and values go to their pages, queries look.
#include <algorithm>
#include <cstring>

#include "step.h"

namespace tp {

void Stepper::prepare_heads(const StepArgs& a, const Layer& l, int index, int row, int kv_head, ThreadScratch& thread) {
    const Spec& s = model_.spec;
    const int dim = s.head_dim, padded = s.head_dim_padded();
    const int64_t angle = (static_cast<int64_t>(l.rope) * limits_.max_rows + row) * (dim / 2);
    const float* cos = scratch_.cos + angle;
    const float* sin = scratch_.sin + angle;
    const float* qkv = scratch_.qkv + row * scratch_.qkv_stride;
    const auto ready = [&](const float* from, const std::vector<float>& bias, int head, const std::vector<float>* norm, float* to) {
        std::memcpy(to, from + static_cast<int64_t>(head) * dim, sizeof(float) * dim);
        if (!bias.empty()) kernels_->add(to, bias.data() + static_cast<int64_t>(head) * dim, dim);
        if (norm && s.qk_norm) kernels_->rms_norm(to, norm->data(), dim, s.norm_eps, to);
        if (norm) kernels_->rope(to, cos, sin, dim);
    };
    for (int h = kv_head * s.heads_per_kv(); h < (kv_head + 1) * s.heads_per_kv(); ++h) {
        float* q = scratch_.q + row * scratch_.out_stride + static_cast<int64_t>(h) * padded;
        ready(qkv, l.q_bias, h, &l.q_norm, q);
        for (int i = 0; i < dim; ++i) q[i] *= s.attn_scale;
    }
    ready(qkv + scratch_.k_offset, l.k_bias, kv_head, &l.k_norm, thread.key);
    ready(qkv + scratch_.v_offset, l.v_bias, kv_head, nullptr, thread.value);
    const Row& r = rows_[row];
    const int32_t page = a.block_tables[static_cast<int64_t>(r.segment) * a.max_pages + r.position / kv_.page_size];
    kernels_->store_kv(kv_.at(index, kv_head) + page * kv_.page_stride, kv_.page_size, padded, r.position % kv_.page_size, thread.key,
                       thread.value);
}

void Stepper::attend_tile(const StepArgs& a, const Layer& l, int index, const Tile& tile, int kv_head, ThreadScratch& thread) {
    const Spec& s = model_.spec;
    const int heads = s.heads_per_kv(), first_head = kv_head * heads, padded = s.head_dim_padded();
    QueryRow queries[kMaxQueryRows];
    const int32_t* pages = a.block_tables + static_cast<int64_t>(tile.segment) * a.max_pages;
    AttendTask task{queries, 0, padded, kv_.page_size, pages, kv_.at(index, kv_head), kv_.page_stride, thread.attend};
    const auto flush = [&] {
        kernels_->attend(task);
        task.num_rows = 0;
    };
    for (int t = 0; t < tile.num_rows; ++t) {
        const int row = tile.first_row + t, position = rows_[row].position;
        const int first = l.window > 0 ? std::max(0, position - l.window + 1) : 0;
        for (int h = first_head; h < first_head + heads; ++h) {
            const int64_t at = row * scratch_.out_stride + static_cast<int64_t>(h) * padded;
            queries[task.num_rows++] = {scratch_.q + at, scratch_.out + at, first, position};
            if (task.num_rows == kMaxQueryRows) flush();
        }
    }
    if (task.num_rows) flush();
    if (s.head_dim % kBlock) return;
    const int blocks = s.head_dim / kBlock;
    for (int row = tile.first_row; row < tile.first_row + tile.num_rows; ++row) {
        const float* out = scratch_.out + row * scratch_.out_stride + static_cast<int64_t>(first_head) * padded;
        kernels_->quantize(out, heads * blocks, scratch_.attended.acts, row, first_head * blocks);
    }
}

void Stepper::attention(const StepArgs& a, const Layer& l, int index) {
    const Spec& s = model_.spec;
    const int kv_heads = s.num_kv_heads;
    if (decode_only_) {  // nobody else's new keys are needed: one phase
        phase(num_rows_ * kv_heads, [&](int task, int thread) {
            ThreadScratch& own = *scratch_.threads[thread];
            prepare_heads(a, l, index, task / kv_heads, task % kv_heads, own);
            attend_tile(a, l, index, tiles_[static_cast<size_t>(task / kv_heads)], task % kv_heads, own);
        });
    } else {
        phase((num_rows_ + 7) / 8, [&](int task, int thread) {
            for (int r = task * 8; r < std::min(num_rows_, (task + 1) * 8); ++r) {
                for (int h = 0; h < kv_heads; ++h) prepare_heads(a, l, index, r, h, *scratch_.threads[thread]);
            }
        });
        phase(static_cast<int>(tiles_.size()) * kv_heads, [&](int task, int thread) {
            attend_tile(a, l, index, tiles_[static_cast<size_t>(task / kv_heads)], task % kv_heads, *scratch_.threads[thread]);
        });
    }
    if (s.head_dim % kBlock == 0) return;
    phase(num_rows_, [&](int row, int) {  // heads lie padded: close the gaps first
        float* compact = scratch_.compact + row * scratch_.compact_stride;
        for (int h = 0; h < s.num_heads; ++h) {
            const float* out = scratch_.out + row * scratch_.out_stride + static_cast<int64_t>(h) * s.head_dim_padded();
            std::memcpy(compact + static_cast<int64_t>(h) * s.head_dim, out, sizeof(float) * s.head_dim);
        }
        kernels_->quantize(compact, scratch_.attended.acts.num_blocks, scratch_.attended.acts, row, 0);
    });
}

}  // namespace tp
