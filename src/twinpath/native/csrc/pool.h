// Threads that share the tasks of one phase after another.
//
// The caller takes part. Every thread owns a range of tasks (so that it walks through consecutive weights) and takes from the
// others' ranges when its own is empty. A phase ends when all claimed tasks are done: a thread that was descheduled before it
// claimed anything holds nobody up. Between phases workers spin for a short while, then sleep: an idle engine uses no processor.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace tp {

class ThreadPool {
public:
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int num_threads() const { return num_threads_; }
    void resize(int num_threads);  // not while run() is going on
    // Threads that run() uses from now on, 1..num_threads.
    void set_active(int n) { active_ = n < 1 ? 1 : n > num_threads_ ? num_threads_ : n; }
    int active() const { return active_; }

    // Calls task(index, thread) for index 0..num_tasks-1, on threads 0..active-1; returns when all are done.
    template <class F>
    void run(int num_tasks, F&& task) {
        if (active_ == 1 || num_tasks <= 1) {
            for (int i = 0; i < num_tasks; ++i) task(i, 0);
            return;
        }
        using Task = std::remove_reference_t<F>;
        run_shared(num_tasks, [](void* f, int i, int thread) { (*static_cast<Task*>(f))(i, thread); }, &task);
    }

    struct Waits {
        // Spent at the end of phases beyond what a task or two should take: the mark of a worker that lost its processor in
        // the middle of a task.
        int64_t late_ns = 0;
        int64_t asleep_ns = 0;
    };
    // The caller's waits since the last call.
    Waits take_waits() {
        const Waits waits = waits_;
        waits_ = {};
        return waits;
    }

private:
    using Invoke = void (*)(void*, int, int);
    // A range of tasks: epoch (24 bits) | next (20) | end (20), in one word so that a claim can never mix two phases.
    struct alignas(64) Range {
        std::atomic<uint64_t> word{0};
    };

    void run_shared(int num_tasks, Invoke invoke, void* task);
    void wait_for(int num_tasks, int64_t allowance_ns);
    bool claim(int thread, int* index);
    void work(int thread);
    bool has_news(int thread, uint64_t seen) const;
    void start(int num_threads);
    void stop();

    std::unique_ptr<Range[]> ranges_;
    alignas(64) std::atomic<int> done_{0};
    alignas(64) std::atomic<int> sleepers_{0};
    std::atomic<bool> caller_sleeps_{false};
    std::atomic<bool> stopping_{false};
    std::atomic<int> active_{1};
    Invoke invoke_ = nullptr;
    void* task_ = nullptr;
    uint64_t epoch_ = 0;
    Waits waits_;
    int num_threads_ = 1;
    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_, finished_;
};

}  // namespace tp
