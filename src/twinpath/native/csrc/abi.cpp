// The C ABI: what native/library.py calls. Every function returns 0 or an error; tp_error() tells which.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "beside.h"
#include "repack.h"
#include "step.h"

#if defined(__GNUC__)
#define TP_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

struct Handle {
    tp::Model model;  // until tp_prepare
    const tp::Kernels* kernels = nullptr;
    std::unique_ptr<tp::ThreadPool> pool;
    std::unique_ptr<tp::Stepper> stepper;
    std::unique_ptr<tp::Beside> beside;  // from its first use on
    int activation_bits = 16;
    std::string error;

    int fail(std::string message, int code = 2) {
        error = std::move(message);
        return code;
    }
    // Of the threads, those that go on with a slice beside a step.
    int num_beside() { return stepper->pool().num_threads() / 2; }
    void end_beside() {
        if (!beside) return;
        beside->stop();
        beside->wait(INT64_MAX);
    }
};

}  // namespace

struct TpSpec {
    int32_t num_layers, hidden, intermediate, num_heads, num_kv_heads, head_dim, vocab;
    int32_t tied, activation, qk_norm, sandwich, num_ropes;
    float norm_eps, embed_scale, attn_scale;
    const int32_t* layer_rope;           // [num_layers]
    const int32_t* layer_window;         // [num_layers], 0: none
    const float* inverse_frequencies;    // [num_ropes][head_dim / 2]
    const float* rope_factors;           // [num_ropes]
};

// Number of the ABI; library.py refuses a library of another number.
TP_EXPORT int32_t tp_abi_version() { return 1; }

// Name of the kernel set that `name` selects here; null: this machine or build has none of that name.
TP_EXPORT const char* tp_isa(const char* name) {
    const tp::Kernels* k = tp::choose_kernels(name);
    return k ? k->name : nullptr;
}

TP_EXPORT void* tp_create(const TpSpec* s, const char* isa, int32_t num_threads, int32_t activation_bits) {
    const tp::Kernels* kernels = tp::choose_kernels(isa);
    if (!kernels || num_threads < 1 || num_threads > 1024 || (activation_bits != 8 && activation_bits != 16)) return nullptr;
    const int32_t counts[] = {s->num_layers, s->hidden, s->intermediate, s->num_heads, s->num_kv_heads, s->head_dim, s->vocab, s->num_ropes};
    for (int32_t c : counts) if (c < 1 || c > (1 << 24)) return nullptr;
    if (s->num_heads % s->num_kv_heads || s->head_dim % 2) return nullptr;
    auto h = std::make_unique<Handle>();
    std::memcpy(&h->model.spec, s, sizeof(tp::Spec));
    h->model.layers.resize(static_cast<size_t>(s->num_layers));
    for (int i = 0; i < s->num_layers; ++i) {
        if (s->layer_rope[i] < 0 || s->layer_rope[i] >= s->num_ropes || s->layer_window[i] < 0) return nullptr;
        h->model.layers[static_cast<size_t>(i)].rope = s->layer_rope[i];
        h->model.layers[static_cast<size_t>(i)].window = s->layer_window[i];
    }
    const int half = s->head_dim / 2;
    for (int n = 0; n < s->num_ropes; ++n) {
        const float* f = s->inverse_frequencies + static_cast<int64_t>(n) * half;
        h->model.ropes.push_back({std::vector<float>(f, f + half), s->rope_factors[n]});
    }
    h->kernels = kernels;
    h->activation_bits = activation_bits;
    h->pool = std::make_unique<tp::ThreadPool>(num_threads);
    return h.release();
}

TP_EXPORT void tp_destroy(void* handle) { delete static_cast<Handle*>(handle); }

TP_EXPORT const char* tp_error(void* handle) { return static_cast<Handle*>(handle)->error.c_str(); }

