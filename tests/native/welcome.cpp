// `Welcome` against simulated neighbours: `welcome SCENARIO` prints in percent how much of 60 s the thread was left out, and how
// much it stood still with what it holds.
#include "welcome.h"

#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
    const char* scenario = argc > 1 ? argv[1] : "";
    const auto is = [scenario](const char* name) { return !std::strcmp(scenario, name); };
    tp::Welcome welcome;
    constexpr int64_t kMs = 1'000'000, kEnd = 60'000 * kMs;
    int64_t now = 0, out = 0, still = 0;
    while (now < kEnd) {
        if (welcome.is_out(now)) {
            out += 5 * kMs;
            now += 5 * kMs;
            continue;
        }
        // Beside a decode step it runs 5 ms, or waits for a second for its first millisecond of a processor.
        const bool starves = is("busy") || (is("passing") && now < kEnd / 2);
        const int64_t had = starves ? 1000 * kMs : 5 * kMs;
        const int64_t ran = starves ? 1 * kMs : is("gateway") ? 3 * kMs : 5 * kMs;
        if (starves) still += had;
        now += had;
        welcome.note(now, had, ran);
    }
    std::printf("%lld %lld\n", static_cast<long long>(out * 100 / now), static_cast<long long>(still * 100 / now));
    return 0;
}
