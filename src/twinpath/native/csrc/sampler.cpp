// The fast sampler. Settings that touch few ids (bias, penalties, stop mask) edit the row in place and undo it afterwards;
// what may be drawn, and its borders, are sampler_candidates.h.
#include "sampler.h"

#include <memory>
#include <new>

#include "sampler_candidates.h"
#include "sampler_row.h"
#include "sampler_slot.h"

namespace {

constexpr double kGreedyBelow = 1e-6;
constexpr double kOne = 17179869184.0;  // 2^34, the weight of the best id
// A weight rounds to 0 below 2^-35 of the best, at ln(2^-35) = -24.26.
constexpr double kWeightlessBelow = -24.5;
constexpr int32_t kMaxVocab = 1 << 19;  // totals stay below 2^53, exact as double

}  // namespace

struct tp_sampler {
    tp_sampler(int32_t vocab, int32_t num_slots)
        : vocab_size(vocab), slots(num_slots), block_best(new int32_t[num_blocks_of(vocab)]),
          block_scratch(new int32_t[num_blocks_of(vocab)]), masked(new float[vocab]), candidates(vocab) {}

    int32_t draw(const Slot& slot, const float* logits, float best, int64_t position) {
        const tp_sampling& params = slot.params;
        const float floor = narrow(best + kWeightlessBelow * params.temperature);
        if (params.top_k > 0 && params.top_k < vocab_size) {
            candidates.take_top(logits, vocab_size, floor, params.top_k, block_best.get(), block_scratch.get());
        } else {
            candidates.take_all(logits, vocab_size, floor);
        }
        candidates.weigh_all(best, 1.0 / params.temperature);
        if (params.top_p < 1.0) {
            const double needed = std::ceil(params.top_p * static_cast<double>(candidates.total()));
            candidates.keep_run(static_cast<uint64_t>(std::max(1.0, needed)));
        }
        if (params.min_p > 0.0) candidates.keep_heavier(static_cast<uint64_t>(std::ceil(std::min(params.min_p, 1.0) * kOne)));
        const auto random = static_cast<unsigned __int128>(philox(params.seed, static_cast<uint64_t>(position)));
        return candidates.draw(static_cast<uint64_t>((random * candidates.total()) >> 64));
    }

    int32_t vocab_size;
    std::vector<Slot> slots;
    std::unique_ptr<int32_t[]> block_best;
    std::unique_ptr<int32_t[]> block_scratch;
    std::unique_ptr<float[]> masked;
    Candidates candidates;
    RowEdits edits;
};

namespace {

bool has_slot(const tp_sampler* sampler, int32_t slot) {
    return slot >= 0 && static_cast<size_t>(slot) < sampler->slots.size();
}

bool has_id(const tp_sampler* sampler, int32_t id) { return id >= 0 && id < sampler->vocab_size; }

void bind(tp_sampler* sampler, Slot& slot, const tp_sampling& params, const int32_t* history, int32_t num_history) {
    slot.params = params;
    slot.params.bias_ids = slot.params.stop_ids = nullptr;
    slot.params.biases = nullptr;
    slot.biases.clear();
    for (int32_t i = 0; i < params.num_bias; ++i) {
        if (has_id(sampler, params.bias_ids[i])) slot.biases.push_back({params.bias_ids[i], params.biases[i]});
    }
    slot.stops.clear();
    for (int32_t i = 0; i < params.num_stop; ++i) {
        if (has_id(sampler, params.stop_ids[i])) slot.stops.push_back(params.stop_ids[i]);
    }
    const int32_t first = slot.tracks_prompt() ? 0 : slot.tracks_output() ? slot.num_prompt : num_history;
    slot.seen.clear(first < num_history ? num_history - first : 0);
    for (int32_t i = first; i < num_history; ++i) {
        if (has_id(sampler, history[i])) slot.seen.add(history[i], i >= slot.num_prompt ? 1 : 0);
    }
    sampler->edits.reserve(slot.biases.size() + slot.stops.size() + slot.seen.entries().size());
}

}  // namespace