TP_EXPORT int32_t tp_set_tensor(void* handle, const char* name, int32_t format, int32_t rows, int32_t cols, const uint8_t* data,
                                int64_t num_bytes) {
    auto* h = static_cast<Handle*>(handle);
    if (h->stepper) return h->fail("the model is already complete");
    std::string error = h->model.set_tensor(name, static_cast<tp::Format>(format), rows, cols, data, num_bytes, *h->pool);
    return error.empty() ? 0 : h->fail(std::move(error));
}

TP_EXPORT int32_t tp_prepare(void* handle, const tp::Limits* limits) {
    auto* h = static_cast<Handle*>(handle);
    if (h->stepper) return h->fail("the model is already complete");
    h->error = h->model.check_complete();
    if (!h->error.empty()) return 2;
    h->stepper = std::make_unique<tp::Stepper>(std::move(h->model), h->kernels, std::move(h->pool), h->activation_bits);
    h->error = h->stepper->prepare(*limits);
    return h->error.empty() ? 0 : 3;
}

TP_EXPORT int32_t tp_step(void* handle, const tp::StepArgs* args) {
    auto* h = static_cast<Handle*>(handle);
    if (!h->stepper) return h->fail("the model is not complete");
    h->end_beside();
    return static_cast<int32_t>(h->stepper->run(*args, &h->error));
}

// As tp_step on a part of the threads; the others go on with `slice`, which is paused, as in its last call: `slice_args`. They
// do so behind the step as well, until the slice's next call, which finds its outputs left to it, or another step or slice, or
// tp_rest; so long `slice_args` must be there. While other processes want their processors it is tp_step on all threads.
TP_EXPORT int32_t tp_step_beside(void* handle, const tp::StepArgs* args, const tp::StepArgs* slice_args, void* slice) {
    auto* h = static_cast<Handle*>(handle);
    if (!h->stepper) return h->fail("the model is not complete");
    const int num_beside = h->num_beside();
    if (num_beside == 0) return static_cast<int32_t>(h->stepper->run(*args, &h->error));
    if (!h->beside) h->beside = std::make_unique<tp::Beside>(*h->stepper, num_beside);
    if (!h->beside->start(*slice_args, static_cast<tp::Slice*>(slice))) {
        return static_cast<int32_t>(h->stepper->run(*args, &h->error));
    }
    return static_cast<int32_t>(h->stepper->run_beside(*args, h->stepper->pool().num_threads() - num_beside, &h->error));
}

TP_EXPORT void* tp_slice_create(void* handle) {
    auto* h = static_cast<Handle*>(handle);
    return h->stepper ? h->stepper->make_slice().release() : nullptr;
}

// Not while a step goes on with it: see tp_rest.
TP_EXPORT void tp_slice_destroy(void* slice) { delete static_cast<tp::Slice*>(slice); }

// Status 4: paused, in `layer`; -1: a thread beside the last step still has it, and reads the arguments of its last call.
TP_EXPORT int32_t tp_step_slice(void* handle, const tp::StepArgs* args, void* slice, int64_t budget_ns, int32_t resume, int32_t* layer) {
    auto* h = static_cast<Handle*>(handle);
    if (!h->stepper) return h->fail("the model is not complete");
    const int64_t begin_ns = tp::now_ns();
    if (h->beside) h->beside->stop();
    if (h->beside && !h->beside->wait(resume ? std::max<int64_t>(budget_ns, 0) : INT64_MAX)) {
        *layer = -1;
        return static_cast<int32_t>(tp::StepStatus::kPaused);
    }
    budget_ns -= tp::now_ns() - begin_ns;
    return static_cast<int32_t>(h->stepper->run_slice(*args, static_cast<tp::Slice*>(slice), budget_ns, resume != 0, layer, &h->error));
}

// Nothing goes on any more when it returns.
TP_EXPORT void tp_rest(void* handle) { static_cast<Handle*>(handle)->end_beside(); }

