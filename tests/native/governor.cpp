// The thread governor against a simulated machine: `governor SCENARIO` prints the share of steps run with all threads, in percent.
#include "governor.h"

#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
    const char* scenario = argc > 1 ? argv[1] : "";
    tp::Governor governor;
    int active = 2, full = 0;
    int64_t now_ns = 0;
    constexpr int kSteps = 4000;
    for (int step = 0; step < kSteps; ++step) {
        const bool contended = !std::strcmp(scenario, "busy") || (!std::strcmp(scenario, "passing") && step < kSteps / 2);
        const int rows = !std::strcmp(scenario, "mixed") ? 1 + step % 2 : 1;
        // Idle: two threads 2.5 ms, one 4.3. Beside a busy process two threads lose a time slice now and then.
        int64_t step_ns = active == 2 ? 2'500'000 : 4'300'000, late_ns = 0;
        if (contended && active == 2 && step % 3) step_ns = 9'000'000, late_ns = 4'000'000;
        if (!std::strcmp(scenario, "jitter") && active == 2) step_ns = 3'200'000, late_ns = 700'000;
        now_ns += step_ns;
        full += active == 2;
        active = governor.next(active, 2, now_ns, rows, step_ns, late_ns);
        if (active < 1 || active > 2) return 1;
    }
    std::printf("%d\n", full * 100 / kSteps);
    return 0;
}
