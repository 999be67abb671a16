// What a slot remembers between draws, and the edits its settings make to a row. Header of sampler.cpp alone.
#pragma once

#include <cfloat>
#include <vector>

#include "sampler_row.h"

namespace {

struct Seen {
    int32_t token;
    int32_t num_output;
};

// Distinct ids with their counts: a dense list, found through an open-addressing index.
class SeenTokens {
public:
    void clear(size_t expected) {
        entries_.clear();
        entries_.reserve(expected);
        rebuild(expected);
    }

    void add(int32_t token, int32_t num_output) {
        if (entries_.size() * 2 >= index_.size()) rebuild(entries_.size() * 2);
        int32_t& place = index_[find(token)];
        if (place < 0) {
            entries_.push_back({token, 0});
            place = static_cast<int32_t>(entries_.size()) - 1;
        }
        entries_[place].num_output += num_output;
    }

    const std::vector<Seen>& entries() const { return entries_; }

private:
    size_t find(int32_t token) const {
        const size_t mask = index_.size() - 1;
        size_t at = (static_cast<uint32_t>(token) * 2654435769u) & mask;
        while (index_[at] >= 0 && entries_[index_[at]].token != token) at = (at + 1) & mask;
        return at;
    }

    void rebuild(size_t expected) {
        size_t size = 64;
        while (size < 4 * expected) size *= 2;
        index_.assign(size, -1);
        for (size_t i = 0; i < entries_.size(); ++i) index_[find(entries_[i].token)] = static_cast<int32_t>(i);
    }

    std::vector<Seen> entries_;
    std::vector<int32_t> index_;
};

struct Bias {
    int32_t token;
    double bias;
};

struct Slot {
    tp_sampling params{};
    std::vector<Bias> biases;
    std::vector<int32_t> stops;
    SeenTokens seen;
    int32_t num_prompt = 0;
    bool bound = false;

    bool tracks_prompt() const { return params.repetition_penalty != 1.0; }
    bool tracks_output() const {
        return tracks_prompt() || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
    }
};

TP_INLINE float narrow(double x) {
    if (x == -std::numeric_limits<double>::infinity()) return kNever;
    return static_cast<float>(std::min(std::max(x, -static_cast<double>(FLT_MAX)), static_cast<double>(FLT_MAX)));
}

class RowEdits {
public:
    void begin(float* logits) {
        logits_ = logits;
        saved_.clear();
        finite_ = true;
    }

    void set(int32_t id, float logit) {
        const float before = logits_[id];
        // An edit must not hide a bad logit from the scan that follows.
        finite_ = finite_ && before <= FLT_MAX;
        saved_.push_back({id, before});
        logits_[id] = logit;
    }

    void undo() {
        for (auto edit = saved_.rbegin(); edit != saved_.rend(); ++edit) logits_[edit->id] = edit->logit;
        saved_.clear();
    }

    void reserve(size_t num_edits) { saved_.reserve(num_edits); }
    float at(int32_t id) const { return logits_[id]; }
    bool finite() const { return finite_; }

private:
    struct Saved {
        int32_t id;
        float logit;
    };
    float* logits_ = nullptr;
    std::vector<Saved> saved_;
    bool finite_ = true;
};

// A mask says itself when the end may come: min_tokens is not for masked rows.
void adjust(const Slot& slot, int64_t position, bool masked, RowEdits& row) {
    const tp_sampling& params = slot.params;
    for (const Bias& bias : slot.biases) row.set(bias.token, narrow(row.at(bias.token) + bias.bias));
    for (const Seen& seen : slot.seen.entries()) {
        const double logit = row.at(seen.token);
        float adjusted = narrow(logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty);
        if (seen.num_output > 0) {
            adjusted = narrow(adjusted - params.frequency_penalty * seen.num_output - params.presence_penalty);
        }
        row.set(seen.token, adjusted);
    }
    if (!masked && position - slot.num_prompt < params.min_tokens) {
        for (const int32_t token : slot.stops) row.set(token, kNever);
    }
}

}  // namespace
