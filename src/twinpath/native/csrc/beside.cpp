#include "beside.h"

#include <algorithm>
#include <chrono>

namespace tp {
namespace {

// The tasks of a slice take less than this: a thread that has not let go by then has lost its processor.
constexpr int64_t kPatienceNs = 500'000;

}  // namespace

Beside::Beside(const Stepper& main, int num_threads) : num_threads_(num_threads), main_(main), thread_([this] { work(); }) {}

Beside::~Beside() {
    stop();
    wait(INT64_MAX);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        closing_ = true;
    }
    wake_.notify_all();
    thread_.join();
}

bool Beside::start(const StepArgs& args, Slice* slice) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (slice_ == slice && is_stopping_) return false;
    if (slice_ && slice_ != slice) {
        lock.unlock();
        stop();
        wait(INT64_MAX);
        lock.lock();
    }
    if (!slice_ && welcome_.is_out(now_ns())) return false;
    kept_off_ = keep_off_this_core(thread_, kept_off_);
    if (slice_) return true;
    slice->begin_beside();
    args_ = args;
    args_.cancel = nullptr;  // an interrupted step is not this one
    slice_ = slice;
    is_stopping_ = false;
    lock.unlock();
    wake_.notify_all();
    return true;
}

void Beside::stop() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!slice_) return;
    is_stopping_ = true;
    slice_->stop();
}

bool Beside::wait(int64_t timeout_ns) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_free = [this] { return slice_ == nullptr; };
    if (let_go_.wait_for(lock, std::chrono::nanoseconds(std::min(timeout_ns, kPatienceNs)), is_free)) return true;
    if (timeout_ns <= kPatienceNs) return false;
    call_here(thread_);  // nobody runs here while we wait
    kept_off_ = -1;
    if (timeout_ns < INT64_MAX) return let_go_.wait_for(lock, std::chrono::nanoseconds(timeout_ns - kPatienceNs), is_free);
    let_go_.wait(lock, is_free);
    return true;
}

void Beside::work() {
    rest_only();
    stepper_ = std::make_unique<Stepper>(main_, std::make_unique<ThreadPool>(num_threads_));  // its threads inherit our policy
    for (;;) {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return closing_ || slice_; });
        if (closing_) return;
        lock.unlock();
        std::string error;
        const int64_t begin_ns = now_ns(), begin_cpu_ns = thread_cpu_ns();
        stepper_->go_on(args_, slice_, &error);
        const int64_t end_ns = now_ns(), ran_ns = thread_cpu_ns() - begin_cpu_ns;
        lock.lock();
        welcome_.note(end_ns, end_ns - begin_ns, ran_ns);
        slice_ = nullptr;
        let_go_.notify_all();
    }
}

}  // namespace tp
