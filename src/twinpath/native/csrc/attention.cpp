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
        const int first = first_seen(l, row);
        for (int h = first_head; h < first_head + heads; ++h) {
            const int64_t at = row * scratch_.out_stride + static_cast<int64_t>(h) * padded;
            queries[task.num_rows++] = {scratch_.q + at, scratch_.out + at, first, position};
            if (task.num_rows == kMaxQueryRows) flush();
        }
    }
    if (task.num_rows) flush();
    for (int t = 0; t < tile.num_rows; ++t) quantise_heads(tile.first_row + t, kv_head);
}

int Stepper::first_seen(const Layer& l, int row) const {
    return l.window > 0 ? std::max(0, rows_[row].position - l.window + 1) : 0;
}

// The heads of one kv head as input of the output projection; where heads are not whole blocks, `attention` does it per row.
void Stepper::quantise_heads(int row, int kv_head) {
    const Spec& s = model_.spec;
    if (s.head_dim % kBlock) return;
    const int blocks = s.heads_per_kv() * s.head_dim / kBlock;
    const float* out = scratch_.out + row * scratch_.out_stride + static_cast<int64_t>(kv_head) * blocks * kBlock;
    kernels_->quantize(out, blocks, scratch_.attended.acts, row, kv_head * blocks);
}

// ---- few rows with long contexts: their spans are spread over the threads ------------------------------------------------

bool Stepper::splits_spans() const {
    if (slice_ || !decode_only_ || pool_->active() == 1 || num_rows_ * model_.spec.num_kv_heads >= 4 * pool_->active()) return false;
    if (model_.spec.heads_per_kv() > kMaxQueryRows) return false;
    return std::any_of(rows_.begin(), rows_.end(), [](const Row& r) { return r.position >= kSpan; });
}

void Stepper::attend_spans(const StepArgs& a, const Layer& l, int index) {
    const Spec& s = model_.spec;
    const int kv_heads = s.num_kv_heads, heads = s.heads_per_kv(), padded = s.head_dim_padded();
    spans_.clear();
    for (int r = 0; r < num_rows_; ++r) {
        for (int h = 0; h < kv_heads; ++h) prepare_heads(a, l, index, r, h, *scratch_.threads[0]);
        for (int span = first_seen(l, r) / kSpan; span <= rows_[r].position / kSpan; ++span) spans_.push_back({r, span});
    }
    const size_t partials = spans_.size() * static_cast<size_t>(s.num_heads);
    if (span_partials_.size() < partials) {
        span_partials_.resize(partials);
        span_values_.resize(partials * static_cast<size_t>(padded));
    }
    phase(static_cast<int>(spans_.size()) * kv_heads, [&](int task, int thread) {
        const SpanTask& t = spans_[static_cast<size_t>(task / kv_heads)];
        const int kv_head = task % kv_heads;
        QueryRow queries[kMaxQueryRows];
        for (int h = 0; h < heads; ++h) {
            const int64_t at = t.row * scratch_.out_stride + static_cast<int64_t>(kv_head * heads + h) * padded;
            queries[h] = {scratch_.q + at, nullptr, first_seen(l, t.row), rows_[t.row].position};
        }
        const int32_t* pages = a.block_tables + static_cast<int64_t>(rows_[t.row].segment) * a.max_pages;
        const AttendTask attend{queries, heads, padded, kv_.page_size, pages, kv_.at(index, kv_head), kv_.page_stride,
                                scratch_.threads[thread]->attend};
        const size_t at = static_cast<size_t>(task) * heads;
        kernels_->attend_span(attend, t.span, span_partials_.data() + at, span_values_.data() + at * padded);
    });
    for (int r = 0; r < num_rows_ && !cancelled(); ++r) {
        for (int h = 0; h < kv_heads; ++h) merge_spans(r, h);
    }
}

// As Kernels::attend does after each span, in the same order.
void Stepper::merge_spans(int row, int kv_head) {
    const Spec& s = model_.spec;
    const int heads = s.heads_per_kv(), padded = s.head_dim_padded();
    for (int h = 0; h < heads; ++h) {
        SpanPartial state{0.0f, 0.0f};
        float* out = scratch_.out + row * scratch_.out_stride + static_cast<int64_t>(kv_head * heads + h) * padded;
        for (size_t i = 0; i < spans_.size(); ++i) {
            if (spans_[i].row != row) continue;
            const size_t at = (i * s.num_kv_heads + kv_head) * heads + h;
            kernels_->merge_span(&state, out, span_partials_[at], span_values_.data() + at * padded, padded);
        }
        const float factor = 1.0f / state.sum;
        for (int d = 0; d < padded; ++d) out[d] *= factor;
    }
    quantise_heads(row, kv_head);
}

void Stepper::attention(const StepArgs& a, const Layer& l, int index) {
    const Spec& s = model_.spec;
    const int kv_heads = s.num_kv_heads;
    if (splits_spans()) {
        attend_spans(a, l, index);
    } else if (decode_only_) {  // nobody else's new keys are needed: one phase
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
