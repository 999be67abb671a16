// The decoder: its shape, its packed weights and its paged key-value pool.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace tp {

// Zeroed anonymous memory that becomes resident page by page, as it is touched.
class LazyMemory {
public:
    LazyMemory() = default;
    ~LazyMemory();
    LazyMemory(LazyMemory&& other) noexcept;
    LazyMemory& operator=(LazyMemory&& other) noexcept;

    // False when the system refuses. `huge`: back whole aligned stretches of 2 MB with one page each where possible.
    bool allocate(int64_t bytes, bool huge = false);
    uint8_t* data() const { return data_; }
    template <class T>
    T* as() const { return reinterpret_cast<T*>(data_); }

private:
    uint8_t* data_ = nullptr;
    int64_t bytes_ = 0;
};

// Where packed matrices lie, one behind the other: alone most are smaller than the 2 MB of a huge page, and a step that streams
// them from pages of 4 KB takes 5 % longer (its p99 15 %).
class WeightMemory {
public:
    // Room for `bytes` at a cache line's border; nullptr when the system refuses.
    uint8_t* take(int64_t bytes);

private:
    std::vector<LazyMemory> chunks_;
    uint8_t* next_ = nullptr;
    int64_t left_ = 0;
};

struct Weight {
    Matrix matrix;
    bool present() const { return matrix.data != nullptr; }
};

// The part of twinpath.model.spec that arithmetic depends on.
struct Spec {
    int32_t num_layers, hidden, intermediate, num_heads, num_kv_heads, head_dim, vocab;
    int32_t tied, activation, qk_norm, sandwich, num_ropes;
    float norm_eps, embed_scale, attn_scale;

    int32_t head_dim_padded() const { return static_cast<int32_t>(round_up(head_dim, 16)); }
    int32_t heads_per_kv() const { return num_heads / num_kv_heads; }
    int32_t hidden_padded() const { return static_cast<int32_t>(round_up(hidden, kBlock)); }
    int32_t intermediate_padded() const { return static_cast<int32_t>(round_up(intermediate, kBlock)); }
};

struct Layer {
    Weight q, k, v, o, gate, up, down;
    std::vector<float> attn_norm, mlp_norm, post_attn_norm, post_mlp_norm, q_norm, k_norm, q_bias, k_bias, v_bias, o_bias;
    int32_t rope = 0;
    int32_t window = 0;  // 0: sees everything before it
};

struct Rope {
    std::vector<float> inverse_frequencies;  // [head_dim / 2]
    float factor = 1.0f;                     // multiplies cos and sin
};

struct Model {
    Spec spec{};
    WeightMemory memory;
    std::vector<Layer> layers;
    std::vector<Rope> ropes;
    Weight embed, lm_head;
    std::vector<float> final_norm;

    const Matrix& head() const { return spec.tied ? embed.matrix : lm_head.matrix; }
    bool any_dense() const;

    // Packs one tensor, named as in twinpath.model.spec. Returns "" or what is wrong.
    std::string set_tensor(const std::string& name, Format format, int32_t rows, int32_t cols, const uint8_t* data,
                           int64_t num_bytes, ThreadPool& pool);
    std::string check_complete() const;
};

// Pages of keys and values: [layer][page][kv head][see layout.h].
struct KvPool {
    LazyMemory memory;
    int32_t page_size = 0, num_pages = 0;
    int64_t head_elements = 0;  // of one (layer, page, kv head)
    int64_t page_stride = 0;    // elements between pages
    int64_t layer_stride = 0;
    int32_t num_layers = 0;

    bool allocate(const Spec& spec, int32_t page_size, int32_t num_pages);
    // Has the system back pages [begin, end) now, in one call a layer instead of one fault per 4 KB while a step runs. Does nothing
    // where there is no way to ask.
    void back(int32_t begin, int32_t end) const;
    uint16_t* at(int layer, int kv_head) const {
        return memory.as<uint16_t>() + layer * layer_stride + kv_head * head_elements;
    }
};

}  // namespace tp
