// Sampler, C ABI. The semantics are defined in src/twinpath/sampling/__init__.py; sampling/reference.py is the plain twin.
// An object holds the state of every slot and one workspace: one call at a time per object.
#pragma once

#include <cstdint>

#if defined(__GNUC__)
#define TP_SAMPLER_API extern "C" __attribute__((visibility("default")))
#else
#define TP_SAMPLER_API extern "C"
#endif

struct tp_sampler;

// Mirrors SamplingParams. The arrays are copied by tp_sampler_reset.
struct tp_sampling {
    double temperature;
    double top_p;
    double min_p;
    double repetition_penalty;
    double presence_penalty;
    double frequency_penalty;
    uint64_t seed;
    int32_t top_k;
    int32_t min_tokens;
    int32_t num_bias;
    int32_t num_stop;
    const int32_t* bias_ids;
    const double* biases;
    const int32_t* stop_ids;
};

enum tp_sampler_status : int32_t {
    TP_SAMPLER_OK = 0,
    TP_SAMPLER_NOT_FINITE = -1,    // NaN or +inf in the row
    TP_SAMPLER_NOTHING_LEFT = -2,  // every logit is -inf, before or after the masks
    TP_SAMPLER_BAD_SLOT = -3,
    TP_SAMPLER_NO_MEMORY = -4,
};

// nullptr when the sizes are not positive, vocab_size exceeds 2^19, or memory is short.
TP_SAMPLER_API tp_sampler* tp_sampler_create(int32_t vocab_size, int32_t num_slots);
TP_SAMPLER_API void tp_sampler_destroy(tp_sampler* sampler);

// Binds a request to a slot. history: num_history ids, the first num_prompt of them the prompt.
TP_SAMPLER_API int32_t tp_sampler_reset(tp_sampler* sampler, int32_t slot, const tp_sampling* params, const int32_t* history,
                                        int32_t num_history, int32_t num_prompt);

// One more output token; costs nothing unless a penalty is on.
TP_SAMPLER_API int32_t tp_sampler_append(tp_sampler* sampler, int32_t slot, int32_t token);

// Token at `position`, or a negative status. logits [vocab_size] is edited during the call and restored before it returns.
// mask: nullptr, or ceil(vocab_size / 32) words: ids whose bit is 0 cannot come.
TP_SAMPLER_API int32_t tp_sampler_sample(tp_sampler* sampler, int32_t slot, float* logits, int64_t position,
                                         const uint32_t* mask);

// Largest logit, ties to the lowest id, or a negative status. Needs no slot.
TP_SAMPLER_API int32_t tp_argmax(const float* logits, int32_t vocab_size);

// Log-softmax of the raw row at `token` and at the `num_top` best ids, best first: fills logprob, top_ids and top_logprobs
// [num_top] and returns how many of the latter there are (ids at -inf are left out), or a negative status.
TP_SAMPLER_API int32_t tp_token_logprob(const float* logits, int32_t vocab_size, int32_t token, int32_t num_top, double* logprob,
                                        int32_t* top_ids, double* top_logprobs);
