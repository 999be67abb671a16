// The thread governor against a simulated machine of two cores: `governor SCENARIO` prints the share of steps run with all threads
// and the mean step, in percent and microseconds.
#include "governor.h"

#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
    const char* scenario = argc > 1 ? argv[1] : "";
    const auto is = [scenario](const char* name) { return !std::strcmp(scenario, name); };
    tp::Governor governor;
    int active = 2, full = 0;
    int64_t now_ns = 0;
    bool shares_core = is("shared");  // a busy process has the caller's core, not the worker's
    constexpr int kSteps = 4000;
    for (int step = 0; step < kSteps; ++step) {
        const bool contended = is("busy") || is("shared") || ((is("passing") || is("looking") || is("prompts")) && step < kSteps / 2);
        const int rows = is("mixed") ? 1 + step % 2 : 1;
        // Idle: two threads 2.5 ms, one 4.3. Beside a busy process two threads lose a time slice now and then.
        int64_t step_ns = active == 2 ? 2'500'000 : 4'300'000, lost_ns = 0, stolen_ns = 0;
        if (contended && active == 2 && step % 3) step_ns = 9'000'000, lost_ns = 4'000'000;
        if (contended && active == 1 && shares_core) step_ns = 8'600'000, stolen_ns = 4'300'000;
        if (is("jitter") && active == 2) step_ns = 3'200'000, lost_ns = 700'000;
        now_ns += step_ns;
        full += active == 2;
        active = governor.next(active, 2, now_ns, rows, step_ns, lost_ns + stolen_ns);
        if (active < 1 || active > 2) return 1;
        if (governor.should_move(active, 2, now_ns, step_ns, stolen_ns)) shares_core = false;
        if (is("prompts") && step % 50 == 0) active = governor.after_long(active, 2, 80'000'000, contended ? 20'000'000 : 0);
        if (is("looking") && governor.should_look(active, 2, now_ns) && !contended) governor.retry();
    }
    std::printf("%d %lld\n", full * 100 / kSteps, static_cast<long long>(now_ns / kSteps / 1000));
    return 0;
}
