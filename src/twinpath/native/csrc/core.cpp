#include "core.h"

#include <time.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace tp {

int64_t thread_cpu_ns() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

void leave_this_core() {
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;  // more processors than the set holds
    const int here = sched_getcpu();
    if (here < 0 || !CPU_ISSET(static_cast<size_t>(here), &allowed) || CPU_COUNT(&allowed) < 2) return;
    cpu_set_t others = allowed;
    CPU_CLR(static_cast<size_t>(here), &others);
    if (sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
#endif
}

int keep_off_this_core(std::thread& thread, int before) {
#if defined(__linux__)
    const int here = sched_getcpu();
    cpu_set_t allowed;
    if (here < 0 || here == before || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return before;
    CPU_CLR(static_cast<size_t>(here), &allowed);
    if (CPU_COUNT(&allowed)) pthread_setaffinity_np(thread.native_handle(), sizeof allowed, &allowed);
    return here;
#else
    (void)thread;
    return before;
#endif
}

void call_here(std::thread& thread) {
#if defined(__linux__)
    const int here = sched_getcpu();
    if (here < 0 || here >= CPU_SETSIZE) return;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(static_cast<size_t>(here), &only);
    pthread_setaffinity_np(thread.native_handle(), sizeof only, &only);
#else
    (void)thread;
#endif
}

void rest_only() {
#if defined(SCHED_IDLE)
    const sched_param none{};
    sched_setscheduler(0, SCHED_IDLE, &none);
#endif
}

namespace {

// Idle ticks of the allowed processors since the machine started, -1: unknown.
int64_t idle_ticks() {
#if defined(__linux__)
    cpu_set_t allowed;
    std::FILE* file = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? std::fopen("/proc/stat", "re") : nullptr;
    if (!file) return -1;
    int64_t sum = 0;
    char line[512];
    // "cpuN user nice system idle iowait ...", after one line for all.
    while (std::fgets(line, sizeof line, file) && line[0] == 'c') {
        unsigned cpu = 0;
        int64_t idle = 0, waiting = 0;
        const int found = std::sscanf(line, "cpu%u %*d %*d %*d %" SCNd64 " %" SCNd64, &cpu, &idle, &waiting);
        if (found == 3 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)) sum += idle + waiting;
    }
    std::fclose(file);
    return sum;
#else
    return -1;
#endif
}

}  // namespace

double IdleCores::look(int64_t now_ns) {
    const int64_t ticks = idle_ticks(), before = idle_ticks_, elapsed_ns = now_ns - looked_ns_;
    idle_ticks_ = ticks;
    looked_ns_ = now_ns;
    if (ticks < 0 || before <= 0 || elapsed_ns <= 0 || elapsed_ns > 1'000'000'000) return 0;
    const double tick_ns = 1e9 / static_cast<double>(sysconf(_SC_CLK_TCK));
    return static_cast<double>(ticks - before) * tick_ns / static_cast<double>(elapsed_ns);
}

}  // namespace tp
