// The processor that the calling thread runs on.
#pragma once

#include <cstdint>
#include <thread>

namespace tp {

// Processor time of the calling thread.
int64_t thread_cpu_ns();

// Moves the calling thread to another of the processors it may use, and lets the system decide again from there. Beside a busy
// process the system takes 0.1 s and more to use an idle processor. Does nothing where there is no other or no way to ask.
void leave_this_core();

// Keeps `thread` off the processor that the caller runs on, which is `before` when nothing is to be done; returns that processor.
int keep_off_this_core(std::thread& thread, int before);

// Puts `thread` on the processor that the caller runs on, and keeps it there.
void call_here(std::thread& thread);

// From now on the calling thread, and those it starts, only run where nobody else wants to, and give way at once. For good: an
// ordinary process may not take it back.
void rest_only();

// How much of the processors that this thread may use stood idle.
class IdleCores {
public:
    // Processors' worth of idle time since the last call; 0 at the first, after a second without one, and where nobody tells.
    double look(int64_t now_ns);

private:
    int64_t looked_ns_ = 0;
    int64_t idle_ticks_ = 0;
};

}  // namespace tp
