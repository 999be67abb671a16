// `leave_this_core` on this machine: prints how often the thread ran elsewhere afterwards, of 20 times; exit code 1 when the
// processors it may use have changed.
#include "core.h"

#include <sched.h>

#include <cstdio>

int main() {
    cpu_set_t before, after;
    sched_getaffinity(0, sizeof before, &before);
    int moved = 0;
    for (int i = 0; i < 20; ++i) {
        const int here = sched_getcpu();
        tp::leave_this_core();
        moved += sched_getcpu() != here;
    }
    sched_getaffinity(0, sizeof after, &after);
    std::printf("%d\n", moved);
    return CPU_EQUAL(&before, &after) ? 0 : 1;
}
