#ifndef FTC_H
#define FTC_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* The whole ABI. Pointers are integers (tensor.data_ptr()), strides count elements, dtypes are 0 float32, 1 bfloat16.
   rows_live, ordinal, state: device scalars read by the kernel. Each op returns 0, or 1 when a dtype code is unknown. */
int ftc_isa(void);
int ftc_set_isa(int isa);
int ftc_threads(void);
void ftc_set_threads(int count);

int ftc_linear(uintptr_t x, int x_dtype, int64_t x_stride, uintptr_t w, int w_dtype, int64_t w_stride, uintptr_t bias,
               int bias_dtype, uintptr_t out, int out_dtype, int64_t rows, int64_t outs, int64_t ins,
               uintptr_t rows_live);

int ftc_experts(uintptr_t x, int x_dtype, int64_t x_stride, uintptr_t ids, uintptr_t weights, uintptr_t gate,
                int64_t gate_stride, uintptr_t up, int64_t up_stride, uintptr_t down, int64_t down_stride, int w_dtype,
                uintptr_t ordinal, int64_t experts, int activation, float limit, float alpha, uintptr_t out,
                int64_t rows, int64_t top_k, int64_t hidden, int64_t width, uintptr_t rows_live);

int ftc_attention(uintptr_t q, int64_t q_stride, uintptr_t k, int64_t k_stride, uintptr_t v, int64_t v_stride, int dtype,
                  uintptr_t pool, int pool_dtype, uintptr_t state, uintptr_t ordinal, uintptr_t pages, uintptr_t offsets,
                  uintptr_t lengths, int64_t sequences, int64_t pages_per_sequence, int64_t layers, int64_t page_tokens,
                  int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t value_dim, float scale, int64_t window,
                  float softcap, uintptr_t sinks, int sinks_dtype, uintptr_t out, int64_t rows);

int ftc_causal_conv(uintptr_t x, int x_dtype, int64_t x_stride, uintptr_t weight, int weight_dtype, uintptr_t bias,
                    int bias_dtype, uintptr_t pool, int pool_dtype, uintptr_t state, uintptr_t ordinal,
                    uintptr_t state_in, uintptr_t state_out, uintptr_t offsets, int64_t sequences, int64_t layers,
                    int64_t channels, int64_t width, int silu, uintptr_t out);

int ftc_delta_rule(uintptr_t q, int64_t q_stride, uintptr_t k, int64_t k_stride, uintptr_t v, int64_t v_stride,
                   int dtype, uintptr_t g, int per_key, uintptr_t beta, uintptr_t pool, uintptr_t state,
                   uintptr_t ordinal, uintptr_t state_in, uintptr_t state_out, uintptr_t offsets, int64_t sequences,
                   int64_t layers, int64_t key_heads, int64_t value_heads, int64_t key_dim, int64_t value_dim,
                   float scale, int normalize, uintptr_t out);

int ftc_route(uintptr_t logits, int64_t logits_stride, uintptr_t bias, int64_t rows, int64_t experts, int64_t top_k,
              int score, int choose_first, int64_t groups, int64_t groups_taken, int group_score, int renormalize,
              float epsilon, float scale, uintptr_t ids, uintptr_t weights, uintptr_t rows_live);

int ftc_sample(uintptr_t logits, int64_t sequences, int64_t vocab, uintptr_t mask, uintptr_t forced,
               uintptr_t temperature, uintptr_t top_k, uintptr_t top_p, uintptr_t min_p, uintptr_t presence,
               uintptr_t frequency, uintptr_t repetition, uintptr_t seed, uintptr_t position, uintptr_t counts,
               uintptr_t seen, uintptr_t tokens);

double ftc_read_bandwidth(int64_t bytes, double seconds);
#ifdef __cplusplus
}
#endif
#endif
