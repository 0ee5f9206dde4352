// What the ISA variants share: argument packs of the ops, the table of kernels, and the scratch memory of a thread.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace ftc {

struct bf16 {
  uint16_t bits;
};

enum DType { kFloat = 0, kBfloat = 1 };
constexpr int64_t kMassBlock = 256;  // tokens of one partial sum of sample
constexpr int kWidestConv = 16;  // taps of causal_conv

enum Activation { kSilu = 0, kGeluTanh = 1, kRelu2 = 2 };
enum Score { kSoftmax = 0, kSigmoid = 1, kSqrtSoftplus = 2 };
enum Isa { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3, kIsaCount = 4 };

struct Linear {
  const void* x; int x_dtype; int64_t x_stride;
  const void* w; int w_dtype; int64_t w_stride;
  const void* bias; int bias_dtype;
  void* out; int out_dtype;
  int64_t rows, outs, ins;
};

struct Experts {
  const void* x; int x_dtype; int64_t x_stride;
  const int32_t* ids; const float* weights;
  const void* gate; int64_t gate_stride;
  const void* up; int64_t up_stride;
  const void* down; int64_t down_stride;
  int w_dtype;
  int64_t base, experts;  // base: bank row of expert 0 of this layer
  int activation; float limit, alpha;
  void* out;
  int64_t rows, top_k, hidden, width;
  const void *gate_bias, *up_bias, *down_bias;  // [experts, width or hidden] of w_dtype, or null
};

struct Attention {
  const void *q, *k, *v; int64_t q_stride, k_stride, v_stride; int dtype;
  void* pool; int pool_dtype; int32_t* state; int64_t layer;
  const int32_t *pages, *offsets, *lengths;
  int64_t sequences, pages_per_sequence, layers, page_tokens, heads, kv_heads, head_dim, value_dim;
  float scale; int64_t window; float softcap;
  const void* sinks; int sinks_dtype;
  void* out;
  int64_t rows;
};

struct CausalConv {
  const void* x; int x_dtype; int64_t x_stride;
  const void* weight; int weight_dtype;
  const void* bias; int bias_dtype;
  void* pool; int pool_dtype; int32_t* state; int64_t layer;
  const int32_t *state_in, *state_out, *offsets;
  int64_t sequences, layers, channels, width; int silu;
  void* out;
};

struct DeltaRule {
  const void *q, *k, *v; int64_t q_stride, k_stride, v_stride; int dtype;
  const float* g; int per_key; const float* beta;
  float* pool; int32_t* state; int64_t layer;
  const int32_t *state_in, *state_out, *offsets;
  int64_t sequences, layers, key_heads, value_heads, key_dim, value_dim;
  float scale; int normalize;
  void* out;
};

struct Route {
  const float* logits; int64_t stride; const float* bias;
  int64_t rows, experts, top_k;
  int score, choose_first; int64_t groups, groups_taken; int group_score, renormalize;
  float epsilon, scale;
  int32_t* ids; float* weights;
};

struct Kernels {
  void (*linear)(const Linear&);
  void (*experts)(const Experts&);
  void (*attention)(const Attention&);
  void (*causal_conv)(const CausalConv&);
  void (*delta_rule)(const DeltaRule&);
  void (*route)(const Route&);
  // Of sample, over a row: the largest; mass = exp((x - top) * inverse_temperature); number and mass of the x >= from;
  // zero mass where x <= cut or mass < least. Masses are summed by blocks of kMassBlock into sums.
  float (*row_max)(const float* x, int64_t count);
  void (*row_mass)(const float* x, float* mass, int64_t count, float top, float inverse_temperature, double* sums);
  void (*row_above)(const float* x, const float* mass, int64_t count, float from, int64_t* number, double* total);
  void (*row_keep)(const float* x, float* mass, int64_t count, float cut, float least, double* sums);
};

extern const Kernels scalar_kernels, avx2_kernels, avx512_kernels, avx512_bf16_kernels;

const Kernels& kernels();
int threads();

// Grow-only 64-byte aligned memory of the calling thread, one piece per place; the content does not survive a call.
enum Place { kShared = 0, kShared2, kShared3, kShared4, kOwn, kOwn2, kOwn3, kOwn4, kPlaces };
void* scratch(Place place, size_t bytes);

template <class T>
T* scratch_of(Place place, size_t count) {
  return static_cast<T*>(scratch(place, count * sizeof(T)));
}

}  // namespace ftc
