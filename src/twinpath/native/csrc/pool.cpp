#include "pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tp {
namespace {

constexpr int kBits = 20;
constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
// How long an idle worker spins before it sleeps: longer than the serial gap between two phases (a few us), much shorter
// than what a client on the same machine would notice.
constexpr int64_t kSpinNs = 50'000;
// A wait this long means that the other thread lost its processor: give ours away instead of spinning.
constexpr int64_t kYieldNs = 100'000;

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

inline int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline int next_of(uint64_t s) { return static_cast<int>((s >> kBits) & kMask); }
inline int count_of(uint64_t s) { return static_cast<int>(s & kMask); }

}  // namespace

ThreadPool::ThreadPool(int num_threads) { start(num_threads); }

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::resize(int num_threads) {
    if (num_threads == num_threads_) return;
    stop();
    start(num_threads);
}

void ThreadPool::start(int num_threads) {
    num_threads_ = num_threads < 1 ? 1 : num_threads;
    active_ = num_threads_;
    stopping_ = false;
    for (int i = 1; i < num_threads_; ++i) workers_.emplace_back([this, i] { work(i); });
}

void ThreadPool::stop() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (auto& w : workers_) w.join();
    workers_.clear();
}

bool ThreadPool::claim(int* index) {
    uint64_t s = state_.load(std::memory_order_acquire);
    while (next_of(s) < count_of(s)) {
        if (state_.compare_exchange_weak(s, s + (uint64_t{1} << kBits), std::memory_order_acq_rel, std::memory_order_acquire)) {
            *index = next_of(s);
            return true;
        }
    }
    return false;
}

void ThreadPool::run_shared(int num_tasks, Invoke invoke, void* task) {
    invoke_ = invoke;
    task_ = task;
    done_.store(0, std::memory_order_relaxed);
    const uint64_t epoch = (state_.load(std::memory_order_relaxed) >> (2 * kBits)) + 1;
    state_.store((epoch << (2 * kBits)) | static_cast<uint64_t>(num_tasks), std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        wake_.notify_all();
    }
    int index;
    while (claim(&index)) {
        invoke(task, index, 0);
        done_.fetch_add(1, std::memory_order_acq_rel);
    }
    int64_t begin = 0;
    for (int spins = 0; done_.load(std::memory_order_acquire) < num_tasks; ++spins) {
        pause();
        if ((spins & 63) != 63) continue;
        const int64_t now = now_ns();
        if (begin == 0) begin = now;
        if (now - begin > longest_wait_ns_) longest_wait_ns_ = now - begin;
        if (now - begin > kYieldNs) std::this_thread::yield();
    }
}

int64_t ThreadPool::take_longest_wait_ns() {
    const int64_t wait = longest_wait_ns_;
    longest_wait_ns_ = 0;
    return wait;
}

void ThreadPool::work(int thread) {
    int64_t idle_since = now_ns();
    for (int spins = 0;; ++spins) {
        int index;
        if (thread < active_.load(std::memory_order_relaxed) && claim(&index)) {
            do {
                invoke_(task_, index, thread);
                done_.fetch_add(1, std::memory_order_acq_rel);
            } while (claim(&index));
            idle_since = now_ns();
            spins = 0;
            continue;
        }
        pause();
        if (stopping_.load(std::memory_order_relaxed)) return;
        if ((spins & 63) != 63 || now_ns() - idle_since < kSpinNs) continue;
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [this, thread] {
            const uint64_t s = state_.load(std::memory_order_seq_cst);
            return stopping_ || (thread < active_ && next_of(s) < count_of(s));
        });
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        idle_since = now_ns();
    }
}

}  // namespace tp
