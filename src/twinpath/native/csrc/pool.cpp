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
// A wait this long means that another thread lost its processor: sleep, so that the system owes us time instead of it.
constexpr int64_t kBlockNs = 50'000;
// Waits beyond this, and beyond two average tasks, count as late.
constexpr int64_t kLateNs = 30'000;
constexpr int kSpinsPerLook = 32;  // between looks at the clock

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

inline int next_of(uint64_t w) { return static_cast<int>((w >> kBits) & kMask); }
inline int end_of(uint64_t w) { return static_cast<int>(w & kMask); }
inline uint64_t epoch_of(uint64_t w) { return w >> (2 * kBits); }

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
    epoch_ = 0;
    ranges_ = std::make_unique<Range[]>(static_cast<size_t>(num_threads_));
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

bool ThreadPool::claim(int thread, int* index) {
    for (int i = 0; i < num_threads_; ++i) {
        std::atomic<uint64_t>& word = ranges_[static_cast<size_t>((thread + i) % num_threads_)].word;
        uint64_t w = word.load(std::memory_order_acquire);
        while (next_of(w) < end_of(w)) {
            if (word.compare_exchange_weak(w, w + (uint64_t{1} << kBits), std::memory_order_acq_rel, std::memory_order_acquire)) {
                *index = next_of(w);
                return true;
            }
        }
    }
    return false;
}

void ThreadPool::run_shared(int num_tasks, Invoke invoke, void* task) {
    invoke_ = invoke;
    task_ = task;
    done_.store(0, std::memory_order_relaxed);
    epoch_ = (epoch_ + 1) & 0xffffff;
    const int active = active_;
    for (int t = 0; t < num_threads_; ++t) {
        const uint64_t begin = t < active ? static_cast<uint64_t>(num_tasks) * t / active : 0;
        const uint64_t end = t < active ? static_cast<uint64_t>(num_tasks) * (t + 1) / active : 0;
        ranges_[static_cast<size_t>(t)].word.store(epoch_ << (2 * kBits) | begin << kBits | end, std::memory_order_seq_cst);
    }
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        wake_.notify_all();
    }
    const int64_t begin_ns = now_ns();
    int index, mine = 0;
    for (; claim(0, &index); ++mine) invoke(task, index, 0);
    done_.fetch_add(mine, std::memory_order_acq_rel);
    if (done_.load(std::memory_order_acquire) == num_tasks) return;
    wait_for(num_tasks, kLateNs + 2 * (now_ns() - begin_ns) / (mine + 1));
}

void ThreadPool::wait_for(int num_tasks, int64_t allowance_ns) {
    const int64_t begin_ns = now_ns();
    for (int spins = 1; done_.load(std::memory_order_acquire) != num_tasks; ++spins) {
        pause();
        if (spins % kSpinsPerLook || now_ns() - begin_ns < kBlockNs) continue;
        const int64_t asleep_since_ns = now_ns();
        std::unique_lock<std::mutex> lock(mutex_);
        caller_sleeps_.store(true, std::memory_order_seq_cst);
        finished_.wait(lock, [this, num_tasks] { return done_.load(std::memory_order_seq_cst) == num_tasks; });
        caller_sleeps_.store(false, std::memory_order_seq_cst);
        waits_.asleep_ns += now_ns() - asleep_since_ns;
    }
    const int64_t waited_ns = now_ns() - begin_ns;
    if (waited_ns > allowance_ns) waits_.late_ns += waited_ns;
}

bool ThreadPool::has_news(int thread, uint64_t seen) const {
    return epoch_of(ranges_[static_cast<size_t>(thread)].word.load(std::memory_order_seq_cst)) != seen;
}

void ThreadPool::work(int thread) {
    uint64_t seen = 0;
    int64_t idle_since_ns = now_ns();
    for (int spins = 1;; ++spins) {
        if (has_news(thread, seen)) {
            seen = epoch_of(ranges_[static_cast<size_t>(thread)].word.load(std::memory_order_acquire));
            if (thread >= active_.load(std::memory_order_relaxed)) continue;
            int index, mine = 0;
            for (; claim(thread, &index); ++mine) invoke_(task_, index, thread);
            if (mine) {
                done_.fetch_add(mine, std::memory_order_seq_cst);
                if (caller_sleeps_.load(std::memory_order_seq_cst)) {
                    { std::lock_guard<std::mutex> lock(mutex_); }
                    finished_.notify_one();
                }
            }
            idle_since_ns = now_ns();
            continue;
        }
        pause();
        if (stopping_.load(std::memory_order_relaxed)) return;
        if (spins % kSpinsPerLook || now_ns() - idle_since_ns < kSpinNs) continue;
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [this, thread, seen] { return stopping_ || has_news(thread, seen); });
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        idle_since_ns = now_ns();
    }
}

}  // namespace tp
