// The kernels for x86-64 with AVX-512 and its bfloat16 dot product.
#include <math.h>
#include <string.h>

#include <atomic>
#include <type_traits>

#include "kernels.h"
#if defined(__x86_64__)
#include <immintrin.h>
// To the end of the file, so that templates instantiated there have the target too.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#endif
#define FTC_ISA 3

namespace ftc {
namespace avx512_bf16 {
#include "ops.h"
}  // namespace avx512_bf16
const Kernels avx512_bf16_kernels = avx512_bf16::table;
}  // namespace ftc
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
