#ifndef FTC_H
#define FTC_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* The whole ABI. Pointers are integers (tensor.data_ptr()), strides count elements, dtypes are 0 float32, 1 bfloat16.
   rows_live, ordinal, state: device scalars read by the kernel. Each op returns 0, or 1 for a dtype code or size that it
   does not know. */
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
                int64_t rows, int64_t top_k, int64_t hidden, int64_t width, uintptr_t rows_live,
                uintptr_t gate_bias, uintptr_t up_bias, uintptr_t down_bias);

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

/* A tape replays recorded calls. Slots are 8 bytes each, int64 or double as ftc_tape_kinds(name) says ("i", "f"), null for
   an unknown name. ftc_tape_op adds an op of this library, ftc_tape_kernel a void function of pointers; both return 1
   where that cannot be. ftc_tape_run returns 0, or 1 + the number of the call that failed. */
uintptr_t ftc_tape_new(void);
void ftc_tape_free(uintptr_t tape);
const char* ftc_tape_kinds(const char* name);
int ftc_tape_op(uintptr_t tape, const char* name, const void* slots, int count);
int ftc_tape_kernel(uintptr_t tape, uintptr_t function, const void* slots, int count);
int64_t ftc_tape_run(uintptr_t tape);

/* A worker is a thread that answers questions from a mailbox in pinned memory: note int32 [8] is ordinal, rows, top_k, routes
   for the CPU, number asked, number answered, number given up; x float32 [rows, hidden], ids int32 [routes] (-1: not for the
   CPU), out float32 [routes, hidden]. It spins while active and sleeps otherwise. ftc_worker_new returns when its threads run
   and its memory is there, after calls on the bank's first layer. ftc_worker_times copies the last `most` answers as (routes,
   nanoseconds) pairs, oldest first, and returns how many there were since the last call. */
uintptr_t ftc_worker_new(uintptr_t x, uintptr_t ids, uintptr_t out, uintptr_t note, uintptr_t gate, int64_t gate_stride,
                         uintptr_t up, int64_t up_stride, uintptr_t down, int64_t down_stride, int w_dtype, int64_t experts,
                         int activation, float limit, float alpha, int64_t hidden, int64_t width, int64_t most_routes);
void ftc_worker_active(uintptr_t worker, int active);
int64_t ftc_worker_times(uintptr_t worker, int64_t* pairs, int64_t most);
void ftc_worker_free(uintptr_t worker);

double ftc_read_bandwidth(int64_t bytes, double seconds);
#ifdef __cplusplus
}
#endif
#endif
