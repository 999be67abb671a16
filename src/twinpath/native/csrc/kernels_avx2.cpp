// AVX2 kernels (with FMA and F16C): what most laptops and CI machines run.
#include "kernels.h"

#include <immintrin.h>

#define TP_AVX_VNNI 0

namespace tp {
namespace {

#include "vec_avx2.h"
#include "quant_avx2.h"
#include "kernels_impl.h"

constexpr Kernels kTable = TP_KERNEL_TABLE("avx2");

}  // namespace

const Kernels* kernels_avx2() { return &kTable; }

}  // namespace tp
