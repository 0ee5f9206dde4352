// The kernels for x86-64 with AVX-512 F, BW, VL, DQ.
#include <math.h>
#include <string.h>

#include <atomic>
#include <type_traits>

#include "kernels.h"
#if defined(__x86_64__)
#include <immintrin.h>
// To the end of the file, so that templates instantiated there have the target too.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")
#endif
#define FTC_ISA 2

namespace ftc {
namespace avx512 {
#include "ops.h"
}  // namespace avx512
const Kernels avx512_kernels = avx512::table;
}  // namespace ftc
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
