// Whether a thread that only runs where nobody else wants to gets to run.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tp {

// Beside processes that keep all processors busy such a thread may stand still for a second in the middle of a task, and what it
// holds with it. Then it is left out for a while, longer each time.
class Welcome {
public:
    // Told how long the thread had work and how long it ran of that. Times are monotonic.
    void note(int64_t now_ns, int64_t had_work_ns, int64_t ran_ns) {
        had_work_ns_ += had_work_ns;
        ran_ns_ += ran_ns;
        if (had_work_ns_ < kWindowNs) return;
        if (ran_ns_ * kLeastPart < had_work_ns_) {
            pause_ns_ = std::max(std::clamp(2 * pause_ns_, kFirstPauseNs, kLongestPauseNs), kPausePart * had_work_ns_);
            until_ns_ = now_ns + pause_ns_;
        } else {
            pause_ns_ = 0;
        }
        had_work_ns_ = ran_ns_ = 0;
    }
    bool is_out(int64_t now_ns) const { return now_ns < until_ns_; }

private:
    static constexpr int64_t kWindowNs = 15'000'000;
    static constexpr int kLeastPart = 4;  // of the time it should run; steps in a hurry may take half of it
    static constexpr int64_t kFirstPauseNs = 100'000'000, kLongestPauseNs = 3'200'000'000;
    static constexpr int kPausePart = 8;  // a window in which it stood still is a small part of the time, however long

    int64_t had_work_ns_ = 0, ran_ns_ = 0, pause_ns_ = 0, until_ns_ = 0;
};

}  // namespace tp
