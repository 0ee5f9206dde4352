// The kernels for x86-64 with AVX2 and FMA.
#include <math.h>
#include <string.h>

#include <atomic>
#include <type_traits>

#include "kernels.h"
#if defined(__x86_64__)
#include <immintrin.h>
// To the end of the file, so that templates instantiated there have the target too.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define FTC_ISA 1

namespace ftc {
namespace avx2 {
#include "ops.h"
}  // namespace avx2
const Kernels avx2_kernels = avx2::table;
}  // namespace ftc
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