TP_EXPORT int32_t tp_lm_head(void* handle, const float* hidden, int32_t num_rows, float* logits, int64_t stride) {
    auto* h = static_cast<Handle*>(handle);
    if (!h->stepper) return h->fail("the model is not complete");
    return static_cast<int32_t>(h->stepper->lm_head(hidden, num_rows, logits, stride, &h->error));
}

TP_EXPORT void tp_back_pages(void* handle, int32_t begin, int32_t end) {
    static_cast<Handle*>(handle)->stepper->back_pages(begin, end);
}

TP_EXPORT int32_t tp_set_threads(void* handle, int32_t num_threads) {
    auto* h = static_cast<Handle*>(handle);
    if (!h->stepper) return h->fail("the model is not complete");
    if (num_threads < 1 || num_threads > 1024) return h->fail("threads must be 1..1024");
    h->beside.reset();
    return h->stepper->set_threads(num_threads) ? 0 : h->fail("no memory for the threads", 3);
}

TP_EXPORT void tp_leave_core(void* handle) {
    auto* h = static_cast<Handle*>(handle);
    if (h->stepper) h->stepper->leave_core();
}

TP_EXPORT int64_t tp_progress(void* handle) {
    auto* h = static_cast<Handle*>(handle);
    return h->stepper ? h->stepper->progress() : 0;
}

// ---- single operations, for tests ---------------------------------------------------------------------------------------

// y[num_tokens][rows] = x[num_tokens][cols] times the transposed file matrix, through repacking and quantised activations.
TP_EXPORT int32_t tp_test_gemm(const char* isa, int32_t format, int32_t rows, int32_t cols, const uint8_t* file, const float* x,
                               int32_t num_tokens, int32_t activation_bits, float* y) {
    const tp::Kernels* k = tp::choose_kernels(isa);
    if (!k || tp::file_row_bytes(static_cast<tp::Format>(format), cols) < 0) return 2;
    tp::ThreadPool pool(1);
    tp::Matrix w = tp::describe_matrix(static_cast<tp::Format>(format), rows, cols);
    tp::LazyMemory memory;
    if (!memory.allocate(tp::matrix_bytes(w))) return 3;
    w.data = memory.data();
    tp::repack(file, w, pool);
    tp::ActsBuffer acts;
    const int64_t stride = tp::round_up(rows, tp::kGroup), padded = tp::round_up(cols, tp::kBlock);
    if (!acts.allocate(num_tokens, cols, activation_bits, w.dense())) return 3;
    std::vector<float> row(static_cast<size_t>(padded)), out(static_cast<size_t>(stride * num_tokens));
    for (int t = 0; t < num_tokens; ++t) {
        std::memcpy(row.data(), x + static_cast<int64_t>(t) * cols, sizeof(float) * static_cast<size_t>(cols));
        k->quantize(row.data(), acts.acts.num_blocks, acts.acts, t, 0);
    }
    k->gemm(w, 0, w.num_groups, acts.acts, 0, num_tokens, out.data(), stride, false);
    for (int t = 0; t < num_tokens; ++t) std::memcpy(y + static_cast<int64_t>(t) * rows, out.data() + t * stride, sizeof(float) * static_cast<size_t>(rows));
    return 0;
}

// out[rows][cols]: the file's values as the packed matrix holds them.
TP_EXPORT int32_t tp_test_dequantize(int32_t format, int32_t rows, int32_t cols, const uint8_t* file, float* out) {
    if (tp::file_row_bytes(static_cast<tp::Format>(format), cols) < 0) return 2;
    tp::ThreadPool pool(1);
    tp::Matrix w = tp::describe_matrix(static_cast<tp::Format>(format), rows, cols);
    tp::LazyMemory memory;
    if (!memory.allocate(tp::matrix_bytes(w))) return 3;
    w.data = memory.data();
    tp::repack(file, w, pool);
    for (int r = 0; r < rows; ++r) tp::dequantize_row(w, r, out + static_cast<int64_t>(r) * cols);
    return 0;
}
