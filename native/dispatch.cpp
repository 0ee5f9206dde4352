// The C ABI: picks the kernels of this CPU, holds thread count and scratch memory, and turns integers into arguments.
#include "ftc.h"

#include <omp.h>
#include <sched.h>
#include <stdlib.h>

#include <atomic>
#include <new>

#include "kernels.h"

namespace ftc {
namespace {

bool supported(int isa) {
  if (isa == kScalar) return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (isa == kAvx2) return avx2;
  if (isa == kAvx512) return avx512;
  if (isa == kAvx512Bf16) return avx512 && __builtin_cpu_supports("avx512bf16");
#endif
  return false;
}

int best_isa() {
  int isa = kIsaCount - 1;
  while (!supported(isa)) isa--;
  return isa;
}

int allowed_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set)) return 1;
  return CPU_COUNT(&set);
}

std::atomic<int> current_isa{best_isa()};
std::atomic<int> thread_count{allowed_cpus()};

struct Memory {
  void* data = nullptr;
  size_t size = 0;
  ~Memory() { free(data); }
};
thread_local Memory memory[kPlaces];

int32_t scalar_at(uintptr_t p) { return *reinterpret_cast<const int32_t*>(p); }
int64_t live_rows(int64_t rows, uintptr_t live) {
  if (!live) return rows;
  int64_t count = scalar_at(live);
  return count < 0 ? 0 : count < rows ? count : rows;
}
bool known(int dtype) { return dtype == kFloat || dtype == kBfloat; }

template <class T = void>
T* at(uintptr_t p) {
  return reinterpret_cast<T*>(p);
}

}  // namespace

const Kernels& kernels() {
#if defined(__x86_64__)
  static const Kernels* const all[] = {&scalar_kernels, &avx2_kernels, &avx512_kernels, &avx512_bf16_kernels};
  return *all[current_isa.load(std::memory_order_relaxed)];
#else
  return scalar_kernels;
#endif
}

int threads() { return thread_count.load(std::memory_order_relaxed); }

void* scratch(Place place, size_t bytes) {
  Memory& m = memory[place];
  if (m.size < bytes) {
    free(m.data);
    m.size = (bytes + bytes / 4 + 4095) & ~size_t(4095);
    m.data = aligned_alloc(4096, m.size);
    if (!m.data) abort();
  }
  return m.data;
}

}  // namespace ftc

using namespace ftc;

#define FTC_API __attribute__((visibility("default")))

FTC_API int ftc_isa(void) { return current_isa.load(); }
FTC_API int ftc_set_isa(int isa) {
  if (isa < 0 || isa >= kIsaCount || !supported(isa)) return 1;
  current_isa.store(isa);
  return 0;
}
FTC_API int ftc_threads(void) { return threads(); }
FTC_API void ftc_set_threads(int count) { thread_count.store(count < 1 ? 1 : count); }

FTC_API int ftc_linear(uintptr_t x, int x_dtype, int64_t x_stride, uintptr_t w, int w_dtype, int64_t w_stride,
                       uintptr_t bias, int bias_dtype, uintptr_t out, int out_dtype, int64_t rows, int64_t outs,
                       int64_t ins, uintptr_t rows_live) {
  if (!known(x_dtype) || !known(w_dtype) || !known(out_dtype) || !known(bias_dtype)) return 1;
  kernels().linear({at(x), x_dtype, x_stride, at(w), w_dtype, w_stride, at(bias), bias_dtype, at(out), out_dtype,
                    live_rows(rows, rows_live), outs, ins});
  return 0;
}

FTC_API int ftc_experts(uintptr_t x, int x_dtype, int64_t x_stride, uintptr_t ids, uintptr_t weights, uintptr_t gate,
                        int64_t gate_stride, uintptr_t up, int64_t up_stride, uintptr_t down, int64_t down_stride,
                        int w_dtype, uintptr_t ordinal, int64_t experts, int activation, float limit, float alpha,
                        uintptr_t out, int64_t rows, int64_t top_k, int64_t hidden, int64_t width,
                        uintptr_t rows_live, uintptr_t gate_bias, uintptr_t up_bias, uintptr_t down_bias) {
  if (!known(x_dtype) || !known(w_dtype)) return 1;
  kernels().experts({at(x), x_dtype, x_stride, at<int32_t>(ids), at<float>(weights), at(gate), gate_stride, at(up),
                     up_stride, at(down), down_stride, w_dtype, scalar_at(ordinal) * experts, experts, activation,
                     limit, alpha, at(out), live_rows(rows, rows_live), top_k, hidden, width, at(gate_bias),
                     at(up_bias), at(down_bias)});
  return 0;
}

