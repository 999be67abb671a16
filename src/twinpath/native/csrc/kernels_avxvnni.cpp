// AVX2 kernels with the 256-bit VNNI instructions of processors that lack AVX-512 (Intel since Alder Lake, Zen 5 mobile). Built
// with AVX2's flags: the one more that it needs is switched on here, where the compiler knows it.
#include "kernels.h"

#if defined(__clang__) && __clang_major__ >= 12
#pragma clang attribute push(__attribute__((target("avxvnni"))), apply_to = function)
#define TP_AVX_VNNI 1
#elif defined(__GNUC__) && __GNUC__ >= 11
#pragma GCC push_options
#pragma GCC target("avxvnni")
#define TP_AVX_VNNI 1
#endif

#if defined(TP_AVX_VNNI)

#include <immintrin.h>

namespace tp {
namespace {

#include "vec_avx2.h"
#include "quant_avx2.h"
#include "kernels_impl.h"

constexpr Kernels kTable = TP_KERNEL_TABLE("avxvnni");

}  // namespace
}  // namespace tp

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace tp {
const Kernels* kernels_avxvnni() { return &kTable; }
}  // namespace tp

#else

namespace tp {
const Kernels* kernels_avxvnni() { return nullptr; }
}  // namespace tp

#endif
