#include "model.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "repack.h"

namespace tp {

LazyMemory::~LazyMemory() {
    if (data_) munmap(data_, static_cast<size_t>(bytes_));
}

LazyMemory::LazyMemory(LazyMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

LazyMemory& LazyMemory::operator=(LazyMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

bool LazyMemory::allocate(int64_t bytes, bool huge) {
    *this = LazyMemory();
#ifdef MAP_NORESERVE
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#else
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
#endif
    void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, kFlags, -1, 0);
    if (p == MAP_FAILED) return false;
    data_ = static_cast<uint8_t*>(p);
    bytes_ = bytes;
#ifdef MADV_HUGEPAGE
    if (huge) madvise(p, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#else
    (void)huge;
#endif
    return true;
}

uint8_t* WeightMemory::take(int64_t bytes) {
    constexpr int64_t kLine = 64, kHugePage = 2 << 20, kChunkBytes = 64 << 20;
    const int64_t room = round_up(bytes, kLine);
    if (room > left_) {
        const int64_t size = std::max(room, kChunkBytes);
        LazyMemory chunk;
        if (!chunk.allocate(size + kHugePage, true)) return nullptr;
        const auto begin = reinterpret_cast<uintptr_t>(chunk.data());
        next_ = chunk.data() + (round_up(static_cast<int64_t>(begin), kHugePage) - static_cast<int64_t>(begin));
        left_ = size;
        chunks_.push_back(std::move(chunk));
    }
    uint8_t* const taken = next_;
    next_ += room;
    left_ -= room;
    return taken;
}

namespace {

// Where a named tensor goes: a matrix or a vector, and the shape it must have.
struct Place {
    Weight* weight = nullptr;
    std::vector<float>* vector = nullptr;
    int32_t rows = 0, cols = 0;
};

Place place_in_layer(Layer& l, const std::string& name, const Spec& s) {
    const int32_t q = s.num_heads * s.head_dim, kv = s.num_kv_heads * s.head_dim;
    if (name == "q") return {&l.q, nullptr, q, s.hidden};
    if (name == "k") return {&l.k, nullptr, kv, s.hidden};
    if (name == "v") return {&l.v, nullptr, kv, s.hidden};
    if (name == "o") return {&l.o, nullptr, s.hidden, q};
    if (name == "gate") return {&l.gate, nullptr, s.intermediate, s.hidden};
    if (name == "up") return {&l.up, nullptr, s.intermediate, s.hidden};
    if (name == "down") return {&l.down, nullptr, s.hidden, s.intermediate};
    if (name == "attn_norm") return {nullptr, &l.attn_norm, 1, s.hidden};
    if (name == "mlp_norm") return {nullptr, &l.mlp_norm, 1, s.hidden};
    if (name == "post_attn_norm") return {nullptr, &l.post_attn_norm, 1, s.hidden};
    if (name == "post_mlp_norm") return {nullptr, &l.post_mlp_norm, 1, s.hidden};
    if (name == "q_norm") return {nullptr, &l.q_norm, 1, s.head_dim};
    if (name == "k_norm") return {nullptr, &l.k_norm, 1, s.head_dim};
    if (name == "q_bias") return {nullptr, &l.q_bias, 1, q};
    if (name == "k_bias") return {nullptr, &l.k_bias, 1, kv};
    if (name == "v_bias") return {nullptr, &l.v_bias, 1, kv};
    if (name == "o_bias") return {nullptr, &l.o_bias, 1, s.hidden};
    return {};
}

Place place_of(Model& m, const std::string& name) {
    const Spec& s = m.spec;
    if (name == "embed") return {&m.embed, nullptr, s.vocab, s.hidden};
    if (name == "lm_head" && !s.tied) return {&m.lm_head, nullptr, s.vocab, s.hidden};
    if (name == "final_norm") return {nullptr, &m.final_norm, 1, s.hidden};
    if (name.rfind("layers.", 0) != 0) return {};
    size_t dot = 7;
    int64_t index = 0;
    for (; dot < name.size() && name[dot] >= '0' && name[dot] <= '9' && index < (1 << 20); ++dot) index = index * 10 + (name[dot] - '0');
    if (dot == 7 || dot >= name.size() || name[dot] != '.' || index >= s.num_layers) return {};
    return place_in_layer(m.layers[static_cast<size_t>(index)], name.substr(dot + 1), s);
}

}  // namespace

std::string Model::set_tensor(const std::string& name, Format format, int32_t rows, int32_t cols, const uint8_t* data,
                              int64_t num_bytes, ThreadPool& pool) {
    const Place place = place_of(*this, name);
    if (!place.weight && !place.vector) return "tensor " + name + " has no place in this model";
    const std::string shape = "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
    if (rows != place.rows || cols != place.cols) {
        return "tensor " + name + " is " + shape + ", expected [" + std::to_string(place.rows) + ", " + std::to_string(place.cols) + "]";
    }
    if (static_cast<int32_t>(format) < 0 || static_cast<int32_t>(format) >= kNumFormats) return "tensor " + name + " has an unknown format";
    const int64_t row_bytes = file_row_bytes(format, cols);
    if (row_bytes < 0) return "tensor " + name + ": its " + std::to_string(cols) + " columns are not whole blocks of its format";
    if (num_bytes != row_bytes * rows) {
        return "tensor " + name + " has " + std::to_string(num_bytes) + " bytes, expected " + std::to_string(row_bytes * rows);
    }
    if (place.vector) {
        place.vector->assign(static_cast<size_t>(cols), 0.0f);
        return decode_vector(format, data, cols, place.vector->data()) ? "" : "tensor " + name + " is quantised; a vector must not be";
    }
    Matrix m = describe_matrix(format, rows, cols);
    m.data = memory.take(matrix_bytes(m));
    if (!m.data) return "no memory for tensor " + name;
    repack(data, m, pool);
    place.weight->matrix = m;
    return "";
}

bool Model::any_dense() const {
    bool dense = head().dense();
    for (const Layer& l : layers) {
        for (const Weight* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) dense = dense || w->matrix.dense();
    }
    return dense;
}

std::string Model::check_complete() const {
    if (!embed.present()) return "tensor embed is missing";
    if (!spec.tied && !lm_head.present()) return "tensor lm_head is missing";
    if (final_norm.empty()) return "tensor final_norm is missing";
    for (size_t i = 0; i < layers.size(); ++i) {
        const Layer& l = layers[i];
        const auto missing = [i](const char* name) { return "tensor layers." + std::to_string(i) + "." + name + " is missing"; };
        const std::pair<const Weight*, const char*> matrices[] = {{&l.q, "q"}, {&l.k, "k"}, {&l.v, "v"}, {&l.o, "o"},
                                                                  {&l.gate, "gate"}, {&l.up, "up"}, {&l.down, "down"}};
        for (const auto& [w, name] : matrices) if (!w->present()) return missing(name);
        if (l.attn_norm.empty()) return missing("attn_norm");
        if (l.mlp_norm.empty()) return missing("mlp_norm");
        if (spec.sandwich && l.post_attn_norm.empty()) return missing("post_attn_norm");
        if (spec.sandwich && l.post_mlp_norm.empty()) return missing("post_mlp_norm");
        if (spec.qk_norm && (l.q_norm.empty() || l.k_norm.empty())) return missing("q_norm or k_norm");
    }
    return "";
}

bool KvPool::allocate(const Spec& spec, int32_t page, int32_t pages) {
    page_size = page;
    num_pages = pages;
    head_elements = 2LL * page * spec.head_dim_padded();
    page_stride = head_elements * spec.num_kv_heads;
    layer_stride = page_stride * pages;
    num_layers = spec.num_layers;
    return memory.allocate(layer_stride * spec.num_layers * 2);
}

void KvPool::back(int32_t begin, int32_t end) const {
#ifdef MADV_POPULATE_WRITE
    const auto unit = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    for (int layer = 0; layer < num_layers; ++layer) {
        const auto first = reinterpret_cast<uintptr_t>(at(layer, 0) + begin * page_stride) / unit * unit;
        const auto last = reinterpret_cast<uintptr_t>(at(layer, 0) + end * page_stride);
        madvise(reinterpret_cast<void*>(first), last - first, MADV_POPULATE_WRITE);
    }
#else
    (void)begin, (void)end;
#endif
}

}  // namespace tp
