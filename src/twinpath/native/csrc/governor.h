// How many threads a step should use while other processes want the same processors.
//
// A worker that is descheduled inside a task stalls the whole phase for a time slice (3-4 ms, where a decode step takes 4). The
// governor compares what such stalls cost with what the last thread brings, and leaves it out for a while when it does not pay.
#pragma once

#include <cstdint>

namespace tp {

class Governor {
public:
    // What the last step with `active` of `most` threads took and how much of it was spent waiting for late threads.
    // Returns the number of threads for the next step. Times are monotonic.
    int next(int active, int most, int64_t now_ns, int64_t step_ns, int64_t late_ns) {
        if (active > most) active = most;
        if (active < most && now_ns >= retry_at_ns_) {  // try one more
            clear();
            return active + 1;
        }
        if (active < 2) return active;
        step_ns_ += step_ns;
        late_ns_ += late_ns;
        if (step_ns_ < kWindowNs) return active;
        // n threads that work w take w; n - 1 would take w n / (n - 1), that is w / (n - 1) longer.
        const bool pays = late_ns_ * (active - 1) <= step_ns_ - late_ns_;
        clear();
        if (pays) {
            pause_ns_ = pause_ns_ / 2 > kShortestPauseNs ? pause_ns_ / 2 : kShortestPauseNs;
            return active;
        }
        retry_at_ns_ = now_ns + pause_ns_;
        pause_ns_ = 2 * pause_ns_ < kLongestPauseNs ? 2 * pause_ns_ : kLongestPauseNs;
        return active - 1;
    }

private:
    static constexpr int64_t kWindowNs = 15'000'000;  // a few time slices of the system's scheduler
    static constexpr int64_t kShortestPauseNs = 100'000'000;
    static constexpr int64_t kLongestPauseNs = 1'600'000'000;

    void clear() { step_ns_ = late_ns_ = 0; }

    int64_t step_ns_ = 0, late_ns_ = 0, retry_at_ns_ = 0, pause_ns_ = kShortestPauseNs;
};

}  // namespace tp
