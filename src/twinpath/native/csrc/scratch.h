// Working memory of a step: allocated once, resident only as far as steps have needed it.
#pragma once

#include <memory>
#include <vector>

#include "model.h"

namespace tp {

// Activations with their memory.
struct ActsBuffer {
    LazyMemory planes, notes, dense;
    Acts acts;
    bool allocate(int64_t rows, int64_t cols, int bits, bool with_dense);
};

// What one thread needs for itself.
struct ThreadScratch {
    static constexpr int kOwnRows = 2;     // steps this small are normalised by every thread for itself: one barrier less
    static constexpr int kGluTokens = 64;  // tokens per pass of the gated unit
    ActsBuffer own;
    LazyMemory memory;
    float* norm = nullptr;    // [hidden padded]
    float* gate = nullptr;    // [kGluTokens][32]
    float* up = nullptr;      // [kGluTokens][32]
    float* key = nullptr;     // [head_dim padded]
    float* value = nullptr;   // [head_dim padded]
    float* attend = nullptr;  // see attend_scratch_floats
    int64_t prepared = -1;    // the phase that `own` was filled for
    bool allocate(const Spec& spec, int bits, bool with_dense);
};

struct StepScratch {
    LazyMemory memory;
    float* x = nullptr;         // residual stream [rows][hidden padded]
    float* part = nullptr;      // a block's output before its own norm [rows][hidden padded]
    float* gathered = nullptr;  // rows whose logits are wanted [rows][hidden padded]
    float* qkv = nullptr;       // [rows][qkv_stride]
    float* q = nullptr;         // [rows][heads][head_dim padded], rotated and scaled
    float* out = nullptr;       // [rows][heads][head_dim padded]
    float* compact = nullptr;   // [rows][heads * head_dim padded to 32], only when head_dim is not a multiple of 32
    float* cos = nullptr;       // [ropes][rows][head_dim / 2]
    float* sin = nullptr;
    int64_t hidden_stride = 0, qkv_stride = 0, k_offset = 0, v_offset = 0, out_stride = 0, compact_stride = 0;
    ActsBuffer hidden, attended, inner;
    std::vector<std::unique_ptr<ThreadScratch>> threads;

    bool allocate(const Spec& spec, int rows, int bits, bool with_dense);
    bool allocate_threads(const Spec& spec, int num_threads, int bits, bool with_dense);
};

}  // namespace tp
