// A thread that goes on with a paused slice while steps run: prefill gets the processors that the decode rows leave.
//
// Decode rows are bound by memory: with half of the threads they take less than twice as long, and one that is descheduled
// holds up fewer others. The thread's processors count as idle to the system (SCHED_IDLE), so whoever wakes beside a step, the
// gateway with a token to write for one, takes its place and not the step's.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "step.h"
#include "welcome.h"

namespace tp {

class Beside {
public:
    // `num_threads` of its own.
    Beside(const Stepper& main, int num_threads);
    ~Beside();
    Beside(const Beside&) = delete;
    Beside& operator=(const Beside&) = delete;

    // Goes on with a paused slice until stop(), or with the one it has. False: not now, because its processors are wanted by
    // others; only that slice may still be held then. `args`: those of its last call, which the caller keeps until wait() is true.
    bool start(const StepArgs& args, Slice* slice);
    // Returns at once: the tasks that run now are finished first.
    void stop();
    // Until the slice is let go of, at most so long. The thread may use the caller's processor meanwhile.
    bool wait(int64_t timeout_ns);

private:
    void work();

    int num_threads_;
    const Stepper& main_;
    std::unique_ptr<Stepper> stepper_;
    std::mutex mutex_;
    std::condition_variable wake_, let_go_;
    StepArgs args_{};
    Slice* slice_ = nullptr;  // null: nothing to do
    bool is_stopping_ = false;
    bool closing_ = false;
    Welcome welcome_;
    int kept_off_ = -1;  // a processor
    std::thread thread_;
};

}  // namespace tp