FTC_API int ftc_attention(uintptr_t q, int64_t q_stride, uintptr_t k, int64_t k_stride, uintptr_t v, int64_t v_stride,
                          int dtype, uintptr_t pool, int pool_dtype, uintptr_t state, uintptr_t ordinal,
                          uintptr_t pages, uintptr_t offsets, uintptr_t lengths, int64_t sequences,
                          int64_t pages_per_sequence, int64_t layers, int64_t page_tokens, int64_t heads,
                          int64_t kv_heads, int64_t head_dim, int64_t value_dim, float scale, int64_t window,
                          float softcap, uintptr_t sinks, int sinks_dtype, uintptr_t out, int64_t rows) {
  if (!known(dtype) || !known(pool_dtype) || !known(sinks_dtype)) return 1;
  kernels().attention({at(q), at(k), at(v), q_stride, k_stride, v_stride, dtype, at(pool), pool_dtype,
                       at<int32_t>(state), scalar_at(ordinal), at<int32_t>(pages), at<int32_t>(offsets),
                       at<int32_t>(lengths), sequences, pages_per_sequence, layers, page_tokens, heads, kv_heads,
                       head_dim, value_dim, scale, window, softcap, at(sinks), sinks_dtype, at(out), rows});
  return 0;
}

FTC_API int ftc_causal_conv(uintptr_t x, int x_dtype, int64_t x_stride, uintptr_t weight, int weight_dtype,
                            uintptr_t bias, int bias_dtype, uintptr_t pool, int pool_dtype, uintptr_t state,
                            uintptr_t ordinal, uintptr_t state_in, uintptr_t state_out, uintptr_t offsets,
                            int64_t sequences, int64_t layers, int64_t channels, int64_t width, int silu,
                            uintptr_t out) {
  if (!known(x_dtype) || !known(weight_dtype) || !known(bias_dtype) || !known(pool_dtype) || width > kWidestConv)
    return 1;
  kernels().causal_conv({at(x), x_dtype, x_stride, at(weight), weight_dtype, at(bias), bias_dtype, at(pool),
                         pool_dtype, at<int32_t>(state), scalar_at(ordinal), at<int32_t>(state_in),
                         at<int32_t>(state_out), at<int32_t>(offsets), sequences, layers, channels, width, silu,
                         at(out)});
  return 0;
}

FTC_API int ftc_delta_rule(uintptr_t q, int64_t q_stride, uintptr_t k, int64_t k_stride, uintptr_t v, int64_t v_stride,
                           int dtype, uintptr_t g, int per_key, uintptr_t beta, uintptr_t pool, uintptr_t state,
                           uintptr_t ordinal, uintptr_t state_in, uintptr_t state_out, uintptr_t offsets,
                           int64_t sequences, int64_t layers, int64_t key_heads, int64_t value_heads, int64_t key_dim,
                           int64_t value_dim, float scale, int normalize, uintptr_t out) {
  if (!known(dtype)) return 1;
  kernels().delta_rule({at(q), at(k), at(v), q_stride, k_stride, v_stride, dtype, at<float>(g), per_key,
                        at<float>(beta), at<float>(pool), at<int32_t>(state), scalar_at(ordinal),
                        at<int32_t>(state_in), at<int32_t>(state_out), at<int32_t>(offsets), sequences, layers,
                        key_heads, value_heads, key_dim, value_dim, scale, normalize, at(out)});
  return 0;
}

FTC_API int ftc_route(uintptr_t logits, int64_t logits_stride, uintptr_t bias, int64_t rows, int64_t experts,
                      int64_t top_k, int score, int choose_first, int64_t groups, int64_t groups_taken,
                      int group_score, int renormalize, float epsilon, float scale, uintptr_t ids, uintptr_t weights,
                      uintptr_t rows_live) {
  kernels().route({at<float>(logits), logits_stride, at<float>(bias), live_rows(rows, rows_live), experts, top_k, score,
                   choose_first, groups, groups_taken, group_score, renormalize, epsilon, scale, at<int32_t>(ids),
                   at<float>(weights)});
  return 0;
}
