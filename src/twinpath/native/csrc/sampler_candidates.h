// The ids that may be drawn, in ascending order, and the borders of top_k and top_p, found by counting in bins: the
// vocabulary is never sorted. Weights are integers, so sums are exact in any order. Header of sampler.cpp alone.
#pragma once

#include <memory>

#include "sampler_row.h"

namespace {

constexpr int32_t kBins = 1024;

// Where a run by rank ends: all above `logit`, and the first `num_ties` of the `num_equal` ids that hold it.
struct Cut {
    float logit;
    int32_t num_ties;
    int32_t num_equal;
};

TP_CLONES void find_extremes(const float* logits, int32_t n, float* lowest, float* highest) {
    int32_t low = INT_MAX, high = INT_MIN;
    for (int32_t i = 0; i < n; ++i) {
        const int32_t key = order_bits(bit_cast<int32_t>(logits[i]));
        low = key < low ? key : low;
        high = key > high ? key : high;
    }
    *lowest = bit_cast<float>(order_bits(low));
    *highest = bit_cast<float>(order_bits(high));
}

TP_CLONES void bin_by_rank(const float* logits, int32_t n, double highest, double scale, int32_t* bins) {
    for (int32_t i = 0; i < n; ++i) {
        const double bin = (highest - static_cast<double>(logits[i])) * scale;
        bins[i] = static_cast<int32_t>(bin < kBins ? bin : kBins);
    }
}

TP_CLONES uint64_t drop_below(const float* logits, int32_t n, float least, uint64_t* weights) {
    uint64_t total = 0;
    for (int32_t i = 0; i < n; ++i) {
        weights[i] = logits[i] >= least ? weights[i] : 0;
        total += weights[i];
    }
    return total;
}

TP_CLONES uint64_t drop_lighter(int32_t n, uint64_t least, uint64_t* weights) {
    uint64_t total = 0;
    for (int32_t i = 0; i < n; ++i) {
        weights[i] = weights[i] >= least ? weights[i] : 0;
        total += weights[i];
    }
    return total;
}

// First index whose running weight exceeds `target`, which is below the whole.
TP_CLONES int32_t find_running(const uint64_t* weights, uint64_t target) {
    int32_t i = 0;
    for (uint64_t running = 0;; i += kBlock, target -= running) {
        running = 0;
        for (int32_t j = 0; j < kBlock; ++j) running += weights[i + j];
        if (running > target) break;
    }
    for (; weights[i] <= target; ++i) target -= weights[i];
    return i;
}

class Candidates {
public:
    explicit Candidates(int32_t vocab_size)
        : ids_(new int32_t[vocab_size]), picked_(new float[vocab_size]), weights_(new uint64_t[vocab_size + kBlock]),
          part_logits_(new float[vocab_size]), part_weights_(new uint64_t[vocab_size]), bins_(new int32_t[vocab_size]) {}

    // Every id of the row. Ids below `floor` are known to weigh nothing.
    void take_all(const float* row, int32_t n, float floor) {
        identity_ = true;
        floor_ = floor;
        logits_ = row;
        size_ = n;
    }

    // The first top_k by rank, less some that weigh nothing; block_best as scan_blocks leaves it, block_scratch as long.
    void take_top(const float* row, int32_t n, float floor, int32_t top_k, const int32_t* block_best, int32_t* block_scratch) {
        floor_ = floor;
        collect(row, n, block_best, std::max(floor, bound(block_best, num_blocks_of(n), top_k, block_scratch)));
        if (top_k < size_) {
            Cut cut = find_cut(static_cast<uint64_t>(top_k), nullptr);
            int32_t count = 0;
            for (int32_t i = 0; i < size_; ++i) {
                const float logit = picked_[i];
                const bool tie = logit == cut.logit;
                ids_[count] = ids_[i];
                picked_[count] = logit;
                count += logit > cut.logit || (tie && cut.num_ties > 0);
                cut.num_ties -= tie;
            }
            size_ = count;
        }
    }

    void weigh_all(double best, double inverse_temperature) {
        total_ = weigh(logits_, size_, best, inverse_temperature, weights_.get());
        // What find_running reads past the end.
        std::fill_n(weights_.get() + size_, kBlock, uint64_t{0});
    }

