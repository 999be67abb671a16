// A step that may pause: between any two tasks of any phase, when its time is over.
//
// The code of a step runs through again from its beginning whenever the step goes on; phases that were done are skipped, the one
// that was left runs the tasks it still has. So what lies between phases must be cheap and must give the same when done again.
#pragma once

#include <atomic>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "scratch.h"

namespace tp {

class Slice {
public:
    explicit Slice(StepScratch scratch) : scratch_(std::move(scratch)) {}

    // How the work of a phase was cut; with other threads it begins again.
    int num_threads = 0;

    // Its working memory: the step's own serves other steps meanwhile.
    StepScratch& scratch() { return scratch_; }

    void begin(bool resume, int64_t deadline_ns) {
        if (!resume) next_phase_ = 0, pending_.clear();
        phase_ = 0;
        deadline_ns_ = deadline_ns;
        keeps_outputs_ = false;
        is_over_ = has_run_ = false;
    }
    // The same without a deadline, until stop(); logits and hidden rows are left for whoever goes on.
    void begin_beside() {
        begin(true, INT64_MAX);
        keeps_outputs_ = true;
    }
    // From any thread: it is over after the tasks that run now.
    void stop() { deadline_ns_ = INT64_MIN; }
    // What comes now runs to its end.
    void ignore_deadline() { deadline_ns_ = INT64_MAX; }
    // All layers are done; whether the outputs come now.
    bool enter_outputs() { return !(is_over_ = keeps_outputs_); }
    bool is_over() const { return is_over_; }

    // A phase of so many tasks: whether it is to run now.
    bool enter(int num_tasks, int64_t now_ns) {
        const int64_t phase = phase_++;
        if (is_over_ || phase < next_phase_) return false;
        if (has_run_ && now_ns >= deadline_ns_) return !(is_over_ = true);
        if (pending_.empty()) {
            pending_.resize(static_cast<size_t>(num_tasks));
            std::iota(pending_.begin(), pending_.end(), 0);
        }
        is_left_.assign(pending_.size(), 0);
        has_run_ = true;
        return !pending_.empty();
    }
    int num_tasks() const { return static_cast<int>(pending_.size()); }
    int task(int i) const { return pending_[static_cast<size_t>(i)]; }
    // From any thread: whether task `i` is to be left for later; the first never is, so that every slice gets on.
    bool leaves(int i, int64_t now_ns) {
        if (i == 0 || now_ns < deadline_ns_) return false;
        is_left_[static_cast<size_t>(i)] = 1;
        return true;
    }
    void exit() {
        size_t num_left = 0;
        for (size_t i = 0; i < pending_.size(); ++i) {
            if (is_left_[i]) pending_[num_left++] = pending_[i];
        }
        pending_.resize(num_left);
        if (num_left) is_over_ = true;
        else next_phase_ = phase_;
    }

private:
    StepScratch scratch_;
    int64_t phase_ = 0;       // of the run that is going on
    int64_t next_phase_ = 0;  // those before it are done
    std::vector<int32_t> pending_;  // tasks that phase `next_phase_` still has; empty: all
    std::vector<uint8_t> is_left_;  // by index in `pending_`
    std::atomic<int64_t> deadline_ns_{0};
    bool keeps_outputs_ = false;
    bool is_over_ = false, has_run_ = false;
};

}  // namespace tp
