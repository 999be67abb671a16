// Which kernels this machine runs.
#include <cstring>

#include "kernels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tp {

#ifndef TP_HAVE_AVX2
const Kernels* kernels_avx2() { return nullptr; }
#endif
#ifndef TP_HAVE_AVXVNNI
const Kernels* kernels_avxvnni() { return nullptr; }
#endif
#ifndef TP_HAVE_AVX512VNNI
const Kernels* kernels_avx512vnni() { return nullptr; }
#endif
#ifndef TP_HAVE_NEON
const Kernels* kernels_neon() { return nullptr; }
#endif

namespace {

#if defined(__x86_64__)
// Compilers learnt the names of F16C (clang 14 does not know it) and AVX-VNNI late: the processor itself is asked.
bool has_avx2() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
bool has_avxvnni() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return has_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
}
bool has_avx512vnni() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
#else
bool has_avx2() { return false; }
bool has_avxvnni() {  // asked of the processor itself: compilers learnt the name late
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return has_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
}
bool has_avxvnni() { return false; }
bool has_avx512vnni() { return false; }
#endif

bool has_neon() {
#if defined(__aarch64__) && defined(__linux__)
    return (getauxval(AT_HWCAP) & (1UL << 20)) != 0;  // HWCAP_ASIMDDP: the dot product instructions
#elif defined(__aarch64__)
    return true;  // every Apple processor has them
#else
    return false;
#endif
}

}  // namespace

const Kernels* choose_kernels(const char* name) {
    const struct {
        const Kernels* kernels;
        bool usable;
    } sets[] = {
        {kernels_avx512vnni(), has_avx512vnni()}, {kernels_avxvnni(), has_avxvnni()}, {kernels_avx2(), has_avx2()}, {kernels_neon(), has_neon()}, {kernels_portable(), true}};
    for (const auto& set : sets) {
        if (set.kernels && set.usable && (!std::strcmp(name, "auto") || !std::strcmp(name, set.kernels->name))) return set.kernels;
    }
    return nullptr;
}

}  // namespace tp
