#include "scratch.h"

namespace tp {
namespace {

// Lays float arrays one after another, 64-byte aligned.
class Layout {
public:
    int64_t take(int64_t floats) {
        const int64_t at = size_;
        size_ += round_up(floats, 16);
        return at;
    }
    int64_t bytes() const { return size_ * 4; }

private:
    int64_t size_ = 0;
};

}  // namespace

bool ActsBuffer::allocate(int64_t rows, int64_t cols, int bits, bool with_dense) {
    const int64_t num_blocks = round_up(cols, kBlock) / kBlock;
    if (!planes.allocate(rows * num_blocks * 2 * kBlock)) return false;
    if (!notes.allocate(rows * num_blocks * static_cast<int64_t>(sizeof(BlockNote)))) return false;
    if (with_dense && !dense.allocate(rows * num_blocks * kBlock * 4)) return false;
    acts.planes = planes.as<int8_t>();
    acts.notes = notes.as<BlockNote>();
    acts.dense = with_dense ? dense.as<float>() : nullptr;
    acts.num_blocks = static_cast<int32_t>(num_blocks);
    acts.bits = bits;
    return true;
}

bool ThreadScratch::allocate(const Spec& s, int bits, bool with_dense) {
    Layout layout;
    const int64_t norm_at = layout.take(s.hidden_padded());
    const int64_t gate_at = layout.take(kGluTokens * kBlock), up_at = layout.take(kGluTokens * kBlock);
    const int64_t key_at = layout.take(s.head_dim_padded()), value_at = layout.take(s.head_dim_padded());
    const int64_t attend_at = layout.take(attend_scratch_floats(s.head_dim_padded()));
    if (!memory.allocate(layout.bytes()) || !own.allocate(kOwnRows, s.hidden, bits, with_dense)) return false;
    float* base = memory.as<float>();
    norm = base + norm_at;
    gate = base + gate_at;
    up = base + up_at;
    key = base + key_at;
    value = base + value_at;
    attend = base + attend_at;
    return true;
}

bool StepScratch::allocate(const Spec& s, int rows, int bits, bool with_dense) {
    hidden_stride = s.hidden_padded();
    k_offset = round_up(s.num_heads * s.head_dim, kGroup);
    v_offset = k_offset + round_up(s.num_kv_heads * s.head_dim, kGroup);
    qkv_stride = v_offset + round_up(s.num_kv_heads * s.head_dim, kGroup);
    out_stride = static_cast<int64_t>(s.num_heads) * s.head_dim_padded();
    compact_stride = s.head_dim % kBlock ? round_up(s.num_heads * s.head_dim, kBlock) : 0;
    const int64_t n = rows, angle = static_cast<int64_t>(s.num_ropes) * n * (s.head_dim / 2);
    Layout layout;
    const int64_t x_at = layout.take(n * hidden_stride), part_at = layout.take(n * hidden_stride);
    const int64_t gathered_at = layout.take(n * hidden_stride);
    const int64_t qkv_at = layout.take(n * qkv_stride), q_at = layout.take(n * out_stride), out_at = layout.take(n * out_stride);
    const int64_t compact_at = layout.take(n * compact_stride), cos_at = layout.take(angle), sin_at = layout.take(angle);
    if (!memory.allocate(layout.bytes())) return false;
    float* base = memory.as<float>();
    x = base + x_at;
    part = base + part_at;
    gathered = base + gathered_at;
    qkv = base + qkv_at;
    q = base + q_at;
    out = base + out_at;
    compact = base + compact_at;
    cos = base + cos_at;
    sin = base + sin_at;
    return hidden.allocate(n, s.hidden, bits, with_dense) && attended.allocate(n, s.num_heads * s.head_dim, bits, with_dense) &&
           inner.allocate(n, s.intermediate, bits, with_dense);
}

bool StepScratch::allocate_threads(const Spec& s, int num_threads, int bits, bool with_dense) {
    while (static_cast<int>(threads.size()) < num_threads) {
        auto thread = std::make_unique<ThreadScratch>();
        if (!thread->allocate(s, bits, with_dense)) return false;
        threads.push_back(std::move(thread));
    }
    return true;
}

}  // namespace tp
