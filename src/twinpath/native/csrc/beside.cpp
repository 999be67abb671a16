#include "beside.h"

#include <chrono>

namespace tp {

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

void Beside::start(const StepArgs& args, Slice* slice) {
    kept_off_ = keep_off_this_core(thread_, kept_off_);
    if (has(slice)) return;
    stop();
    wait(INT64_MAX);
    slice->begin_beside();
    {
        std::lock_guard<std::mutex> lock(mutex_);
        args_ = args;
        args_.cancel = nullptr;  // an interrupted step is not this one
        slice_ = slice;
    }
    wake_.notify_all();
}

bool Beside::has(const Slice* slice) {
    std::lock_guard<std::mutex> lock(mutex_);
    return slice_ == slice;
}

void Beside::stop() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (slice_) slice_->stop();
}

bool Beside::wait(int64_t timeout_ns) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_free = [this] { return slice_ == nullptr; };
    if (timeout_ns == INT64_MAX) {
        let_go_.wait(lock, is_free);
        return true;
    }
    return let_go_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), is_free);
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
        stepper_->go_on(args_, slice_, &error);
        lock.lock();
        slice_ = nullptr;
        let_go_.notify_all();
    }
}

}  // namespace tp
