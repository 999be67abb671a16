// How many threads a step should use while other processes want the same processors.
//
// A worker that is descheduled inside a task stalls the whole phase for a time slice (1-4 ms, where a decode step takes 3). When
// such stalls show, the governor runs a few steps with one thread less and keeps what was faster; while threads are left out, it
// tries one more now and then. Only steps of the same number of rows are compared.
#pragma once

#include <cstdint>

namespace tp {

class Governor {
public:
    // Told what the last step with `active` of `most` threads took and how much of it was spent waiting for late threads,
    // returns the number of threads for the next step. Times are monotonic.
    int next(int active, int most, int64_t now_ns, int num_rows, int64_t step_ns, int64_t late_ns) {
        if (most < 2 || active > most) return most;
        if (num_rows != num_rows_) {  // other work: what was measured does not compare
            num_rows_ = num_rows;
            const int before = trying_from_ ? trying_from_ : active;
            trying_from_ = 0;
            clear();
            return now_ns < retry_at_ns_ ? before : most;
        }
        step_ns_ += step_ns;
        late_ns_ += late_ns;
        ++num_steps_;
        if (step_ns_ < kWindowNs || num_steps_ < kWindowSteps) return active;
        const int64_t mean_ns = step_ns_ / num_steps_;
        const bool late = late_ns_ * kLatePart > step_ns_;
        clear();
        if (trying_from_) return judge(active, now_ns, mean_ns);
        if (now_ns < retry_at_ns_) return active;
        if (active < most) return try_with(active + 1, active, mean_ns);
        return late ? try_with(active - 1, active, mean_ns) : active;
    }

private:
    static constexpr int64_t kWindowNs = 15'000'000;  // a few time slices of the system's scheduler
    static constexpr int kWindowSteps = 3;
    static constexpr int kLatePart = 8;  // stalls of an eighth of the time are worth a try with one thread less
    static constexpr int64_t kShortestPauseNs = 100'000'000;
    static constexpr int64_t kLongestPauseNs = 1'600'000'000;

    int try_with(int threads, int from, int64_t mean_ns) {
        trying_from_ = from;
        mean_before_ns_ = mean_ns;
        return threads;
    }

    // The trial's window is full: stay, or go back and wait twice as long before the next trial.
    int judge(int active, int64_t now_ns, int64_t mean_ns) {
        const int from = trying_from_;
        trying_from_ = 0;
        const bool better = mean_ns < mean_before_ns_;
        if (better) {
            pause_ns_ = kShortestPauseNs;
        } else {
            pause_ns_ = 2 * pause_ns_ < kLongestPauseNs ? 2 * pause_ns_ : kLongestPauseNs;
        }
        retry_at_ns_ = now_ns + pause_ns_;
        return better ? active : from;
    }

    void clear() { step_ns_ = late_ns_ = num_steps_ = 0; }

    int num_rows_ = 0;
    int trying_from_ = 0;  // threads before the trial that is going on; 0: none is
    int64_t mean_before_ns_ = 0;
    int64_t step_ns_ = 0, late_ns_ = 0, num_steps_ = 0;
    int64_t retry_at_ns_ = 0, pause_ns_ = kShortestPauseNs;
};

}  // namespace tp