    // Keeps the shortest run by rank whose weight reaches `needed` (1 <= needed <= total).
    void keep_run(uint64_t needed) {
        const Cut cut = find_cut(needed, weights_.get());
        total_ = drop_below(logits_, size_, cut.logit, weights_.get());
        int32_t num_extra = cut.num_equal - cut.num_ties;
        for (int32_t i = size_ - 1; num_extra > 0; --i) {
            if (logits_[i] != cut.logit) continue;
            total_ -= weights_[i];
            weights_[i] = 0;
            --num_extra;
        }
    }

    void keep_heavier(uint64_t least) { total_ = drop_lighter(size_, least, weights_.get()); }

    // First id, ascending, whose running weight exceeds `target` (< total).
    int32_t draw(uint64_t target) const {
        const int32_t i = find_running(weights_.get(), target);
        return identity_ ? i : ids_[i];
    }

    uint64_t total() const { return total_; }

private:
    // No better than the k-th best logit: the k-th best of the blocks' best.
    static float bound(const int32_t* block_best, int32_t num_blocks, int32_t top_k, int32_t* scratch) {
        if (top_k > num_blocks) return kNever;
        std::copy_n(block_best, num_blocks, scratch);
        std::nth_element(scratch, scratch + (top_k - 1), scratch + num_blocks, [](int32_t a, int32_t b) { return a > b; });
        return bit_cast<float>(order_bits(scratch[top_k - 1]));
    }

    void collect(const float* row, int32_t n, const int32_t* block_best, float cutoff) {
        // -0.0 passes a cutoff of +0.0, and its key is the lesser one.
        const int32_t cutoff_key = order_bits(bit_cast<int32_t>(cutoff == 0.0f ? -0.0f : cutoff));
        int32_t count = 0;
        for (int32_t begin = 0, block = 0; begin < n; begin += kBlock, ++block) {
            if (block_best[block] < cutoff_key) continue;
            const int32_t end = std::min(begin + kBlock, n);
            for (int32_t id = begin; id < end; ++id) {
                ids_[count] = id;
                picked_[count] = row[id];
                count += row[id] >= cutoff;
            }
        }
        identity_ = false;
        logits_ = picked_.get();
        size_ = count;
    }

    // The run by rank that reaches `needed`, counting weights, or ids when `weights` is null. Bins the logits between their
    // extremes, walks the bins to the one that holds the border and goes on inside it. Every round parts the extremes, so it
    // ends; equal logits weigh the same, so among ties only the ids' order matters.
    Cut find_cut(uint64_t needed, const uint64_t* weights) {
        const float* part = logits_;
        for (int32_t n = size_;;) {
            float lowest, highest;
            find_extremes(part, n, &lowest, &highest);
            if (lowest == highest) {
                const uint64_t each = weights ? weights[0] : 1;
                return {lowest, static_cast<int32_t>((needed + each - 1) / each), n};
            }
            const double bottom = std::max(lowest, std::min(floor_, std::nextafter(highest, kNever)));
            bin_by_rank(part, n, highest, (kBins - 1) / (highest - bottom), bins_.get());
            uint64_t histogram[kBins + 1] = {};
            for (int32_t i = 0; i < n; ++i) histogram[bins_[i]] += weights ? weights[i] : 1;
            int32_t border = 0;
            for (; histogram[border] < needed; ++border) needed -= histogram[border];
            int32_t count = 0;
            for (int32_t i = 0; i < n; ++i) {
                if (bins_[i] != border) continue;
                part_logits_[count] = part[i];
                if (weights) part_weights_[count] = weights[i];
                ++count;
            }
            part = part_logits_.get();
            if (weights) weights = part_weights_.get();
            n = count;
        }
    }

    bool identity_ = false;
    int32_t size_ = 0;
    float floor_ = kNever;
    uint64_t total_ = 0;
    const float* logits_ = nullptr;
    std::unique_ptr<int32_t[]> ids_;
    std::unique_ptr<float[]> picked_;
    std::unique_ptr<uint64_t[]> weights_;
    std::unique_ptr<float[]> part_logits_;
    std::unique_ptr<uint64_t[]> part_weights_;
    std::unique_ptr<int32_t[]> bins_;
};

}  // namespace