tp_sampler* tp_sampler_create(int32_t vocab_size, int32_t num_slots) {
    if (vocab_size <= 0 || vocab_size > kMaxVocab || num_slots <= 0) return nullptr;
    try {
        return new tp_sampler(vocab_size, num_slots);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

void tp_sampler_destroy(tp_sampler* sampler) { delete sampler; }

int32_t tp_sampler_reset(tp_sampler* sampler, int32_t slot, const tp_sampling* params, const int32_t* history,
                         int32_t num_history, int32_t num_prompt) {
    if (!has_slot(sampler, slot)) return TP_SAMPLER_BAD_SLOT;
    Slot& bound = sampler->slots[slot];
    bound.bound = false;
    bound.num_prompt = num_prompt;
    try {
        bind(sampler, bound, *params, history, num_history);
    } catch (const std::bad_alloc&) {
        return TP_SAMPLER_NO_MEMORY;
    }
    bound.bound = true;
    return TP_SAMPLER_OK;
}

int32_t tp_sampler_append(tp_sampler* sampler, int32_t slot, int32_t token) {
    if (!has_slot(sampler, slot) || !sampler->slots[slot].bound) return TP_SAMPLER_BAD_SLOT;
    Slot& bound = sampler->slots[slot];
    if (!bound.tracks_output() || !has_id(sampler, token)) return TP_SAMPLER_OK;
    try {
        bound.seen.add(token, 1);
    } catch (const std::bad_alloc&) {
        return TP_SAMPLER_NO_MEMORY;
    }
    return TP_SAMPLER_OK;
}

int32_t tp_sampler_sample(tp_sampler* sampler, int32_t slot, float* logits, int64_t position, const uint32_t* mask) {
    if (!has_slot(sampler, slot) || !sampler->slots[slot].bound) return TP_SAMPLER_BAD_SLOT;
    const Slot& bound = sampler->slots[slot];
    RowEdits& edits = sampler->edits;
    edits.begin(logits);
    int32_t token;
    try {
        adjust(bound, position, mask != nullptr, edits);
        bool finite = edits.finite();
        const float* row = logits;
        if (mask) {
            row = sampler->masked.get();
            finite &= copy_masked(logits, sampler->vocab_size, mask, sampler->masked.get());
        }
        const int32_t lowest = scan_blocks(row, sampler->vocab_size, sampler->block_best.get());
        const Best best = find_best(row, sampler->vocab_size, sampler->block_best.get(), lowest);
        if (!finite) {
            token = TP_SAMPLER_NOT_FINITE;
        } else if (best.status != TP_SAMPLER_OK) {
            token = best.status;
        } else if (bound.params.temperature < kGreedyBelow) {
            token = best.id;
        } else {
            token = sampler->draw(bound, row, best.logit, position);
        }
    } catch (const std::bad_alloc&) {
        token = TP_SAMPLER_NO_MEMORY;
    }
    edits.undo();
    return token;
}

int32_t tp_argmax(const float* logits, int32_t vocab_size) {
    int32_t chunk_best[64];
    Best best{TP_SAMPLER_NOTHING_LEFT, kNever, 0};
    for (int32_t begin = 0; begin < vocab_size; begin += 64 * kBlock) {
        const int32_t n = std::min(64 * kBlock, vocab_size - begin);
        const int32_t lowest = scan_blocks(logits + begin, n, chunk_best);
        const Best chunk = find_best(logits + begin, n, chunk_best, lowest);
        if (chunk.status == TP_SAMPLER_NOT_FINITE) return TP_SAMPLER_NOT_FINITE;
        if (chunk.status == TP_SAMPLER_OK && (best.status != TP_SAMPLER_OK || chunk.logit > best.logit)) {
            best = {TP_SAMPLER_OK, chunk.logit, begin + chunk.id};
        }
    }
    return best.status == TP_SAMPLER_OK ? best.id : best.status;
}

int32_t tp_token_logprob(const float* logits, int32_t vocab_size, int32_t token, int32_t num_top, double* logprob,
                         int32_t* top_ids, double* top_logprobs) {
    const int32_t best = tp_argmax(logits, vocab_size);
    if (best < 0) return best;
    const double highest = logits[best];
    // The best id's own term is left out of the sum so that log1p keeps a near-certain token's small log-probability exact.
    const double others = sum_exp(logits, best, highest) + sum_exp(logits + best + 1, vocab_size - best - 1, highest);
    const double log_total = std::log1p(others);
    *logprob = static_cast<double>(logits[token]) - highest - log_total;
    int32_t count = 0;
    for (int32_t id = 0; id < vocab_size && num_top > 0; ++id) {
        const double logit = logits[id];
        if (count == num_top ? logit <= top_logprobs[count - 1] : logit == kNever) continue;
        int32_t at = count < num_top ? count++ : count - 1;
        for (; at > 0 && top_logprobs[at - 1] < logit; --at) {
            top_logprobs[at] = top_logprobs[at - 1];
            top_ids[at] = top_ids[at - 1];
        }
        top_logprobs[at] = logit;
        top_ids[at] = id;
    }
    for (int32_t i = 0; i < count; ++i) top_logprobs[i] = top_logprobs[i] - highest - log_total;
    return count;
}
