// How many threads a step should use while other processes want the same processors.
//
// A thread that is descheduled inside a task stalls the whole phase for a time slice (1-4 ms, where a decode step takes 3). When
// such stalls show (the caller waited for a worker, or lost its own processor), the governor runs a few steps with one thread less and keeps what was faster; while threads are left out, it
// tries one more now and then. Only steps of the same number of rows are compared.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tp {

class Governor {
public:
    // Told what the last step with `active` of `most` threads took and how much of it was lost to descheduled threads,
    // returns the number of threads for the next step. Times are monotonic.
    int next(int active, int most, int64_t now_ns, int num_rows, int64_t step_ns, int64_t lost_ns) {
        if (most < 2 || active > most) return most;
        if (num_rows != num_rows_) {  // other work: what was measured does not compare
            num_rows_ = num_rows;
            const int before = trying_from_ ? trying_from_ : active;
            trying_from_ = 0;
            clear();
            return now_ns < retry_at_ns_ ? before : most;
        }
        step_ns_ += step_ns;
        lost_ns_ += lost_ns;
        ++num_steps_;
        if (step_ns_ < kWindowNs || num_steps_ < kWindowSteps) return active;
        const int64_t mean_ns = step_ns_ / num_steps_;
        const bool late = lost_ns_ * kLatePart > step_ns_;
        if (!trying_from_) losing_ = lost_ns_ * kMuchPart > step_ns_;
        clear();
        if (trying_from_) return judge(active, now_ns, mean_ns);
        if (now_ns < retry_at_ns_) return active;
        if (active < most) return try_with(active + 1, active, mean_ns);
        return late ? try_with(active - 1, active, mean_ns) : active;
    }

    // The same after a long step, a prompt's, which ran on all threads: they share out its many short tasks well enough
    // whoever is late. It tells whether the processors are free again.
    int after_long(int active, int most, int64_t step_ns, int64_t lost_ns) {
        if (active >= most || step_ns < kWindowNs || lost_ns * kLatePart > step_ns) return active;
        trying_from_ = 0;
        pause_ns_ = kFirstPauseBusyNs;
        clear();
        return most;
    }

    // Whether the only thread that is left should look for another processor, because somebody else has its own: told for how
    // long of the last step, with any number of threads. The window of a trial starts again behind the move.
    bool should_move(int active, int most, int64_t now_ns, int64_t step_ns, int64_t stolen_ns) {
        if (step_ns > 0) stolen_share_ += (static_cast<double>(stolen_ns) / static_cast<double>(step_ns) - stolen_share_) / 2;
        if (active > 1 || most < 2 || stolen_share_ < kStolenShare || now_ns < move_at_ns_) return false;
        move_at_ns_ = now_ns + kMovePauseNs;
        stolen_share_ = 0;
        clear();
        return true;
    }

    // While threads are left out: whether to look now and then if a processor stands idle; when one does, `retry`.
    bool should_look(int active, int most, int64_t now_ns) {
        if (active >= most || trying_from_ || now_ns < look_at_ns_) return false;
        look_at_ns_ = now_ns + kLookNs;
        return true;
    }
    void retry() { retry_at_ns_ = 0; }

private:
    static constexpr int64_t kWindowNs = 15'000'000;  // a few time slices of the system's scheduler
    static constexpr int kWindowSteps = 3;
    static constexpr int kLatePart = 8;  // stalls of an eighth of the time are worth a try with one thread less
    static constexpr double kStolenShare = 0.3;  // of the last steps; one that was interrupted once does not reach it
    static constexpr int64_t kMovePauseNs = 25'000'000;  // longer than a window: a trial ends though nothing helps
    // Between trials with one more: they cost much beside a busy process, and a look at idle processors comes earlier.
    static constexpr int64_t kFirstPauseNs = 400'000'000, kLongestPauseNs = 1'600'000'000;
    // Between trials with one less. While much time is lost a failed one says little: a processor that comes out of a long
    // prompt is slower for 50 ms.
    static constexpr int64_t kFirstPauseBusyNs = 100'000'000, kLongestPauseBusyNs = 400'000'000, kPauseLosingNs = 40'000'000;
    static constexpr int kMuchPart = 4;
    static constexpr int64_t kLookNs = 50'000'000;  // a few ticks of the system's own count

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
        if ((from > active) == better) {  // fewer from now on, the next trial is with more
            pause_ns_ = better || pause_ns_ < kFirstPauseNs ? kFirstPauseNs : std::min(2 * pause_ns_, kLongestPauseNs);
        } else if (better) {
            pause_ns_ = kFirstPauseBusyNs;
        } else {
            pause_ns_ = losing_ ? kPauseLosingNs : std::min(std::max(2 * pause_ns_, kFirstPauseBusyNs), kLongestPauseBusyNs);
        }
        retry_at_ns_ = now_ns + pause_ns_;
        look_at_ns_ = now_ns + pause_ns_ / 4;
        return better ? active : from;
    }

    void clear() { step_ns_ = lost_ns_ = num_steps_ = 0; }

    int num_rows_ = 0;
    int trying_from_ = 0;  // threads before the trial that is going on; 0: none is
    int64_t mean_before_ns_ = 0;
    int64_t step_ns_ = 0, lost_ns_ = 0, num_steps_ = 0;
    int64_t move_at_ns_ = 0, look_at_ns_ = 0, retry_at_ns_ = 0, pause_ns_ = kFirstPauseBusyNs;
    double stolen_share_ = 0;
    bool losing_ = false;  // before the trial, if one is going on
};

}  // namespace tp
